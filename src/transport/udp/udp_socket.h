// Sockets with the options that the UDP transport needs, and the test of the kernel's offloads.
// Transport layer: knows addresses and options of sockets, but no peers or packets. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/status.h>

#include "base/descriptor.h"
#include "transport/udp/udp_address.h"

namespace tern::transport {

using base::Descriptor;

inline constexpr Status kNoDescriptors(Code::kUnavailable,
                                       "udp: no file descriptors are left: raise the limit (ulimit -n)");

/// Returns a bound, non-blocking, unconnected socket that never fragments datagrams. `bound` gets the address with the
/// real port. kUnavailable: the port or address is not available, or there is no descriptor; the text says which.
Result<Descriptor> open_receive_socket(const SocketAddress& bind_to, size_t buffer_bytes, bool gro,
                                       SocketAddress* bound);

/// Switches the joining of received trains (UDP_GRO). Off: a train arrives as single datagrams.
void set_gro(int fd, bool is_on);

/// Returns a non-blocking socket that never fragments datagrams. Its source is a port of its own and the IP of `local`,
/// unless that is a wildcard or of the other family. Empty: errno says why.
Descriptor open_send_socket(sa_family_t family, const SocketAddress& local, size_t buffer_bytes);

struct UdpOffloads {
  bool gso = false;  ///< one call sends a train of datagrams (UDP_SEGMENT)
  bool gro = false;  ///< one call receives a train (UDP_GRO)
};
/// Sends a train of datagrams over loopback, to find out which offloads work on this kernel. If loopback carries no
/// datagrams at all, the result is the offloads whose options the kernel has.
UdpOffloads test_offloads(sa_family_t family);

/// True if a datagram of `bytes` passes from one socket at `address` to another. `address` must be this host's; its
/// port is not used.
bool carries_within_host(SocketAddress address, size_t bytes);

/// Bytes of the longest datagram that the first link of a connected socket's route carries; 0: not known.
uint32_t route_datagram_bytes(int fd, sa_family_t family);

/// Adds the control message that makes `message` a train of `segment_bytes`; `control` has kSegmentControlBytes.
inline constexpr size_t kSegmentControlBytes = CMSG_SPACE(sizeof(uint16_t));
void set_segment_bytes(msghdr* message, void* control, uint16_t segment_bytes);

}  // namespace tern::transport
