// Bare stream sockets as a peer: a length and the message, TCP or Unix sockets, both sides spinning or asleep in the
// kernel, and all requests that are due in one call of the kernel. Bare UDP sockets and bare rings are ../limits.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;

using Length = uint64_t;  ///< before each message

struct Address {
  sockaddr_storage bytes = {};
  socklen_t size = 0;
};

Address tcp_address(uint16_t port) {
  Address address;
  auto* in = reinterpret_cast<sockaddr_in*>(&address.bytes);
  in->sin_family = AF_INET;
  in->sin_port = htons(port);
  in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.size = sizeof *in;
  return address;
}

/// A name that is no file, so nothing has to be removed.
Address unix_address(const std::string& name) {
  Address address;
  auto* un = reinterpret_cast<sockaddr_un*>(&address.bytes);
  un->sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), un->sun_path + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

/// One connection. Writes are collected until flush(), large ones are not copied.
class Stream {
 public:
  explicit Stream(int fd) : fd_(fd), in_(kFirstBytes) {
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // says no on a Unix socket, which has no such delay
  }

  void put(Bytes message) {
    const Length length = message.size();
    const auto* raw = reinterpret_cast<const std::byte*>(&length);
    out_.insert(out_.end(), raw, raw + sizeof length);
    if (message.size() > kCopiedBytesMax) {
      flush();
      write_all(message);
    } else {
      out_.insert(out_.end(), message.begin(), message.end());
    }
  }
  void flush() {
    write_all(out_);
    out_.clear();
  }

  /// Waits until a message is there, and hands over all that are.
  template <class OnMessage>
  void take(const OnMessage& on_message) {
    for (bool has_any = false; !has_any;) {
      read_some();
      while (true) {
        Length length = 0;
        const size_t there = end_ - begin_;
        if (there < sizeof length) break;
        std::memcpy(&length, in_.data() + begin_, sizeof length);
        if (length > peers::kSizeMax) die("a message of %lu bytes has arrived", length);
        if (there < sizeof length + length) {
          make_room(sizeof length + length);
          break;
        }
        on_message(Bytes(in_).subspan(begin_ + sizeof length, length));
        has_any = true;
        begin_ += sizeof length + length;
      }
      if (begin_ == end_) begin_ = end_ = 0;
    }
  }

 private:
  static constexpr size_t kFirstBytes = 1 << 18, kCopiedBytesMax = 1 << 12;

  void make_room(size_t bytes) {
    if (begin_ + bytes <= in_.size()) return;
    std::copy(in_.begin() + static_cast<ptrdiff_t>(begin_), in_.begin() + static_cast<ptrdiff_t>(end_), in_.begin());
    end_ -= begin_;
    begin_ = 0;
    if (bytes > in_.size()) in_.resize(bytes + kFirstBytes);
  }
  void read_some() {
    make_room(end_ - begin_ + 1);
    const ssize_t got = recv(fd_, in_.data() + end_, in_.size() - end_, wait_flag_);
    if (got > 0) {
      end_ += static_cast<size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      die("the other side is gone");
    }
  }
  void write_all(Bytes bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), wait_flag_ | MSG_NOSIGNAL);
      if (sent > 0) {
        bytes = bytes.subspan(static_cast<size_t>(sent));
      } else if (errno != EAGAIN && errno != EINTR) {
        die("the other side is gone: %s", std::strerror(errno));
      }
    }
  }

  int fd_;
  const int wait_flag_ = FLAGS_wait == "poll" ? MSG_DONTWAIT : 0;
  std::vector<std::byte> in_, out_;
  size_t begin_ = 0, end_ = 0;  ///< of what in_ has
};

class Sockets {
 public:
  static constexpr const char* kName = "sockets";
  static constexpr std::array kTransports = {"tcp", "unix"};
  static constexpr std::array kWaits = {"poll", "block"};

  template <class Ready>
  static void serve(const std::string& transport, const Ready& ready) {
    const bool is_tcp = transport == "tcp";
    const std::string name = "tern-peer-" + std::to_string(getpid());
    Address own = is_tcp ? tcp_address(0) : unix_address(name);
    const int listener = open(own);
    if (bind(listener, generic(own), own.size) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, generic(own), &own.size) != 0) {
      die("no listening socket: %s", std::strerror(errno));
    }
    ready(is_tcp ? std::to_string(ntohs(reinterpret_cast<sockaddr_in*>(&own.bytes)->sin_port)) : name);
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) die("no connection: %s", std::strerror(errno));
    Stream stream(fd);
    while (true) {
      stream.take([&](Bytes request) {
        const peers::Head head = peers::answer(request);
        stream.put(std::as_bytes(std::span(&head, 1)));
      });
      stream.flush();
    }
  }

  Sockets(const std::string& transport, const std::string& address) : stream_(connected(transport, address)) {}
  void send(Bytes request) { stream_.put(request); }
  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    stream_.flush();
    stream_.take(on_response);
  }

 private:
  static sockaddr* generic(Address& address) { return reinterpret_cast<sockaddr*>(&address.bytes); }
  static int open(const Address& address) {
    const int fd = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) die("no socket: %s", std::strerror(errno));
    return fd;
  }
  static int connected(const std::string& transport, const std::string& text) {
    Address server = transport == "tcp" ? tcp_address(static_cast<uint16_t>(std::stoul(text))) : unix_address(text);
    const int fd = open(server);
    if (connect(fd, generic(server), server.size) != 0) die("no connection: %s", std::strerror(errno));
    return fd;
  }

  Stream stream_;
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<Sockets>(argc, argv); }
