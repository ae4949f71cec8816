// The peers of an endpoint over raw Ethernet, and the headers of frames to them. Ethernet layer; the endpoint's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <tern/status.h>

#include "ethernet/endpoint_address.h"
#include "ethernet/names.h"
#include "frames/frame_template.h"
#include "frames/mac_address.h"
#include "neighbours/resolver.h"
#include "wire/header.h"

namespace tern::ethernet {

/// The data that each packet to a peer needs. The open frame belongs to OpenFrames.
struct Route {
  static constexpr uint32_t kNone = UINT32_MAX;

  std::byte* write = nullptr;                    ///< the place of the next packet in the open frame
  uint32_t space_bytes = 0;                      ///< left in the open frame; 0: no frame is open, or it is full
  uint32_t open_index = kNone;                   ///< index of the open frame; kNone: no frame is open
  uint32_t datagram_bytes = wire::kHeaderBytes;  ///< the longest UDP payload to the peer
  bool is_ready = false;                         ///< the headers are complete; otherwise no frame is opened
  frames::FrameTemplate headers;                 ///< have one length for all peers

  bool has_frame() const { return open_index != kNone; }
  void end_frame() {
    space_bytes = 0;
    open_index = kNone;
  }
};

/// The longest UDP payload of an endpoint is at least this, the smallest full packet.
inline constexpr uint32_t kDatagramBytesMin = wire::kHeaderBytes + wire::kPayloadBytesMin;

/// Peers are numbered from 0. The number of a peer that is gone is used again.
class Peers {
 public:
  /// The fields that all frames of the endpoint share.
  struct Own {
    base::SocketAddress address;  ///< IP and port
    frames::MacAddress mac;
    uint32_t datagram_bytes = 0;  ///< the longest UDP payload
    uint16_t vlan = 0;            ///< 0: no tag
    uint8_t traffic_class = 0;
  };

  explicit Peers(const Names& names) : names_(names) {}
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Must be called before all other functions.
  void start(std::unique_ptr<neighbours::Resolver> resolver, const Own& own);
  neighbours::Resolver& resolver() const { return *resolver_; }
  const Own& own() const { return own_; }
  /// The endpoint's own address, as peers read it.
  EndpointAddress own_address() const { return {own_.address, static_cast<uint16_t>(own_.datagram_bytes)}; }

  /// Reads the address from untrusted bytes. kMisuse: it is not the address of an endpoint over this transport.
  /// kUnavailable: it is of the other IP family.
  Result<EndpointAddress> read(std::span<const std::byte> address) const;
  /// Finds or makes the peer of an address that read() returned. Each success needs one disconnect(). kUnavailable:
  /// there is no route to the peer, or the next hop does not answer. kNoMemory.
  Result<uint32_t> connect(const EndpointAddress& address, uint64_t now_ns);
  /// Reads the address and connects. Counts the addresses that read() refuses in `refused`.
  Result<uint32_t> connect(std::span<const std::byte> address, uint64_t now_ns, uint64_t& refused);
  /// True if this is the last connection. The next disconnect() then ends the peer, and its open frame must be closed
  /// before.
  bool is_last(uint32_t id) const { return peers_[id].references == 1; }
  void disconnect(uint32_t id);

  Route& route(uint32_t id) { return routes_[id]; }
  const Route& route(uint32_t id) const { return routes_[id]; }
  /// True if frames can be sent to the peer. A peer stays ready when its MAC address becomes unknown again, because its
  /// sessions find out by themselves whether the peer can still be reached.
  bool is_ready(uint32_t id) const { return routes_[id].is_ready; }
  /// True if there is no connection to the peer, if it cannot be resolved, or if fail() was called.
  bool is_dead(uint32_t id) const;
  /// Why the peer is dead: a text of the resolver. Ok if the peer is not dead, or if fail() was called.
  Status failure(uint32_t id) const;

  /// Takes over the resolver's results. Returns true if its interface() has changed.
  bool update(uint64_t now_ns);
  /// The resolver's failure, for Transport::failure(). Not ok: the endpoint cannot go on.
  Status own_failure() const;
  /// Must be called when the interface has another MAC address.
  void set_own_mac(const frames::MacAddress& mac);
  /// Makes all peers unready for good.
  void fail();

 private:
  struct Peer {
    uint32_t references = 0;
    neighbours::Id neighbour{};
    EndpointAddress address;
  };

  Result<uint32_t> make(const EndpointAddress& address, neighbours::Id neighbour);
  void adopt(uint32_t id);

  std::vector<Route> routes_;  ///< by peer number
  std::vector<Peer> peers_;
  std::vector<uint32_t> free_ids_;
  std::map<EndpointAddress::Bytes, uint32_t> ids_;
  std::multimap<neighbours::Id, uint32_t> by_neighbour_;
  std::unique_ptr<neighbours::Resolver> resolver_;
  Own own_;
  const Names names_;
  bool has_failed_ = false;
};

}  // namespace tern::ethernet
