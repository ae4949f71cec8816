// The flags that every program has, their checks, and their conversion into a transport type and options. Uses tern's
// public headers and the generated list of transports.
#pragma once

#include <gflags/gflags.h>

#include <tern/endpoint.h>
#include <tern/nexus.h>
#include <tern/rpc.h>
#include <tern/transport/faulty.h>
#include <tern/transport_options.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "transport_list.h"

DECLARE_string(transport);
DECLARE_string(transport_options);
DECLARE_string(server_transport_options);
DECLARE_bool(list_transports);
DECLARE_string(role);
DECLARE_bool(processes);
DECLARE_string(server);
DECLARE_string(listen);
DECLARE_double(seconds);
DECLARE_string(cc);
DECLARE_string(wait);
DECLARE_bool(json);
DECLARE_string(cpus);
DECLARE_double(drop);
DECLARE_double(dup);
DECLARE_double(reorder);
DECLARE_double(corrupt);
DECLARE_double(delay);
DECLARE_double(delay_us_max);
DECLARE_uint64(seed);
DECLARE_int32(ready_fd);
DECLARE_string(page);
DECLARE_bool(log);
DECLARE_string(trace);

namespace programs {

/// Prints one sentence on standard error. Returns the program's exit code.
[[gnu::format(printf, 1, 2)]] int fail(const char* format, ...);

/// Prints `what` and the message of `status`. Returns the program's exit code.
int fail_with(const std::string& what, tern::Status status);

/// The controller that a value of --cc names; nullopt if there is no such controller.
std::optional<tern::CongestionControl> congestion_control(std::string_view name);

/// The transports that a program runs over.
enum class Scope {
  kReal,       ///< transports between processes
  kSimulated,  ///< transports of a simulation, which the program runs
  kBoth,
};

/// True if --transport is a transport of a simulation.
bool is_simulated();

/// Parses the command line and checks the flags of this file. On error it prints a sentence and returns false; the
/// program must then exit with code 1. With --list_transports it prints the list and ends the program.
bool parse_flags(int& argc, char**& argv, const char* usage, Scope scope = Scope::kReal);

/// True if the flag was given, be it with its default value, or if the program has changed its value.
bool is_given(const char* flag);

/// Must be called by a program that starts processes with the same flags. Returns false, and prints a sentence, if
/// --page is the path of a file, because all processes would share that page.
bool check_page_of_processes();

/// Must be called by a program that with --role=both makes a Nexus for each side. Returns false, and prints a sentence,
/// if --page is the path of a file, because both sides would share that page.
bool check_page_of_sides();

/// Must be called by a program that runs a simulation. Returns false, and prints a sentence, if a flag is given that
/// has no effect in a simulation, or one of `more`, the flags that have no effect in this program.
bool check_flags_in_simulation(std::initializer_list<const char*> more = {});

/// Parses a flag of as many times as `times` has, in nanoseconds, as in "600,700". Each is at most a second. Returns
/// false if the text has another form.
bool parse_times(std::string_view text, std::span<std::chrono::nanoseconds> times);

bool has_faults();

/// Calls run.operator()<T>() for --transport, which must be a transport between processes. T has the fault layer if a
/// flag of the fault layer is set.
template <class Run>
auto with_transport(Run&& run) {
  return *tern::transports::with_transport(tern::transports::Real(), FLAGS_transport, [&]<class T>() {
    return has_faults() ? run.template operator()<tern::Faulty<T>>() : run.template operator()<T>();
  });
}

/// The side that an endpoint's options are for.
enum class Role { kClient, kServer };

/// Applies --transport_options, then (for a server) --server_transport_options, and the flags of the fault layer to the
/// options of a transport. parse_flags() has checked these flags.
template <class Options>
void apply_transport_flags(Options& options, Role role = Role::kClient) {
  (void)tern::set_options(options, FLAGS_transport_options);
  if (role == Role::kServer) (void)tern::set_options(options, FLAGS_server_transport_options);
}
template <class Inner>
void apply_transport_flags(tern::FaultyOptions<Inner>& options, Role role = Role::kClient) {
  apply_transport_flags(options.inner, role);
  options.drop = FLAGS_drop;
  options.duplicate = FLAGS_dup;
  options.reorder = FLAGS_reorder;
  options.corrupt = FLAGS_corrupt;
  options.delay = FLAGS_delay;
  options.delay_max = std::chrono::nanoseconds(static_cast<int64_t>(FLAGS_delay_us_max * 1000));
  options.seed = FLAGS_seed;
}

/// The options of transport T that the flags select.
template <class T>
typename T::Options transport_options(Role role = Role::kClient) {
  typename T::Options options;
  apply_transport_flags(options, role);
  return options;
}

/// The options of a Nexus that the flags select. If its page cannot be made, the program goes on, and a line on
/// standard error gives the reason.
tern::NexusOptions nexus_options();

/// The options of an endpoint that the flags select.
tern::RpcOptions rpc_options(uint16_t endpoint_id);

/// The URI at which this program's server listens.
std::string server_uri();

/// The URI at which a client of the server at `server` lets its Nexus listen.
std::string client_listen_uri(std::string_view server);

}  // namespace programs
