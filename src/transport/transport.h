// The contract of a transport, which is the class that moves an endpoint's packets. Transport layer. Of an RPC header
// it uses only the size, 24 bytes, and the packet's length in it.
//
// A transport moves unreliable packets between endpoints. It has its own addresses and a clock. A public type
// (tern::Udp) is a descriptor: Options, name, and `Impl`, the class that meets TransportImpl below. rpc/rpc_core.h is
// the only caller. A layer (layer.h) is between the two, and passes on the members that it does not change.
//
// All members are mandatory, so that a layer that forgets one does not compile. A transport that does not need some of
// them derives from DefaultMembers.
//
// Thread: every call comes from the endpoint's owner thread, except wake(). create() and the destructor may run in
// another thread than the loop, never at the same time as another call. The destructor may run in a forked child, which
// has the descriptors but no message memory: there it closes descriptors, and must not send in the parent's name.
// Units: times are ns, sizes bytes, rates bytes per second. No member blocks, except wait(). No member throws. Memory:
// a shortage after create() is an error or an ordinary loss. Options by name: TYPE::Options lists the fields that a
// command line can set. A layer has its own options, and in `inner` the options of the transport below.
// tests/conformance checks these rules over every transport; tests/unit/transport checks fork and shortage of memory.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <tern/congestion_control.h>
#include <tern/counters.h>
#include <tern/detail/buffer.h>
#include <tern/detail/export.h>
#include <tern/status.h>

#include "cc/shortcuts.h"
#include "frames/drop.h"
#include "memory/arena.h"
#include "transport/payload.h"
#include "wire/header.h"
#include "wire/management.h"

namespace tern::transport {

/// The transport's number of a peer endpoint. Numbers are small; disconnect() frees a number for reuse.
using PeerId = uint32_t;
enum class PeerState : uint8_t {
  kConnecting,  ///< not usable yet; the endpoint calls again (shm: the descriptors have not arrived yet)
  kReady,
  kDead,  ///< will never work again; the endpoint calls disconnect()
};

/// The reason why packets to a peer were lost, according to this host's kernel.
enum class PathError : uint8_t {
  kNone,
  kForbidden,    ///< a filter of this host dropped them
  kRefused,      ///< no socket has the port, or a firewall on the path rejects packets to it
  kUnreachable,  ///< a router, or this host, has no route
  kTooLong,      ///< longer than the MTU of a link of this host
};

/// Addresses travel in the handshake as opaque bytes, at most this many.
inline constexpr size_t kAddressBytesMax = 64;
/// The largest payload outside of a Buffer, which send() copies.
inline constexpr size_t kCopiedBytesMax = 512;

/// Remedies for a session that does not open: the ends of error texts, such as ": set X::Options::y there", which name
/// the transport's options. They have static storage duration. Empty: no remedy is added.
struct Remedies {
  std::string_view packet_bytes{};  ///< full packets are too long for the path
  std::string_view address{};       ///< the peer's address or port is filtered, or no route leads there
  std::string_view other_user{};    ///< wire::Refusal::kOtherUser and so on
  std::string_view other_host{};
  std::string_view no_way_back{};
  std::string_view other_fabric{};
  std::string_view other_partition{};
};

/// The properties of a type of transport, which do not depend on its options. They are one structure, so that layers
/// pass on all of them.
struct Traits {
  /// The endpoint's message memory is made of memfds (ArenaOptions::shared) and payloads may travel by reference
  /// (Payload::lease).
  bool has_shared_memory = false;
  /// The endpoint reads the clock again for each received burst (BurstVisitor) and before responses leave. False if
  /// now() is expensive compared with a packet.
  bool reads_clock_per_burst = true;
  /// send() reads all message memory before it returns: released() is UINT64_MAX from the start.
  bool releases_at_once = false;
  /// This many bytes are readable at Payload::data, even if the payload is shorter.
  size_t readable_bytes = 0;
  /// now() is virtual time: reading it is free, events outside of the loop advance it, and flushed packets leave by
  /// such events. One thread runs everything.
  bool is_virtual = false;
  /// After send() has returned false, prepare_wait() returns false, or wait() ends, as soon as another attempt may
  /// succeed. Without this property an endpoint does not sleep until the transport has taken the packet.
  bool reports_space = false;
  /// connect_paired(), connect_back(), take_path_error() and port_of() work.
  bool has_pairs = false;
  /// failure() may report that the transport has failed for good. Without this property failure() is never called.
  bool can_fail = false;
  /// The transport knows the headers of a burst before it visits the packets, and tells an AheadVisitor.
  bool looks_ahead = false;
  /// The smallest useful retransmission timeout, ns.
  uint64_t rto_ns_min = 1'000'000;
  /// The congestion controller of endpoints and sessions with kDefault.
  CongestionControl congestion_control = CongestionControl::kSwift;
  /// The ends of error texts of the layers above.
  Remedies remedies{};
  /// The library's shortcuts; a benchmark's layer switches some off to measure their worth. A transport has all of
  /// them.
  cc::Shortcuts shortcuts{};
};

/// The surroundings of a new transport. They are one structure, so that layers pass on all of them.
struct Context {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers only have an arena
  Context(memory::Arena& its_arena, std::string_view its_listen_host = {})
      : arena(its_arena), listen_host(its_listen_host) {}

  /// The message memory that packets leave from. It outlives the transport. A transport that must register memory with
  /// a device calls arena.observe() in create() and arena.unobserve() in its destructor: the arena calls an observer
  /// for each chunk before it makes a Buffer in the chunk, outside of the common path, and the observer's refusal is
  /// the error of the allocation (memory/arena.h).
  memory::Arena& arena;
  /// The host that the Nexus listens at, a numeric IP address; empty if unknown. If the options name no host, the data
  /// path binds to this one. Valid only during create().
  std::string_view listen_host;
};

/// The members of a visitor of received packets besides visit(header, payload). A transport whose packets come in
/// bursts (one system call, one poll of a ring) calls begin_burst() first, and then in_burst() for each packet in place
/// of visit(). If `space` is not null, it has space for `payload.bytes`, and `payload.data` (without a lease) is memory
/// that the peer can still write. The visitor then copies it once, to `space` (private_copy()) before it reads it, or
/// to its final place. Before in_burst(), a transport may call try_in_burst(), which takes only packets of the most
/// common kinds. These have the version of this library and are not by reference, so the transport must have checked
/// only the packet's length. If it returns false, nothing has changed.
template <class Visit>
concept BurstVisitor = requires(Visit visit, const wire::Header& header, const Payload& payload, std::byte* space) {
  {visit.begin_burst()};
  { visit.try_in_burst(header, payload, space) } -> std::same_as<bool>;
  {visit.in_burst(header, payload, space)};
};

/// A BurstVisitor that prefetches the sessions of a burst's packets before they are visited, because an endpoint has
/// more sessions than a cache. A transport with Traits::looks_ahead calls look_ahead() with the first header words of
/// the next packets, in their order, at most kAheadMax at a time. Nothing about the words needs to have been checked.
template <class Visit>
concept AheadVisitor = BurstVisitor<Visit> && requires(Visit visit, std::span<const uint64_t> first_words) {
  {visit.look_ahead(first_words)};
};
inline constexpr size_t kAheadMax = 32;

/// The member of a visitor that knows which packet will probably come next, for transports that receive large payloads
/// in place. The transport calls it right before it takes the next input, and may write the first
/// ExpectedPacket::payload_bytes bytes behind a header to the place. It writes there before the next visit only,
/// because then the message may be gone. If the input begins with a packet that ExpectedPacket::is(), of full length,
/// the transport visits it with Payload::data at the place. Otherwise it moves the bytes out of the place before it
/// visits anything. The place may keep any bytes, because they count as missing. A layer passes the member on, or hides
/// it.
template <class Visit>
concept ExpectingVisitor = requires(Visit visit) {
  { visit.expected_packet() } -> std::same_as<ExpectedPacket>;
};

/// Calls try_in_burst() of a visitor that has this member.
template <class Visit>
[[gnu::always_inline]] inline bool try_visit(Visit& visit, const wire::Header& header, const Payload& payload,
                                             std::byte* space) {
  if constexpr (BurstVisitor<Visit>) return visit.try_in_burst(header, payload, space);
  return false;
}
/// Visits any plausible packet, after try_visit() has returned false for it.
template <class Visit>
[[gnu::always_inline]] inline void visit_uncommon(Visit& visit, const wire::Header& header, const Payload& payload,
                                                  std::byte* space) {
  if constexpr (BurstVisitor<Visit>) {
    visit.in_burst(header, payload, space);
  } else {
    Payload copied = payload;
    copied.data = private_copy(payload, space);
    visit(header, copied);
  }
}
/// Visits any plausible packet.
template <class Visit>
[[gnu::always_inline]] inline void visit_packet(Visit& visit, const wire::Header& header, const Payload& payload,
                                                std::byte* space = nullptr) {
  if (!try_visit(visit, header, payload, space)) [[unlikely]]
    visit_uncommon(visit, header, payload, space);
}

using tern::TransportCounters;
static_assert(frames::kDropReasons == tern::detail::kFrameDrops + 1, "the table of counters has each reason");

/// How a congestion controller reads round trips on the transport's paths (cc::Path).
struct DelayTarget {
  uint32_t target_ns;  ///< a shorter round trip has met no queue
  uint32_t far_ns;     ///< the path is long if its fastest round trip is longer than this
  /// True: round trips are the time of the network. False: most of a round trip may be the hosts' own time (kernels,
  /// busy servers), so that a sender of less than one packet per round trip does not shorten a queue by waiting longer.
  bool is_of_network;
};

/// send() to one peer, several times in a row: for transports that can keep the peer's state in registers. The endpoint
/// makes one for a session's turn. While it exists, the endpoint calls only ticket() of the transport. PlainSender,
/// which calls `T`::send(), is for all other transports, and for every layer whose own send() must be called.
template <class T>
class PlainSender {
 public:
  PlainSender(T& transport, PeerId peer) : transport_(transport), peer_(peer) {}
  /// For answers that leave at once. The Sender itself has no space for longer packets, or for this one if takes() is
  /// false: another Sender sends those.
  static constexpr size_t kBytesMax = SIZE_MAX;
  bool takes(size_t) const { return true; }
  bool send(const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return transport_.send(peer_, header, data, len, buffer);
  }

 private:
  T& transport_;
  PeerId peer_;
};

/// Members for a transport that has no pairs (Traits::has_pairs), never fails for good, has one network, does not
/// know its downlink, has no larger packets to search for, whose receive queue holds a number of packets of any length,
/// and whose flush() leaves no peer asleep. A transport derives from it, and hides the members that it implements
/// itself. Layers must not derive from it, because they pass on the members of the transport below.
struct TERN_API DefaultMembers {
  Result<PeerId> connect_paired(std::span<const std::byte>, std::string_view) { return kNoPairs; }
  Result<PeerId> connect_back(PeerId) { return kNoPairs; }
  PathError take_path_error(PeerId) { return PathError::kNone; }
  uint16_t port_of(PeerId) const { return 0; }
  uint64_t downlink_bytes_per_sec() const { return 0; }
  uint64_t downlink_bytes() const { return 0; }
  uint32_t credit_bytes() const { return 0; }
  uint32_t large_payload_bytes() const { return 0; }
  uint32_t large_payload_bytes(PeerId) { return 0; }
  void before_burst() {}
  void before_pause() {}
  Status failure() const { return {}; }
  Status peer_failure(PeerId) const { return {}; }
  wire::Refusal refusal_of(std::span<const std::byte>) const { return wire::Refusal::kNone; }
  const NetworkCounters* network_counters() const { return nullptr; }
  const FaultCounters* fault_counters() const { return nullptr; }

 private:
  static constexpr Status kNoPairs{Code::kUnavailable, "this transport needs no address and port pairs"};
};

template <class T>
concept TransportImpl = requires(T t, const T ct, typename T::Options options, const Context& context, PeerId peer,
                                 std::span<const std::byte> address, std::string_view host, const wire::Header& header,
                                 const std::byte* data, size_t len, detail::Buffer* buffer, uint64_t ns,
                                 typename T::Sender sender) {
  // ---- Making one

  { T::kTraits } -> std::same_as<const Traits&>;
  /// Called once for an endpoint, in any thread. kMisuse: an option is out of range; the text names the option and the
  /// range. kUnavailable: the transport does not run here; the text names the missing part. kNoMemory.
  { T::create(std::move(options), context) } -> std::same_as<Result<std::unique_ptr<T>>>;
  // ~T(): takes bounded time. After it, message memory is not read any more.

  // ---- Peers: called when sessions begin and end

  /// The address for a peer's connect(), 1 to kAddressBytesMax bytes. Constant for the transport's life.
  { ct.address() } -> std::same_as<std::span<const std::byte>>;
  /// Finds or makes the peer with this address(). The bytes come from the network and may be anything. `host` is the
  /// numeric IP address at which the peer's Nexus was reached, for addresses that name a wildcard. Connections are
  /// counted: the same address and host give the same PeerId, and each success needs one disconnect(). The peer may be
  /// this endpoint. kMisuse, kRefused: not an address of this transport. kRefused: also, the peer belongs to another
  /// user. kPeerUnreachable, kUnavailable: there is no path to the peer, or there are no resources. kNoMemory.
  { t.connect(address, host) } -> std::same_as<Result<PeerId>>;
  /// Called after connect() has returned kUnavailable. Returns kOtherFabric, kOtherPartition or kOtherSubnet if the
  /// address shows that reason, else kNone. The peer's side gets the result.
  { ct.refusal_of(address) } -> std::same_as<wire::Refusal>;
  /// The state of a connected peer. A transport without connections returns kReady for every such peer.
  { t.peer_state(peer) } -> std::same_as<PeerState>;
  /// The reason why peer_state() returned kDead, in one sentence that names the place to look at; the code has no
  /// meaning. Ok: no reason is known. It formats a text, so call it only for control events.
  { ct.peer_failure(peer) } -> std::same_as<Status>;
  /// Undoes one connect(). The last disconnect() ends the peer: queued packets leave or are lost, and the PeerId may
  /// then name another peer. A visitor may call it.
  {t.disconnect(peer)};
  /// With Traits::has_pairs, for paths on which a filter passes only answers (clause 7.7.4): like connect(), but
  /// packets to this peer leave from the address at which this endpoint receives. The peer is different from that of
  /// connect(), unless connect() already sends in this way.
  { t.connect_paired(address, host) } -> std::same_as<Result<PeerId>>;
  /// Only in a visitor's call: connects, like connect_paired(), to the source of the visited packet's datagram. A
  /// stranger may have forged that source; this call sends nothing there. Packets may be as long as those to `like`.
  { t.connect_back(peer) } -> std::same_as<Result<PeerId>>;
  /// Returns the last error of packets to the peer, and forgets it. Called after silence, and when a session fails.
  { t.take_path_error(peer) } -> std::same_as<PathError>;
  /// With Traits::can_fail: the reason why this transport will never move a packet again, such as a removed device.
  /// After a failure its peers are dead, all tickets are released, and the endpoint's sessions end with this status.
  /// Ok: it has not failed. Called in idle iterations, and before the endpoint's loop runs.
  { ct.failure() } -> std::same_as<Status>;
  /// The peer's port, for error texts; 0 without Traits::has_pairs.
  { ct.port_of(peer) } -> std::same_as<uint16_t>;

  // ---- Sizes and rates: called when the endpoint is made, when sessions begin, and by timers

  /// Largest payload of one packet, the 24 B header not counted: wire::kPayloadBytesMin to 65536. Constant.
  { ct.payload_bytes_max() } -> std::same_as<uint32_t>;
  /// Largest payload of a packet to this peer, according to the address given to connect(): wire::kPayloadBytesMin to
  /// payload_bytes_max(). send() takes a longer packet, loses it, and counts it in send_errors.
  { ct.payload_bytes_max(peer) } -> std::same_as<uint32_t>;
  /// The largest payload that send() and receive() take for packets of long messages, where sessions find out by probes
  /// what a path carries (clause 7.7.9), at most 65024. 0: no more than payload_bytes_max(). Constant.
  { ct.large_payload_bytes() } -> std::same_as<uint32_t>;
  /// The largest payload, at most large_payload_bytes(), that the first link of the route to this peer carries, as far
  /// as the host knows. 0: not known, or there is nothing to search for. Called when a session opens.
  { t.large_payload_bytes(peer) } -> std::same_as<uint32_t>;
  /// The number of full packets that the receive queue holds, at least 1. Credits are sized by it.
  { ct.receive_queue_packets() } -> std::same_as<uint32_t>;
  /// 0: a packet of any length takes one place of the receive queue. Otherwise a power of two, 1024 to 65536: a packet
  /// takes one place for each so many bytes of it, header included, or for a part of them. The queue has as many places
  /// as receive_queue_packets() full packets take.
  { ct.credit_bytes() } -> std::same_as<uint32_t>;
  /// The largest rate of a single flow, above 0.
  { ct.link_bytes_per_sec() } -> std::same_as<uint64_t>;
  { ct.delay_target() } -> std::same_as<DelayTarget>;
  /// The rate of the link by which packets arrive, if there is one link, its rate is known, and no one else uses it;
  /// else 0. Credits and requests for responses are sized by it.
  { ct.downlink_bytes_per_sec() } -> std::same_as<uint64_t>;
  /// Bytes that arrived packets have taken on that link, including frames and gaps. Grows.
  { ct.downlink_bytes() } -> std::same_as<uint64_t>;

  // ---- Sending: common path

  /// Queues one packet: `header` (the transport fills in the length) and `len` payload bytes at `data`. These lie in
  /// `buffer`, at data() or later; if `buffer` is null, send() copies them, at most kCopiedBytesMax. Data in a Buffer
  /// must not change until released() >= the value of ticket() right after this call; data sent by reference not until
  /// buffer->revoke_lease() either. False: the peer's queue is full or the peer is not ready. Nothing was queued then,
  /// and the endpoint tries again in a later iteration. Packets to one peer stay in order unless the network reorders.
  { t.send(peer, header, data, len, buffer) } -> std::same_as<bool>;
  /// PlainSender<T>, or the transport's own class.
  requires std::constructible_from<typename T::Sender, T&, PeerId>;
  { sender.send(header, data, len, buffer) } -> std::same_as<bool>;
  /// The ticket of all packets queued so far. Never falls. Called after packets were sent, several times an iteration.
  { ct.ticket() } -> std::same_as<uint64_t>;
  /// The transport no longer reads message memory of packets with a ticket up to this one. Never falls. Reaches every
  /// ticket in bounded time while flush() and receive() are called, also after a peer or device has died. Called once
  /// an iteration, before all other members. A transport that reads no message memory after send() returns UINT64_MAX
  /// from the start (Traits::releases_at_once).
  { ct.released() } -> std::same_as<uint64_t>;
  /// Hands the queued packets to the network and wakes sleeping peers. Called at the end of each iteration in which
  /// packets were sent, and at the end of every iteration while released() is behind the last ticket.
  {t.flush()};
  /// The next flush() may miss a peer that is just falling asleep, because the loop is busy: it runs another iteration
  /// at once, and calls before_pause() after a few of them.
  {t.before_burst()};
  /// Wakes peers that flush() has missed since before_burst(). Called before the loop pauses: before it returns, gives
  /// up its CPU, or runs timers, posted functions or a handler that takes long. prepare_wait() does the same.
  {t.before_pause()};

  // ---- Receiving: common path

  /// t.receive(visit) calls visit(const wire::Header&, const Payload&) for each received packet of one burst, and
  /// returns the number of packets. Called at least once an iteration. Takes bounded time for any input, and little
  /// time if there is none. The transport reads each header once, and visits only what is_plausible() (the kind may be
  /// unknown); a payload by reference lies wholly in the peer's mapped memory. Payloads are valid during the visitor's
  /// call. All other input is counted and dropped. A visitor may call connect(), disconnect() and send().
  {
    t.receive([](const wire::Header&, const Payload&) {})
    } -> std::same_as<size_t>;

  // ---- Time and sleep

  /// ns on the process's monotonic time base, or virtual time. Never falls. Called about twice a burst.
  { t.now() } -> std::same_as<uint64_t>;
  /// The endpoint is about to block. False: there is input, and the endpoint must not block. After it the endpoint
  /// checks its mailbox once more, and calls wait() and end_wait(), or only end_wait(). Input that arrives after this
  /// call ends wait().
  { t.prepare_wait() } -> std::same_as<bool>;
  /// Blocks until input, wake(), or now() >= `ns`; UINT64_MAX: no limit. May return early. Only after prepare_wait()
  /// has returned true.
  {t.wait(ns)};
  /// Undoes prepare_wait(). A wake() that wait() has seen does not end another wait().
  {t.end_wait()};
  /// Readable when wait() would return, between prepare_wait() and end_wait(): an epoll descriptor that a program's own
  /// loop waits for. -1 with Traits::is_virtual.
  { ct.descriptor() } -> std::same_as<int>;
  /// Ends the current wait(), or the next one if none runs. Any thread, several at a time, and signal handlers.
  {t.wake()};
  /// The transport's counters. Owner thread; for reports.
  { ct.counters() } -> std::same_as<const TransportCounters&>;
  /// The counters of the simulated network; null in a real network. Owner thread; for reports.
  { ct.network_counters() } -> std::same_as<const NetworkCounters*>;
  /// The counters of the fault layer; null without one. Owner thread; for reports.
  { ct.fault_counters() } -> std::same_as<const FaultCounters*>;
};

}  // namespace tern::transport
