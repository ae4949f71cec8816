// A datacenter in one thread: hosts with their own clocks, a network with queues and faults, virtual time, one seed.
// Endpoints, sessions, handlers and workers are those of the library, unchanged.
// docs/simulation.md shows how to test a program in it. Standard library only.
//
//     auto simulation = tern::sim::Simulation::create(tern::sim::Topology::cx4(100), {.seed = 7});
//     for (uint32_t i = 0; i < (*simulation)->hosts(); i++) {
//       (*simulation)->host(i).boot([](tern::sim::Host& host) { return std::make_shared<MyServer>(host); });
//     }
//     (*simulation)->run_for(std::chrono::milliseconds(100));
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <tern/detail/export.h>
#include <tern/duration.h>
#include <tern/environment.h>
#include <tern/nexus.h>
#include <tern/rpc.h>
#include <tern/sim/network.h>
#include <tern/status.h>
#include <tern/transport/sim.h>

namespace tern::sim {

/// The CPU time that an endpoint's loop takes. It includes the callbacks, if they are as short as an echo; a longer
/// callback calls Host::spend(). Host::set_worker_time() sets the time of worker handlers. The defaults were measured
/// with small_rpc_rate over shm (docs/simulation.md has the figures).
struct HostCost {
  Duration iteration = std::chrono::nanoseconds(20);        ///< of each iteration of the event loop
  Duration packet_received = std::chrono::nanoseconds(42);  ///< of each packet received
  Duration packet_sent = std::chrono::nanoseconds(15);      ///< of each packet sent
  /// For experiments with the network alone: CPUs take no time, except the smallest step of the clock.
  static HostCost none() { return {Duration(0), Duration(0), Duration(0)}; }
};

/// For Simulation::create().
struct SimulationOptions {
  /// Seed of all random numbers. Runs with the same seed have the same trace.
  uint64_t seed = 1;
  /// Length of the longest frame, including Ethernet, IP and UDP headers (42 bytes). It limits a packet. 578 to 9018.
  size_t frame_bytes = 1024;
  /// For all hosts without Host::set_cost().
  HostCost cost = {};
};

/// The argument of a tap: Simulation::set_tap().
struct TappedPacket {
  bool has_arrived = false;          ///< true: at its receiver; false: the sender's interface begins to transmit it
  bool is_marked = false;            ///< a switch has marked it (ECN)
  uint32_t from_host = 0;            ///< Host::index() of its sender
  uint32_t from_port = 0;            ///< below 65536: of a Nexus, as in Host::uri(); otherwise of an endpoint
  uint32_t to_host = 0;              ///< of its receiver
  uint32_t to_port = 0;              ///< as from_port
  uint32_t frame_bytes = 0;          ///< Ethernet, IP and UDP headers included
  std::span<const std::byte> bytes;  ///< the UDP payload (docs/protocol.md, 2); valid during the call
};

/// The scheduler of a busy machine, on which a host's threads run only a part of the time. Host::set_time_slices(). A
/// worker's task takes no longer because of slices, except that a task whose end is in a wait ends after the wait.
/// Workers therefore do more than their share of work, up to all of it.
struct TimeSlices {
  /// The threads that are scheduled.
  enum class What : uint8_t {
    kAll,         ///< endpoints, workers and management stop together
    kManagement,  ///< only the management stops, because polling endpoints take all CPUs
  };
  Duration run{};          ///< time in which they run, at least 1 us
  Duration wait{};         ///< time in which they do not run, after `run`. 0: they always run
  bool is_random = false;  ///< each time is random, from 1 us to 1 us more than twice the value
  What what = What::kAll;  ///< the threads
};

class HostCore;
class Simulation;

/// One machine of the simulation. The Simulation owns it.
class Host {
 public:
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// The index in Simulation::host() and Topology::add_host().
  TERN_API uint32_t index() const;
  /// The address of the host's one interface, "10.X.Y.Z".
  TERN_API std::string address() const;
  /// "tern://10.X.Y.Z:PORT", to listen on and to connect to (with "/E" for endpoint E).
  TERN_API std::string uri(uint16_t port = 31850) const;
  /// For Nexus::create(): options with this host's Environment in them.
  TERN_API NexusOptions nexus_options();
  /// For Rpc<Sim>::create(): options with this host's network interface in them.
  TERN_API Sim::Options transport_options();
  /// Lets the simulation run the endpoint's loop, whenever it has work, until the endpoint is destroyed. Each endpoint
  /// is a thread with a CPU of its own. Endpoint::stop() has no effect. kMisuse: the endpoint is of another host, is
  /// run already, or is closed. Without this call the program runs the endpoint's loop, in which virtual time passes.
  /// pause() and set_time_slices() then have no effect on the endpoint, and the host cannot crash() while the loop
  /// runs.
  TERN_API Status run(Rpc<Sim>& rpc);

  /// Starts the host. `program` returns an object that the host destroys at a crash or with the simulation: typically
  /// one that owns a Nexus, endpoints and their data, and of which there is no other reference. Data that must survive
  /// a crash, as on a disk, must lie elsewhere and outlive the simulation. kMisuse: the host is up already.
  TERN_API Status boot(const std::function<std::shared_ptr<void>(Host&)>& program);
  /// Takes the host off the network at once, and then destroys its program. Continuations of its calls run with
  /// kCancelled, as in any endpoint that is destroyed, but no packet leaves. After another boot() the host has another
  /// boot identity. kMisuse: called from one of the host's own callbacks (use Simulation::after()), or while the
  /// program itself runs the loop of one of the host's endpoints (use run()).
  TERN_API Status crash();
  /// True between boot() and crash(). A host that was never booted is not up, but is on the network.
  TERN_API bool is_up() const;
  /// The object that boot()'s `program` has returned; null while the host is down.
  TERN_API void* program() const;

  /// The host's clock, which its endpoints and its Nexus use. It differs from Simulation::now() by its drift.
  TERN_API Duration now() const;
  /// Called in a handler, continuation, timer or posted function: this takes `duration` of its thread's time. Elsewhere
  /// it has no effect. set_worker_time() gives the time of worker handlers.
  TERN_API void spend(Duration duration);
  /// `time` is called for each request of a worker handler, and returns its time; the handler runs at the end of it.
  /// The default is 1 us. A negative time is 0.
  TERN_API void set_worker_time(std::function<Duration()> time);
  /// Replaces SimulationOptions::cost for this host.
  TERN_API void set_cost(const HostCost& cost);
  /// From now on all CPU time of the host is multiplied by `factor`. 1: healthy.
  TERN_API void set_slowness(double factor);
  /// From now on the host's clock is faster by `ppm` parts per million (slower if negative), at most 100 000.
  TERN_API void set_clock_drift(int32_t ppm);
  /// Stops all endpoints, workers and the Nexus of the host for `duration`, as in a virtual machine without a CPU. A
  /// task that a worker has begun does not take longer, but ends after the pause if its end is in the pause.
  /// Endpoints whose loop the program itself runs go on: give them to run().
  TERN_API void pause(Duration duration);
  /// Schedules the host's threads by `slices` from now on, beginning with a time in which they run. A running iteration
  /// of an endpoint's loop stops only between two polls for packets. Simulation::heal() ends the slices within 1 ms.
  /// Endpoints whose loop the program itself runs ignore them: give them to run().
  TERN_API void set_time_slices(const TimeSlices& slices);

 private:
  friend class Simulation;
  explicit Host(std::unique_ptr<HostCore> core);
  ~Host();
  std::unique_ptr<HostCore> core_;
};

/// The datacenter. It and all its endpoints and Nexuses belong to the thread that made it. It must outlive them. It
/// destroys the objects of boot() itself; if its destructor finds others, it names the rule and ends the process.
/// Longer durations than 53 days are 53 days, in Host as well, and virtual time ends after 213 days.
class Simulation {
 public:
  /// kMisuse: Topology::check(), or options out of range.
  TERN_API static Result<std::unique_ptr<Simulation>> create(const Topology& topology, SimulationOptions options = {});
  /// Crashes every host.
  TERN_API ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// The number of hosts.
  TERN_API uint32_t hosts() const;
  /// The host with this index, which must be below hosts().
  TERN_API Host& host(uint32_t index);

  /// Virtual time since the beginning.
  TERN_API Duration now() const;
  /// Runs the simulation for `duration` of virtual time. Must not be called from the simulation's callbacks.
  TERN_API void run_for(Duration duration);
  /// Runs the simulation until `done()`, which is called after each event, returns true. False: `limit` has passed
  /// before.
  TERN_API bool run_until(const std::function<bool()>& done, Duration limit);
  /// Calls `then()` after `delay`, outside of all hosts. For schedules of faults, and for measurements.
  TERN_API void after(Duration delay, std::function<void()> then);
  /// Calls `observer` after every step of an endpoint, of a Nexus and of the network in run_for() and run_until(). For
  /// tests that check invariants. The observer may replace and remove itself. Null: none.
  TERN_API void set_observer(std::function<void()> observer);

  /// Calls `tap` for each packet that leaves a host, and for each one that arrives at an endpoint or a Nexus. Packets
  /// that an endpoint drops because its receive queue is full arrive, too. For measurements of the network. The tap may
  /// call now(), and no other member. Null: none.
  TERN_API void set_tap(std::function<void(const TappedPacket&)> tap);

  /// Sets the faults of all cables.
  TERN_API void set_faults(const Faults& faults);
  /// Sets the faults of the cables from `from` to `to`, in this direction only. kMisuse: there is no such cable.
  TERN_API Status set_faults(Node from, Node to, const Faults& faults);
  /// From now on frames of more than `frame_bytes_max` bytes (with Ethernet, IP and UDP headers) are lost in this
  /// direction, without a message, as on a path whose MTU has become smaller. SIZE_MAX: no limit. kMisuse: there is no
  /// such cable.
  TERN_API Status set_frame_limit(Node from, Node to, size_t frame_bytes_max);
  /// Takes a link down or up, in both directions. Frames on a link that goes down, and frames for it, are lost.
  /// kMisuse: there is no such link.
  TERN_API Status set_link_up(Node a, Node b, bool up);
  /// Drops all packets from `from_host` to `to_host` if `is_cut`. The other direction stays as it is.
  TERN_API void set_partition(uint32_t from_host, uint32_t to_host, bool is_cut);
  /// Puts the host behind a NAT of its own, for the rest of the simulation. Packets of its endpoints arrive from other
  /// ports. Packets to its endpoints reach them only as answers, until `timeout` after the last packet of a flow.
  /// Packets of Nexuses are not affected.
  TERN_API void set_nat(uint32_t host, Duration timeout = std::chrono::seconds(30));
  /// Makes the host's NAT forget all flows, as after a restart. Its next packets arrive from other ports.
  TERN_API void forget_flows(uint32_t host);
  /// Ends all faults, limits for frames, partitions, pauses and time slices (within 1 ms), slowness and drift, and
  /// brings all links up. Hosts that are down stay down.
  TERN_API void heal();

  /// A hash of all packets that the network has carried or lost: sender, receiver, length, time and order. Runs that
  /// differ have other hashes, unless they differ only in the content of messages.
  TERN_API uint64_t trace_hash() const;
  /// The present values. The reference is valid as long as the simulation.
  TERN_API const NetworkCounters& counters() const;
  /// 64 random bits for workloads. The sequence depends on the seed, and is not that of the simulation itself.
  TERN_API uint64_t random();

 private:
  struct Impl;
  explicit Simulation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern::sim
