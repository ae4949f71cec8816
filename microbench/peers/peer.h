// What the programs of peers share: their flags, a server process and a client process on a pinned CPU each, and the
// measurement, which is that of the library's own benchmarks. A peer is another library that a user could take.
// Nothing of tern is in here. Defines flags: include it in a program's one source file only.
//
// A program hands its peer to run_main(), a class with
//   static constexpr const char* kName;
//   static constexpr std::array kTransports;           what --transport takes, the default first
//   static constexpr std::array kWaits;                what --wait takes, the default first
//   using Message;                                     if the library's messages are not std::vector<std::byte>
//   [[noreturn]] static void serve(transport, ready);  server process: calls ready(address) once, then answers requests
//   Peer(transport, address);                          client process, connected
//   void send(const Message& request);                 one more request leaves, at the latest with the next receive();
//                                                      its memory stays as it is until it is answered
//   void receive(on_response);                         waits for a response, and hands over those that are there
// Each sends and receives in the fastest way that its library documents. What goes wrong ends the program: die().
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../limits/common.h"

DEFINE_string(transport, "", "what the peer runs over; --help names its transports, and the first is the default");
DEFINE_string(wait, "",
              "poll: both sides spin; block: they sleep while they wait; --help names what the peer has, and the first "
              "is the default");
DEFINE_string(measure, "latency",
              "latency: one call at a time; rate: 60 at a time; bandwidth: 8 MB requests, one at a time");
DEFINE_uint64(size, 0, "bytes of a request, at least 32; 0: 32, and 8 MB for bandwidth. A response has 32 bytes");
DEFINE_uint64(window, 0, "calls in flight; 0: 1, and 60 for rate");

namespace peers {

using Bytes = std::span<const std::byte>;

/// One sentence on standard error, and the end of this process.
[[noreturn, gnu::format(printf, 1, 2)]] inline void die(const char* format, ...) {
  std::fprintf(stderr, "%s: ", gflags::ProgramInvocationShortName());
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  _exit(1);
}

// --- Messages --------------------------------------------------------------------------------------------------------

/// How a request begins, and all of its response.
struct Head {
  uint64_t number = 0;
  uint64_t slot = 0;  ///< of the client's window
  uint64_t size = 0;  ///< of the request
  uint64_t pattern = 0x5a5a5a5a5a5a5a5a;
};
constexpr size_t kHeadBytes = sizeof(Head);
static_assert(kHeadBytes == 32);
constexpr size_t kSizeMax = size_t{1} << 30;

/// Requests of so many bytes have their number twice more: somewhere, and at the end, as those of large_rpc_bandwidth.
constexpr size_t kStampedBytesMin = kHeadBytes + 2 * sizeof(Head::number);
inline std::array<size_t, 2> stamps_of(uint64_t number, size_t size) {
  return {kHeadBytes + number * 0x9e3779b97f4a7c15 % (size - kStampedBytesMin + 1), size - sizeof number};
}

inline void write_head(std::span<std::byte> request, const Head& head) {
  std::memcpy(request.data(), &head, kHeadBytes);
  if (request.size() < kStampedBytesMin) return;
  for (const size_t at : stamps_of(head.number, request.size())) {
    std::memcpy(request.data() + at, &head.number, sizeof head.number);
  }
}

/// Server: the response to a request, whose stamps it looks at. One that has arrived torn is answered with zeros.
inline Head answer(Bytes request) {
  Head head;
  Head torn;
  torn.pattern = 0;
  if (request.size() < kHeadBytes) return torn;
  std::memcpy(&head, request.data(), kHeadBytes);
  if (head.size != request.size()) return torn;
  if (request.size() < kStampedBytesMin) return head;
  for (const size_t at : stamps_of(head.number, request.size())) {
    if (std::memcmp(request.data() + at, &head.number, sizeof head.number) != 0) return torn;
  }
  return head;
}

// --- The client ------------------------------------------------------------------------------------------------------

struct Result {
  tern::microbench::Percentiles ticks;  ///< of every call, or of one in kCallsPerSample if several are in flight
  uint64_t answered = 0;
  double seconds = 0;
};
/// As small_rpc_rate, whose comment says why.
constexpr uint64_t kCallsPerSample = 61;
constexpr double kWarmUpSecondsMax = 0.3;

/// What a peer's requests are in.
template <class Peer>
struct MessageOf {
  using Type = std::vector<std::byte>;
};
template <class Peer>
requires requires { typename Peer::Message; }
struct MessageOf<Peer> {
  using Type = typename Peer::Message;
};

/// Keeps `window` requests in flight for --seconds after a warm-up, which is no longer, and checks each response.
template <class Peer>
Result call(Peer& peer, size_t size, size_t window) {
  using tern::microbench::Ticks;
  using Message = typename MessageOf<Peer>::Type;
  struct Slot {
    Message request;
    Head head;
    uint64_t begin_ticks = 0;  ///< of a timed call; else 0
    bool is_answered = true;
  };
  std::vector<Slot> slots(window);
  std::vector<uint64_t> idle;
  for (uint64_t i = 0; i < window; ++i) {
    slots[i].request.assign(size, static_cast<typename Message::value_type>(0x5a));
    idle.push_back(i);
  }
  const double ticks_per_second = 1e9 / Ticks::ns_per_tick();
  const auto ticks_of = [&](double seconds) { return static_cast<uint64_t>(seconds * ticks_per_second); };
  const double warm_up_seconds = std::min(kWarmUpSecondsMax, FLAGS_seconds);
  Result result;
  uint64_t number = 0;
  uint64_t now_ticks = Ticks::now();
  uint64_t start_ticks = now_ticks;
  bool is_warm = false;
  uint64_t answered_before = 0;
  const auto send = [&](uint64_t index) {
    Slot& slot = slots[index];
    slot.head.number = ++number;
    slot.head.slot = index;
    slot.head.size = size;
    slot.is_answered = false;
    write_head(std::as_writable_bytes(std::span(slot.request)), slot.head);
    // One reading of the clock ends a call and begins the next.
    slot.begin_ticks = window == 1 || number % kCallsPerSample == 0 ? now_ticks : 0;
    peer.send(slot.request);
  };
  const auto take = [&](Bytes response) {
    Head head;
    if (response.size() != kHeadBytes) die("a response has %zu bytes instead of %zu", response.size(), kHeadBytes);
    std::memcpy(&head, response.data(), kHeadBytes);
    if (head.slot >= window || slots[head.slot].is_answered ||
        std::memcmp(&slots[head.slot].head, &head, kHeadBytes) != 0) {
      die("a response is not that of a request in flight, or its request arrived torn");
    }
    slots[head.slot].is_answered = true;
    ++result.answered;
    idle.push_back(head.slot);
  };
  while (true) {
    for (const uint64_t index : idle) send(index);
    idle.clear();
    peer.receive(take);
    now_ticks = Ticks::now();
    for (const uint64_t index : idle) {
      if (is_warm && slots[index].begin_ticks != 0) result.ticks.add(now_ticks - slots[index].begin_ticks);
    }
    const uint64_t passed_ticks = now_ticks - start_ticks;
    if (!is_warm && passed_ticks > ticks_of(warm_up_seconds)) {
      is_warm = true;
      answered_before = result.answered;
      start_ticks = now_ticks;
    } else if (is_warm && passed_ticks > ticks_of(FLAGS_seconds)) {
      result.seconds = static_cast<double>(passed_ticks) / ticks_per_second;
      break;
    }
  }
  const uint64_t answered = result.answered - answered_before;
  while (result.answered < number) peer.receive(take);  // the memory of the last requests ends here
  result.answered = answered;
  return result;
}

// --- Two processes ---------------------------------------------------------------------------------------------------

/// The whole process, and the threads that its library will start.
inline void pin_process(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("CPU %d of --cpus was taken from this process", cpu);
}

/// The server process. Ends with this one, whatever happens to it.
class ServerProcess {
 public:
  /// Starts it; `serve(ready)` runs in it. Before this process has threads.
  template <class Serve>
  ServerProcess(int cpu, const Serve& serve) {
    int ends[2];
    if (pipe(ends) != 0) die("no pipe: %s", std::strerror(errno));
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) die("no server process: %s", std::strerror(errno));
    if (pid_ == 0) {
      close(ends[0]);
      if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent) _exit(1);
      pin_process(cpu);
      serve([write_end = ends[1]](std::string_view address) {
        const ssize_t written = write(write_end, address.data(), address.size());
        if (written != static_cast<ssize_t>(address.size())) die("no reader of the server's address");
        close(write_end);
      });
      die("the server has ended");
    }
    close(ends[1]);
    // Some libraries fetch a large message out of the sender's memory, which Yama else allows to parents only.
    prctl(PR_SET_PTRACER, pid_);
    char part[4096];
    for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;) address_.append(part, static_cast<size_t>(got));
    close(ends[0]);
    if (address_.empty()) explain_end();
    server_ = pid_;
    struct sigaction action = {};
    action.sa_handler = [](int) { check(); };
    action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
    sigaction(SIGCHLD, &action, nullptr);
    check();  // it may have ended before
  }
  ~ServerProcess() { stop(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& address() const { return address_; }
  void stop() {
    if (pid_ > 0) {
      signal(SIGCHLD, SIG_DFL);
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = 0;
  }

 private:
  /// Ends this process if the server has ended, because some libraries wait for a dead peer for ever. Signal handler.
  static void check() {
    if (waitpid(server_, nullptr, WNOHANG) == 0) return;  // a signal of another process, which the library has started
    constexpr std::string_view kSentence = "the server process has ended\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSentence.data(), kSentence.size());
    _exit(1);
  }
  /// The server has ended before it was ready.
  [[noreturn]] void explain_end() {
    int status = 0;
    kill(pid_, SIGKILL);
    waitpid(pid_, &status, 0);
    if (WIFSIGNALED(status)) die("the server process ended by signal %d before it was ready", WTERMSIG(status));
    _exit(1);  // it has said why
  }

  inline static pid_t server_ = 0;  ///< for check()
  pid_t pid_ = 0;
  std::string address_;
};

/// A peer that answers no more must not hang those who compare it.
inline void limit_time() {
  constexpr unsigned kPatienceSeconds = 60;
  signal(SIGALRM, [](int) {
    constexpr std::string_view kSentence = "no response from the server for too long\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kSentence.data(), kSentence.size());
    _exit(1);
  });
  alarm(static_cast<unsigned>(FLAGS_seconds) + kPatienceSeconds);
}

/// Sets an empty flag to the first of the choices. False if it is none of them.
template <class Choices>
bool choose(std::string& flag, const Choices& choices) {
  if (flag.empty()) flag = choices[0];
  return std::find(choices.begin(), choices.end(), flag) != choices.end();
}

template <class Peer>
bool check_flags() {
  if (!choose(FLAGS_transport, Peer::kTransports)) {
    limits::fail("--transport=%s is not a transport of this peer; --help lists them", FLAGS_transport.c_str());
  } else if (!choose(FLAGS_wait, Peer::kWaits)) {
    limits::fail("--wait=%s is not a way to wait of this peer; --help lists them", FLAGS_wait.c_str());
  } else if (FLAGS_measure != "latency" && FLAGS_measure != "rate" && FLAGS_measure != "bandwidth") {
    limits::fail("--measure is one of latency, rate, bandwidth");
  } else if (FLAGS_size != 0 && (FLAGS_size < kHeadBytes || FLAGS_size > kSizeMax)) {
    limits::fail("--size=%lu is not between 32 bytes and 1 GiB", FLAGS_size);
  } else if (FLAGS_window > 1024) {
    limits::fail("--window=%lu is more than 1024", FLAGS_window);
  } else {
    if (FLAGS_size == 0) FLAGS_size = FLAGS_measure == "bandwidth" ? size_t{8} << 20 : kHeadBytes;
    if (FLAGS_window == 0) FLAGS_window = FLAGS_measure == "rate" ? 60 : 1;
    return true;
  }
  return false;
}

/// main() of a peer's program.
template <class Peer>
int run_main(int argc, char** argv) {
  std::string usage = std::string(Peer::kName) + " as a peer of tern. Transports:";
  for (const char* transport : Peer::kTransports) usage += std::string(" ") + transport;
  usage += ". Ways to wait:";
  for (const char* wait : Peer::kWaits) usage += std::string(" ") + wait;
  if (!limits::parse_flags(argc, argv, usage.c_str()) || !check_flags<Peer>()) return 1;
  const auto [server_cpu, client_cpu] = *limits::two_cpus();
  const double before_ns = tern::microbench::placement_ns(server_cpu, client_cpu);
  limit_time();
  ServerProcess server(server_cpu, [](const auto& ready) { Peer::serve(FLAGS_transport, ready); });
  pin_process(client_cpu);
  Result result;
  {
    Peer peer(FLAGS_transport, server.address());
    result = call(peer, FLAGS_size, FLAGS_window);
  }
  server.stop();  // after the client, which must not see it end
  alarm(0);
  const double after_ns = tern::microbench::placement_ns(server_cpu, client_cpu);
  if (before_ns < 0 || after_ns < 0)
    return limits::fail("the CPUs --cpus=%s were taken from this process", FLAGS_cpus.c_str());

  limits::Json metrics = limits::latency_metrics(result.ticks, result.seconds);
  const double rate_rps = static_cast<double>(result.answered) / result.seconds;
  metrics["rate_mrps"] = rate_rps / 1e6;
  if (FLAGS_measure == "bandwidth") metrics["bandwidth_gbps"] = rate_rps * static_cast<double>(FLAGS_size) * 8 / 1e9;
  const char* bench = FLAGS_measure == "latency" ? "latency"
                      : FLAGS_measure == "rate"  ? "small_rpc_rate"
                                                 : "large_rpc_bandwidth";
  return limits::print(bench, FLAGS_transport.c_str(),
                       {{"peer", Peer::kName}, {"size", FLAGS_size}, {"window", FLAGS_window}, {"wait", FLAGS_wait}},
                       metrics, {std::min(before_ns, after_ns), std::max(before_ns, after_ns)}, Peer::kName);
}

}  // namespace peers
