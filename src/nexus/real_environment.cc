// The Environment of real programs: CLOCK_MONOTONIC, getrandom(2), a UDP socket with its thread, worker threads. Nexus
// layer. It does not read messages of the management protocol.
//
// In a forked child the threads do not exist, and their locks stay as they were. Destruction there closes descriptors
// and waits for nothing; what a thread may have been changing at the fork stays.
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <tern/environment.h>

#include "base/address.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/process.h"
#include "base/random.h"
#include "base/status_text.h"
#include "base/thread_safety.h"
#include "base/threads.h"
#include "base/try.h"
#include "base/wait.h"
#include "nexus/worker_threads.h"

namespace tern {
namespace {

constexpr size_t kReceiveBytes = 2048;        ///< more than any message, so that a longer datagram is recognised
constexpr int kReceivesPerTurn = 256;         ///< then timers, commands and connect requests get their turn
constexpr int kReceiveBufferBytes = 4 << 20;  ///< for bursts of thousands of connects; the kernel may reduce it
constexpr int kErrorsPerTurn = 64;            ///< most messages of the socket's error queue in one turn
constexpr size_t kAddressesMax = 8;           ///< the most addresses of one host name
constexpr size_t kAddressesFoundMax = 64;     ///< the most that are examined, in the system's order

using base::Descriptor;
using base::SocketAddress;

Unreachable reason_of(int error) {
  switch (error) {
    case ECONNREFUSED:
      return Unreachable::kPort;
    case EHOSTUNREACH:
    case EHOSTDOWN:
      return Unreachable::kHost;
    case ENETUNREACH:
    case EADDRNOTAVAIL:
    case EINVAL:  // from a socket that is bound to the loopback address
      return Unreachable::kNetwork;
    case EACCES:
    case EPERM:
      return Unreachable::kForbidden;
    default:
      return Unreachable::kSilent;
  }
}

Duration monotonic_now() { return Duration(static_cast<int64_t>(base::monotonic_ns())); }

/// The address that a socket is bound to.
SocketAddress bound_address(const Descriptor& socket) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &bytes);
  return SocketAddress::from_sockaddr(storage);
}

constexpr Status kNoIpv6{Code::kUnavailable, "this machine has no IPv6; listen on an IPv4 address"};
constexpr Status kNoDescriptor{Code::kUnavailable,
                               "no descriptor for the management socket; raise the limit (ulimit -n)"};

/// A UDP socket and the thread that serves it.
class UdpChannel final : public ManagementChannel {
 public:
  UdpChannel(Descriptor socket, bool is_v6, ManagementSink& sink)
      : socket_(std::move(socket)), is_v6_(is_v6), sink_(sink) {}
  ~UdpChannel() override {
    if (!thread_.is_here() || !thread_->joinable()) return;
    stopping_.store(true, std::memory_order_release);
    UdpChannel::wake();
    thread_->join();
  }

  /// Returns false if a system call fails; errno says why.
  bool open() {
    return waits_.open() && wake_.open() && waits_.add(socket_.get(), EPOLLIN, kSocket) &&
           waits_.add(wake_.descriptor(), EPOLLIN, kWake);
  }
  bool start() {
    return base::start_thread(*thread_, "tern-nexus", [this] { run(); });
  }

  void send(std::string_view to, std::span<const std::byte> bytes) override {
    auto address = SocketAddress::parse(to);
    if (!address) return;
    if (is_v6_) address = address->mapped();
    // A datagram that the system refuses is lost. The first error may be that of an earlier datagram.
    for (int i = 0; i < 2; i++) {
      const ssize_t sent = sendto(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                                  address->sockaddr_data(), address->sockaddr_bytes());
      if (sent >= 0) return;
    }
    note_failure(to, reason_of(errno));
  }

  bool reaches(std::string_view text) const override {
    const auto address = SocketAddress::parse(text);
    if (!address) return false;
    const bool wants_v6 = address->family() == AF_INET6;
    if (!is_v6_) return !wants_v6;
    const SocketAddress local = bound_address(socket_);
    const bool is_local_v6 = local.family() == AF_INET6;
    return wants_v6 == is_local_v6 || (is_local_v6 && local.is_wildcard());
  }

  void wake() override { wake_.wake(); }

  std::string local_address() const override { return bound_address(socket_).to_text(); }

 private:
  void run() {
    while (true) {
      const bool is_last = stopping_.load(std::memory_order_acquire);
      const Duration deadline = sink_.on_turn(monotonic_now());
      if (is_last) return;  // the turn has run posted commands and sent their datagrams
      const bool has_errors = failures_->empty() && wait_until(deadline);
      wake_.clear();
      receive();
      if (has_errors) receive_errors();
      for (const Failure& failure : std::exchange(*failures_, {})) sink_.on_unreachable(failure.to, failure.why);
    }
  }

  /// Returns true if the socket's error queue is not empty.
  bool wait_until(Duration deadline) {
    std::array<epoll_event, 2> events;
    const uint64_t deadline_ns =
        deadline == Duration::max() ? UINT64_MAX : static_cast<uint64_t>(std::max(deadline, Duration(0)).count());
    const size_t count = waits_.wait(events, deadline_ns);
    return std::any_of(events.begin(), events.begin() + count, [](const epoll_event& event) {
      return event.data.u64 == kSocket && (event.events & EPOLLERR) != 0;
    });
  }

  void receive() {
    std::byte buffer[kReceiveBytes];
    for (int i = 0; i < kReceivesPerTurn; i++) {
      sockaddr_storage storage{};
      socklen_t storage_bytes = sizeof(storage);
      const ssize_t got = recvfrom(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT,
                                   reinterpret_cast<sockaddr*>(&storage), &storage_bytes);
      if (got < 0 && errno != EAGAIN) continue;  // an error of an earlier send, reported once
      if (got < 0) return;
      const SocketAddress from = SocketAddress::from_sockaddr(storage);
      if (last_from_ != from) {
        last_from_.reset();
        if (!base::try_grow([&] { *last_from_text_ = from.to_text(); })) continue;  // the datagram counts as lost
        last_from_ = from;
      }
      sink_.on_datagram(*last_from_text_, std::span(buffer).first(static_cast<size_t>(got)));
    }
  }

  /// Receives ICMP messages about datagrams of this socket, and errors about datagrams that this machine could not
  /// deliver.
  void receive_errors() {
    for (int i = 0; i < kErrorsPerTurn; i++) {
      sockaddr_storage to{};
      alignas(cmsghdr) std::byte control[512];
      msghdr message{};
      message.msg_name = &to;
      message.msg_namelen = sizeof(to);
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      if (recvmsg(socket_.get(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
      for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
        const bool is_error = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                              (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
        if (!is_error || message.msg_namelen == 0) continue;
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(part), sizeof(error));
        std::string text;
        if (base::try_grow([&] { text = SocketAddress::from_sockaddr(to).to_text(); }))
          note_failure(text, reason_of(static_cast<int>(error.ee_errno)));
      }
    }
  }

  /// Keeps the failure for on_unreachable(), which must not run before the sink's call has returned.
  void note_failure(std::string_view to, Unreachable why) {
    const bool is_known =
        std::any_of(failures_->begin(), failures_->end(), [&](const Failure& f) { return f.to == to; });
    if (why == Unreachable::kSilent || is_known || failures_->size() >= kErrorsPerTurn) return;
    (void)base::try_grow([&] { failures_->push_back({std::string(to), why}); });  // no memory: not reported
  }

  struct Failure {
    std::string to;
    Unreachable why;
  };

  enum Name : uint64_t { kSocket, kWake };  ///< names of the events of waits_

  const Descriptor socket_;
  base::WaitSet waits_;
  base::WakeEvent wake_;
  const bool is_v6_;
  ManagementSink& sink_;
  std::atomic<bool> stopping_{false};
  // The channel's thread may have been changing these at a fork.
  base::OfThisProcess<std::vector<Failure>> failures_;
  std::optional<SocketAddress> last_from_;  ///< datagrams of one sender often come in a row
  base::OfThisProcess<std::string> last_from_text_;
  base::OfThisProcess<std::thread> thread_;
};

Status bind_error(int error) {
  switch (error) {
    case EADDRINUSE:
      return {Code::kUnavailable,
              "the port is taken: another Nexus or program listens on it; choose another, or 0 for any"};
    case EADDRNOTAVAIL:
      return {Code::kUnavailable,
              "the listen address is not one of this machine's; use 0.0.0.0, [::] or a local address"};
    case EACCES:
      return {Code::kUnavailable, "the system does not let this user listen on that port; choose one above 1023"};
    default:
      return {Code::kUnavailable, "the system refused to bind the management socket to that address"};
  }
}

/// Random numbers of the system, fetched many at a time, because a session needs about twenty. A number is forgotten
/// when it is given out. A forked child does not know those that its parent will give out.
class RandomNumbers {
 public:
  /// 0: the system has none. Any thread.
  uint64_t take() {
    // The lock fails if another thread has it, or had it when this process was forked.
    if (fetched_ == nullptr || !mutex_.try_lock()) return fetch_one();
    uint64_t value = 0;
    auto& [left, values] = *fetched_;
    if (left == 0 && base::fill_random(values.data(), sizeof(values))) left = values.size();
    if (left > 0) value = std::exchange(values[--left], 0);
    mutex_.unlock();
    return value != 0 ? value : fetch_one();
  }

 private:
  struct Fetched {
    size_t left;  ///< number of `values` that are not given out
    std::array<uint64_t, 32> values;
  };
  static uint64_t fetch_one() {
    uint64_t value = 0;
    return base::fill_random(&value, sizeof(value)) ? value : 0;
  }

  base::Mutex mutex_;
  Fetched* const fetched_ = static_cast<Fetched*>(base::map_wiped_at_fork(sizeof(Fetched)));
};

class RealEnvironment final : public Environment {
 public:
  Duration now() override { return monotonic_now(); }

  uint64_t random() override { return random_numbers_.take(); }

  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view text, ManagementSink& sink) override {
    const auto address = SocketAddress::parse(text);
    if (!address) return Status{Code::kMisuse, "the listen address must be \"HOST:PORT\" in numeric form"};
    const bool is_v6 = address->family() == AF_INET6;
    Descriptor socket(::socket(address->family(), SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return errno == EAFNOSUPPORT ? kNoIpv6 : kNoDescriptor;
    if (is_v6) {  // [::] also serves IPv4 peers, for any default of the system
      const int off = 0;
      (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    const int on = 1;
    (void)setsockopt(socket.get(), IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
    if (is_v6) (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof(on));
    (void)setsockopt(socket.get(), SOL_SOCKET, SO_RCVBUF, &kReceiveBufferBytes, sizeof(kReceiveBufferBytes));
    if (bind(socket.get(), address->sockaddr_data(), address->sockaddr_bytes()) != 0) return bind_error(errno);
    auto channel = std::make_unique<UdpChannel>(std::move(socket), is_v6, sink);
    if (!channel->open()) return kNoDescriptor;
    if (!channel->start()) return base::kNoThread;
    return std::unique_ptr<ManagementChannel>(std::move(channel));
  }

  Result<std::string> resolve(std::string_view host_and_port) override {
    auto addresses = resolve_all(host_and_port);
    if (!addresses.ok()) return addresses.status();
    return std::move(addresses->front());
  }
  Result<std::vector<std::string>> resolve_all(std::string_view host_and_port) override {
    try {
      return resolve_or_throw(host_and_port);
    } catch (const std::bad_alloc&) {
      return Status{Code::kNoMemory, "no memory to resolve the address"};
    }
  }
  static Result<std::vector<std::string>> resolve_or_throw(std::string_view host_and_port) {
    if (const auto numeric = SocketAddress::parse(host_and_port)) return std::vector<std::string>{numeric->to_text()};
    const auto parts = base::split_host_and_port(host_and_port);
    const auto port = parts ? base::parse_u16(parts->port) : std::nullopt;
    if (!port) return Status{Code::kMisuse, "an address must be \"HOST:PORT\", with an IPv6 HOST in brackets"};
    std::array<SocketAddress, kAddressesFoundMax> found;
    int error = 0;
    const size_t count = base::look_up(parts->host, found, &error);
    if (error == EAI_AGAIN) {
      return Status{Code::kUnavailable, "the name service does not answer; try again, or use a numeric address"};
    }
    if (error != 0) {
      return base::status_of(Code::kUnavailable, "the host name is unknown here; check it, or use a numeric address",
                             {"the host name ", parts->host, " is unknown here; check it, or use a numeric address"});
    }
    // IPv4 addresses come first, because a Nexus on 0.0.0.0 cannot reach IPv6 peers, and one on [::] reaches both.
    std::vector<std::string> addresses;
    for (const int family : {AF_INET, AF_INET6}) {
      for (size_t i = 0; i < count && addresses.size() < kAddressesMax; i++) {
        if (found[i].family() != family) continue;
        found[i].set_port(*port);
        addresses.push_back(found[i].to_text());
      }
    }
    if (addresses.empty()) return Status{Code::kUnavailable, "the host has no IPv4 or IPv6 address"};
    return addresses;
  }

  Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) override {
    return nexus::start_worker_threads(threads, queue_limit);
  }

 private:
  RandomNumbers random_numbers_;
};

}  // namespace

Environment& real_environment() {
  static RealEnvironment environment;
  return environment;
}

}  // namespace tern
