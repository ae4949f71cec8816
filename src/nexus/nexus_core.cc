// The shells around Management: registry, command mailbox, worker pool. See nexus_core.h.
//
// Locks nest in this order only: registry_mutex, then mailbox_mutex or the port's own (in EndpointPort::push).
// workers_mutex stands alone.
#include "nexus/nexus_core.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nexus/management.h"

namespace tern::nexus {

namespace {
constexpr Status kBadScheme{
    Code::kMisuse,
    "not a tern URI: write \"udp://HOST:PORT/ENDPOINT\" (the management channel is UDP, whatever "
    "transport the endpoints use)"};
constexpr Status kBadHost{Code::kMisuse, "no host in the URI: \"udp://HOST:PORT/ENDPOINT\", an IPv6 HOST in brackets"};
constexpr Status kBadPort{Code::kMisuse, "no valid port in the URI: \"udp://HOST:PORT/ENDPOINT\", PORT 0 to 65535"};
constexpr Status kBadEndpoint{Code::kMisuse,
                              "no valid endpoint id in the URI: \"udp://HOST:PORT/ENDPOINT\", ENDPOINT 0 to 65535"};
constexpr Status kEndpointInListenUri{
    Code::kMisuse, "a Nexus listens on \"udp://HOST:PORT\"; the endpoint id is RpcOptions::endpoint_id"};

bool parse_u16(std::string_view text, uint16_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}
}  // namespace

Result<ParsedUri> parse_uri(std::string_view uri) {
  constexpr std::string_view kScheme = "udp://";
  if (!uri.starts_with(kScheme)) return kBadScheme;
  uri.remove_prefix(kScheme.size());
  ParsedUri parsed;
  if (const size_t slash = uri.find('/'); slash != std::string_view::npos) {
    if (!parse_u16(uri.substr(slash + 1), parsed.endpoint_id)) return kBadEndpoint;
    uri = uri.substr(0, slash);
  }
  const size_t colon = uri.rfind(':');
  const size_t bracket = uri.rfind(']');
  if (colon == std::string_view::npos || (bracket != std::string_view::npos && colon < bracket)) return kBadPort;
  const std::string_view host = uri.substr(0, colon);
  const bool is_bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (host.empty() || (!is_bracketed && host.find_first_of("[]: ") != std::string_view::npos)) return kBadHost;
  uint16_t port = 0;
  if (!parse_u16(uri.substr(colon + 1), port)) return kBadPort;
  parsed.host_and_port = uri;
  return parsed;
}

struct NexusCore::Impl final : ManagementSink {
  using Command = std::function<void(Management&, Duration now)>;
  struct Registration {
    EndpointPort* port;
    uint64_t number;
  };

  Impl(const NexusOptions& nexus_options, Environment& env, const ManagementOptions& management_options)
      : options(nexus_options),
        environment(env),
        boot_id(env.random()),
        machine(management_options,
                {[this] { return environment.random(); }, [this](EndpointName name) { return iteration_of(name); }}) {}

  // Channel's thread.
  void on_datagram(std::string_view from, std::span<const std::byte> bytes) override {
    const Duration now = environment.now();
    run_commands(now);  // first: whoever got our address from an endpoint's owner finds that endpoint registered
    machine.on_datagram(from, bytes, now);
    flush();
  }
  Duration on_turn(Duration now) override {
    run_commands(now);
    machine.on_time(now);
    flush();
    return machine.next_deadline();
  }
  void run_commands(Duration now) {
    {
      std::lock_guard lock(mailbox_mutex);
      if (mailbox.empty()) return;
      std::swap(mailbox, running);
    }
    for (Command& command : running) {
      command(machine, now);
      flush();
    }
    running.clear();
  }
  void flush() {
    ManagementChannel* to = channel_in_use.load(std::memory_order_acquire);
    for (const Management::Datagram& datagram : machine.datagrams()) {
      if (to != nullptr) to->send(datagram.to, datagram.content.view());
    }
    machine.datagrams().clear();
    if (machine.notices().empty()) return;
    std::lock_guard lock(registry_mutex);  // a port stays while we push: remove_endpoint() waits for the lock
    for (Management::Notice& notice : machine.notices()) {
      const auto found = registry.find(notice.to.id);
      if (found == registry.end() || found->second.number != notice.to.registration) continue;
      found->second.port->push(std::move(notice.event));
    }
    machine.notices().clear();
  }
  uint64_t iteration_of(EndpointName name) {
    std::lock_guard lock(registry_mutex);
    const auto found = registry.find(name.id);
    if (found == registry.end() || found->second.number != name.registration) return 0;
    return found->second.port->iteration.load(std::memory_order_relaxed);
  }

  // Any thread.
  void post(Command command) {
    bool was_empty;
    {
      std::lock_guard lock(mailbox_mutex);
      was_empty = mailbox.empty();
      mailbox.push_back(std::move(command));
    }
    if (was_empty) channel->wake();
  }
  /// A registration number of 0 is never given: the machine ignores it.
  EndpointName name_of(const EndpointPort& port) {
    std::lock_guard lock(registry_mutex);
    const auto found = registry.find(port.id);
    return {port.id, found != registry.end() && found->second.port == &port ? found->second.number : 0};
  }

  const NexusOptions options;
  Environment& environment;
  const uint64_t boot_id;

  Management machine;            ///< channel's thread only
  std::vector<Command> running;  ///< channel's thread only

  std::mutex mailbox_mutex;
  std::vector<Command> mailbox;

  std::mutex registry_mutex;
  std::unordered_map<uint16_t, Registration> registry;
  uint64_t registrations = 0;

  std::mutex workers_mutex;
  std::unique_ptr<WorkerPool> workers;

  /// Null until listen() has returned, though the channel's thread may run by then: what it would send is lost.
  std::atomic<ManagementChannel*> channel_in_use{nullptr};
  std::unique_ptr<ManagementChannel> channel;
};

Result<std::unique_ptr<NexusCore>> NexusCore::create(std::string_view listen_uri, const NexusOptions& options) {
  auto parsed = parse_uri(listen_uri);
  if (!parsed.ok()) return parsed.status();
  if (listen_uri.find('/', 6) != std::string_view::npos) return kEndpointInListenUri;
  if (options.liveness_timeout < std::chrono::milliseconds(1) || options.liveness_timeout > std::chrono::hours(1)) {
    return Status{Code::kMisuse, "NexusOptions::liveness_timeout must be between 1 ms and 1 hour"};
  }
  if (options.worker_threads < 1 || options.worker_threads > 1024 || options.worker_queue_limit < 1) {
    return Status{Code::kMisuse, "NexusOptions::worker_threads must be 1 to 1024, worker_queue_limit at least 1"};
  }
  Environment& environment = options.environment != nullptr ? *options.environment : real_environment();
  auto address = environment.resolve(parsed->host_and_port);
  if (!address.ok()) return address.status();
  ManagementOptions management_options;
  management_options.liveness_timeout = options.liveness_timeout;
  auto impl = std::make_unique<Impl>(options, environment, management_options);
  auto channel = environment.listen(*address, *impl);
  if (!channel.ok()) return channel.status();
  impl->channel = std::move(*channel);
  impl->channel_in_use.store(impl->channel.get(), std::memory_order_release);
  return std::unique_ptr<NexusCore>(new NexusCore(std::move(impl)));
}

NexusCore::NexusCore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NexusCore::~NexusCore() {
  // Workers first: their tasks may still use the Nexus. The channel's thread has a last turn in its destructor, so
  // that what was posted (disconnects) leaves once.
  impl_->workers.reset();
  impl_->channel.reset();
}

Environment& NexusCore::environment() { return impl_->environment; }
const NexusOptions& NexusCore::options() const { return impl_->options; }
uint64_t NexusCore::boot_id() const { return impl_->boot_id; }

std::string NexusCore::listen_host() const {
  const std::string address = impl_->channel->local_address();
  std::string host = address.substr(0, address.rfind(':'));
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

std::string NexusCore::uri() const {
  const std::string address = impl_->channel->local_address();
  const std::string port = address.substr(address.rfind(':'));
  const std::string host = listen_host();
  if (host == "0.0.0.0") return "udp://127.0.0.1" + port;
  if (host == "::") return "udp://[::1]" + port;
  return "udp://" + address;
}

Status NexusCore::add_endpoint(EndpointPort& port) {
  EndpointName name;
  {
    std::lock_guard lock(impl_->registry_mutex);
    name = {port.id, impl_->registrations + 1};
    if (!impl_->registry.try_emplace(port.id, Impl::Registration{&port, name.registration}).second) {
      return {Code::kMisuse,
              "this Nexus has an endpoint with that id already; give each its own RpcOptions::endpoint_id"};
    }
    impl_->registrations++;
    // Within the lock: the machine must see additions and removals of one id in their order.
    impl_->post(
        [name, transport = port.transport](Management& machine, Duration) { machine.add_endpoint(name, transport); });
  }
  return {};
}

void NexusCore::remove_endpoint(EndpointPort& port) {
  std::lock_guard lock(impl_->registry_mutex);
  const auto found = impl_->registry.find(port.id);
  if (found == impl_->registry.end() || found->second.port != &port) return;
  const EndpointName name{port.id, found->second.number};
  impl_->registry.erase(found);
  impl_->post([name](Management& machine, Duration now) { machine.remove_endpoint(name, now); });
}

void NexusCore::connect(EndpointPort& from, std::string peer_address, uint16_t peer_endpoint, SessionTerms terms,
                        uint64_t timeout_ns) {
  const Duration timeout(static_cast<int64_t>(std::min<uint64_t>(timeout_ns, INT64_MAX)));
  impl_->post([name = impl_->name_of(from), address = std::move(peer_address), peer_endpoint, terms = std::move(terms),
               timeout](Management& machine, Duration now) {
    machine.connect(name, address, peer_endpoint, terms, timeout, now);
  });
}

void NexusCore::answer_connect(EndpointPort& from, uint64_t token, Status status, SessionTerms terms) {
  impl_->post([name = impl_->name_of(from), token, status, terms = std::move(terms)](
                  Management& machine, Duration now) { machine.answer_connect(name, token, status, terms, now); });
}

void NexusCore::disconnect(EndpointPort& from, uint32_t local_key, bool is_client_side) {
  impl_->post([name = impl_->name_of(from), local_key, is_client_side](Management& machine, Duration now) {
    machine.disconnect(name, local_key, is_client_side, now);
  });
}

void NexusCore::forget(EndpointPort& from, uint32_t local_key) {
  impl_->post([name = impl_->name_of(from), local_key](Management& machine, Duration now) {
    machine.disconnect(name, local_key, true, now);
  });
}

void NexusCore::ask_liveness(EndpointPort& from, uint32_t local_key) {
  impl_->post([name = impl_->name_of(from), local_key](Management& machine, Duration now) {
    machine.ask_liveness(name, local_key, now);
  });
}

bool NexusCore::submit_work(std::function<void()> task) {
  std::lock_guard lock(impl_->workers_mutex);
  if (impl_->workers == nullptr) {
    auto started = impl_->environment.start_workers(impl_->options.worker_threads, impl_->options.worker_queue_limit);
    if (!started.ok()) return false;
    impl_->workers = std::move(*started);
  }
  return impl_->workers->submit(std::move(task));
}

}  // namespace tern::nexus

namespace tern {

Nexus::Nexus(std::unique_ptr<nexus::NexusCore> core) : core_(std::move(core)) {}
Nexus::~Nexus() = default;

Result<std::unique_ptr<Nexus>> Nexus::create(std::string_view listen_uri, NexusOptions options) {
  auto core = nexus::NexusCore::create(listen_uri, options);
  if (!core.ok()) return core.status();
  return std::unique_ptr<Nexus>(new Nexus(std::move(*core)));
}

std::string Nexus::uri() const { return core_->uri(); }

}  // namespace tern
