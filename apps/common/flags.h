// The flags that every program has, what is wrong with them, and what they become: a transport type and options.
// Defines flags: include it in a program's one source file only. Knows tern's public headers, not its library.
#pragma once

#include <gflags/gflags.h>

#include <tern/endpoint.h>
#include <tern/rpc.h>
#include <tern/transport/faulty.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

DEFINE_string(transport, "shm", "shm: shared memory of this host; udp: kernel UDP");
DEFINE_string(role, "both", "both: the two sides in this program; server; client");
DEFINE_bool(processes, false, "with --role=both: the two sides as two processes instead of two threads");
DEFINE_string(
    server, "",
    "HOST:PORT at which a server listens and a client finds it; default 127.0.0.1:31850, with --role=both any "
    "free port of 127.0.0.1");
DEFINE_string(
    listen, "",
    "HOST:PORT of a client's own Nexus; default: any free port, of 127.0.0.1 if the server is there. Where the "
    "server must find it (small_rpc_rate --pattern=symmetric between hosts), give an address of this host");
DEFINE_uint64(datagram_bytes, tern::Udp::Options().datagram_bytes,
              "udp: payload of a datagram; the default passes every path, where a path is known more may be faster "
              "(1452 on plain Ethernet, 8900 with jumbo frames or on loopback)");
DEFINE_double(seconds, 2, "length of the measurement, after a warm-up");
DEFINE_string(cc, "default",
              "congestion controller: default (the transport's), none, timely, patched_timely, swift, dctcp");
DEFINE_string(wait, "poll", "what a side without work does: poll (spin), adaptive (spin, then block), block");
DEFINE_bool(json, false, "one JSON object per line on standard output instead of a table");
DEFINE_string(cpus, "", "CPUs to pin the sides to, as in 0,2: the server's first; default: the allowed ones in turn");
DEFINE_double(drop, 0, "fault layer: probability that a packet is lost (on shm: per 4 KiB of a large payload)");
DEFINE_double(dup, 0, "fault layer: probability that a packet arrives twice");
DEFINE_double(reorder, 0, "fault layer: probability that a packet is overtaken");
DEFINE_double(corrupt, 0, "fault layer: probability that bits of a packet flip, above every checksum");
DEFINE_double(delay, 0, "fault layer: probability that a packet is held back, for up to --delay_us_max");
DEFINE_double(delay_us_max, 100, "fault layer: the longest delay, us");
DEFINE_uint64(seed, 1, "seed of the fault layer");
DEFINE_int32(ready_fd, -1, "for --processes: where the server writes its address once it can be reached");

namespace programs {

/// One sentence on standard error; the program's exit code.
[[gnu::format(printf, 1, 2)]] inline int fail(const char* format, ...) {
  std::fprintf(stderr, "%s: ", gflags::ProgramInvocationShortName());
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  return 1;
}

/// The same, for what the library said about `what`.
inline int fail_with(const std::string& what, tern::Status status) {
  return fail("%s: %.*s", what.c_str(), static_cast<int>(status.message().size()), status.message().data());
}

/// What a value of --cc means; nothing, if it is none.
inline std::optional<tern::CongestionControl> congestion_control(std::string_view name) {
  using tern::CongestionControl;
  if (name == "default") return CongestionControl::kDefault;
  if (name == "none") return CongestionControl::kNone;
  if (name == "timely") return CongestionControl::kTimely;
  if (name == "patched_timely") return CongestionControl::kPatchedTimely;
  if (name == "swift") return CongestionControl::kSwift;
  if (name == "dctcp") return CongestionControl::kDctcp;
  return std::nullopt;
}

/// Parses the command line and checks the flags of this file. False: the sentence has been printed, exit with 1.
/// `simulated`: the program also runs over sim, or over nothing else, if that is its default.
inline bool parse_flags(int& argc, char**& argv, const char* usage, bool simulated = false) {
  gflags::SetUsageMessage(usage);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  const auto refuse = [](const char* flag, const std::string& value, const char* choices) {
    fail("--%s=%s is unknown; choose from: %s", flag, value.c_str(), choices);
    return false;
  };
  if (argc > 1) {
    fail("'%s' is not a flag; --help lists them", argv[1]);
    return false;
  }
  const bool is_simulated = simulated && FLAGS_transport == "sim";
  if (!is_simulated && FLAGS_transport != "shm" && FLAGS_transport != "udp") {
    return refuse("transport", FLAGS_transport, simulated ? "shm, udp, sim" : "shm, udp");
  }
  if (FLAGS_role != "both" && FLAGS_role != "server" && FLAGS_role != "client") {
    return refuse("role", FLAGS_role, "both, server, client");
  }
  if (FLAGS_datagram_bytes < 576 || FLAGS_datagram_bytes > 65000) {
    fail("--datagram_bytes=%s is not between 576 and 65000", std::to_string(FLAGS_datagram_bytes).c_str());
    return false;
  }
  if (!congestion_control(FLAGS_cc)) {
    return refuse("cc", FLAGS_cc, "default, none, timely, patched_timely, swift, dctcp");
  }
  if (FLAGS_wait != "poll" && FLAGS_wait != "adaptive" && FLAGS_wait != "block") {
    return refuse("wait", FLAGS_wait, "poll, adaptive, block");
  }
  if (FLAGS_processes && FLAGS_role != "both") {
    fail("--processes goes with --role=both only; start the server and the client by hand instead");
    return false;
  }
  if (!(FLAGS_seconds > 0 && FLAGS_seconds <= 1e6)) {
    fail("--seconds=%g is not between 0 and 1000000", FLAGS_seconds);
    return false;
  }
  for (const double probability : {FLAGS_drop, FLAGS_dup, FLAGS_reorder, FLAGS_corrupt, FLAGS_delay}) {
    if (probability >= 0 && probability < 1) continue;
    fail("%g is no probability for --drop, --dup, --reorder, --corrupt or --delay: at least 0, less than 1",
         probability);
    return false;
  }
  if (!(FLAGS_delay_us_max >= 0 && FLAGS_delay_us_max <= 1e6)) {
    fail("--delay_us_max=%g is not between 0 and 1000000", FLAGS_delay_us_max);
    return false;
  }
  return true;
}

inline bool has_faults() {
  return FLAGS_drop > 0 || FLAGS_dup > 0 || FLAGS_reorder > 0 || FLAGS_corrupt > 0 || FLAGS_delay > 0;
}

/// Calls run.operator()<T>() with the transport of this name, under the fault layer if any of its flags is set.
template <class Run>
int with_transport(std::string_view name, Run&& run) {
  if (name == tern::Shm::kName) {
    return has_faults() ? run.template operator()<tern::Faulty<tern::Shm>>() : run.template operator()<tern::Shm>();
  }
  if (name == tern::Udp::kName) {
    return has_faults() ? run.template operator()<tern::Faulty<tern::Udp>>() : run.template operator()<tern::Udp>();
  }
  return fail("--transport=%.*s is unknown; choose from: shm, udp", static_cast<int>(name.size()), name.data());
}

/// What the flags say about transport T.
template <class T>
typename T::Options transport_options() {
  typename T::Options options;
  if constexpr (requires { options.datagram_bytes; }) options.datagram_bytes = FLAGS_datagram_bytes;
  if constexpr (requires { options.inner.datagram_bytes; }) options.inner.datagram_bytes = FLAGS_datagram_bytes;
  if constexpr (requires { options.inner; }) {
    options.drop = FLAGS_drop;
    options.duplicate = FLAGS_dup;
    options.reorder = FLAGS_reorder;
    options.corrupt = FLAGS_corrupt;
    options.delay = FLAGS_delay;
    options.delay_max = std::chrono::nanoseconds(static_cast<int64_t>(FLAGS_delay_us_max * 1000));
    options.seed = FLAGS_seed;
  }
  return options;
}

/// What the flags say about an endpoint.
inline tern::RpcOptions rpc_options(uint16_t endpoint_id) {
  tern::RpcOptions options;
  options.endpoint_id = endpoint_id;
  options.congestion_control = *congestion_control(FLAGS_cc);
  options.wait = FLAGS_wait == "poll"       ? tern::Wait::kPoll
                 : FLAGS_wait == "adaptive" ? tern::Wait::kAdaptive
                                            : tern::Wait::kBlock;
  return options;
}

/// Where this program's server listens, as a URI.
inline std::string server_uri() {
  if (!FLAGS_server.empty()) return "udp://" + FLAGS_server;
  return FLAGS_role == "both" ? "udp://127.0.0.1:0" : "udp://127.0.0.1:31850";
}

/// Where the Nexus of a client of the server at `server` listens.
inline std::string client_listen_uri(std::string_view server) {
  if (!FLAGS_listen.empty()) return "udp://" + FLAGS_listen;
  if (server.starts_with("udp://127.")) return "udp://127.0.0.1:0";
  return server.starts_with("udp://[") ? "udp://[::]:0" : "udp://0.0.0.0:0";
}

}  // namespace programs
