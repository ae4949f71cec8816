#include "flags.h"

#include <gflags/gflags.h>

#include <charconv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "json_log.h"
#include "report.h"

DEFINE_string(transport, tern::transports::kEntries[0].name, "the transport; --list_transports prints the names");
DEFINE_string(
    transport_options, "",
    "options of the transport, as in datagram_bytes=8900,offload=false; --list_transports prints those of each");
DEFINE_string(server_transport_options, "",
              "options of the server's endpoints that differ from --transport_options, as in address=10.0.0.1/24");
DEFINE_bool(list_transports, false, "print the transports of this program, one per line, and their options");
DEFINE_string(role, "both", "both: the two sides in this program; server; client");
DEFINE_bool(processes, false, "with --role=both: run the two sides as two processes instead of two threads");
DEFINE_string(
    server, "",
    "HOST:PORT at which a server listens and a client finds it; default 127.0.0.1:31850, with --role=both any "
    "free port of 127.0.0.1");
DEFINE_string(listen, "",
              "HOST:PORT of a client's own Nexus; default: any free port, of 127.0.0.1 if the server is there");
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
DEFINE_string(page, "",
              "where other processes can read the counters: shm (for tern-top), or a path (NexusOptions::page)");
DEFINE_bool(log, false,
            "print sessions, peers and faults as JSON lines on standard error, as they happen (NexusOptions::log)");
DEFINE_string(trace, "",
              "folder in which each endpoint writes a trace of its last calls and packets when it closes, for "
              "scripts/trace (RpcOptions::trace_records)");
DEFINE_int32(ready_fd, -1, "for --processes: where the server writes its address once it can be reached");

namespace programs {

namespace {
/// The number of records for --trace. They take 2 MiB an endpoint, and hold about the last 6000 calls of one packet
/// each.
constexpr size_t kTraceRecords = size_t{1} << 16;
}  // namespace

int fail(const char* format, ...) {
  std::fprintf(stderr, "%s: ", gflags::ProgramInvocationShortName());
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  return 1;
}

int fail_with(const std::string& what, tern::Status status) {
  return fail("%s: %.*s", what.c_str(), static_cast<int>(status.message().size()), status.message().data());
}

std::optional<tern::CongestionControl> congestion_control(std::string_view name) {
  using tern::CongestionControl;
  if (name == "default") return CongestionControl::kDefault;
  if (name == "none") return CongestionControl::kNone;
  if (name == "timely") return CongestionControl::kTimely;
  if (name == "patched_timely") return CongestionControl::kPatchedTimely;
  if (name == "swift") return CongestionControl::kSwift;
  if (name == "dctcp") return CongestionControl::kDctcp;
  return std::nullopt;
}

bool is_simulated() {
  for (const auto& entry : tern::transports::kEntries) {
    if (FLAGS_transport == entry.name) return entry.kind == tern::transports::Kind::kSimulated;
  }
  return false;
}

namespace {

bool is_in(Scope scope, const tern::transports::Entry& entry) {
  using tern::transports::Kind;
  return (entry.kind == Kind::kReal && scope != Scope::kSimulated) ||
         (entry.kind == Kind::kSimulated && scope != Scope::kReal);
}

/// Returns ok if this machine can make an endpoint over T, otherwise the reason.
template <class T>
tern::Status runs_here() {
  auto nexus = tern::Nexus::create("tern://127.0.0.1:0");
  if (!nexus.ok()) return nexus.status();
  const auto rpc = tern::Rpc<T>::create(**nexus, {}, {.huge_pages = false});
  return rpc.ok() ? tern::Status() : rpc.status();
}

/// For each transport of the program that runs here, prints "NAME<tab>WHAT (OPTIONS with their defaults)" on standard
/// output. For each other transport, prints a sentence on standard error. Returns the program's exit code.
int list_transports(Scope scope) {
  std::string list;  // printed at once, for end_output()
  for (const auto& entry : tern::transports::kEntries) {
    if (!is_in(scope, entry)) continue;
    if (!entry.is_built()) {
      std::fprintf(stderr, "%s is not built: it needs %s\n", entry.name, entry.missing);
      continue;
    }
    if (entry.kind == tern::transports::Kind::kReal) {
      const auto status = tern::transports::with_transport(tern::transports::Real(), entry.name,
                                                           []<class T>() { return runs_here<T>(); });
      if (!status->ok()) {
        std::fprintf(stderr, "%s does not run here: %s\n", entry.name, std::string(status->message()).c_str());
        continue;
      }
    }
    const auto options = tern::transports::with_transport(
        tern::transports::All(), entry.name, []<class T>() { return tern::options_text(typename T::Options()); });
    list.append(entry.name).append("\t").append(entry.what).append(" (").append(*options).append(")\n");
  }
  std::fputs(list.c_str(), stdout);
  return end_output();
}

/// Checks --transport, --transport_options and --server_transport_options. On error it prints a sentence and returns
/// false.
bool check_transport(Scope scope) {
  std::string names;
  for (const auto& entry : tern::transports::kEntries) {
    if (!is_in(scope, entry)) continue;
    if (entry.is_built()) {
      names.append(names.empty() ? "" : ", ").append(entry.name);
    } else if (FLAGS_transport == entry.name) {
      fail("--transport=%s is not built: it needs %s; install that (scripts/setup %s), then run cmake and build again",
           entry.name, entry.missing, entry.name);
      return false;
    }
  }
  const auto check_options = []<class T>() {
    typename T::Options options;
    std::string problem = tern::set_options(options, FLAGS_transport_options);
    if (!problem.empty()) return "--transport_options: " + problem;
    problem = tern::set_options(options, FLAGS_server_transport_options);
    return problem.empty() ? problem : "--server_transport_options: " + problem;
  };
  std::optional<std::string> problem;
  if (scope != Scope::kSimulated) {
    problem = tern::transports::with_transport(tern::transports::Real(), FLAGS_transport, check_options);
  }
  if (scope != Scope::kReal && !problem) {
    problem = tern::transports::with_transport(tern::transports::Simulated(), FLAGS_transport, check_options);
  }
  if (!problem) {
    fail("--transport=%s is unknown; choose from: %s", FLAGS_transport.c_str(), names.c_str());
  } else if (!problem->empty()) {
    fail("%s", problem->c_str());
  }
  return problem && problem->empty();
}

}  // namespace

bool parse_flags(int& argc, char**& argv, const char* usage, Scope scope) {
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
  if (FLAGS_list_transports) std::exit(list_transports(scope));
  if (!check_transport(scope)) return false;
  if (FLAGS_role != "both" && FLAGS_role != "server" && FLAGS_role != "client") {
    return refuse("role", FLAGS_role, "both, server, client");
  }
  if (!congestion_control(FLAGS_cc)) {
    return refuse("cc", FLAGS_cc, "default, none, timely, patched_timely, swift, dctcp");
  }
  if (FLAGS_wait != "poll" && FLAGS_wait != "adaptive" && FLAGS_wait != "block") {
    return refuse("wait", FLAGS_wait, "poll, adaptive, block");
  }
  if (FLAGS_processes && FLAGS_role != "both") {
    fail("--processes works only with --role=both; start the server and the client by hand instead");
    return false;
  }
  if (FLAGS_processes && !check_page_of_processes()) return false;
  if (!(FLAGS_seconds > 0 && FLAGS_seconds <= 1e6)) {
    fail("--seconds=%g is not between 0 and 1000000", FLAGS_seconds);
    return false;
  }
  for (const double probability : {FLAGS_drop, FLAGS_dup, FLAGS_reorder, FLAGS_corrupt, FLAGS_delay}) {
    if (probability >= 0 && probability < 1) continue;
    fail("%g is not a probability for --drop, --dup, --reorder, --corrupt or --delay: at least 0, less than 1",
         probability);
    return false;
  }
  if (!(FLAGS_delay_us_max >= 0 && FLAGS_delay_us_max <= 1e6)) {
    fail("--delay_us_max=%g is not between 0 and 1000000", FLAGS_delay_us_max);
    return false;
  }
  if (std::error_code error; !FLAGS_trace.empty() && !std::filesystem::is_directory(FLAGS_trace, error)) {
    fail("--trace=%s is not a folder: create it first", FLAGS_trace.c_str());
    return false;
  }
  return true;
}

bool is_given(const char* flag) { return !gflags::GetCommandLineFlagInfoOrDie(flag).is_default; }

namespace {
bool check_page(const char* of_all, const char* of_each) {
  if (FLAGS_page.empty() || FLAGS_page == "shm") return true;
  fail("--page=%s would be the page of %s; use --page=shm, which gives %s its own page", FLAGS_page.c_str(), of_all,
       of_each);
  return false;
}
}  // namespace

bool check_page_of_processes() { return check_page("several processes", "each process"); }

bool check_page_of_sides() { return FLAGS_role != "both" || check_page("both sides", "each side"); }

bool check_flags_in_simulation(std::initializer_list<const char*> more) {
  for (const char* name : {"role", "processes", "server", "server_transport_options", "listen", "wait", "dup",
                           "reorder", "corrupt", "delay", "delay_us_max", "ready_fd", "page", "log"}) {
    if (!is_given(name)) continue;
    fail("--%s does not work in a simulation, which has one thread and its own network", name);
    return false;
  }
  for (const char* name : more) {
    if (!is_given(name)) continue;
    fail("--%s has no effect in this program", name);
    return false;
  }
  return true;
}

bool parse_times(std::string_view text, std::span<std::chrono::nanoseconds> times) {
  constexpr uint64_t kNsMax = 1'000'000'000;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < times.size(); i++) {
    if (i > 0 && (at == end || *at++ != ',')) return false;
    while (at != end && *at == ' ') at++;
    uint64_t ns = 0;
    const auto [rest, error] = std::from_chars(at, end, ns);  // takes no sign
    if (error != std::errc() || ns > kNsMax) return false;
    times[i] = std::chrono::nanoseconds(ns);
    at = rest;
  }
  return at == end;
}

bool has_faults() {
  return FLAGS_drop > 0 || FLAGS_dup > 0 || FLAGS_reorder > 0 || FLAGS_corrupt > 0 || FLAGS_delay > 0;
}

tern::NexusOptions nexus_options() {
  tern::NexusOptions options{.page = FLAGS_page};
  if (FLAGS_log) {
    options.log = json_log();
  } else if (!FLAGS_page.empty()) {
    options.log = tern::log_to([](const tern::LogEvent& event) {
      if (event.kind == tern::LogKind::kPageMissing) fail_with("--page=" + FLAGS_page, event.status);
    });
  }
  return options;
}

tern::RpcOptions rpc_options(uint16_t endpoint_id) {
  tern::RpcOptions options;
  options.endpoint_id = endpoint_id;
  options.congestion_control = *congestion_control(FLAGS_cc);
  options.wait = FLAGS_wait == "poll"       ? tern::Wait::kPoll
                 : FLAGS_wait == "adaptive" ? tern::Wait::kAdaptive
                                            : tern::Wait::kBlock;
  if (!FLAGS_trace.empty()) {
    options.trace_records = kTraceRecords;
    options.trace_folder = FLAGS_trace;
  }
  return options;
}

std::string server_uri() {
  if (!FLAGS_server.empty()) return "tern://" + FLAGS_server;
  return FLAGS_role == "both" ? "tern://127.0.0.1:0" : "tern://127.0.0.1:31850";
}

std::string client_listen_uri(std::string_view server) {
  if (!FLAGS_listen.empty()) return "tern://" + FLAGS_listen;
  if (server.starts_with("tern://127.")) return "tern://127.0.0.1:0";
  return server.starts_with("tern://[") ? "tern://[::]:0" : "tern://0.0.0.0:0";
}

}  // namespace programs
