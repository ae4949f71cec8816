// A hostile client, written by hand: sockets, the handshake, and packets with arbitrary fields. It obeys no rule of the
// protocol. One thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/udp/udp_address.h"
#include "wire/header.h"
#include "wire/management.h"

namespace attack {

using std::chrono::milliseconds;
using tern::wire::Header;
using tern::wire::Kind;
using tern::wire::ManagementKind;
using tern::wire::ManagementMessage;
using Clock = std::chrono::steady_clock;

/// Only a failing test waits this long.
inline constexpr auto kPatience = std::chrono::seconds(30);

/// --gtest_random_seed, for another attack of the same kind.
inline uint64_t seed() { return 1 + 2 * static_cast<uint64_t>(GTEST_FLAG_GET(random_seed)); }

/// splitmix64, so that every run makes the same attack.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t count) { return static_cast<uint32_t>(next() % count); }

 private:
  uint64_t state_;
};

/// IPv4, in host order.
struct Address {
  uint32_t ip = INADDR_LOOPBACK;
  uint16_t port = 0;

  /// "127.0.0.1", or "tern://127.0.0.1:1234" and so on.
  static Address parse(std::string text) {
    if (const size_t scheme = text.find("://"); scheme != std::string::npos) text.erase(0, scheme + 3);
    const size_t slash = text.find('/');
    if (slash != std::string::npos) text.erase(slash);
    Address address;
    if (const size_t colon = text.find(':'); colon != std::string::npos) {
      address.port = static_cast<uint16_t>(std::stoi(text.substr(colon + 1)));
      text.erase(colon);
    }
    in_addr ip{};
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &ip), 1) << text;
    address.ip = ntohl(ip.s_addr);
    return address;
  }
  sockaddr_in to_system() const {
    sockaddr_in system{};
    system.sin_family = AF_INET;
    system.sin_port = htons(port);
    system.sin_addr.s_addr = htonl(ip);
    return system;
  }
};

/// A datagram socket that counts its datagrams and bytes.
class Socket {
 public:
  explicit Socket(const Address& bind_to = {}) : fd_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    const int buffer_bytes = 4 << 20;
    (void)setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
    const sockaddr_in system = bind_to.to_system();
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&system), sizeof(system)), 0) << strerror(errno);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  Address address() const {
    sockaddr_in system{};
    socklen_t size = sizeof(system);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&system), &size), 0);
    return {ntohl(system.sin_addr.s_addr), ntohs(system.sin_port)};
  }
  void send(const Address& to, std::span<const std::byte> bytes) {
    const sockaddr_in system = to.to_system();
    if (sendto(fd_, bytes.data(), bytes.size(), 0, reinterpret_cast<const sockaddr*>(&system), sizeof(system)) > 0)
      bytes_sent_ += bytes.size();
  }
  /// Sends with the source address `from`. `from` must be an address of this machine (all of 127.0.0.0/8 are); the
  /// socket must be bound to 0.0.0.0.
  void send_as(uint32_t from, const Address& to, std::span<const std::byte> bytes) {
    sockaddr_in system = to.to_system();
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(in_pktinfo))> room{};
    msghdr message{};
    message.msg_name = &system;
    message.msg_namelen = sizeof(system);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = IPPROTO_IP;
    control->cmsg_type = IP_PKTINFO;
    control->cmsg_len = CMSG_LEN(sizeof(in_pktinfo));
    in_pktinfo source{};
    source.ipi_spec_dst.s_addr = htonl(from);
    std::memcpy(CMSG_DATA(control), &source, sizeof(source));
    if (sendmsg(fd_, &message, 0) > 0) bytes_sent_ += bytes.size();
  }
  /// Returns the next datagram, or an empty one after `patience`.
  std::span<const std::byte> receive(milliseconds patience = milliseconds(0), Address* from = nullptr) {
    pollfd waiting{fd_, POLLIN, 0};
    if (patience.count() > 0) (void)poll(&waiting, 1, static_cast<int>(patience.count()));
    sockaddr_in system{};
    socklen_t size = sizeof(system);
    const ssize_t got = recvfrom(fd_, room_.data(), room_.size(), 0, reinterpret_cast<sockaddr*>(&system), &size);
    if (got <= 0) return {};
    if (from != nullptr) *from = {ntohl(system.sin_addr.s_addr), ntohs(system.sin_port)};
    bytes_received_ += static_cast<size_t>(got);
    return std::span(room_).first(static_cast<size_t>(got));
  }
  /// Receives and drops all datagrams that have arrived.
  void drain() {
    while (!receive().empty()) {
    }
  }
  size_t bytes_sent() const { return bytes_sent_; }
  size_t bytes_received() const { return bytes_received_; }

 private:
  const int fd_;
  std::array<std::byte, 65536> room_;
  size_t bytes_sent_ = 0, bytes_received_ = 0;
};

inline std::vector<std::byte> encoded(const ManagementMessage& message) {
  tern::wire::ManagementBytes out;
  tern::wire::encode_management(message, out);
  return {out.view().begin(), out.view().end()};
}

inline constexpr uint8_t kUdpAddressBytes = 9;
/// The content of the UDP transport's address: the socket's address, and the size of its datagrams.
inline void set_address(tern::wire::ManagementTerms& terms, const Address& address, uint16_t datagram_bytes = 1232) {
  const std::array<uint8_t, 9> bytes = {4,
                                        static_cast<uint8_t>(address.port),
                                        static_cast<uint8_t>(address.port >> 8),
                                        static_cast<uint8_t>(address.ip >> 24),
                                        static_cast<uint8_t>(address.ip >> 16),
                                        static_cast<uint8_t>(address.ip >> 8),
                                        static_cast<uint8_t>(address.ip),
                                        static_cast<uint8_t>(datagram_bytes),
                                        static_cast<uint8_t>(datagram_bytes >> 8)};
  terms.address_bytes = bytes.size();
  std::memcpy(terms.address.data(), bytes.data(), bytes.size());
}
/// The address in another side's terms.
inline Address address_in(const tern::wire::ManagementTerms& terms) {
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(terms.address[i]); };
  EXPECT_EQ(terms.address_bytes, 9);
  return {byte(3) << 24 | byte(4) << 16 | byte(5) << 8 | byte(6), static_cast<uint16_t>(byte(1) | byte(2) << 8)};
}

/// A connect request that a client of this version could have sent.
inline ManagementMessage connect_request(Random& random, const Address& data, const char* transport = "udp") {
  ManagementMessage request;
  request.kind = ManagementKind::kConnectRequest;
  request.sender_run = random.next() | 1;
  request.token = random.next() | 1;
  request.version_min = request.version_max = tern::wire::kVersion;
  auto& terms = request.terms;
  terms.transport_bytes = static_cast<uint8_t>(std::strlen(transport));
  std::memcpy(terms.transport.data(), transport, terms.transport_bytes);
  set_address(terms, data);
  terms.window = 8;
  terms.credits = 8;
  terms.session_key = static_cast<uint32_t>(random.next());
  terms.first_number = static_cast<uint32_t>(random.next()) & tern::wire::kNumberMask;
  terms.payload_bytes_max = 1208;
  return request;
}

/// A session of the hostile client: the keys and numbers that it needs to write packets by hand.
struct HostileSession {
  ManagementMessage request, reply;
  Address server_management, server_data;
  uint32_t client_number = 1;
  uint32_t token = 0;          ///< proves packets without a request number
  uint32_t first_request = 0;  ///< first request number of slot 0
  uint8_t credits = 0;         ///< the server's last grant

  uint32_t client_key() const { return request.terms.session_key; }
  uint32_t server_key() const { return reply.terms.session_key; }
};

/// A message of the session's client to the server's Nexus.
inline ManagementMessage about(const HostileSession& session, ManagementKind kind) {
  ManagementMessage message;
  message.kind = kind;
  message.sender_run = session.request.sender_run;
  message.receiver_run = session.reply.sender_run;
  message.token = session.request.token;
  message.to_endpoint = session.reply.terms.endpoint_id;
  message.to_key = session.server_key();
  message.from_key = session.client_key();
  message.from_client = true;
  return message;
}

/// A process that speaks as much of the protocol as its attacks need, over a management socket and a data socket.
class Hostile {
 public:
  explicit Hostile(const std::string& server_uri, uint32_t ip = INADDR_LOOPBACK, uint64_t seed = 1)
      : random(seed), management({ip, 0}), data({ip, 0}), server_(Address::parse(server_uri)) {}

  Random random;
  Socket management, data;

  /// Does the whole handshake with the cookie. Nothing: the server refused or did not answer; `refusal` says which.
  std::optional<HostileSession> connect(const std::function<void(ManagementMessage&)>& change = nullptr) {
    ManagementMessage request = connect_request(random, data.address());
    request.sender_run = run_;
    if (change) change(request);
    refusal = tern::wire::Refusal::kNone;
    const auto until = Clock::now() + kPatience;
    while (Clock::now() < until) {
      management.send(server_, encoded(request));
      const auto again = Clock::now() + milliseconds(100);
      while (Clock::now() < again) {
        ManagementMessage message;
        const auto bytes = management.receive(milliseconds(10));
        if (bytes.empty() || tern::wire::parse_management(bytes, message) != tern::wire::ManagementDrop::kNone)
          continue;
        if (message.token != request.token) {
          keep_alive(message);
          continue;
        }
        if (message.kind == kCookie) {
          request.cookie = message.cookie;
          break;
        }
        if (message.kind != ManagementKind::kConnectReply) continue;
        refusal = message.refusal;
        if (message.code != tern::Code::kOk) return std::nullopt;
        HostileSession session;
        session.request = request;
        session.reply = message;
        session.server_management = server_;
        if (message.terms.address_bytes == kUdpAddressBytes) session.server_data = address_in(message.terms);
        session.token = message.terms.path_token;
        if (tern::wire::kVersion >= 2) session.client_number = request.terms.first_number;
        confirm(session);
        return session;
      }
    }
    return std::nullopt;
  }
  tern::wire::Refusal refusal = tern::wire::Refusal::kNone;

  /// Proves the path of `session` as an honest client does. False: no answer.
  bool prove_path(HostileSession& session) {
    bool is_full = tern::wire::kVersion < 2;
    const auto until = Clock::now() + kPatience;
    while (Clock::now() < until) {
      send_path_probe(session, is_full);
      const auto again = Clock::now() + milliseconds(20);
      while (Clock::now() < again) {
        bool has_reply = false;
        receive(milliseconds(5), [&](const Header& header, std::span<const std::byte> payload) {
          if (header.kind() != Kind::kPathReply || header.session_key() != session.client_key()) return;
          session.first_request = header.request_number();
          if (payload.empty()) session.token = header.size_or_index();
          has_reply |= is_full != payload.empty();
        });
        if (!has_reply) continue;
        if (is_full) return true;
        is_full = true;
        break;
      }
    }
    return false;
  }
  void send_path_probe(HostileSession& session, bool is_full) {
    const uint32_t bytes = session.reply.terms.payload_bytes_max;
    const uint32_t size = tern::wire::kVersion >= 2 ? session.token : bytes;
    send(session, Kind::kPathProbe, 0, is_full ? session.first_request : 0, 0, 0, size, is_full ? bytes : 0);
  }
  /// Returns a session with a proven path. Fails the test if it gets none.
  HostileSession open(const std::function<void(ManagementMessage&)>& change = nullptr) {
    auto session = connect(change);
    EXPECT_TRUE(session.has_value()) << "refused: " << static_cast<int>(refusal);
    if (!session.has_value()) return {};
    EXPECT_TRUE(prove_path(*session));
    return *session;
  }

  /// Sends a client's packet with the given fields and the session's next packet number.
  void send(HostileSession& session, Kind kind, uint8_t flags, uint32_t request, uint32_t index, uint32_t type,
            uint32_t size, size_t payload_bytes = 0) {
    send_header(session.server_data,
                tern::wire::client_header(kind, flags, session.server_key(), session.client_number++, request, index,
                                          type, size),
                payload_bytes);
  }
  /// Sends a probe, cancel or report of one of its own sessions.
  void send_proved(HostileSession& session, Kind kind, uint32_t request, uint32_t index) {
    send(session, kind, 0, request, index, 0, tern::wire::kVersion >= 2 ? session.token : 0);
  }
  /// Sends any header to any address.
  void send_header(const Address& to, Header header, size_t payload_bytes = 0) {
    packet_.assign(tern::wire::kHeaderBytes + payload_bytes, std::byte{'x'});
    header.set_length_and_flags(packet_.size(), 0);
    tern::wire::store_header(packet_.data(), header);
    data.send(to, packet_);
  }
  /// Calls `visit(header, payload)` for each packet of each datagram that has arrived.
  template <class Visit>
  void receive(milliseconds patience, Visit&& visit) {
    for (auto bytes = data.receive(patience); !bytes.empty(); bytes = data.receive()) {
      while (bytes.size() >= tern::wire::kHeaderBytes) {
        const Header header = tern::wire::load_header(bytes.data());
        if (!tern::wire::is_plausible(header, bytes.size())) break;
        visit(header, bytes.subspan(tern::wire::kHeaderBytes, header.length() - tern::wire::kHeaderBytes));
        bytes = bytes.subspan(header.length());
      }
    }
  }
  /// Answers pings and questions, so that the server keeps the sessions.
  void serve_management() {
    for (auto bytes = management.receive(); !bytes.empty(); bytes = management.receive()) {
      ManagementMessage message;
      if (tern::wire::parse_management(bytes, message) == tern::wire::ManagementDrop::kNone) keep_alive(message);
    }
  }

 private:
  static constexpr auto kCookie = static_cast<ManagementKind>(10);

  void confirm(const HostileSession& session) {
    management.send(server_, encoded(about(session, ManagementKind::kConfirm)));
  }
  void keep_alive(const ManagementMessage& message) {
    ManagementMessage answer = message;
    std::swap(answer.sender_run, answer.receiver_run);
    if (message.kind == ManagementKind::kPing) {
      answer.kind = ManagementKind::kPong;
    } else if (message.kind == ManagementKind::kAsk) {
      answer.kind = ManagementKind::kAnswer;
      answer.to_endpoint = 0;
      std::swap(answer.to_key, answer.from_key);
      answer.from_client = true;
      answer.liveness = 1;
    } else {
      return;
    }
    management.send(server_, encoded(answer));
  }

  const Address server_;
  const uint64_t run_ = random.next() | 1;
  std::vector<std::byte> packet_;
};

}  // namespace attack
