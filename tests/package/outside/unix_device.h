// A transport outside of tern's source tree: packets in Unix datagram sockets of this host. It is the example of
// docs/adding-a-transport.md.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <tern/transport/device.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

class UnixDevice final : public tern::Device {
 public:
  /// Null: the system refused a socket.
  static std::unique_ptr<UnixDevice> create() {
    std::unique_ptr<UnixDevice> device(new UnixDevice);
    return device->open() ? std::move(device) : nullptr;
  }
  ~UnixDevice() override {
    if (socket_ >= 0) close(socket_);
  }

  Properties properties() const override {
    Properties properties;
    properties.name = "unix";
    properties.packet_bytes_max = kPacketBytes;
    properties.receive_queue_packets = 10;  // net.unix.max_dgram_qlen
    return properties;
  }
  std::span<const std::byte> address() const override { return {own_name_.data(), own_name_bytes_}; }

  tern::Result<Peer> connect(std::span<const std::byte> address, std::string_view) override {
    // The bytes may come from anyone. Only abstract names are accepted, which begin with a zero byte and name no file.
    if (address.size() < 2 || address.size() > own_name_.size() || address[0] != std::byte{0}) {
      return tern::Status(tern::Code::kMisuse, "unix: the peer's address is not an abstract socket name");
    }
    sockaddr_un target{};
    target.sun_family = AF_UNIX;
    std::memcpy(target.sun_path, address.data(), address.size());
    const auto free = std::find(peers_.begin(), peers_.end(), nullptr);
    auto peer = std::unique_ptr<Target>(new (std::nothrow) Target{target, length_of(address.size())});
    if (peer == nullptr) return tern::Status(tern::Code::kNoMemory, "unix: no memory for another peer");
    if (free != peers_.end()) {
      *free = std::move(peer);
      return static_cast<Peer>(free - peers_.begin());
    }
    try {
      peers_.push_back(std::move(peer));
    } catch (const std::bad_alloc&) {
      return tern::Status(tern::Code::kNoMemory, "unix: no memory for another peer");
    }
    return Peer{peers_.size() - 1};
  }
  void disconnect(Peer peer) override { peers_[peer].reset(); }

  size_t transmit(std::span<const Outgoing> packets) override {
    size_t taken = 0;
    while (taken < packets.size()) {
      const size_t burst = std::min(packets.size() - taken, kBurst);
      for (size_t i = 0; i < burst; i++) describe(packets[taken + i], i);
      const int sent = sendmmsg(socket_, headers_.data(), static_cast<unsigned>(burst), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent > 0) {
        taken += static_cast<size_t>(sent);
      } else if (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM) {
        break;  // the receiver's queue is full, or memory is short: the caller sends the rest again
      } else {
        taken++;  // lost, because no socket has this name any more
      }
    }
    return taken;
  }

  size_t receive(std::span<Incoming> places) override {
    const size_t burst = std::min(places.size(), kBurst);
    for (size_t i = 0; i < burst; i++) {
      ranges_[2 * i] = {buffers_[i].data(), kPacketBytes};
      headers_[i].msg_hdr = {};
      headers_[i].msg_hdr.msg_iov = &ranges_[2 * i];
      headers_[i].msg_hdr.msg_iovlen = 1;
    }
    const int got = recvmmsg(socket_, headers_.data(), static_cast<unsigned>(burst), MSG_DONTWAIT, nullptr);
    for (int i = 0; i < got; i++) places[i].packet = {buffers_[i].data(), headers_[i].msg_len};
    return got > 0 ? static_cast<size_t>(got) : 0;
  }
  int descriptor() const override { return socket_; }

 private:
  static constexpr size_t kPacketBytes = 8192;
  static constexpr size_t kBurst = 32;
  struct Target {
    sockaddr_un name;
    socklen_t length;
  };

  UnixDevice() = default;
  static socklen_t length_of(size_t name_bytes) {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_bytes);
  }
  /// A bind without a name makes the kernel choose an abstract one.
  bool open() {
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    socklen_t length = sizeof(name);
    if (socket_ < 0 || bind(socket_, reinterpret_cast<sockaddr*>(&name), sizeof(name.sun_family)) != 0 ||
        getsockname(socket_, reinterpret_cast<sockaddr*>(&name), &length) != 0) {
      return false;
    }
    own_name_bytes_ = std::min<size_t>(length - length_of(0), own_name_.size());
    std::memcpy(own_name_.data(), name.sun_path, own_name_bytes_);
    return true;
  }
  void describe(const Outgoing& packet, size_t i) {
    ranges_[2 * i] = {const_cast<std::byte*>(packet.header.data()), packet.header.size()};
    ranges_[2 * i + 1] = {const_cast<std::byte*>(packet.payload.data()), packet.payload.size()};
    msghdr& header = headers_[i].msg_hdr = {};
    header.msg_name = &peers_[packet.peer]->name;
    header.msg_namelen = peers_[packet.peer]->length;
    header.msg_iov = &ranges_[2 * i];
    header.msg_iovlen = 2;
  }

  int socket_ = -1;
  std::array<std::byte, 16> own_name_{};
  size_t own_name_bytes_ = 0;
  std::vector<std::unique_ptr<Target>> peers_;  ///< by Peer; null: the place is free
  std::array<mmsghdr, kBurst> headers_{};
  std::array<iovec, 2 * kBurst> ranges_{};
  std::array<std::array<std::byte, kPacketBytes>, kBurst> buffers_;
};
