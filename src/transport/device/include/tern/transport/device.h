// A transport of your own: a Device moves datagrams, and Rpc<tern::Device> runs an endpoint over it. Standard library
// only. docs/adding-a-transport.md is the tutorial.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern {
namespace transport {
class DeviceImpl;
}

/// Moves the packets of one endpoint as unreliable datagrams, which may be lost, duplicated and reordered, but should
/// not be changed. In each iteration of its loop the endpoint calls it once to receive a burst of packets, and once to
/// transmit a burst.
///
/// All calls come from the thread that runs the endpoint's loop; the first ones may come from the thread that makes the
/// endpoint, and the destructor runs in the one that destroys it. No call may block, throw, or call the endpoint.
class TERN_API Device {
 public:
  static constexpr std::string_view kName = "device";  ///< the peers' endpoints must have the same
  using Impl = transport::DeviceImpl;                  ///< for the library

  /// For Rpc<Device>::create().
  struct Options {
    /// The endpoint owns it, and destroys it last. Null: kMisuse.
    std::unique_ptr<Device> device;
  };

  /// Constants of the device. If one is out of range, Rpc::create() returns kMisuse.
  struct Properties {
    /// The name of the kind of device, 1 to 16 bytes. Endpoints whose devices have other names are refused as peers.
    std::string_view name;
    /// The longest packet that it moves, 536 to 65000 B. Two peers use the smaller of their values.
    uint32_t packet_bytes_max = 1232;
    /// Packets that can wait for receive() before further ones are lost, at least 1. Clients do not exceed it.
    uint32_t receive_queue_packets = 256;
    /// The highest rate of one sender, at least 1. Congestion control begins with it.
    uint64_t link_bytes_per_sec = 1'250'000'000;
  };

  /// The device's name for a connection. Any value that no other connection has.
  using Peer = uint64_t;
  /// The state of a connection. kDead is the last one.
  enum class PeerState : uint8_t {
    kConnecting,  ///< packets cannot be transmitted yet
    kReady,
    kDead,  ///< no packet will be transmitted any more
  };

  /// One packet: the header's bytes, then those of the payload, which may be none.
  struct Outgoing {
    Peer peer;                           ///< from connect()
    std::span<const std::byte> header;   ///< 24 B
    std::span<const std::byte> payload;  ///< valid until transmit() returns
  };
  /// One packet, in memory of the device.
  struct Incoming {
    std::span<const std::byte> packet;  ///< header and payload
  };

  virtual ~Device();

  /// Called once, by Rpc::create().
  virtual Properties properties() const = 0;
  /// The address at which this device receives, 1 to 40 B, for connect() of a peer's device. Must not change.
  virtual std::span<const std::byte> address() const = 0;
  /// Prepares to transmit to the device with this address(). The bytes come from the network and must be checked.
  /// `host` is the numeric IP address at which the peer's Nexus was reached. Called once until disconnect() for each
  /// pair of an address and a host, for any number of sessions: a peer whose Nexus is reached at two addresses is
  /// connected twice. Each call must return a Peer of its own, because each one has its own disconnect(). kMisuse: the
  /// bytes are not an address. kPeerUnreachable. kUnavailable. kNoMemory.
  virtual Result<Peer> connect(std::span<const std::byte> address, std::string_view host) = 0;
  /// Ends a connection: transmit() gets no more packets to `peer`.
  virtual void disconnect(Peer peer) = 0;
  /// The state of a connection. A device without connections need not override this.
  virtual PeerState peer_state(Peer peer);

  /// Takes packets in order, and returns their number. It must copy or send their bytes before it returns. It takes all
  /// packets unless its queue is full; the endpoint calls again with the others. A packet that can never be sent counts
  /// as taken, and is lost.
  virtual size_t transmit(std::span<const Outgoing> packets) = 0;
  /// Fills in the packets that have arrived, at most places.size(), and returns their number. Their bytes must not
  /// change until the next call of receive(). The device need not check them, because the library does.
  virtual size_t receive(std::span<Incoming> places) = 0;
  /// A descriptor that is readable (poll, epoll) as long as receive() would return a packet, so that the endpoint can
  /// sleep. -1: there is none, and the endpoint always polls, for every RpcOptions::wait. Must not change. The device
  /// owns it.
  virtual int descriptor() const = 0;
};

}  // namespace tern
