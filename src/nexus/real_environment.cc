// The real world: CLOCK_MONOTONIC, getrandom(2), a UDP socket with its thread, worker threads.
// Nexus room. Knows no message of the management protocol.
//
// In a forked child threads are gone, and what they waited on or held is as they left it: there, destruction closes
// descriptors, gives memory back, and waits for nothing.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include <tern/environment.h>

#include "base/status_text.h"
#include "base/try.h"

namespace tern {
namespace {

constexpr size_t kReceiveBytes = 2048;        ///< more than any message: a longer one is recognised as too long
constexpr int kReceivesPerTurn = 256;         ///< then timers, commands and connect requests get their turn
constexpr int kReceiveBufferBytes = 4 << 20;  ///< bursts of thousands of connects; the kernel may cap it
constexpr int kErrorsPerTurn = 64;            ///< of the socket's error queue
constexpr size_t kAddressesMax = 8;           ///< of one host name

/// Closes a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// An IPv4 or IPv6 socket address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr_in& v4() { return reinterpret_cast<sockaddr_in&>(storage); }
  sockaddr_in6& v6() { return reinterpret_cast<sockaddr_in6&>(storage); }
};

/// "HOST:PORT" into its parts, without the brackets of an IPv6 HOST.
bool split(std::string_view text, std::string& host, uint16_t& port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return false;
  const std::string_view digits = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) return false;
  std::string_view name = text.substr(0, colon);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  host = name;
  return !host.empty();
}

bool parse_numeric(std::string_view text, SocketAddress& address) {
  std::string host;
  uint16_t port = 0;
  if (!split(text, host, port)) return false;
  if (inet_pton(AF_INET, host.c_str(), &address.v4().sin_addr) == 1) {
    address.v4().sin_family = AF_INET;
    address.v4().sin_port = htons(port);
    address.size = sizeof(sockaddr_in);
    return true;
  }
  uint32_t scope = 0;
  if (const size_t percent = host.find('%'); percent != std::string::npos) {
    const std::string_view name = std::string_view(host).substr(percent + 1);
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), scope);
    if (error != std::errc() || end != name.data() + name.size()) scope = if_nametoindex(host.c_str() + percent + 1);
    host.resize(percent);
  }
  address.storage = {};
  if (inet_pton(AF_INET6, host.c_str(), &address.v6().sin6_addr) != 1) return false;
  address.v6().sin6_family = AF_INET6;
  address.v6().sin6_port = htons(port);
  address.v6().sin6_scope_id = scope;
  address.size = sizeof(sockaddr_in6);
  return true;
}

/// An IPv4 address that came through an IPv6 socket is written as what it is.
std::string to_text(SocketAddress address) {
  if (address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&address.v6().sin6_addr)) {
    SocketAddress mapped;
    mapped.v4().sin_family = AF_INET;
    mapped.v4().sin_port = address.v6().sin6_port;
    std::memcpy(&mapped.v4().sin_addr, address.v6().sin6_addr.s6_addr + 12, 4);
    return to_text(mapped);
  }
  char host[INET6_ADDRSTRLEN] = "";
  if (address.storage.ss_family == AF_INET) {
    inet_ntop(AF_INET, &address.v4().sin_addr, host, sizeof(host));
    return std::string(host) + ":" + std::to_string(ntohs(address.v4().sin_port));
  }
  inet_ntop(AF_INET6, &address.v6().sin6_addr, host, sizeof(host));
  std::string text = "[" + std::string(host);
  if (address.v6().sin6_scope_id != 0) text += "%" + std::to_string(address.v6().sin6_scope_id);
  return text + "]:" + std::to_string(ntohs(address.v6().sin6_port));
}

Unreachable reason_of(int error) {
  switch (error) {
    case ECONNREFUSED:
      return Unreachable::kPort;
    case EHOSTUNREACH:
    case EHOSTDOWN:
      return Unreachable::kHost;
    case ENETUNREACH:
    case EADDRNOTAVAIL:
    case EINVAL:  // of a socket that is bound to the loopback address
      return Unreachable::kNetwork;
    case EACCES:
    case EPERM:
      return Unreachable::kForbidden;
    default:
      return Unreachable::kSilent;
  }
}

Duration monotonic_now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) + Duration(now.tv_nsec);
}

/// What must not be destroyed in a forked child.
template <class T>
class OfThisProcess {
 public:
  OfThisProcess() { std::construct_at(get()); }
  OfThisProcess(const OfThisProcess&) = delete;
  OfThisProcess& operator=(const OfThisProcess&) = delete;
  ~OfThisProcess() {
    if (is_here()) std::destroy_at(get());
  }
  bool is_here() const { return getpid() == pid_; }
  T* get() { return reinterpret_cast<T*>(memory_); }
  T& operator*() { return *get(); }
  T* operator->() { return get(); }

 private:
  alignas(T) std::byte memory_[sizeof(T)];
  const pid_t pid_ = getpid();
};

/// Starts a thread that takes no signals. False: the system has none left.
template <class F>
bool start_thread(std::thread& thread, const char* name, F body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = true;
  try {
    thread = std::thread(std::move(body));
    pthread_setname_np(thread.native_handle(), name);
  } catch (const std::system_error&) {
    started = false;
  } catch (const std::bad_alloc&) {
    started = false;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

constexpr Status kNoThread{Code::kUnavailable,
                           "the system gives no more threads; raise its limit (ulimit -u, cgroup pids.max)"};

/// A UDP socket and the thread that serves it.
class UdpChannel final : public ManagementChannel {
 public:
  UdpChannel(Descriptor socket, Descriptor wake, bool is_v6, ManagementSink& sink)
      : socket_(std::move(socket)), wake_(std::move(wake)), is_v6_(is_v6), sink_(sink) {}
  ~UdpChannel() override {
    if (!thread_.is_here() || !thread_->joinable()) return;
    stopping_.store(true, std::memory_order_release);
    UdpChannel::wake();
    thread_->join();
  }

  bool start() {
    return start_thread(*thread_, "tern-nexus", [this] { run(); });
  }

  void send(std::string_view to, std::span<const std::byte> bytes) override {
    SocketAddress address;
    if (!parse_numeric(to, address)) return;
    if (is_v6_ && address.storage.ss_family == AF_INET) {
      SocketAddress mapped;
      mapped.v6().sin6_family = AF_INET6;
      mapped.v6().sin6_port = address.v4().sin_port;
      mapped.v6().sin6_addr.s6_addr[10] = mapped.v6().sin6_addr.s6_addr[11] = 0xff;
      std::memcpy(mapped.v6().sin6_addr.s6_addr + 12, &address.v4().sin_addr, 4);
      mapped.size = sizeof(sockaddr_in6);
      address = mapped;
    }
    // What the system does not take is a lost datagram. The first error may be that of an earlier one.
    for (int i = 0; i < 2; i++) {
      const ssize_t sent =
          sendto(socket_.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL, address.get(), address.size);
      if (sent >= 0) return;
    }
    note_failure(to, reason_of(errno));
  }

  bool reaches(std::string_view text) const override {
    SocketAddress address, bound;
    if (!parse_numeric(text, address)) return false;
    const bool wants_v6 = address.storage.ss_family == AF_INET6;
    if (!is_v6_) return !wants_v6;
    getsockname(socket_.fd(), bound.get(), &bound.size);
    const in6_addr& local = bound.v6().sin6_addr;
    return IN6_IS_ADDR_UNSPECIFIED(&local) || wants_v6 != bool{IN6_IS_ADDR_V4MAPPED(&local)};
  }

  void wake() override {
    const uint64_t one = 1;
    (void)!write(wake_.fd(), &one, sizeof(one));  // fails only when it is readable already
  }

  std::string local_address() const override {
    SocketAddress address;
    getsockname(socket_.fd(), address.get(), &address.size);
    return to_text(address);
  }

 private:
  void run() {
    while (true) {
      const bool is_last = stopping_.load(std::memory_order_acquire);
      const Duration deadline = sink_.on_turn(monotonic_now());
      if (is_last) return;  // what was posted before the end has been sent
      const bool has_errors = failures_.empty() && wait_until(deadline);
      uint64_t count;
      (void)!read(wake_.fd(), &count, sizeof(count));
      receive();
      if (has_errors) receive_errors();
      for (const Failure& failure : std::exchange(failures_, {})) sink_.on_unreachable(failure.to, failure.why);
    }
  }

  /// True: the socket's error queue has something.
  bool wait_until(Duration deadline) {
    pollfd fds[2] = {{socket_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
    if (deadline == Duration::max()) {
      (void)ppoll(fds, 2, nullptr, nullptr);
      return (fds[0].revents & POLLERR) != 0;
    }
    const Duration left = std::max(deadline - monotonic_now(), Duration(0));
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout = {seconds.count(), (left - seconds).count()};
    (void)ppoll(fds, 2, &timeout, nullptr);
    return (fds[0].revents & POLLERR) != 0;
  }

  void receive() {
    std::byte buffer[kReceiveBytes];
    for (int i = 0; i < kReceivesPerTurn; i++) {
      SocketAddress from;
      const ssize_t got = recvfrom(socket_.fd(), buffer, sizeof(buffer), MSG_DONTWAIT, from.get(), &from.size);
      if (got < 0 && errno != EAGAIN) continue;  // an error of an earlier send, told once
      if (got < 0) return;
      if (from.size != last_from_.size || std::memcmp(&from.storage, &last_from_.storage, from.size) != 0) {
        last_from_.size = 0;
        if (!base::try_grow([&] { last_from_text_ = to_text(from); })) continue;  // as if lost
        last_from_ = from;
      }
      sink_.on_datagram(last_from_text_, std::span(buffer).first(static_cast<size_t>(got)));
    }
  }

  /// ICMP messages about datagrams of this socket, and what this machine itself could not deliver.
  void receive_errors() {
    for (int i = 0; i < kErrorsPerTurn; i++) {
      SocketAddress to;
      alignas(cmsghdr) std::byte control[512];
      msghdr message{};
      message.msg_name = to.get();
      message.msg_namelen = to.size;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      if (recvmsg(socket_.fd(), &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
      for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
        const bool is_error = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                              (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
        if (!is_error || message.msg_namelen == 0) continue;
        sock_extended_err error;
        std::memcpy(&error, CMSG_DATA(part), sizeof(error));
        std::string text;
        if (base::try_grow([&] { text = to_text(to); }))
          note_failure(text, reason_of(static_cast<int>(error.ee_errno)));
      }
    }
  }

  /// For on_unreachable(), which must wait until the sink's call has returned.
  void note_failure(std::string_view to, Unreachable why) {
    const bool is_known = std::any_of(failures_.begin(), failures_.end(), [&](const Failure& f) { return f.to == to; });
    if (why == Unreachable::kSilent || is_known || failures_.size() >= kErrorsPerTurn) return;
    (void)base::try_grow([&] { failures_.push_back({std::string(to), why}); });  // without memory it is not told
  }

  struct Failure {
    std::string to;
    Unreachable why;
  };

  const Descriptor socket_, wake_;
  const bool is_v6_;
  ManagementSink& sink_;
  std::atomic<bool> stopping_{false};
  std::vector<Failure> failures_;  ///< channel's thread
  SocketAddress last_from_;        ///< channel's thread; strangers' datagrams often come in rows
  std::string last_from_text_;
  OfThisProcess<std::thread> thread_;
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

class StdWorkerPool final : public WorkerPool {
 public:
  explicit StdWorkerPool(size_t queue_limit) : queue_limit_(queue_limit) {}
  ~StdWorkerPool() override {
    if (!threads_.is_here()) return;
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    has_work_->notify_all();
    for (std::thread& thread : *threads_) thread.join();
  }

  bool start(size_t threads) {
    if (!base::try_reserve(*threads_, threads)) return false;
    for (size_t i = 0; i < threads; i++) {
      std::thread thread;
      if (!start_thread(thread, "tern-worker", [this] { run(); })) return false;
      threads_->push_back(std::move(thread));
    }
    return true;
  }

  bool submit(std::function<void()> task) override {
    {
      std::lock_guard lock(mutex_);
      if (queue_->size() >= queue_limit_) return false;
      if (!base::try_grow([&] { queue_->push_back(std::move(task)); })) return false;
    }
    has_work_->notify_one();
    return true;
  }

 private:
  void run() {
    while (true) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        has_work_->wait(lock, [&] { return stopping_ || !queue_->empty(); });
        if (queue_->empty()) return;
        task = std::move(queue_->front());
        queue_->pop_front();
      }
      task();
    }
  }

  const size_t queue_limit_;
  std::mutex mutex_;
  OfThisProcess<std::condition_variable> has_work_;
  OfThisProcess<std::deque<std::function<void()>>> queue_;
  bool stopping_ = false;
  OfThisProcess<std::vector<std::thread>> threads_;
};

/// For systems whose sandbox refuses getrandom(2).
uint64_t random_of_device() {
  const Descriptor device(open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  uint64_t value = 0;
  if (!device.is_open() || read(device.fd(), &value, sizeof(value)) != static_cast<ssize_t>(sizeof(value))) return 0;
  return value;
}

class RealEnvironment final : public Environment {
 public:
  Duration now() override { return monotonic_now(); }

  uint64_t random() override {
    uint64_t value = 0;
    ssize_t got;
    do got = getrandom(&value, sizeof(value), 0);
    while (got < 0 && errno == EINTR);
    return got == static_cast<ssize_t>(sizeof(value)) ? value : random_of_device();
  }

  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view text, ManagementSink& sink) override {
    SocketAddress address;
    if (!parse_numeric(text, address)) return Status{Code::kMisuse, "listen address: \"HOST:PORT\" in numeric form"};
    const bool is_v6 = address.storage.ss_family == AF_INET6;
    Descriptor socket(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!socket.is_open() || !wake.is_open()) {
      if (errno == EAFNOSUPPORT)
        return Status{Code::kUnavailable, "this machine has no IPv6; listen on an IPv4 address"};
      return Status{Code::kUnavailable, "no descriptor for the management socket; raise the limit (ulimit -n)"};
    }
    if (is_v6) {  // [::] serves IPv4 peers too, whatever the system's default is
      const int off = 0;
      (void)setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    const int on = 1;
    (void)setsockopt(socket.fd(), IPPROTO_IP, IP_RECVERR, &on, sizeof(on));
    if (is_v6) (void)setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_RECVERR, &on, sizeof(on));
    (void)setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &kReceiveBufferBytes, sizeof(kReceiveBufferBytes));
    if (bind(socket.fd(), address.get(), address.size) != 0) return bind_error(errno);
    auto channel = std::make_unique<UdpChannel>(std::move(socket), std::move(wake), is_v6, sink);
    if (!channel->start()) return kNoThread;
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
    SocketAddress numeric;
    if (parse_numeric(host_and_port, numeric)) return std::vector<std::string>{to_text(numeric)};
    std::string host;
    uint16_t port = 0;
    if (!split(host_and_port, host, port))
      return Status{Code::kMisuse, "an address is \"HOST:PORT\", an IPv6 HOST in brackets"};
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
    if (error != 0 || found == nullptr) {
      if (error == EAI_AGAIN)
        return Status{Code::kUnavailable, "the name service does not answer; try again, or use a numeric address"};
      return base::status_of(Code::kUnavailable, "the host name is unknown here; check it, or use a numeric address",
                             {"the host name ", host, " is unknown here; check it, or use a numeric address"});
    }
    // IPv4 first: a Nexus on 0.0.0.0 cannot reach IPv6 peers, one on [::] reaches both.
    std::vector<std::string> addresses;
    for (const int family : {AF_INET, AF_INET6}) {
      for (const addrinfo* at = found; at != nullptr && addresses.size() < kAddressesMax; at = at->ai_next) {
        if (at->ai_family != family) continue;
        SocketAddress address;
        address.size = std::min<socklen_t>(at->ai_addrlen, sizeof(address.storage));
        std::memcpy(&address.storage, at->ai_addr, address.size);
        std::string text = to_text(address);
        if (std::find(addresses.begin(), addresses.end(), text) == addresses.end())
          addresses.push_back(std::move(text));
      }
    }
    if (addresses.empty()) return Status{Code::kUnavailable, "the host has no IPv4 or IPv6 address"};
    return addresses;
  }

  Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) override {
    std::unique_ptr<StdWorkerPool> pool;
    if (!base::try_grow([&] { pool = std::make_unique<StdWorkerPool>(queue_limit); })) {
      return Status{Code::kNoMemory, "no memory for worker threads"};
    }
    if (!pool->start(threads)) return kNoThread;
    return std::unique_ptr<WorkerPool>(std::move(pool));
  }
};

}  // namespace

Environment& real_environment() {
  static RealEnvironment environment;
  return environment;
}

}  // namespace tern
