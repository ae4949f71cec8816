// A datacenter in one thread: hosts with their own clocks, a network with queues and faults, virtual time, one seed.
// The endpoints, sessions, handlers and workers that run in it are the ones that run everywhere else.
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

/// What a host's CPU takes for the work of an endpoint's loop, callbacks of echoing's size included. The default is
/// what small_rpc_rate measures over shm (docs/simulation.md has the figures); handlers that do more say so with
/// Host::spend(), and what workers take, Host::set_worker_time() says.
struct HostCost {
  Duration iteration = std::chrono::nanoseconds(20);        ///< of the event loop, whatever it does
  Duration packet_received = std::chrono::nanoseconds(42);  ///< each
  Duration packet_sent = std::chrono::nanoseconds(15);      ///< each
  /// CPUs of infinite speed but for the smallest step of time: for experiments with the network alone.
  static HostCost none() { return {Duration(0), Duration(0), Duration(0)}; }
};

/// Of a Simulation.
struct SimulationOptions {
  /// Of everything random: the same seed, the same trace.
  uint64_t seed = 1;
  /// Largest frame, Ethernet, IP and UDP headers included (42 bytes): what limits a packet. 578 to 9018.
  size_t frame_bytes = 1024;
  /// Of every host, unless Host::set_cost() says otherwise.
  HostCost cost = {};
};

/// A packet as a tap sees it: Simulation::set_tap().
struct TappedPacket {
  bool has_arrived = false;          ///< it is being delivered; else the sender's interface begins to transmit it
  bool is_marked = false;            ///< ECN, by a switch on its way
  uint32_t from_host = 0;            ///< Host::index() of its sender
  uint32_t from_port = 0;            ///< of a Nexus, as in Host::uri(), if below 65536; else of an endpoint
  uint32_t to_host = 0;              ///< of its receiver
  uint32_t to_port = 0;              ///< likewise
  uint32_t frame_bytes = 0;          ///< Ethernet, IP and UDP headers included
  std::span<const std::byte> bytes;  ///< above UDP (docs/protocol.md, 2), during the call only
};

/// The scheduler of a busy machine: a host's threads run for a while, then others do. Host::set_time_slices().
struct TimeSlices {
  /// Whose time it is.
  enum class What : uint8_t {
    kAll,         ///< the host's: endpoints, workers and management stop together
    kManagement,  ///< the management's only, which polling endpoints leave no CPU to
  };
  Duration run{};          ///< they run for so long, 1 us at least,
  Duration wait{};         ///< and then not for so long, and so on. 0: they always run
  bool is_random = false;  ///< each stretch of time is drawn, from 1 us to twice that
  What what = What::kAll;  ///< whose
};

class HostCore;
class Simulation;

/// One machine of the simulation: what its programs take from the world. Values of it are owned by the Simulation.
class Host {
 public:
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// As in Simulation::host() and Topology::add_host().
  TERN_API uint32_t index() const;
  /// "10.X.Y.Z": of the host's one interface.
  TERN_API std::string address() const;
  /// "udp://10.X.Y.Z:PORT": to listen on, and for others to connect to ("/E" for endpoint E).
  TERN_API std::string uri(uint16_t port = 31850) const;
  /// For Nexus::create(): options with this host's Environment in them.
  TERN_API NexusOptions nexus_options();
  /// For Rpc<Sim>::create(): options with this host's network interface in them.
  TERN_API Sim::Options transport_options();
  /// From now on the simulation runs the endpoint's loop whenever there is something to do, until the endpoint is
  /// destroyed. Each endpoint is a thread with a CPU of its own. Endpoint::stop() means nothing to it. kMisuse: not of
  /// this host, run already, or closed. An endpoint that is not run so has an owner who runs its loop, in which time
  /// passes.
  TERN_API Status run(Rpc<Sim>& rpc);

  /// What runs on the host: made by `program` now, destroyed at the crash or with the simulation. Typically an object
  /// that owns a Nexus, endpoints and what they serve, and that nobody else holds. What must survive a crash, as a disk
  /// does, lives elsewhere, and longer than the simulation. kMisuse: it is up already.
  TERN_API Status boot(const std::function<std::shared_ptr<void>(Host&)>& program);
  /// The host is gone from the network at once; then its program is destroyed (continuations of its calls end with
  /// kCancelled, as in any endpoint that is destroyed, but nobody hears from it). boot() again: another boot identity.
  /// kMisuse: from within one of the host's own callbacks; Simulation::after() is outside of them.
  TERN_API Status crash();
  /// Between boot() and crash(). A host that was never booted is not up, but on the network.
  TERN_API bool is_up() const;
  /// What `program` has made; null while the host is down.
  TERN_API void* program() const;

  /// The host's clock: that of its endpoints and its Nexus. Differs from Simulation::now() by drift.
  TERN_API Duration now() const;
  /// Within a handler, continuation, timer or posted function: it takes this much of its thread's time. Elsewhere it is
  /// nobody's: what worker handlers take, set_worker_time() says.
  TERN_API void spend(Duration duration);
  /// What a worker handler takes, asked for each: it runs when that time is over. Default: 1 us. Negative: 0.
  TERN_API void set_worker_time(std::function<Duration()> time);
  /// Instead of SimulationOptions::cost.
  TERN_API void set_cost(const HostCost& cost);
  /// Everything that the host's CPUs do from now on takes `factor` times as long. 1: healthy.
  TERN_API void set_slowness(double factor);
  /// From now on the host's clock runs so much faster (slower: negative), in parts per million, to 100 000.
  TERN_API void set_clock_drift(int32_t ppm);
  /// No endpoint, worker or Nexus of the host runs for so long: a virtual machine that was descheduled.
  TERN_API void pause(Duration duration);
  /// From now on, which is the beginning of a stretch in which they run. An iteration of an endpoint's loop that has
  /// begun stops between two of its looks for packets only. Simulation::heal() ends it, within 1 ms.
  TERN_API void set_time_slices(const TimeSlices& slices);

 private:
  friend class Simulation;
  explicit Host(std::unique_ptr<HostCore> core);
  ~Host();
  std::unique_ptr<HostCore> core_;
};

/// The datacenter. Everything of it, its endpoints and Nexuses included, belongs to the thread that made it. It
/// outlives these: what boot() makes it destroys itself; if others are left, its destructor says so and ends the
/// process.
class Simulation {
 public:
  /// kMisuse: Topology::check(), or options out of range.
  TERN_API static Result<std::unique_ptr<Simulation>> create(const Topology& topology, SimulationOptions options = {});
  /// Crashes every host.
  TERN_API ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  /// Their number, the topology's.
  TERN_API uint32_t hosts() const;
  /// `index` is below hosts().
  TERN_API Host& host(uint32_t index);

  /// Virtual time, since the beginning.
  TERN_API Duration now() const;
  /// Lets so much virtual time pass. Not from within the simulation's own callbacks.
  TERN_API void run_for(Duration duration);
  /// Until `done()`, asked after every event, says so. False: `limit` has passed before.
  TERN_API bool run_until(const std::function<bool()>& done, Duration limit);
  /// Runs `then()` so much later, outside of all hosts: for schedules of faults, and for measuring.
  TERN_API void after(Duration delay, std::function<void()> then);
  /// Runs after every step of an endpoint, of a Nexus and of the network that run_for() and run_until() make: for tests
  /// that look at everything. Null: none.
  TERN_API void set_observer(std::function<void()> observer);

  /// Sees every packet that leaves a host, and every one that is delivered to an endpoint or a Nexus: for measuring
  /// what the network does. Calls nothing of the simulation but now(). Null: none.
  TERN_API void set_tap(std::function<void(const TappedPacket&)> tap);

  /// Of every cable.
  TERN_API void set_faults(const Faults& faults);
  /// Of the cables from `from` to `to`, in this direction only. kMisuse: there is none.
  TERN_API Status set_faults(Node from, Node to, const Faults& faults);
  /// Frames of more than `frame_bytes_max` bytes (Ethernet, IP and UDP headers included) are lost from now on, in this
  /// direction only, without a word: a path whose MTU has become smaller. SIZE_MAX: none are. kMisuse: there is no such
  /// cable.
  TERN_API Status set_frame_limit(Node from, Node to, size_t frame_bytes_max);
  /// Both directions. What is on the wire or arrives at a link that is down is lost. kMisuse: there is none.
  TERN_API Status set_link_up(Node a, Node b, bool up);
  /// Nothing from the one host reaches the other any more; the other direction is not touched.
  TERN_API void set_partition(uint32_t from_host, uint32_t to_host, bool is_cut);
  /// The host is behind a NAT of its own from now on, for good: packets of its endpoints arrive from other ports than
  /// theirs, and packets to its endpoints reach them only as answers, until `timeout` after the last packet of a flow.
  /// Packets of Nexuses pass as ever.
  TERN_API void set_nat(uint32_t host, Duration timeout = std::chrono::seconds(30));
  /// The host's NAT forgets all flows, as after a restart: the next packets arrive from other ports again.
  TERN_API void forget_flows(uint32_t host);
  /// Ends all faults, limits for frames, partitions, pauses and time slices (within 1 ms), slowness and drift, and
  /// brings all links up. Hosts that are down stay down.
  TERN_API void heal();

  /// Of all that the network has carried and lost: from where to where, how much, when, in which order. Two runs that
  /// differ differ here, unless they differ in nothing but what messages say.
  TERN_API uint64_t trace_hash() const;
  /// Live; the reference lasts as long as the simulation.
  TERN_API const NetworkCounters& counters() const;
  /// 64 bits of the seed's sequence, for workloads: the simulation's own are another sequence.
  TERN_API uint64_t random();

 private:
  struct Impl;
  explicit Simulation(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern::sim
