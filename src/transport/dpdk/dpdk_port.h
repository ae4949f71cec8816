// A DPDK port: the device that endpoints of this process share, and each endpoint's lane through it. Transport layer.
// Includes nothing of DPDK, so that those who include it need none of its compiler flags.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include <tern/status.h>

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

/// Which device endpoints want, and how. The endpoints of a device have equal ones.
struct DpdkChoice {
  std::string device;               ///< see Dpdk::Options::device; ';' may stand for ','
  std::string eal;                  ///< EAL's arguments; empty: sane ones
  std::string address;              ///< "10.0.0.1/24": own mode; empty: the kernel's interface has addresses
  std::string gateway;              ///< own mode: of other networks; empty: none
  uint32_t queues = 0;              ///< 0: as many as endpoints can use, 16 at most
  uint32_t mtu_bytes = 0;           ///< of IP packets; 0: as the device has it
  uint32_t receive_buffers = 4096;  ///< frames that wait in a queue
  uint16_t vlan = 0;                ///< of frames that this process sends as a host, and of steering rules; 0: no tag
};

/// Constant for the port's life.
struct DpdkFacts {
  std::string name;  ///< of the device, for texts
  frames::MacAddress mac;
  uint32_t mtu_bytes = 0;            ///< of IP packets
  uint64_t bytes_per_sec = 0;        ///< of the link; 10 Gbit/s if the driver does not tell
  uint32_t interface_index = 0;      ///< of the kernel's interface, with a VLAN that over the device's own; 0: none
  bool makes_checksums = false;      ///< of IPv4 and UDP, asked for by an mbuf's flags
  bool checks_checksums = false;     ///< tells RTE_MBUF_F_RX_IP_CKSUM_GOOD and L4_CKSUM_GOOD
  bool gathers = false;              ///< sends frames of several mbufs, message memory by external buffers among them
  bool uses_dma = false;             ///< the device reads memory: DpdkMemory registers message memory
  bool is_steered = false;           ///< each endpoint has a receive queue of its own
  bool has_interrupts = false;       ///< of receive queues; else the port's thread looks for sleeping endpoints
  uint16_t receive_descriptors = 0;  ///< of a queue
  uint16_t send_descriptors = 0;     ///< of a queue
};

/// Received frames that a port has dropped in place of its endpoints.
struct DpdkDrops {
  std::array<uint64_t, frames::kDropReasons> frames{};  ///< nobody wants them; by frames::Drop
  uint64_t no_space = 0;                                ///< too many waited for an endpoint or for the host
};

class DpdkLane;

/// Shared by the endpoints of the process that have chosen the same device. The last one closes it. Any thread.
class DpdkPort {
 public:
  /// Starts EAL if need be, and the device unless this process has it open already. kMisuse: an option is out of range,
  /// or another than that of the endpoints that have the device. kUnavailable: no such device, the kernel's driver has
  /// it, no memory of EAL, and so on; the text says which and what to do. kNoMemory.
  static Result<std::shared_ptr<DpdkPort>> open(const DpdkChoice& choice);

  DpdkPort(const DpdkPort&) = delete;
  DpdkPort& operator=(const DpdkPort&) = delete;
  ~DpdkPort();

  const DpdkFacts& facts() const;
  /// Of the port, which outlives its lanes: an OwnHost in own mode, else a KernelHost. Its resolvers are the
  /// endpoints'.
  neighbours::Host& host();
  bool is_own_mode() const;
  /// Own mode: the IP address, port 0.
  base::SocketAddress own_address() const;
  /// Of DPDK, for DpdkMemory and tests.
  uint16_t id() const;

  /// A lane for datagrams to `*own`, which is one IP and port. In own mode the port may be 0: any free one is chosen
  /// and written back. kUnavailable: another endpoint has the port, or there is no queue left. The caller becomes the
  /// lane's thread when it first calls it. The lane keeps the port open.
  Result<std::unique_ptr<DpdkLane>> attach(base::SocketAddress* own);

  /// The device was removed, or has failed for good. Cheap.
  Status failure() const;
  /// Grows with each change of the link and each failure.
  uint64_t events() const;
  /// Whether the device has a link.
  bool is_link_up() const;
  /// What was dropped since the last call of any endpoint: each frame is counted once. Cheap if that is nothing.
  DpdkDrops take_drops();

 private:
  class Registry;
  struct Internals;
  explicit DpdkPort(std::unique_ptr<Internals> internals);

  std::unique_ptr<Internals> internals_;
};

/// An endpoint's way through a port. The endpoint's thread. In a forked child only the destructor may be called, which
/// does nothing there.
class DpdkLane {
 public:
  static constexpr uint32_t kBurstMax = 32;

  DpdkLane(const DpdkLane&) = delete;
  DpdkLane& operator=(const DpdkLane&) = delete;
  ~DpdkLane();

  // Callers of receive() and transmit() include lane_internals.h.

  /// Frames for this endpoint, or such that pass_on() wants to see: those that others have passed on, else those of the
  /// device. `max`: 1 to kBurstMax. The caller owns them; they may have several segments.
  inline uint32_t receive(rte_mbuf** frames, uint32_t max);
  /// Returns how many the device has taken, from the front. The caller keeps the others.
  inline uint32_t transmit(rte_mbuf** frames, uint32_t count);
  /// Takes a frame that is not for this endpoint, if another one has its destination or the host wants it (ARP,
  /// neighbour discovery). False: nobody does; the frame is still the caller's.
  bool pass_on(rte_mbuf* frame);

  /// Whether `address` is one of this port: frames to it do not reach the device and must be given to loop_back(). The
  /// UDP port does not matter. For connect().
  bool is_local(const base::SocketAddress& address) const;
  /// Takes a complete frame in one segment, of this port's endpoints to one of them, this one included. Its checksums
  /// need not be there: the receiver sees flags that they are right. Dropped if nobody has its destination, or too many
  /// frames wait there.
  void loop_back(rte_mbuf* frame);

  /// Asks the driver to free the mbufs of frames that have left.
  void clean_up();
  /// Makes the driver free all mbufs that it has not freed, sent or not, by a stop of the send queue; frames of other
  /// endpoints there are lost, too. For the end of an endpoint whose memory the device may still read. Does nothing if
  /// the driver cannot stop a queue alone.
  void take_back();

  /// Adds the lane's descriptors with `name` to the set, once; they are readable only between arm() and disarm().
  Status add_to(base::WaitSet& waits, uint64_t name);
  /// Before sleeping. False: frames are there, and the lane is not armed. Without interrupts the port's thread looks
  /// for frames every 100 us, and makes the descriptor readable.
  bool arm();
  /// After sleeping. Does nothing if the lane is not armed.
  void disarm();

 private:
  friend class DpdkPort;
  struct Internals;
  explicit DpdkLane(std::unique_ptr<Internals> internals);

  std::unique_ptr<Internals> internals_;
};

}  // namespace tern::transport
