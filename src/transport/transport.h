// What a transport must be: unreliable packets between endpoints, its own addresses, its own clock.
// Transport room: does not know what an RPC header means beyond "first 24 bytes, length inside".
//
// A public transport type (tern::Udp, tern::Shm) is a descriptor: its Options, its name and `Impl`, which
// meets TransportImpl. Everything is called by the endpoint's owner thread, wake() excepted.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

#include <tern/congestion_control.h>
#include <tern/detail/buffer.h>
#include <tern/status.h>

#include "base/copy.h"
#include "memory/arena.h"
#include "wire/header.h"

namespace tern::transport {

/// A peer endpoint's address as this transport sees it; dense, reused after disconnect().
using PeerId = uint32_t;
enum class PeerState : uint8_t {
  kConnecting,  ///< not usable yet; poll again (shm: the descriptors are on their way)
  kReady,
  kDead,  ///< will never work again: disconnect() it
};

/// Why packets to a peer went nowhere, as far as this host's kernel has been told.
enum class PathError : uint8_t {
  kNone,
  kForbidden,    ///< a filter of this host took them
  kRefused,      ///< nobody receives at the port, or a firewall on the way rejects what goes there
  kUnreachable,  ///< a router, or this host, knows no way
  kTooLong,      ///< longer than a link of this host takes
};

/// Transport addresses travel in the handshake as opaque bytes.
inline constexpr size_t kAddressBytesMax = 64;

/// The payload of a received packet. Valid inside the visitor's call only.
struct Payload {
  const std::byte* data = nullptr;
  uint32_t bytes = 0;
  /// By reference: the sender's generation word, and the value under which `data` may be read. Null otherwise.
  const std::atomic<uint32_t>* lease = nullptr;
  uint32_t lease_value = 0;
  /// The packet met a congestion mark (ECN CE). A transport that has no marks leaves it alone.
  bool is_marked = false;

  /// Copies to the final place. False: the sender has taken the memory back meanwhile; treat the packet as lost
  /// and what was written as garbage. `data` may change under us only when `lease` is set.
  bool copy_to(std::byte* to) const {
    if (lease == nullptr) [[likely]] {
      base::copy_bytes(to, data, bytes);
      return true;
    }
    base::copy_large(to, data, bytes);
    std::atomic_thread_fence(std::memory_order_acquire);
    return lease->load(std::memory_order_relaxed) == lease_value;
  }
};

/// The payload of a packet where nobody else can write it: in `room` (BurstVisitor), or where it is if `room` is null.
inline const std::byte* private_copy(const Payload& payload, std::byte* room) {
  if (room == nullptr) return payload.data;
  base::copy_bytes(room, payload.data, payload.bytes);
  asm volatile("" : "+r"(room) : : "memory");  // from here on the compiler cannot read the original again instead
  return room;
}

/// What a visitor of received packets may offer besides visit(header, payload), for transports that make use of it. One
/// that begin_burst() was called for gets the burst's packets through in_burst(). If `room` is not null, it has
/// `payload.bytes` of room, and `payload.data` (without a lease) is memory that the peer can still write: it must be
/// copied there, once, before anything looks at what it says. A payload that is only copied to its final place needs no
/// more than that.
template <class Visit>
concept BurstVisitor = requires(Visit visit, const wire::Header& header, const Payload& payload, std::byte* room) {
  {visit.begin_burst()};
  {visit.in_burst(header, payload, room)};
};

/// What a transport counts; the layers above count what they drop (EndpointCounters).
struct TransportCounters {
  uint64_t packets_sent = 0;
  uint64_t packets_received = 0;
  uint64_t system_calls = 0;
  uint64_t dropped_unparsable = 0;     ///< header not plausible: the rest of the buffer is lost
  uint64_t dropped_bad_reference = 0;  ///< descriptor outside of the peer's memory, or of an unknown chunk
  uint64_t dropped_oversize = 0;       ///< longer than the MTU allows
  uint64_t send_errors = 0;            ///< the system refused a packet for good; an ordinary loss
  uint64_t peers_refused = 0;          ///< a connection that broke the rules (seals, sizes, version)
};

/// What round trips say on a transport's paths (cc::Path).
struct DelayTarget {
  uint32_t target_ns;  ///< one that takes less has met no queue worth speaking of
  uint32_t far_ns;     ///< if even the fastest takes more, the path is long
  /// Round trips are the network's. Else most of them may be the hosts' own time (kernels, busy servers), and who sends
  /// less than a packet a round trip only waits longer.
  bool is_of_network;
};

template <class T>
concept TransportImpl = requires(T t, const T ct, typename T::Options options, memory::Arena& arena, PeerId peer,
                                 std::span<const std::byte> address, std::string_view host, const wire::Header& header,
                                 const std::byte* data, size_t len, detail::Buffer* buffer, uint64_t ns) {
  /// True: message arenas are memfds (ArenaOptions::shared) and payloads may travel by reference.
  { T::kShared } -> std::convertible_to<bool>;
  /// The clock is read again for each received burst (BurstVisitor) and before answers leave: where that is nothing
  /// beside a packet.
  { T::kTimesHandlers } -> std::convertible_to<bool>;
  /// Smallest retransmission timeout that makes sense on this transport, ns.
  { T::kRtoNsMin } -> std::convertible_to<uint64_t>;
  /// For endpoints and sessions that do not say which.
  { T::kCongestionControl } -> std::convertible_to<CongestionControl>;
  { T::create(options, arena) } -> std::same_as<Result<std::unique_ptr<T>>>;

  /// What a peer's connect() needs; at most kAddressBytesMax.
  { ct.address() } -> std::same_as<std::span<const std::byte>>;
  /// Finds or makes the peer with this address(). `host` is the numeric IP address at which the peer's Nexus is
  /// reached, for addresses that name a wildcard. References are counted: one disconnect() per connect(). Never blocks.
  /// kMisuse: no address of this transport. kRefused: the peer belongs to another user. kNoMemory.
  { t.connect(address, host) } -> std::same_as<Result<PeerId>>;
  { t.peer_state(peer) } -> std::same_as<PeerState>;
  {t.disconnect(peer)};
  /// Optional, where the way back from a peer may be filtered but for answers (clause 7.7.4):
  /// `Result<PeerId> connect_paired(address, host)` is connect(), but packets to that peer leave from the very address
  /// at which this endpoint receives; it is another peer than the one of connect(). `Result<PeerId>
  /// connect_back(like)`, within a visitor's call only, connects in the same way to where the datagram of the packet
  /// being visited came from, for packets as long as those to `like`; anybody may have forged that. `PathError
  /// take_path_error(peer)` is the last error of packets to the peer, and forgets it; `uint16_t port_of(peer)` its
  /// port. Largest payload of one packet, the 24 B header not counted; at least wire::kPayloadBytesMin.
  { ct.payload_bytes_max() } -> std::same_as<uint32_t>;
  /// What of it a packet to this peer can carry, as the address says that connect() was given; at least
  /// wire::kPayloadBytesMin. send() counts a longer packet as an error, which is an ordinary loss.
  { ct.payload_bytes_max(peer) } -> std::same_as<uint32_t>;
  /// How many packets the receive queue holds; credits are sized by it.
  { ct.receive_queue_packets() } -> std::same_as<uint32_t>;
  /// What a single flow can get.
  { ct.link_bytes_per_sec() } -> std::same_as<uint64_t>;
  { ct.delay_target() } -> std::same_as<DelayTarget>;
  /// Optional: `uint64_t downlink_bytes_per_sec() const`, of the link by which packets arrive, frames and gaps
  /// included, where it is one, is known, and has no other user; and `uint64_t downlink_bytes() const`, how many the
  /// packets have taken that arrived here. Credits and requests for responses are sized by them then.

  /// Queues one packet: `header` (24 B; length filled in by the transport) and `len` bytes at `data`, which lie in
  /// `buffer` (its data(), or later in it), or anywhere, if `buffer` is null (then they are copied at once, and
  /// len <= 512). `data` in a Buffer must stay as it is until released() >= the value of ticket() right after
  /// this call; by-reference memory also until buffer->revoke_lease(). False: the queue to this peer is full or the
  /// peer is not ready; nothing was queued, try again in a later iteration.
  /// Optional: `static constexpr bool kTellsRoom = true`: once send() was refused, prepare_wait() is false, or wait()
  /// ends, as soon as it may be worth another try. Without it an endpoint does not sleep until the packet is taken.
  { t.send(peer, header, data, len, buffer) } -> std::same_as<bool>;
  /// The ticket of everything queued so far; grows with every flush().
  { ct.ticket() } -> std::same_as<uint64_t>;
  /// Everything with a ticket up to this one no longer touches any message memory. Never blocks; bounded time
  /// after a peer or device died.
  { ct.released() } -> std::same_as<uint64_t>;
  /// Hands what was queued to the network, wakes sleeping peers. Called once at the end of each loop iteration.
  {t.flush()};

  /// t.receive(visit): calls visit(const wire::Header&, const Payload&) for each received packet of one bounded
  /// burst; returns their number. A header was read once, and is_plausible(), but for its kind, which may be unknown; a
  /// payload of a by-reference packet lies wholly in the peer's mapped memory. Costs bounded time when nothing is
  /// there.
  {
    t.receive([](const wire::Header&, const Payload&) {})
    } -> std::same_as<size_t>;

  /// ns on the process's monotonic time base.
  { t.now() } -> std::same_as<uint64_t>;
  /// Announces that this thread is about to block. False: there is input, do not. Afterwards the caller looks
  /// once more at its own mailbox, and calls wait() or, in either case, end_wait().
  { t.prepare_wait() } -> std::same_as<bool>;
  /// Blocks until input, wake(), or `ns` on now()'s base; UINT64_MAX: no limit. Only after prepare_wait() was true.
  {t.wait(ns)};
  {t.end_wait()};
  /// Readable when wait() would return (between prepare_wait() and end_wait()); an epoll descriptor.
  { ct.descriptor() } -> std::same_as<int>;
  /// Any thread: ends the current or the next wait().
  {t.wake()};
  { ct.counters() } -> std::same_as<const TransportCounters&>;
};

}  // namespace tern::transport
