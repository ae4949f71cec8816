#include "sim/environment.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/address.h"
#include "sim/host.h"
#include "transport/sim/sim_transport.h"

namespace tern::sim {

using transport::SimImpl;

std::string address_of(uint32_t host) {
  const uint32_t number = host + 1;
  return "10." + std::to_string(number >> 16 & 255) + "." + std::to_string(number >> 8 & 255) + "." +
         std::to_string(number & 255);
}

bool parse_address(std::string_view text, uint32_t& host, uint32_t& port) {
  const auto address = base::SocketAddress::parse(text);
  if (!address || address->family() != AF_INET) return false;
  uint32_t ip = 0;
  for (const std::byte part : address->ip()) ip = ip << 8 | std::to_integer<uint32_t>(part);
  const uint32_t number = ip & 0xff'ffff;
  host = number - 1;
  port = address->port();
  return ip >> 24 == 10 && number != 0;
}

namespace {

/// Time from a wake-up to the first instruction of the woken thread.
constexpr Picoseconds kWakeUp = 1000 * kPicosecondsPerNs;

/// The management channel of a Nexus, and its management thread.
class SimChannel final : public ManagementChannel, private SimPort, private EventTarget {
 public:
  SimChannel(HostCore& host, ManagementSink& sink) : host_(host), sink_(sink), alarm_(host.nic.targets, this) {}
  ~SimChannel() override {
    if (port_ == 0) return;
    host_.nic.users--;
    std::erase(host_.channels, this);
    sink_.on_turn(host_.environment.now());  // sends the datagrams of the commands posted so far
    host_.nic.network.close_port(host_.nic.host, port_);
    for (SimPacket* packet : received_) host_.nic.network.give_packet(packet);
  }

  /// Opens the port, or any free port if it is 0. Returns false if the port is taken.
  bool open(uint32_t port) {
    // Ephemeral ports begin at 49152, as on real systems.
    for (uint32_t next = port != 0 ? port : 49152; port_ == 0 && next <= (port != 0 ? port : 65535u); next++) {
      port_ = host_.nic.network.open_port(host_.nic.host, this, next);
    }
    if (port_ == 0) return false;
    host_.nic.users++;
    host_.channels.push_back(this);
    wake();
    return true;
  }

  void send(std::string_view to, std::span<const std::byte> bytes) override {
    uint32_t host, port;
    Network& network = host_.nic.network;
    if (!parse_address(to, host, port) || host >= network.hosts()) return;
    SimPacket* packet = network.take_packet();
    packet->from_host = host_.nic.host;
    packet->from_port = port_;
    packet->to_host = host;
    packet->to_port = port;
    packet->content_bytes = static_cast<uint32_t>(bytes.size());
    packet->frame_bytes = packet->content_bytes + SimImpl::kFrameHeaderBytes;
    packet->is_marked = false;
    packet->source = nullptr;
    std::copy(bytes.begin(), bytes.end(), packet->content);
    network.send(packet);
  }
  void wake() override { alarm_.set(host_.management_awake_at(host_.now() + kWakeUp)); }
  std::string local_address() const override { return address_of(host_.nic.host) + ":" + std::to_string(port_); }

 private:
  void on_departure(SimPacket&) override {}
  void on_arrival(SimPacket* packet) override {
    received_.push_back(packet);
    wake();
  }
  void on_event() override {
    alarm_.on_event();
    const Picoseconds now = host_.now();
    const Picoseconds awake = host_.management_awake_at(now);
    if (awake > now) return alarm_.set(awake);
    for (SimPacket* packet : std::exchange(received_, {})) {
      if (from_.first != packet->from_host || from_.second != packet->from_port) {
        from_ = {packet->from_host, packet->from_port};
        from_text_ = address_of(packet->from_host) + ":" + std::to_string(packet->from_port);
      }
      sink_.on_datagram(from_text_, std::span<const std::byte>(packet->content, packet->content_bytes));
      host_.nic.network.give_packet(packet);
    }
    const Duration next = sink_.on_turn(host_.environment.now());
    if (next == Duration::max()) return;
    alarm_.set(
        std::max(host_.nic.clock.when(static_cast<uint64_t>(std::max<int64_t>(next.count(), 0))), now + kWakeUp));
  }

  HostCore& host_;
  ManagementSink& sink_;
  Alarm alarm_;
  uint32_t port_ = 0;
  std::vector<SimPacket*> received_;
  std::pair<uint32_t, uint32_t> from_{UINT32_MAX, 0};
  std::string from_text_;
};

/// Worker threads in virtual time. A task runs at the end of its declared time.
class SimWorkerPool final : public WorkerPool, private EventTarget {
 public:
  SimWorkerPool(HostCore& host, size_t threads, size_t queue_limit)
      : host_(host), alarm_(host.nic.targets, this), free_at_(threads, 0), queue_limit_(queue_limit) {}
  ~SimWorkerPool() override {
    for (Task& task : std::exchange(tasks_, {})) task.run();
  }

  bool submit(std::function<void()> task) override {
    const Picoseconds now = host_.now();
    const auto waiting =
        std::count_if(tasks_.begin(), tasks_.end(), [&](const Task& other) { return other.begin > now; });
    if (static_cast<size_t>(waiting) >= queue_limit_) return false;
    Picoseconds& thread = *std::min_element(free_at_.begin(), free_at_.end());
    const Duration time = host_.worker_time ? host_.worker_time() : std::chrono::microseconds(1);
    const Picoseconds begin = std::max(thread, now);
    thread = begin + host_.nic.slowed(static_cast<Picoseconds>(std::max<int64_t>(time.count(), 0)) * kPicosecondsPerNs);
    tasks_.push_back({begin, thread, std::move(task)});
    alarm_.set(host_.awake_at(thread));
    return true;
  }

 private:
  struct Task {
    Picoseconds begin;
    Picoseconds end;
    std::function<void()> run;
  };
  void on_event() override {
    alarm_.on_event();
    const Picoseconds now = host_.now();
    const Picoseconds awake = host_.awake_at(now);
    if (awake > now) return alarm_.set(awake);
    // Tasks run in the order of their ends; tasks with equal ends run in the order of submission.
    std::vector<Task> over;
    std::erase_if(tasks_, [&](Task& task) {
      if (task.end > now) return false;
      over.push_back(std::move(task));
      return true;
    });
    std::stable_sort(over.begin(), over.end(), [](const Task& a, const Task& b) { return a.end < b.end; });
    host_.callbacks++;
    for (Task& task : over) task.run();
    host_.callbacks--;
    for (const Task& task : tasks_) alarm_.set(host_.awake_at(task.end));
  }

  HostCore& host_;
  Alarm alarm_;
  std::vector<Picoseconds> free_at_;
  const size_t queue_limit_;
  std::vector<Task> tasks_;
};

}  // namespace

Duration HostEnvironment::now() { return Duration(static_cast<int64_t>(host_.nic.clock.ns(host_.now()))); }

uint64_t HostEnvironment::random() { return host_.random(); }

Result<std::unique_ptr<ManagementChannel>> HostEnvironment::listen(std::string_view address, ManagementSink& sink) {
  uint32_t host, port;
  if (!parse_address(address, host, port) || host != host_.nic.host) {
    return Status(Code::kUnavailable, "the listen address is not this simulated host's: use sim::Host::uri()");
  }
  auto channel = std::make_unique<SimChannel>(host_, sink);
  if (!channel->open(port)) {
    return Status(Code::kUnavailable, "the port is taken: another Nexus of this simulated host listens on it");
  }
  return std::unique_ptr<ManagementChannel>(std::move(channel));
}

Result<std::string> HostEnvironment::resolve(std::string_view host_and_port) {
  uint32_t host, port;
  if (!parse_address(host_and_port, host, port) || host >= host_.nic.network.hosts()) {
    return Status(Code::kUnavailable, "not the address of a host of this simulation: use sim::Host::uri()");
  }
  return std::string(host_and_port);
}

Result<std::unique_ptr<WorkerPool>> HostEnvironment::start_workers(size_t threads, size_t queue_limit) {
  return std::unique_ptr<WorkerPool>(std::make_unique<SimWorkerPool>(host_, threads, queue_limit));
}

}  // namespace tern::sim
