// The driver of a simulation: hosts and their programs, virtual time, functions scheduled for later.
#include <tern/sim.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "rpc/rpc_core.h"
#include "sim/host.h"
#include "sim/network/event_target.h"
#include "sim/network/network.h"
#include "transport/sim/sim_transport.h"

namespace tern::sim {

using transport::SimImpl;

namespace {

constexpr size_t kFrameBytesMin = SimImpl::kFrameHeaderBytes + wire::kHeaderBytes + wire::kPayloadBytesMin;
constexpr size_t kFrameBytesMax = 9018;

/// The longest duration, 53 days. It stands for "for ever".
constexpr Picoseconds kForever = Picoseconds{1} << 62;

Picoseconds to_ps(Duration duration) {
  constexpr auto kMost = static_cast<int64_t>(kForever / kPicosecondsPerNs);
  return static_cast<Picoseconds>(std::clamp<int64_t>(duration.count(), 0, kMost)) * kPicosecondsPerNs;
}

transport::SimCost to_cost(const HostCost& cost) {
  return {to_ps(cost.iteration), to_ps(cost.packet_received), to_ps(cost.packet_sent)};
}

/// The seed of the n-th independent random sequence, by splitmix64's mixing function.
uint64_t derive_seed(uint64_t seed, uint64_t n) {
  uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

// ---- Host ----

Host::Host(std::unique_ptr<HostCore> core) : core_(std::move(core)) {}
Host::~Host() = default;

uint32_t Host::index() const { return core_->nic.host; }
std::string Host::address() const { return address_of(core_->nic.host); }
std::string Host::uri(uint16_t port) const { return "tern://" + address() + ":" + std::to_string(port); }

NexusOptions Host::nexus_options() {
  NexusOptions options;
  options.environment = &core_->environment;
  return options;
}

Sim::Options Host::transport_options() {
  Sim::Options options;
  options.nic = &core_->nic;
  return options;
}

Status Host::run(Rpc<Sim>& rpc) {
  if (rpc.core().is_closed()) return {Code::kMisuse, "the endpoint is closed"};
  SimImpl& impl = rpc.core().transport();
  if (&impl.nic() != &core_->nic) {
    return {Code::kMisuse, "the endpoint belongs to another host: create it with this host's transport_options()"};
  }
  if (impl.driver() != nullptr) return {Code::kMisuse, "the simulation runs this endpoint already"};
  core_->loops.push_back(std::make_unique<Loop>(*core_, rpc.core(), impl));
  return {};
}

Status Host::boot(const std::function<std::shared_ptr<void>(Host&)>& program) {
  if (core_->is_up) return {Code::kMisuse, "the host is up: crash() it first"};
  core_->is_up = true;
  core_->nic.network.set_host_up(core_->nic.host, true);
  core_->callbacks++;
  core_->program = program(*this);
  core_->callbacks--;
  return {};
}

Status Host::crash() {
  if (!core_->is_up) return {};
  if (core_->nic.running != nullptr || core_->callbacks != 0) {
    return {Code::kMisuse, "a host's own callbacks must not crash() it: use Simulation::after()"};
  }
  if (core_->nic.own_loops != 0) {
    return {Code::kMisuse,
            "a host must not crash() while the program runs the loop of one of its endpoints: use run()"};
  }
  core_->is_up = false;
  core_->nic.network.set_host_up(core_->nic.host, false);
  core_->program.reset();
  return {};
}

bool Host::is_up() const { return core_->is_up; }
void* Host::program() const { return core_->program.get(); }
Duration Host::now() const { return core_->environment.now(); }

void Host::spend(Duration duration) {
  SimImpl* const thread = core_->nic.running != nullptr ? core_->nic.running : core_->nic.polling;
  if (thread != nullptr) thread->spend(to_ps(duration));
}

void Host::set_worker_time(std::function<Duration()> time) { core_->worker_time = std::move(time); }
void Host::set_cost(const HostCost& cost) { core_->nic.cost = to_cost(cost); }

void Host::set_slowness(double factor) {
  constexpr double kMax = 1'000'000;
  if (!(factor >= 0)) factor = 1;
  core_->nic.slowness =
      static_cast<uint64_t>(std::clamp(factor, 0.0, kMax) * static_cast<double>(transport::SimNic::kHealthy));
}

void Host::set_clock_drift(int32_t ppm) {
  if (!core_->nic.clock.set_drift(core_->now(), std::clamp(ppm, -100'000, 100'000))) return;
  for (const auto& loop : core_->loops) loop->on_clock_change();
  for (ManagementChannel* channel : core_->channels) channel->wake();
}

void Host::pause(Duration duration) {
  core_->paused_until = std::max(core_->paused_until, core_->now() + to_ps(duration));
}

void Host::set_time_slices(const TimeSlices& slices) {
  core_->slices = Slices(to_ps(slices.run), to_ps(slices.wait), slices.is_random, core_->random(), core_->now());
  core_->are_slices_of_management = slices.what == TimeSlices::What::kManagement;
}

// ---- Simulation ----

struct Simulation::Impl final {
  Impl(const Topology& topology, const SimulationOptions& simulation_options)
      : options(simulation_options),
        network(topology, derive_seed(options.seed, 0), options.frame_bytes),
        targets(network.events()),
        random(derive_seed(options.seed, 1)) {}

  static void run_later(void* self, uint64_t number) {
    auto& impl = *static_cast<Impl*>(self);
    const auto found = impl.later.find(number);
    const std::function<void()> then = std::move(found->second);
    impl.later.erase(found);
    then();
  }
  bool step(Picoseconds until) {
    const bool has_run = network.events().step(until);
    if (has_run) observe();
    return has_run;
  }
  void observe() {
    if (observer == nullptr) return;
    const auto running = observer;  // lives until it returns, although it may replace itself
    (*running)();
  }

  const SimulationOptions options;
  Network network;
  EventTargets targets;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Host, void (*)(Host*)>> hosts;
  std::unordered_map<uint64_t, std::function<void()>> later;  ///< never iterated: the order would not be fixed
  uint64_t later_number = 0;
  std::shared_ptr<const std::function<void()>> observer;  ///< null: none
};

Simulation::Simulation(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Simulation>> Simulation::create(const Topology& topology, SimulationOptions options) {
  if (Status status = topology.check(); !status.ok()) return status;
  if (options.frame_bytes < kFrameBytesMin || options.frame_bytes > kFrameBytesMax) {
    return Status(Code::kMisuse, "SimulationOptions::frame_bytes must be 578 to 9018");
  }
  auto simulation = std::unique_ptr<Simulation>(new Simulation(std::make_unique<Impl>(topology, options)));
  Impl& impl = *simulation->impl_;
  for (uint32_t i = 0; i < topology.hosts(); i++) {
    auto core = std::make_unique<HostCore>(impl.network, impl.targets, i, derive_seed(options.seed, 2 + i));
    impl.hosts.emplace_back(new Host(std::move(core)), [](Host* gone) { delete gone; });
    impl.hosts.back()->set_cost(options.cost);
  }
  return simulation;
}

Simulation::~Simulation() {
  for (const auto& host : impl_->hosts) (void)host->crash();  // succeeds, because no callback and no loop runs
  // These functions may own objects of a host.
  impl_->later.clear();
  impl_->observer = nullptr;
  impl_->network.set_tap(nullptr);
  for (const auto& host : impl_->hosts) {
    if (host->core_->nic.users == 0) continue;
    std::fputs(
        "tern: a Simulation was destroyed before an endpoint or a Nexus that was created in it: create these in the "
        "program of Host::boot(), or destroy them first\n",
        stderr);
    std::abort();
  }
  impl_->hosts.clear();
}

uint32_t Simulation::hosts() const { return static_cast<uint32_t>(impl_->hosts.size()); }

Host& Simulation::host(uint32_t index) {
  CHECK(index, <, impl_->hosts.size());
  return *impl_->hosts[index];
}

Duration Simulation::now() const {
  return Duration(static_cast<int64_t>(impl_->network.events().now() / kPicosecondsPerNs));
}

void Simulation::run_for(Duration duration) {
  const Picoseconds until = impl_->network.events().now() + to_ps(duration);
  impl_->network.events().run_until(until, [&impl = *impl_] { impl.observe(); });
}

bool Simulation::run_until(const std::function<bool()>& done, Duration limit) {
  const Picoseconds until = impl_->network.events().now() + to_ps(limit);
  while (!done()) {
    if (!impl_->step(until)) return done();
  }
  return true;
}

void Simulation::after(Duration delay, std::function<void()> then) {
  impl_->later.emplace(++impl_->later_number, std::move(then));
  impl_->network.events().add(impl_->network.events().now() + to_ps(delay), &Impl::run_later, impl_.get(),
                              impl_->later_number);
}

void Simulation::set_observer(std::function<void()> observer) {
  impl_->observer = observer ? std::make_shared<const std::function<void()>>(std::move(observer)) : nullptr;
}

void Simulation::set_tap(std::function<void(const TappedPacket&)> tap) {
  if (!tap) return impl_->network.set_tap(nullptr);
  impl_->network.set_tap([tap = std::move(tap)](const SimPacket& packet, bool has_arrived) {
    tap({.has_arrived = has_arrived,
         .is_marked = packet.is_marked,
         .from_host = packet.from_host,
         .from_port = packet.from_port,
         .to_host = packet.to_host,
         .to_port = packet.to_port,
         .frame_bytes = packet.frame_bytes,
         .bytes = {packet.content, packet.content_bytes}});
  });
}

void Simulation::set_faults(const Faults& faults) { impl_->network.set_faults(faults); }

namespace {
constexpr Status kNoCable{Code::kMisuse,
                          "there is no cable between these two nodes: Topology::links() lists all cables"};
}

Status Simulation::set_faults(Node from, Node to, const Faults& faults) {
  return impl_->network.set_faults(from, to, faults) ? Status() : kNoCable;
}

Status Simulation::set_frame_limit(Node from, Node to, size_t frame_bytes_max) {
  return impl_->network.set_frame_limit(from, to, frame_bytes_max) ? Status() : kNoCable;
}

Status Simulation::set_link_up(Node a, Node b, bool up) {
  return impl_->network.set_link_up(a, b, up) ? Status() : kNoCable;
}

void Simulation::set_partition(uint32_t from_host, uint32_t to_host, bool is_cut) {
  CHECK(std::max(from_host, to_host), <, hosts());
  impl_->network.set_partition(from_host, to_host, is_cut);
}

void Simulation::set_nat(uint32_t host, Duration timeout) {
  CHECK(host, <, hosts());
  impl_->network.set_nat(host, to_ps(timeout));
}

void Simulation::forget_flows(uint32_t host) {
  CHECK(host, <, hosts());
  impl_->network.forget_flows(host);
}

void Simulation::heal() {
  impl_->network.heal();
  for (const auto& host : impl_->hosts) {
    host->set_slowness(1);
    host->set_clock_drift(0);
    host->core_->paused_until = 0;
    host->core_->slices = Slices();
  }
}

uint64_t Simulation::trace_hash() const { return impl_->network.trace_hash(); }
const NetworkCounters& Simulation::counters() const { return impl_->network.counters(); }
uint64_t Simulation::random() { return impl_->random(); }

}  // namespace tern::sim
