// The contract of a transport: what the class must do that moves an endpoint's packets.
// Transport layer: knows of an RPC header that it has 24 bytes and tells the packet's length, and nothing more.
//
// A transport moves unreliable packets between endpoints. It has addresses of its own, and a clock. A public type
// (tern::Udp) is a descriptor: Options, name, and `Impl`, the class that meets TransportImpl below. rpc/rpc_core.h is
// the only caller; a layer (layer.h) stands between the two and passes on what it does not change.
//
// All members are mandatory, so that a layer that forgets one does not compile. A transport that has nothing to say to
// some of them derives from DefaultMembers.
//
// Thread: every call comes from the endpoint's owner thread, except wake(). create() and the destructor may run in
// another thread than the loop, never at the same time as another call. The destructor may run in a forked child, which
// has the descriptors but no message memory: there it closes descriptors and must not speak for the parent.
// Units: times are ns, sizes bytes, rates bytes per second. No member blocks, except wait(). No member throws.
// Memory: a shortage after create() is an error or an ordinary loss.
// Options by name: TYPE::Options lists the fields that a command line can set; layers have options of their own around
// `inner`, those of the transport below.
// tests/conformance checks these sentences over every transport; fork and shortage of memory: tests/unit/transport.
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

/// A peer endpoint's address as this transport sees it. Small numbers; disconnect() frees one for reuse.
using PeerId = uint32_t;
enum class PeerState : uint8_t {
  kConnecting,  ///< not usable yet; the endpoint asks again (shm: the descriptors are on their way)
  kReady,
  kDead,  ///< will never work again; the endpoint calls disconnect()
};

/// Why packets to a peer were lost, as far as this host's kernel knows.
enum class PathError : uint8_t {
  kNone,
  kForbidden,    ///< a filter of this host dropped them
  kRefused,      ///< nobody receives at the port, or a firewall on the path rejects packets to it
  kUnreachable,  ///< a router, or this host, has no route
  kTooLong,      ///< longer than the MTU of a link of this host
};

/// Addresses travel in the handshake as opaque bytes, at most this many.
inline constexpr size_t kAddressBytesMax = 64;
/// send() copies a payload that lies in no Buffer; it has at most this many bytes.
inline constexpr size_t kCopiedBytesMax = 512;

/// What to do about a session that does not open, in the transport's own terms: the ends of error texts, such as ": set
/// X::Options::y there". They have static storage duration. Empty: there is nothing to add.
struct Remedies {
  std::string_view packet_bytes{};  ///< full packets are too long for the path
  std::string_view address{};       ///< the peer's address or port is filtered, or no route leads there
  std::string_view other_user{};    ///< wire::Refusal::kOtherUser and so on
  std::string_view other_host{};
  std::string_view no_way_back{};
  std::string_view other_fabric{};
  std::string_view other_partition{};
};

/// What is true of a type of transport, whatever its options are. One structure, so that layers pass on all of it.
struct Traits {
  /// The endpoint's message memory is made of memfds (ArenaOptions::shared) and payloads may travel by reference
  /// (Payload::lease).
  bool has_shared_memory = false;
  /// The endpoint reads the clock again for each received burst (BurstVisitor) and before responses leave. False where
  /// now() costs much, compared with a packet.
  bool reads_clock_per_burst = true;
  /// send() reads all message memory before it returns: released() is UINT64_MAX from the start.
  bool releases_at_once = false;
  /// So many bytes can be read at Payload::data, even if the payload is shorter.
  size_t readable_bytes = 0;
  /// now() is virtual time: it costs nothing to read, events outside of the loop move it on, and what flush() was
  /// called for leaves by such events. One thread runs everything.
  bool is_virtual = false;
  /// After send() has returned false, prepare_wait() returns false or wait() ends as soon as another try may succeed.
  /// Without it an endpoint does not sleep until the packet is taken.
  bool reports_space = false;
  /// connect_paired(), connect_back(), take_path_error() and port_of() work.
  bool has_pairs = false;
  /// failure() may say that the transport has failed for good. Without it nobody asks.
  bool can_fail = false;
  /// Smallest retransmission timeout that makes sense, ns.
  uint64_t rto_ns_min = 1'000'000;
  /// For endpoints and sessions that do not name a congestion controller.
  CongestionControl congestion_control = CongestionControl::kSwift;
  /// For texts of errors that the layers above find.
  Remedies remedies{};
  /// For benchmarks of what they are worth. A transport has all of them.
  cc::Shortcuts shortcuts{};
};

/// What a transport finds when it is made. One structure, so that layers pass on all of it.
struct Context {
  // NOLINTNEXTLINE(google-explicit-constructor): most callers have an arena and nothing else
  Context(memory::Arena& its_arena, std::string_view its_listen_host = {})
      : arena(its_arena), listen_host(its_listen_host) {}

  /// The message memory that packets leave from. It outlives the transport. A transport that must register memory with
  /// a device calls arena.observe() in create() and arena.unobserve() in its destructor: an observer hears of each
  /// chunk before a Buffer lies in it, off the common path, and its refusal is the error of the allocation
  /// (memory/arena.h).
  memory::Arena& arena;
  /// The host that the Nexus listens at, a numeric IP address; empty if unknown. A data path whose options name no host
  /// binds to this one. Valid during create() only.
  std::string_view listen_host;
};

/// The calls that a visitor of received packets offers besides visit(header, payload). A transport whose packets come
/// in bursts (one system call, one poll of a ring) calls begin_burst() first, and then in_burst() for each packet in
/// place of visit(). If `space` is not null, it has space for `payload.bytes`, and `payload.data` (without a lease) is
/// memory that the peer can still write: the visitor copies it to `space` once (private_copy()) before it looks at it,
/// or to its final place.
/// Before in_burst(), a transport may call try_in_burst(), which takes packets of the most common kinds only. These
/// have our version and are not by reference, so that only a packet's length must have been checked. If it returns
/// false, nothing has changed.
template <class Visit>
concept BurstVisitor = requires(Visit visit, const wire::Header& header, const Payload& payload, std::byte* space) {
  {visit.begin_burst()};
  { visit.try_in_burst(header, payload, space) } -> std::same_as<bool>;
  {visit.in_burst(header, payload, space)};
};

/// try_in_burst() of a visitor that has it.
template <class Visit>
[[gnu::always_inline]] inline bool try_visit(Visit& visit, const wire::Header& header, const Payload& payload,
                                             std::byte* space) {
  if constexpr (BurstVisitor<Visit>) return visit.try_in_burst(header, payload, space);
  return false;
}
/// After try_visit() has returned false: any packet that may be handed out.
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
/// Any packet that may be handed out.
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
  uint32_t target_ns;  ///< a round trip that takes less has met no queue
  uint32_t far_ns;     ///< the path is long if even its fastest round trip takes more
  /// Round trips are the network's. False: most of a round trip may be the hosts' own time (kernels, busy servers), and
  /// a sender of less than one packet per round trip gains nothing by waiting longer.
  bool is_of_network;
};

/// send() to one peer, several times in a row: for transports that can keep the peer's state in registers. The endpoint
/// makes one for a session's turn, and calls nothing else of the transport but ticket() while it lives.
/// This one, for everybody else, and for every layer whose own send() must be called, is send() of `T`.
template <class T>
class PlainSender {
 public:
  PlainSender(T& transport, PeerId peer) : transport_(transport), peer_(peer) {}
  bool send(const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
    return transport_.send(peer_, header, data, len, buffer);
  }

 private:
  T& transport_;
  PeerId peer_;
};

/// Members for a transport that has no pairs (Traits::has_pairs), never fails for good, has one network, does not know
/// its downlink, and whose receive queue holds as many packets of any length.
/// A transport derives from it, and hides what it does itself. Layers do not: they pass on what the transport below
/// does.
struct TERN_API DefaultMembers {
  Result<PeerId> connect_paired(std::span<const std::byte>, std::string_view) { return kNoPairs; }
  Result<PeerId> connect_back(PeerId) { return kNoPairs; }
  PathError take_path_error(PeerId) { return PathError::kNone; }
  uint16_t port_of(PeerId) const { return 0; }
  uint64_t downlink_bytes_per_sec() const { return 0; }
  uint64_t downlink_bytes() const { return 0; }
  uint32_t credit_bytes() const { return 0; }
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
  /// Once an endpoint, in whatever thread. kMisuse: an option is out of range; the text names the option and the range.
  /// kUnavailable: the transport does not run here; the text says what it needs. kNoMemory.
  { T::create(std::move(options), context) } -> std::same_as<Result<std::unique_ptr<T>>>;
  // ~T(): afterwards nothing reads message memory. Bounded time.

  // ---- Peers: called when sessions begin and end

  /// What a peer's connect() needs, 1 to kAddressBytesMax bytes. The same for the transport's whole life.
  { ct.address() } -> std::same_as<std::span<const std::byte>>;
  /// Finds or makes the peer with this address(). The bytes come from the network and may be anything. `host` is the
  /// numeric IP address at which the peer's Nexus was reached, for addresses that name a wildcard. Connections are
  /// counted: the same address and host give the same PeerId, and each success needs one disconnect(). The peer may be
  /// this endpoint. kMisuse, kRefused: no address of this transport. kRefused: the peer belongs to another user.
  /// kPeerUnreachable, kUnavailable: no way to the peer, or no resources. kNoMemory.
  { t.connect(address, host) } -> std::same_as<Result<PeerId>>;
  /// After connect() has returned kUnavailable: kOtherFabric, kOtherPartition or kOtherSubnet, if the address tells
  /// that this is why, and else kNone. The peer's side is told.
  { ct.refusal_of(address) } -> std::same_as<wire::Refusal>;
  /// Of a connected peer. A transport without connections says kReady for every such peer.
  { t.peer_state(peer) } -> std::same_as<PeerState>;
  /// Why peer_state() has said kDead, in one sentence that names what to look at; the code is of no meaning. Ok: the
  /// transport knows no more. Makes a text; for control events.
  { ct.peer_failure(peer) } -> std::same_as<Status>;
  /// The last one ends the peer: queued packets leave or are lost, and the PeerId may name another peer afterwards. May
  /// be called by a visitor.
  {t.disconnect(peer)};
  /// With Traits::has_pairs, where a filter may pass nothing back from a peer but answers (clause 7.7.4): as connect(),
  /// but packets to this peer leave from the very address at which this endpoint receives. It is another peer than that
  /// of connect(), unless connect() already does so.
  { t.connect_paired(address, host) } -> std::same_as<Result<PeerId>>;
  /// Only in a visitor's call: connects as connect_paired() to the source of the datagram of the visited packet.
  /// Anybody may have forged that source; nothing is sent there by this call. Packets may be as long as those to
  /// `like`.
  { t.connect_back(peer) } -> std::same_as<Result<PeerId>>;
  /// The last error of packets to the peer, and forgets it. Called after silence, and when a session fails.
  { t.take_path_error(peer) } -> std::same_as<PathError>;
  /// With Traits::can_fail: why this transport will never move a packet again, such as a device that was removed. Its
  /// peers are dead then, all tickets are released, and the endpoint's sessions end with this status. Ok: it has not
  /// failed. Called in idle iterations, and before the endpoint's loop runs.
  { ct.failure() } -> std::same_as<Status>;
  /// The peer's port, for error texts; 0 without Traits::has_pairs.
  { ct.port_of(peer) } -> std::same_as<uint16_t>;

  // ---- Sizes and rates: called when the endpoint is made, when sessions begin, and by timers

  /// Largest payload of one packet, the 24 B header not counted: wire::kPayloadBytesMin to 65536. Constant.
  { ct.payload_bytes_max() } -> std::same_as<uint32_t>;
  /// The same for packets to this peer, as far as the address tells that connect() was given: wire::kPayloadBytesMin to
  /// payload_bytes_max(). send() counts a longer packet in send_errors and takes it: an ordinary loss.
  { ct.payload_bytes_max(peer) } -> std::same_as<uint32_t>;
  /// How many full packets the receive queue holds, at least 1. Credits are sized by it.
  { ct.receive_queue_packets() } -> std::same_as<uint32_t>;
  /// 0: a packet of any length takes one place of the receive queue. Otherwise a power of two, 1024 to 65536: a packet
  /// takes one place for each so many bytes of it, header included, or for a part of them; the queue has as many places
  /// as receive_queue_packets() full packets take.
  { ct.credit_bytes() } -> std::same_as<uint32_t>;
  /// What a single flow can get at most, above 0.
  { ct.link_bytes_per_sec() } -> std::same_as<uint64_t>;
  { ct.delay_target() } -> std::same_as<DelayTarget>;
  /// The link by which packets arrive, if it is one, is known, and has no other user; else 0. Credits and requests for
  /// responses are sized by it.
  { ct.downlink_bytes_per_sec() } -> std::same_as<uint64_t>;
  /// Bytes of that link that arrived packets have taken, frames and gaps included. Grows.
  { ct.downlink_bytes() } -> std::same_as<uint64_t>;

  // ---- Sending: common path

  /// Queues one packet: `header` (the transport fills in the length) and `len` payload bytes at `data`. These lie in
  /// `buffer`, at data() or later; if `buffer` is null, send() copies them, at most kCopiedBytesMax. Data in a Buffer
  /// must not change until released() >= the value of ticket() right after this call; data sent by reference not until
  /// buffer->revoke_lease() either. False: the peer's queue is full or the peer is not ready. Nothing was queued then,
  /// and the endpoint tries again in a later iteration. Packets to one peer stay in order unless the network reorders.
  { t.send(peer, header, data, len, buffer) } -> std::same_as<bool>;
  /// PlainSender<T>, or the transport's own.
  requires std::constructible_from<typename T::Sender, T&, PeerId>;
  { sender.send(header, data, len, buffer) } -> std::same_as<bool>;
  /// The ticket of everything queued so far. Never falls. Called after packets were sent, several times an iteration.
  { ct.ticket() } -> std::same_as<uint64_t>;
  /// The transport reads no message memory any more for packets with a ticket up to this one. Never falls; reaches
  /// every ticket in bounded time while flush() and receive() are called, also when a peer or device has died. Called
  /// once an iteration, first of all. A transport that reads no message memory after send() returns UINT64_MAX from
  /// the start (Traits::releases_at_once).
  { ct.released() } -> std::same_as<uint64_t>;
  /// Hands the queued packets to the network and wakes sleeping peers. Called at the end of each iteration in which
  /// packets were sent, and of each other one while released() is behind the last ticket.
  {t.flush()};

  // ---- Receiving: common path

  /// t.receive(visit) calls visit(const wire::Header&, const Payload&) for each received packet of one burst, and
  /// returns how many there were. Called at least once an iteration. Takes bounded time, whatever peers send, and
  /// little when nothing is there. The transport reads each header once, and visits only what is_plausible() (the kind
  /// may be unknown); a payload by reference lies wholly in the peer's mapped memory. Payloads are valid within the
  /// visitor's call. Anything else that arrives is counted and dropped. A visitor may call connect(), disconnect() and
  /// send().
  {
    t.receive([](const wire::Header&, const Payload&) {})
    } -> std::same_as<size_t>;

  // ---- Time and sleep

  /// ns on the process's monotonic time base, or virtual time. Never falls. Called about twice a burst.
  { t.now() } -> std::same_as<uint64_t>;
  /// The endpoint is about to block. False: there is input; it must not. Afterwards the endpoint looks at its mailbox
  /// once more, and calls wait() and end_wait(), or end_wait() alone. What arrives after this call ends wait().
  { t.prepare_wait() } -> std::same_as<bool>;
  /// Blocks until input, wake(), or now() >= `ns`; UINT64_MAX: no limit. May return early. Only after prepare_wait()
  /// has returned true.
  {t.wait(ns)};
  /// Takes back prepare_wait(). A wake() that wait() has seen ends no further wait().
  {t.end_wait()};
  /// Readable when wait() would return, between prepare_wait() and end_wait(): an epoll descriptor that a program's own
  /// loop waits for. -1 with Traits::is_virtual.
  { ct.descriptor() } -> std::same_as<int>;
  /// Any thread, any number of threads, also in signal handlers: ends the current wait(), or the next one if none runs.
  {t.wake()};
  /// Owner thread; for reports.
  { ct.counters() } -> std::same_as<const TransportCounters&>;
  /// Those of the simulated network; null in a real one. Owner thread; for reports.
  { ct.network_counters() } -> std::same_as<const NetworkCounters*>;
  /// Those of the fault layer; null without one. Owner thread; for reports.
  { ct.fault_counters() } -> std::same_as<const FaultCounters*>;
};

}  // namespace tern::transport
