// A software RDMA device behind the interface of libibverbs: unreliable datagrams over UDP sockets of the host.
//
// The objects derive from the public structures of <infiniband/verbs.h>. All objects of one context share its mutex.
// The provider has no threads here: a packet leaves in the call that posts it, and arrives in the receiver's next call
// that polls, posts, arms or waits. If devices behave differently, the provider has the behaviour that is hardest on
// programs:
//  - queues are exactly as long as requested, and a send slot is free only after a later completion has been polled;
//  - only wr_id, status, vendor_err and qp_num of a failed completion are valid;
//  - arming raises no event for completions that already exist.
#pragma once

#include <infiniband/verbs.h>
#include <netinet/in.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "control.h"
#include "inbox.h"

// Macros that replace functions which are defined here.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#define SOFTWARE_VERBS_EXPORT extern "C" [[gnu::visibility("default")]]

namespace software_verbs {

inline constexpr int kDevices = 2;  ///< soft0 and soft1; after them mlx5_0 ... over network interfaces
inline constexpr int kDevicesMax = 2 + 8;
inline constexpr uint8_t kPort = 1;
inline constexpr int kGidTableEntries = 8;
inline constexpr int kInterfaceGidEntries = 64;  ///< for an mlx5 device
inline constexpr size_t kGrhBytes = 40;
inline constexpr size_t kPayloadMax = 4096;
inline constexpr uint32_t kSgesMax = 32;

/// The settings of one device in the environment variable SOFTWARE_VERBS: KEY=VALUE, separated by commas; softN.KEY
/// sets a key for one device.
struct Settings {
  int devices = kDevices;        ///< devices=N; -1: the kernel has no RDMA support
  bool is_infiniband = false;    ///< link=infiniband
  bool has_ud = true;            ///< ud=0
  bool is_leak_checked = false;  ///< leak_check=1: a process that leaves objects behind exits with code 97
  bool ends_on_send_error =
      false;  ///< send_error=err: a failed send moves the queue pair to ERR, as Soft-RoCE; else SQE
  ibv_port_state port_state = IBV_PORT_ACTIVE;  ///< port=down or init
  uint32_t mtu = kPayloadMax;                   ///< mtu=256, 512, 1024, 2048 or 4096 bytes
  uint32_t path_mtu = kPayloadMax;              ///< path_mtu=BYTES that a switch forwards; longer packets are lost
  uint32_t max_inline = 256;
  uint32_t max_sge = 16;  ///< at most kSgesMax
  uint32_t max_qp_wr = 16384;
  uint32_t max_cqe = 65536;
  uint32_t max_ah = 65536;
  uint64_t memlock = UINT64_MAX;         ///< memlock=BYTES that a process may register
  int open_error = 0;                    ///< open_error=ERRNO of ibv_open_device()
  in_addr address{};                     ///< address=A.B.C.D; 127.0.0.1 and 127.0.0.2
  uint64_t subnet = 0xfe80000000000000;  ///< subnet=PREFIX of the GIDs of InfiniBand, 64 bits
  std::vector<uint16_t> pkeys;           ///< pkeys=ffff:8001, hexadecimal; InfiniBand only

  // For an mlx5 device:
  std::string interface;              ///< its part of mlx5=IFNAME:IFNAME
  bool has_direct_verbs = true;       ///< dv=0: mlx5dv_is_supported() is false
  bool may_send_raw = true;           ///< raw=0: EPERM for raw packet queue pairs and flows, as without CAP_NET_RAW
  bool has_flows = true;              ///< flows=0
  bool has_strides = true;            ///< striding=0
  bool has_send_checksums = true;     ///< ip_csum=0
  bool has_receive_checksums = true;  ///< rx_csum=0: completions never report a right checksum
  uint32_t entry_bytes = 64;          ///< cqe_size=64 or 128
};
Settings read_settings(int device);

struct Device : ibv_device {
  int index = 0;
  Settings settings;                     ///< from the last ibv_get_device_list(); read by settings_of()
  std::atomic<int> port_state{-1};       ///< set by a test; -1: use the settings
  std::atomic<uint16_t> lid_change{0};   ///< added to the LID
  std::atomic<uint32_t> gid_address{0};  ///< in the GIDs since a GID_CHANGE, network order; 0: use the settings
};
Device& device(int index);
/// Returns a copy, because another thread may be listing the devices.
Settings settings_of(const ibv_device& device);

struct QueuePair;
struct CompletionQueue;
struct CompletionRing;
struct IndirectionTable;
struct Port;

struct MemoryRegion : ibv_mr {
  unsigned access = 0;
};

struct AddressHandle : ibv_ah {  // ibv_ah::handle is its number in Context::handles
  ibv_ah_attr attr{};
  sockaddr_in destination{};
};

struct CompletionChannel : ibv_comp_channel {  // fd: an epoll set of `ready` and of the sockets of armed queues
  int ready = -1;                              ///< a semaphore that counts `events`
  std::mutex events_mutex;                     // locked after all other mutexes
  std::deque<CompletionQueue*> events;         ///< guarded by events_mutex
  std::vector<CompletionQueue*> queues;
};

struct Completion {
  ibv_wc wc;
  QueuePair* queue_pair;
  uint64_t position;  ///< in the send or the receive queue
  bool is_send;
};

enum class Armed : uint8_t { kNo, kSolicited, kNext };

struct CompletionQueue : ibv_cq {
  std::array<std::byte, sizeof(ibv_cq_ex) - sizeof(ibv_cq)> extension{};  ///< the rest of an ibv_cq_ex, unused
  std::deque<Completion> entries;
  std::vector<QueuePair*> receivers;  ///< the queue pairs that receive into this queue
  std::vector<QueuePair*> senders;
  Armed armed = Armed::kNo;
  bool is_dead = false;
  std::unique_ptr<CompletionRing> ring;  ///< for an mlx5 device
  uint32_t events_reported = 0;          ///< number of completion events that the program has taken
  uint32_t async_events_reported = 0;
};

struct SendRequest {
  uint64_t wr_id = 0;
  uint32_t handle = 0;  ///< handle of the address handle
  uint32_t remote_qpn = 0;
  uint32_t remote_qkey = 0;
  uint32_t immediate = 0;
  bool has_immediate = false;
  bool is_signalled = false;
  bool is_solicited = false;
  bool is_inline = false;
  bool has_checksums = false;  ///< IBV_SEND_IP_CSUM
  bool is_executed = false;    ///< the packet has left, or the request failed; the completion is not written yet
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint64_t checksum = 0;  ///< checksum of the payload that left
  sockaddr_in destination{};
  ibv_ah_attr attr{};
  uint32_t sge_count = 0;
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inline_bytes;
};

struct ReceiveRequest {
  uint64_t wr_id = 0;
  uint32_t sge_count = 0;
  std::vector<ibv_sge> sges;
};

/// Positions grow without limit: tail <= done <= head <= tail + capacity.
template <class Request>
struct WorkQueue {
  std::vector<Request> slots;  ///< their number is a power of two, at least `capacity`
  uint64_t capacity = 0;
  uint64_t head = 0;  ///< the next request that will be posted
  uint64_t done = 0;  ///< the oldest request without a completion
  uint64_t tail = 0;  ///< the oldest request that still uses its slot

  void create(uint32_t requests, uint32_t sges) {
    capacity = requests;
    slots.resize(std::bit_ceil(capacity));
    for (Request& request : slots) request.sges.resize(sges);
  }
  Request& at(uint64_t position) { return slots[position & (slots.size() - 1)]; }
  bool is_full() const { return head - tail == capacity; }
  bool has_pending() const { return done != head; }
};

struct QueuePair : ibv_qp {
  int socket = -1;
  std::shared_ptr<Inbox> inbox;
  uint32_t polls = 0;
  ibv_qp_init_attr init{};
  bool signals_all = false;
  uint32_t qkey = 0;
  uint32_t sq_psn = 0;
  uint16_t pkey_index = 0;
  WorkQueue<SendRequest> sends;
  WorkQueue<ReceiveRequest> receives;
  IndirectionTable* table = nullptr;  ///< a raw packet queue pair has either a table or sends
  uint32_t flows = 0;
  uint32_t async_events_reported = 0;
};

struct Context : verbs_context {
  Device* device = nullptr;
  Settings settings;
  std::mutex mutex;                                     ///< guards all members below and all objects of the context
  std::unordered_map<uint32_t, MemoryRegion*> regions;  ///< by lkey; changed with the network's mutex also held
  std::unordered_set<uint32_t> handles;                 ///< live address handles
  uint32_t last_handle = 0;
  uint32_t last_key = 0;
  std::vector<QueuePair*> queue_pairs;
  std::deque<ibv_async_event> async_events;  ///< async_fd is a semaphore that counts them
  std::atomic<bool> is_dead{false};          ///< after IBV_EVENT_DEVICE_FATAL
  pid_t process = 0;                         ///< the process that opened the device
  std::atomic<uint32_t> objects{0};          ///< number of live objects
  std::vector<std::byte> arrivals;           ///< datagrams on their way to receive buffers
  uint64_t bad_qkeys = 0;
  uint64_t bad_pkeys = 0;
  std::unique_ptr<Port> port;  ///< for an mlx5 device

  ibv_port_state port_state() const;
  uint16_t lid() const;
  int gid_entries() const;
  /// True if a test has taken the port down. Does not check the interface.
  bool is_port_taken_down() const;
};

template <class Object>
Context& context_of(const Object* object) {
  return static_cast<Context&>(*verbs_get_ctx(object->context));
}
inline Context& context_of(ibv_context* context) { return static_cast<Context&>(*verbs_get_ctx(context)); }

// devices.cc
/// The GID at an index of the table, and its type. Returns false if the entry is empty or does not exist.
bool find_gid(const Context& context, int index, ibv_gid* gid, ibv_gid_type* type);
uint16_t find_pkey(const Settings& settings, int index);
/// Finds the address of a packet's destination port. Returns false if the address is not on this network.
bool resolve(const Context& context, const ibv_ah_attr& attr, in_addr* address);
/// Ends the process if it is a forked child of the process that opened the device. A destroying call in the child would
/// destroy the parent's object, because they share the descriptor.
void check_process(const Context& context);
/// Calls `visit` for each open context of a device (-1: of all devices), without the context's mutex.
void for_each_context(int device, void (*visit)(Context& context, void* argument), void* argument);

// memory.cc
/// Marks a domain as used. A domain with users cannot be deallocated.
void use_domain(ibv_pd* domain);
void leave_domain(ibv_pd* domain);
/// True if [address, address + length) is within the region of the key, and the region belongs to the domain and has
/// the rights.
bool may_access(const Context& context, const ibv_pd* domain, const ibv_sge& sge, unsigned access);

// completions.cc
/// Returns null and sets errno on an error.
CompletionQueue* create_completion_queue(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                                         int comp_vector);
// The context's mutex must be held for the following functions:
void complete(CompletionQueue& queue, const Completion& completion, bool is_solicited);
void remove_completions(CompletionQueue& queue, const QueuePair& queue_pair);
void overflow(CompletionQueue& queue);
/// While a queue is armed, its channel's descriptor is readable if one of its queue pairs has a packet.
void watch(CompletionQueue& queue, const QueuePair& receiver);
void unwatch(CompletionQueue& queue, const QueuePair& receiver);
void raise_async(Context& context, const ibv_async_event& event);
/// Signals on the queue's channel that the program must poll the queue.
void raise_completion_event(CompletionQueue& queue);
/// Drops events of an object that the program has not taken. `object` is the address of a queue or queue pair.
void forget_async(Context& context, const void* object);

// queue_pairs.cc and work_requests.cc; the context's mutex must be held.
/// Moves a queue pair to the error state, with flush errors for all posted requests.
void end_queue_pair(QueuePair& queue_pair);
/// Completes up to `limit` sends, oldest first, and first executes those that were not executed.
void complete_sends(QueuePair& queue_pair, uint64_t limit);
void flush(QueuePair& queue_pair, bool with_receives);
/// Completes the oldest receive request with an error, which ends the queue pair.
void fail_receive(QueuePair& queue_pair, ibv_wc_status status);

// wire.cc; the context's mutex must be held.
bool open_socket(QueuePair& queue_pair);
void transmit(QueuePair& queue_pair, SendRequest& request);
uint64_t checksum(const SendRequest& request);
/// Places the arrived packets in the receive buffers of a queue pair, or drops them.
void receive_arrivals(QueuePair& queue_pair);
/// Like receive_arrivals(), but packets of other processes may wait for a later call.
void receive_some(QueuePair& queue_pair);
bool inject_packet(int device, uint32_t qp_num, uint32_t source_qp_num, uint32_t qkey, const void* payload,
                   size_t size);

// The entries of ibv_context_ops. Callgrind excludes functions by this name prefix, so no other function has it.
extern "C" {
int software_verbs_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad_wr);
int software_verbs_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad_wr);
int software_verbs_poll_cq(ibv_cq* cq, int entries, ibv_wc* wc);
int software_verbs_req_notify_cq(ibv_cq* cq, int solicited_only);
}

// control.cc
enum class Verb : uint8_t {
  kGetDeviceList,
  kOpenDevice,
  kQueryDevice,
  kQueryPort,
  kQueryGid,
  kQueryPkey,
  kAllocPd,
  kRegMr,
  kCreateAh,
  kCreateCompChannel,
  kCreateCq,
  kReqNotifyCq,
  kGetCqEvent,
  kPollCq,
  kCreateQp,
  kModifyQp,
  kPostSend,
  kPostRecv,
  kGetAsyncEvent,
  kQueryDeviceEx,
  kCreateCqEx,
  kCreateQpEx,
  kCreateWq,
  kModifyWq,
  kCreateRwqIndTable,
  kCreateFlow,
  kQueryDirect,
  kInitDirect,
  kCount,
};
/// The error that this call must fail with; 0: no error.
int injected_error(Verb verb);
bool is_packet_dropped();
/// The byte of the payload to corrupt; SIZE_MAX: no byte.
size_t corrupted_byte();
void wait_while_blocked();
extern std::atomic<Hold> holding;
extern std::atomic<bool> are_receives_held;

struct Totals {
  std::atomic<uint64_t> send_calls, sends, signalled_sends, inline_sends, receive_calls, receives, packets_sent,
      packets_delivered, oversized_sends, dropped_no_receive, dropped_bad_qkey, dropped_bad_pkey, dropped_other,
      modified_sends, address_handles_gone, completion_queue_overflows, frames_looped, dropped_no_flow,
      dropped_too_long, receive_descriptors, strides_used, fillers, completions_written, completion_events,
      bad_doorbells, registered_bytes, contexts, protection_domains, memory_regions, address_handles,
      completion_channels, completion_queues, queue_pairs, receive_queues, indirection_tables, steering_rules,
      descriptor_bytes, completion_bytes, doorbell_bytes;
};
extern Totals totals;
inline void count(std::atomic<uint64_t>& total, uint64_t by = 1) { total.fetch_add(by, std::memory_order_relaxed); }
inline void uncount(std::atomic<uint64_t>& total, uint64_t by = 1) { total.fetch_sub(by, std::memory_order_relaxed); }

/// The failure of a function that returns a pointer.
inline std::nullptr_t fail(int error) {
  errno = error;
  return nullptr;
}

}  // namespace software_verbs
