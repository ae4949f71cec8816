// The kernel's UDP socket beside an endpoint's queue: it has the endpoint's port, gets the datagrams that arrive where
// the endpoint has no queue, and sends those to this host, which no interface carries. Transport layer; the endpoint's
// thread.
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
  /// In a forked child: lets go of the port, which is the parent's.
  void close_in_child() { socket_.reset(); }

  /// The next datagram, valid until the next call. Null data: there is none. A datagram longer than `kBytesMax` is
  /// given as that many bytes and one.
  std::span<const std::byte> receive();
  /// A complete frame with `header_bytes` of headers, to the IP address and port that these name. False: lost.
  bool send(std::span<const std::byte> frame, size_t header_bytes);

  static constexpr size_t kBytesMax = 4096;

 private:
  base::Descriptor socket_;
  sa_family_t family_ = AF_INET;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace tern::transport::xdp
