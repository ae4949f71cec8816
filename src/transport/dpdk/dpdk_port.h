// A DPDK port: the device that endpoints of this process share, and each endpoint's access to it, a lane. Transport
// layer. It includes no header of DPDK, so that its users do not need DPDK's compiler flags.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <tern/status.h>
#include <tern/transport/dpdk.h>

#include "base/address.h"
#include "base/wait.h"
#include "frames/drop.h"
#include "frames/mac_address.h"

struct rte_mbuf;
struct rte_mempool;

namespace tern::neighbours {
class Host;
}

namespace tern::transport {

/// The choice of a device and its settings. All endpoints of a device must have the same.
struct DpdkChoice {
  std::string device;      ///< see Dpdk::Options::device; ';' may stand for ','
  std::string eal;         ///< EAL's arguments; empty: the defaults of eal.h
  std::string address;     ///< "10.0.0.1/24": own mode; empty: the kernel's interface has addresses
  std::string gateway;     ///< own mode: the next hop to other networks; empty: none
  uint32_t queues = 0;     ///< 0: as many as endpoints can use, 16 at most
  uint32_t mtu_bytes = 0;  ///< of IP packets; 0: the device's present MTU
  uint32_t receive_buffers = Dpdk::Options::kReceiveBuffersDefault;  ///< frames that wait in a queue
  uint16_t vlan = 0;  ///< of frames that this process sends as a host, and of steering rules; 0: no tag
};

/// The properties of a port, which are constant for its life.
struct DpdkFacts {
  std::string name;  ///< of the device, for texts
  frames::MacAddress mac;
  uint32_t mtu_bytes = 0;         ///< of IP packets
  uint64_t bytes_per_sec = 0;     ///< of the link; 10 Gbit/s if the driver does not report it
  uint32_t interface_index = 0;   ///< of the kernel's interface, which with a VLAN is the VLAN's interface; 0: none
  bool makes_checksums = false;   ///< the device computes those of IPv4 and UDP if an mbuf's flags request it
  bool checks_checksums = false;  ///< the device sets RTE_MBUF_F_RX_IP_CKSUM_GOOD and L4_CKSUM_GOOD
  bool gathers = false;   ///< the device sends frames of several mbufs, which may be external buffers in message memory
  bool uses_dma = false;  ///< the device reads memory: DpdkMemory registers message memory
  bool is_steered = false;           ///< each endpoint has a receive queue of its own
  bool has_interrupts = false;       ///< of receive queues; without them the port's thread polls for sleeping endpoints
  uint16_t receive_descriptors = 0;  ///< of a queue
  uint16_t send_descriptors = 0;     ///< of a queue
};

/// Received frames that a port, and not one of its endpoints, has dropped.
struct DpdkDrops {
  std::array<uint64_t, frames::kDropReasons>
      frames{};           ///< frames for no endpoint and not for the host, by frames::Drop
  uint64_t no_space = 0;  ///< too many waited for an endpoint or for the host
};

class DpdkLane;

/// The endpoints of the process that have chosen the same device share it. The last endpoint closes it. Any thread.
class DpdkPort {
 public:
  /// Starts EAL if necessary, and the device unless this process has it open already. kMisuse: an option is out of
  /// range, or differs from that of the endpoints that use the device. kUnavailable: no such device, the kernel's
  /// driver has it, no memory of EAL, and so on; the text has the reason and the remedy. kNoMemory.
  static Result<std::shared_ptr<DpdkPort>> open(const DpdkChoice& choice);

  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;
  ~DpdkPort();

  const DpdkFacts& facts() const;
  /// The host of the port, which outlives the lanes: an OwnHost in own mode, else a KernelHost. The endpoints own its
  /// resolvers.
  neighbours::Host& host();
  bool is_own_mode() const;
  /// Own mode: the IP address, port 0.
  base::SocketAddress own_address() const;
  /// DPDK's number of the port, for DpdkMemory and tests.
  uint16_t id() const;

  /// Makes a lane for datagrams to the IP address and UDP port `*own`. In own mode the UDP port may be 0: a free one is
  /// chosen and written back. kUnavailable: another endpoint has the UDP port, or there is no queue left. The thread
  /// that first calls the lane becomes its thread. The lane keeps this object open.
  Result<std::unique_ptr<DpdkLane>> attach(base::SocketAddress* own);

  /// True if the device was removed, or has failed for good. Cheap.
  Status failure() const;
  /// Grows with each change of the link and each failure.
  uint64_t events() const;
  /// True if the device has a link.
  bool is_link_up() const;
  /// Returns the frames that were dropped since the last call of any endpoint, so that each frame is counted once.
  /// Cheap if there are none.
  DpdkDrops take_drops();

 private:
  class Registry;
  struct Internals;
  explicit DpdkPort(std::unique_ptr<Internals> internals);

  std::unique_ptr<Internals> internals_;
};

/// An endpoint's access to a port. The endpoint's thread. A forked child may only call the destructor, which then does
/// nothing.
class DpdkLane {
 public:
  static constexpr uint32_t kBurstMax = 32;

  DpdkLane(const DpdkLane&) = delete;
  DpdkLane& operator=(const DpdkLane&) = delete;
  ~DpdkLane();

  // Callers of receive() and transmit() include lane_internals.h.

  /// Returns frames for this endpoint, and frames to pass to pass_on(): those that other endpoints have passed on, or
  /// else frames of the device. `max` is 1 to kBurstMax. The caller owns the frames, which may have several segments.
  inline uint32_t receive(rte_mbuf** frames, uint32_t max);
  /// Sends frames. Returns the number that the device has taken, from the front. The caller keeps the others.
  inline uint32_t transmit(rte_mbuf** frames, uint32_t count);
  /// Takes a frame that is not for this endpoint, if another endpoint has its destination, or if it is for the host
  /// (ARP, neighbour discovery). False: it is for neither; the caller keeps the frame.
  bool pass_on(rte_mbuf* frame);

  /// True if `address` is an address of this port. Frames to it do not reach the device, and must be given to
  /// loop_back(). The UDP port does not matter. For connect().
  bool is_local(const base::SocketAddress& address) const;
  /// Takes a complete frame in one segment from one of this port's endpoints to one of them, which may be the same. It
  /// needs no checksums: its flags tell the receiver that they are right. The frame is dropped if no endpoint has its
  /// destination, or too many frames wait there.
  void loop_back(rte_mbuf* frame);

  /// Makes the device bring frames to this MAC address to the lane's queue. Call it when the kernel has given the
  /// interface another address. kUnavailable: the driver refuses, and the lane gets no frames.
  Status follow_mac(const frames::MacAddress& mac);

  /// Asks the driver to free the mbufs of frames that have left.
  void clean_up();
  /// Stops the send queue, which makes the driver free all its mbufs, sent or not; frames of other endpoints in the
  /// queue are lost, too. For the end of an endpoint whose memory the device may still read. Does nothing if the driver
  /// cannot stop a single queue.
  void take_back();

  /// Adds the lane's descriptors with `name` to the set, once; they are readable only between arm() and disarm().
  Status add_to(base::WaitSet& waits, uint64_t name);
  /// Call it before sleeping. False: frames are waiting, and the lane is not armed. Without interrupts the port's
  /// thread polls for frames every 100 us, and makes the descriptor readable.
  bool arm();
  /// Call it after sleeping. Does nothing if the lane is not armed.
  void disarm();

 private:
  friend class DpdkPort;
  struct Internals;
  explicit DpdkLane(std::unique_ptr<Internals> internals);

  std::unique_ptr<Internals> internals_;
};

}  // namespace tern::transport
