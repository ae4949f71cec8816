// A software mlx5: raw packet queue pairs over an AF_PACKET socket, receive work queues of strided descriptors, and
// completion queues that the program reads from memory.
//
// The path of an arriving frame: a thread of the receiver's context reads it from the socket, finds the flows that it
// matches, and places it in the queues of their queue pairs. A frame to the interface's own address is placed by its
// sender's call if a queue of the process takes it. Otherwise it leaves by the socket, and other processes see it
// there.
//
// This code does the work of the kernel and of rdma-core's mlx5. Everything that the public headers define as memory is
// memory: descriptors, doorbell records, completion entries, and the doorbell page. If devices behave differently, the
// provider has the behaviour that is hardest on programs:
//  - arming raises no event for completions that already exist;
//  - a received frame is padded to 60 B if a queue pair sent it.
// Not implemented: hashing over more than one queue, plain receive work queues, completions of receive queues by
// ibv_poll_cq().
#pragma once

#include <infiniband/mlx5dv.h>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "frame.h"
#include "provider.h"

namespace software_verbs {

inline constexpr uint32_t kDescriptorBytes = sizeof(mlx5_mprq_wqe);
inline constexpr uint32_t kDoorbellRecordBytes = 8;

using EntryWords = std::array<uint32_t, sizeof(mlx5_cqe64) / sizeof(uint32_t)>;

/// Zeroed pages that the program and the device share.
class Pages {
 public:
  explicit Pages(size_t bytes);  ///< throws std::bad_alloc
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() { return data_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

/// The memory of a completion queue that the device writes and reads. Guarded by the mutex of the network.
struct CompletionRing {
  CompletionRing(uint32_t entries, uint32_t entry_bytes);
  ~CompletionRing();
  __be32* record() { return reinterpret_cast<__be32*>(doorbells.data()); }
  std::byte* uar() { return doorbells.data() + kDoorbellPageOffset; }

  static constexpr size_t kDoorbellPageOffset = 4096;
  const uint32_t entry_count;
  const uint32_t entry_bytes;
  const uint32_t number;
  Pages entries;
  Pages doorbells;               ///< the doorbell record, and the doorbell page after it, which the program writes
  uint64_t written = 0;          ///< number of completions so far
  uint32_t events = 0;           ///< number of events so far; the sequence number in the doorbell that arms the queue
  std::deque<EntryWords> held;   ///< completions that a test holds back
  uint32_t receive_queues = 0;   ///< receive queues that use this ring; guarded by the context's mutex
  bool ignores_overrun = false;  ///< IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
};

/// Guarded by the mutex of the network, except `tables`, which the context's mutex guards.
struct ReceiveQueue : ibv_wq {
  ReceiveQueue(uint32_t descriptors, const mlx5dv_striding_rq_init_attr& strides);
  ~ReceiveQueue();
  CompletionRing& ring() { return *static_cast<CompletionQueue*>(cq)->ring; }
  __be32* record() { return reinterpret_cast<__be32*>(doorbells.data()); }
  uint32_t strides() const { return 1u << striding.single_wqe_log_num_of_strides; }
  size_t stride_bytes() const { return size_t{1} << striding.single_stride_log_num_of_bytes; }

  const uint32_t descriptor_count;
  const mlx5dv_striding_rq_init_attr striding;
  Pages descriptors;
  Pages doorbells;
  ibv_wq_state device_state = IBV_WQS_RESET;  ///< the device's state; ibv_wq::state is the driver's state
  uint64_t head = 0;                          ///< descriptors posted, as last read from the doorbell record
  uint64_t done = 0;                          ///< number of used descriptors
  uint32_t stride = 0;                        ///< the next stride of the descriptor `done`
  uint32_t tables = 0;
};

struct IndirectionTable : ibv_rwq_ind_table {
  ReceiveQueue* queue = nullptr;
  uint32_t users = 0;  ///< number of queue pairs that use it
};

struct Flow : ibv_flow {
  std::vector<std::byte> specs;  ///< in the program's format
  uint16_t priority = 0;
  QueuePair* queue_pair = nullptr;
};

/// The interface of an open mlx5 device.
struct Port {
  Context* context = nullptr;
  std::string interface;
  unsigned index = 0;
  uint64_t network_space = 0;  ///< the network namespace of ibv_open_device()
  std::array<uint8_t, 6> address{};
  std::atomic<uint32_t> mtu{0};
  int control = -1;  ///< a socket in the namespace, for ioctls

  // Guarded by the context's mutex:
  int sender = -1;
  uint32_t senders = 0;
  std::vector<std::byte> outgoing;
  int receiver = -1;
  int stop = -1;  ///< ends the thread
  uint32_t receivers = 0;
  std::thread thread;

  // Guarded by the network's mutex:
  std::vector<Flow*> flows;
  std::vector<ReceiveQueue*> queues;
};

/// All open mlx5 devices of the process. Its mutex is locked after the contexts' mutexes.
struct Network {
  std::mutex mutex;
  std::vector<Port*> ports;
};
/// A forked child has its own, empty network.
Network& network();

// mlx5_devices.cc
/// The network interface that SOFTWARE_VERBS names for a device; empty if it does not exist.
std::string interface_of(int device);
/// Returns false and sets errno if the interface does not exist.
bool open_port(Context& context);
void close_port(Context& context);
bool is_interface_up(const Port& port);
bool find_interface_gid(const Port& port, int index, ibv_gid* gid, ibv_gid_type* type);
void read_mtu(Port& port);
void fill_device_attributes(const Context& context, ibv_device_attr* attr);

// mlx5_objects.cc
void set_operations(Context& context);
void destroy_hashing_pair(QueuePair& queue_pair);
uint32_t next_number();

// mlx5_flows.cc
ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr);
int destroy_flow(ibv_flow* flow);
/// Places a frame in the queues whose flows it matches. Returns false if there was no such queue. The network's mutex
/// must be held.
bool steer(Port& port, FrameView frame);

// mlx5_receive.cc; the network's mutex must be held.
void place(ReceiveQueue& queue, FrameView frame, const Headers& headers);
/// Reads the number of posted descriptors.
void read_doorbell(ReceiveQueue& queue);
/// Completes the next descriptor with an error; if there is no descriptor, completes without one.
void write_error(ReceiveQueue& queue, uint8_t syndrome);
/// Moves a queue to the error state, with flush errors for all descriptors.
void end_receive_queue(ReceiveQueue& queue, uint8_t syndrome);
void release_completions(ReceiveQueue& queue, uint64_t limit);

// mlx5_network.cc; the context's mutex must be held.
/// Returns false and sets errno if the process has no right to raw packets, or if the interface does not exist.
bool open_sender(Port& port);
void close_sender(Port& port);
bool open_receiver(Port& port);
void close_receiver(Port& port);
void transmit_frame(QueuePair& queue_pair, const SendRequest& request);
bool inject_frame(int device, const void* frame, size_t size);

}  // namespace software_verbs
