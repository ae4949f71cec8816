// tern's XDP program: which received frames go to AF_XDP sockets, and its maps. Transport layer; control events only.
//
// The program runs for each frame that the interface receives. It finds UDP datagrams over IPv4 without options or
// fragments, and over IPv6 without extension headers, in frames without a VLAN tag. A tag that the NIC has taken out of
// the frame is not seen, so such a frame counts as one without. If the destination address and port have an owner, and
// the receive queue has the same owner, the frame goes to the queue's socket. Everything else goes to the kernel. The
// program does not check checksums and lengths: the process that receives the frame checks everything.
//
// It is written as instructions, so that no compiler for eBPF is needed when tern is built or run. Kernels: 5.3 for a
// redirect that falls back to XDP_PASS, 5.8 for lists of links, 5.9 for links of XDP; older kernels have netlink.
#pragma once

#include <bpf/bpf.h>
#include <linux/bpf.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/descriptor.h"

namespace tern::transport::xdp {

inline constexpr uint32_t kPortsMax = 4096;   ///< of all processes at an interface
inline constexpr uint32_t kQueuesMax = 1024;  ///< of an interface; the kernel handles further queues
inline constexpr uint32_t kNoRule = UINT32_MAX;

/// Key of the map of ports. All in network order.
struct PortKey {
  std::array<uint8_t, 16> ip;  ///< IPv4: 4 bytes, and zeros
  uint16_t port;
  uint16_t ether_type;
  friend bool operator==(const PortKey&, const PortKey&) = default;
};
static_assert(sizeof(PortKey) == 20, "no padding, because the kernel compares all bytes");

PortKey key_of(const base::SocketAddress& address);
/// A key that marks the presence of an owner. No frame has this key, because its EtherType is 0.
PortKey key_of_owner(uint64_t owner);

/// Value of the map of ports. The program reads the owner only.
struct PortEntry {
  uint64_t owner;
  uint32_t rule;  ///< of the device, which brings the port's datagrams to a queue; kNoRule: none
  uint32_t reserved;
};

/// Numbers of frames to ports with an owner that nevertheless went to the kernel. The fields are indices of the map of
/// counters, which has a value for each CPU.
struct Counts {
  uint64_t foreign_queue = 0;  ///< they arrived at a queue of another process, or of no process
  uint64_t no_socket = 0;      ///< the owner had no socket any more: it is closing, or was killed
};

/// Indices into an array of the maps.
enum class Map : uint8_t {
  kPorts,    ///< hash: PortKey to PortEntry
  kQueues,   ///< array: receive queue to owner, 0: none
  kSockets,  ///< XSKMAP: receive queue to AF_XDP socket
  kCounts,   ///< array for each CPU: the fields of Counts
};
inline constexpr size_t kMaps = 4;

inline constexpr const char* kProgramName = "tern_xdp";
/// The instructions, with the descriptors of the maps in place.
std::vector<bpf_insn> instructions(const std::array<int, kMaps>& maps);

/// Reads the kernel's information about a program, map or link into a bpf_prog_info and so on. Returns 0 or an error
/// number.
template <class Info>
int read_info(int descriptor, Info* info) {
  __u32 bytes = sizeof(*info);
  return bpf_obj_get_info_by_fd(descriptor, info, &bytes) == 0 ? 0 : errno;
}

/// Owns this process's descriptors of the program and its maps.
class Program {
 public:
  /// A new program with empty maps, attached to nothing. Returns 0 or an error number.
  int load();
  /// Opens a program that another process has loaded. Returns 0 or an error number: ENOENT, the program is gone; EPERM;
  /// EINVAL, its maps are not those of tern's program.
  int open(uint32_t id);

  int descriptor() const { return program_.get(); }
  int map(Map map) const { return maps_[static_cast<size_t>(map)].get(); }

  /// The kernel's identity of a program: its name, a hash of its instructions, its number.
  struct Identity {
    std::string name;
    std::array<uint8_t, BPF_TAG_SIZE> tag{};
    uint32_t id = 0;
  };
  /// The name is empty if the kernel does not report it.
  Identity identity() const;

  // Access to the maps. A failure is an error number.
  int find_port(const PortKey& key, PortEntry* entry) const;
  int set_port(const PortKey& key, const PortEntry& entry) const;
  void remove_port(const PortKey& key) const;
  uint64_t queue_owner(uint32_t queue) const;
  int set_queue_owner(uint32_t queue, uint64_t owner) const;
  Counts counts() const;
  /// visit(const PortKey&, const PortEntry&): may remove that port.
  template <class Visit>
  void for_each_port(Visit&& visit) const;

 private:
  std::vector<PortKey> port_keys() const;

  base::Descriptor program_;
  std::array<base::Descriptor, kMaps> maps_;
};

template <class Visit>
void Program::for_each_port(Visit&& visit) const {
  for (const PortKey& key : port_keys()) {
    PortEntry entry;
    if (find_port(key, &entry) == 0) visit(key, entry);
  }
}

}  // namespace tern::transport::xdp
