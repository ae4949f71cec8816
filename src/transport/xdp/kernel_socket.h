// The kernel's UDP socket beside an endpoint's queue. It has the endpoint's port, receives datagrams that arrive at
// queues of other processes, and sends datagrams to this host, which no interface carries. Transport layer; the
// endpoint's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/address.h"
#include "base/descriptor.h"

namespace tern::transport::xdp {

class TERN_API KernelSocket {
 public:
  /// Binds to `*own`, whose port is chosen if it is 0. kNoMemory. Other errors: see ethernet::bind_port().
  Status open(base::SocketAddress* own);
  int descriptor() const { return socket_.get(); }
  /// In a forked child: closes the socket, because the parent owns the port.
  void close_in_child() { socket_.reset(); }

  /// The next datagram, valid until the next call. Null data: there is none. Of a datagram longer than `kBytesMax`, the
  /// first kBytesMax + 1 bytes are returned.
  std::span<const std::byte> receive();
  /// Sends the payload of a complete frame with `header_bytes` of headers to the IP address and port in the headers.
  /// False: it is lost.
  bool send(std::span<const std::byte> frame, size_t header_bytes);

  static constexpr size_t kBytesMax = 4096;

 private:
  base::Descriptor socket_;
  sa_family_t family_ = AF_INET;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace tern::transport::xdp
