// The shells around Management: registry, command mailbox, worker pool. See nexus_core.h.
//
// Locks nest in this order only: registry_mutex, then mailbox_mutex or the port's own (in EndpointPort::push).
// workers_mutex stands alone.
#include "nexus/nexus_core.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ring_queue.h"
#include "base/status_text.h"
#include "base/try.h"
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
  if (!parse_u16(uri.substr(colon + 1), parsed.port)) return kBadPort;
  parsed.host_and_port = uri;
  return parsed;
}

namespace {
constexpr Status kNoMemory{Code::kNoMemory, "no memory for the Nexus's part of this; free some and try again"};
constexpr Status kNoRandomness{Code::kUnavailable,
                               "the system gives no random numbers: allow getrandom(2) or /dev/urandom in the sandbox"};
/// Until what found no memory is tried again.
constexpr Duration kMemoryRetry = std::chrono::milliseconds(1);
/// Room for commands beyond those that are reserved for.
constexpr size_t kSpareCommands = 64;

/// What an endpoint wants of the machine.
struct Command {
  enum class Kind : uint8_t { kNone, kAdd, kRemove, kConnect, kAnswer, kDisconnect, kAskLiveness };
  /// Of kAdd, kConnect, and kAnswer that says yes.
  struct Details {
    std::vector<AddressText> addresses;
    uint16_t peer_endpoint = 0;
    SessionTerms terms;
    Duration timeout{};
  };
  Kind kind = Kind::kNone;
  bool is_client_side = false;
  EndpointName from;
  uint64_t name = 0;  ///< kAnswer: the token; otherwise the local key
  Status status;
  std::unique_ptr<Details> details;
};

}  // namespace

struct NexusCore::Impl final : ManagementSink {
  struct Registration {
    EndpointPort* port;
    uint64_t number;
  };

  Impl(const NexusOptions& nexus_options, Environment& env, const ManagementOptions& management_options, uint64_t boot)
      : options(nexus_options),
        environment(env),
        boot_id(boot),
        machine(management_options,
                {[this] { return environment.random(); }, [this](EndpointName name) { return iteration_of(name); }}) {}

  bool is_forked() const { return getpid() != pid; }

  // Channel's thread.
  void on_datagram(std::string_view from, std::span<const std::byte> bytes) override {
    const Duration now = environment.now();
    run_commands(now);  // first: whoever got our address from an endpoint's owner finds that endpoint registered
    // A session that comes of it will be answered, and ended, by a command that must not fail.
    if (!reserve_commands(machine.sessions() + 1)) return;
    machine.on_datagram(from, bytes, now);
    flush();
  }
  void on_unreachable(std::string_view to, Unreachable why) override {
    const Duration now = environment.now();
    if (!reserve_commands(machine.sessions() + 1)) return;
    machine.on_unreachable(to, why, now);
    flush();
  }
  Duration on_turn(Duration now) override {
    run_commands(now);
    if (reserve_commands(machine.sessions() + 2 * kSpareCommands)) {
      machine.on_time(now);
    } else {
      retry_at = now + kMemoryRetry;
    }
    flush();
    const bool has_stalled = stalled.kind != Command::Kind::kNone || !machine.notices().empty();
    if (has_stalled) retry_at = std::max(retry_at, now + kMemoryRetry);
    const Duration next = machine.next_deadline();
    if (retry_at > now) return has_stalled ? retry_at : std::max(next, retry_at);
    return next;
  }
  void run_commands(Duration now) {
    while (true) {
      if (stalled.kind == Command::Kind::kNone) {
        std::lock_guard lock(mailbox_mutex);
        if (mailbox.empty()) return;
        stalled = mailbox.pop();
      }
      if (!run(stalled, now)) return;  // no memory: the next turn tries it again, and what follows waits
      stalled = {};
      sessions_known.store(machine.sessions(), std::memory_order_relaxed);
      flush();
    }
  }
  bool run(const Command& command, Duration now) {
    using Kind = Command::Kind;
    switch (command.kind) {
      case Kind::kAdd:
        return machine.add_endpoint(command.from, command.details->terms.transport);
      case Kind::kRemove:
        machine.remove_endpoint(command.from, now);
        return true;
      case Kind::kConnect:
        return machine.connect(command.from, command.details->addresses, command.details->peer_endpoint,
                               command.details->terms, command.details->timeout, now);
      case Kind::kAnswer:
        return machine.answer_connect(command.from, command.name, command.status,
                                      command.details != nullptr ? command.details->terms : SessionTerms(), now);
      case Kind::kDisconnect:
        machine.disconnect(command.from, static_cast<uint32_t>(command.name), command.is_client_side, now);
        return true;
      case Kind::kAskLiveness:
        machine.ask_liveness(command.from, static_cast<uint32_t>(command.name), now);
        return true;
      case Kind::kNone:
        return true;
    }
    return true;
  }
  void flush() {
    ManagementChannel* to = channel_in_use.load(std::memory_order_acquire);
    for (const Management::Datagram& datagram : machine.datagrams()) {
      if (to != nullptr) to->send(datagram.to, datagram.content.view());
    }
    machine.datagrams().clear();
    auto& notices = machine.notices();
    if (notices.empty()) return;
    std::lock_guard lock(registry_mutex);  // a port stays while we push: remove_endpoint() waits for the lock
    size_t done = 0;
    for (; done < notices.size(); done++) {
      const auto found = registry.find(notices[done].to.id);
      if (found == registry.end() || found->second.number != notices[done].to.registration) continue;
      if (!found->second.port->push(notices[done].event)) break;  // no memory: later, in order
    }
    notices.erase(notices.begin(), notices.begin() + static_cast<ptrdiff_t>(done));
  }
  uint64_t iteration_of(EndpointName name) {
    std::lock_guard lock(registry_mutex);
    const auto found = registry.find(name.id);
    if (found == registry.end() || found->second.number != name.registration) return 0;
    return found->second.port->iteration.load(std::memory_order_relaxed);
  }

  // Any thread.

  /// May throw std::bad_alloc.
  void keep_reached(std::span<const AddressText> from, std::vector<AddressText>& to) {
    std::lock_guard lock(mailbox_mutex);
    for (const AddressText& address : from) {
      if (channel == nullptr || channel->reaches(address)) to.push_back(address);
    }
  }
  /// Room for the commands that end as many sessions, for those that wait to run, each of which may begin one, and for
  /// the end of each endpoint.
  bool reserve_commands(size_t sessions) {
    std::lock_guard lock(mailbox_mutex);
    return reserve_commands_locked(sessions);
  }
  bool reserve_commands_locked(size_t sessions) {
    return mailbox.try_reserve(sessions + 2 * (mailbox.size() + 1) + endpoints + kSpareCommands);
  }
  /// `is_reserved`: of those that there is room for. False: no memory.
  bool post(Command command, bool is_reserved) {
    if (is_forked()) return true;  // nothing may leave a forked child, and locks may be held for ever
    std::lock_guard lock(mailbox_mutex);
    if (is_gone) return true;
    if (!is_reserved && !reserve_commands_locked(sessions_known.load(std::memory_order_relaxed))) return false;
    if (mailbox.size() == mailbox.capacity() && !mailbox.try_reserve(mailbox.size() + 1)) return false;
    const bool was_empty = mailbox.empty();
    mailbox.push(std::move(command));
    if (was_empty && channel != nullptr) channel->wake();
    return true;
  }
  /// A registration number of 0 is never given: the machine ignores it.
  EndpointName name_of(const EndpointPort& port) {
    if (is_forked()) return {};
    std::lock_guard lock(registry_mutex);
    const auto found = registry.find(port.id);
    return {port.id, found != registry.end() && found->second.port == &port ? found->second.number : 0};
  }

  const NexusOptions options;
  Environment& environment;
  const uint64_t boot_id;
  const pid_t pid = getpid();
  std::string local_address;  ///< what the channel is bound to

  Management machine;   ///< channel's thread only
  Command stalled;      ///< channel's thread only: the one that runs, or waits for memory
  Duration retry_at{};  ///< channel's thread only: there was no memory
  std::atomic<size_t> sessions_known{0};

  std::mutex mailbox_mutex;
  base::RingQueue<Command> mailbox;
  size_t endpoints = 0;  ///< registered ones, each of which will be removed; under mailbox_mutex
  bool is_gone = false;  ///< under mailbox_mutex

  std::mutex registry_mutex;
  std::unordered_map<uint16_t, Registration> registry;
  uint64_t registrations = 0;

  std::mutex workers_mutex;
  std::unique_ptr<WorkerPool> workers;
  bool has_no_workers = false;  ///< the Nexus is gone; under workers_mutex

  /// Null until listen() has returned, though the channel's thread may run by then: what it would send is lost.
  std::atomic<ManagementChannel*> channel_in_use{nullptr};
  std::unique_ptr<ManagementChannel> channel;
};

Result<std::shared_ptr<NexusCore>> NexusCore::create(std::string_view listen_uri, const NexusOptions& options) {
  auto parsed = parse_uri(listen_uri);
  if (!parsed.ok()) return parsed.status();
  if (listen_uri.find('/', 6) != std::string_view::npos) return kEndpointInListenUri;
  if (options.liveness_timeout < std::chrono::milliseconds(1) || options.liveness_timeout > std::chrono::hours(1)) {
    return Status{Code::kMisuse, "NexusOptions::liveness_timeout must be between 1 ms and 1 hour"};
  }
  if (options.worker_threads < 1 || options.worker_threads > 1024 || options.worker_queue_limit < 1) {
    return Status{Code::kMisuse, "NexusOptions::worker_threads must be 1 to 1024, worker_queue_limit at least 1"};
  }
  if (options.peers_per_address_max < 1 || options.sessions_per_address_max < 1) {
    return Status{Code::kMisuse,
                  "NexusOptions::peers_per_address_max and NexusOptions::sessions_per_address_max must be at least 1"};
  }
  Environment& environment = options.environment != nullptr ? *options.environment : real_environment();
  const uint64_t boot_id = environment.random();
  if (boot_id == 0) return kNoRandomness;
  auto address = environment.resolve(parsed->host_and_port);
  if (!address.ok()) return address.status();
  ManagementOptions management_options;
  management_options.liveness_timeout = options.liveness_timeout;
  management_options.peers_per_address_max = options.peers_per_address_max;
  management_options.sessions_per_address_max = options.sessions_per_address_max;
  auto impl = std::make_unique<Impl>(options, environment, management_options, boot_id);
  if (!impl->machine.has_secrets()) return kNoRandomness;
  if (!impl->reserve_commands(0)) return kNoMemory;
  auto core = std::shared_ptr<NexusCore>(new NexusCore(std::move(impl)));
  auto channel = environment.listen(*address, *core->impl_);
  if (!channel.ok()) return channel.status();
  core->impl_->local_address = (*channel)->local_address();
  {
    std::lock_guard lock(core->impl_->mailbox_mutex);
    core->impl_->channel = std::move(*channel);
  }
  core->impl_->channel_in_use.store(core->impl_->channel.get(), std::memory_order_release);
  return core;
}

NexusCore::NexusCore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NexusCore::~NexusCore() {
  shut_down();
  // What another thread was changing at the fork cannot be taken apart: that memory stays, in the child.
  if (impl_->is_forked()) (void)impl_.release();
}

void NexusCore::shut_down() {
  if (impl_->is_forked()) {
    impl_->workers.reset();
    impl_->channel.reset();
    return;
  }
  // Workers first: their tasks may still use the Nexus. The channel's thread has a last turn in its destructor, so
  // that what was posted (disconnects) leaves once.
  std::unique_ptr<WorkerPool> workers;
  {
    std::lock_guard lock(impl_->workers_mutex);
    impl_->has_no_workers = true;
    workers = std::move(impl_->workers);
  }
  workers.reset();
  std::unique_ptr<ManagementChannel> channel;
  {
    std::lock_guard lock(impl_->mailbox_mutex);
    impl_->is_gone = true;
    channel = std::move(impl_->channel);
  }
  channel.reset();
  impl_->channel_in_use.store(nullptr, std::memory_order_release);
  std::lock_guard lock(impl_->registry_mutex);
  for (auto& [id, registration] : impl_->registry) registration.port->become_orphan();
}

Environment& NexusCore::environment() { return impl_->environment; }
const NexusOptions& NexusCore::options() const { return impl_->options; }
uint64_t NexusCore::boot_id() const { return impl_->boot_id; }

std::string NexusCore::listen_host() const {
  const std::string& address = impl_->local_address;
  std::string host = address.substr(0, address.rfind(':'));
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  return host;
}

std::string NexusCore::uri() const {
  const std::string& address = impl_->local_address;
  const std::string port = address.substr(address.rfind(':'));
  const std::string host = listen_host();
  if (host == "0.0.0.0") return "udp://127.0.0.1" + port;
  if (host == "::") return "udp://[::1]" + port;
  return "udp://" + address;
}

Status NexusCore::add_endpoint(EndpointPort& port) {
  auto details = std::unique_ptr<Command::Details>(new (std::nothrow) Command::Details);
  if (details == nullptr) return kNoMemory;
  details->terms.transport = port.transport;
  std::lock_guard lock(impl_->registry_mutex);
  if (is_gone()) return kNexusGone;
  const EndpointName name{port.id, impl_->registrations + 1};
  bool is_new = false;
  const bool has_memory = base::try_grow([&] {
    is_new = impl_->registry.try_emplace(port.id, Impl::Registration{&port, name.registration}).second;
  });
  if (!has_memory) return kNoMemory;
  if (!is_new) {
    return {Code::kMisuse,
            "this Nexus has an endpoint with that id already; give each its own RpcOptions::endpoint_id"};
  }
  Command command;
  command.kind = Command::Kind::kAdd;
  command.from = name;
  command.details = std::move(details);
  // Within the lock: the machine must see additions and removals of one id in their order.
  if (!impl_->post(std::move(command), false)) {
    impl_->registry.erase(port.id);
    return kNoMemory;
  }
  impl_->registrations++;
  {
    std::lock_guard mailbox_lock(impl_->mailbox_mutex);
    impl_->endpoints++;
  }
  port.nexus_ = shared_from_this();
  return {};
}

void NexusCore::remove_endpoint(EndpointPort& port) {
  if (impl_->is_forked()) return;
  std::lock_guard lock(impl_->registry_mutex);
  const auto found = impl_->registry.find(port.id);
  if (found == impl_->registry.end() || found->second.port != &port) return;
  Command command;
  command.kind = Command::Kind::kRemove;
  command.from = {port.id, found->second.number};
  impl_->registry.erase(found);
  (void)impl_->post(std::move(command), true);
  std::lock_guard mailbox_lock(impl_->mailbox_mutex);
  impl_->endpoints--;
}

bool NexusCore::is_gone() const {
  std::lock_guard lock(impl_->mailbox_mutex);
  return impl_->is_gone;
}

Status NexusCore::connect(EndpointPort& from, std::span<const AddressText> peer_addresses, uint16_t peer_endpoint,
                          const SessionTerms& terms, uint64_t timeout_ns) {
  auto details = std::unique_ptr<Command::Details>(new (std::nothrow) Command::Details);
  const bool has_memory =
      details != nullptr && base::try_grow([&] { impl_->keep_reached(peer_addresses, details->addresses); });
  if (!has_memory) return kNoMemory;
  if (details->addresses.empty()) {
    const std::string_view first = peer_addresses.empty() ? std::string_view() : peer_addresses.front().view();
    return base::status_of(
        Code::kUnavailable,
        "the server's address is of another family (IPv4, IPv6) than the one that this Nexus listens on: listen on "
        "udp://[::]:PORT, which reaches both",
        {"the server's address ", first, first.starts_with('[') ? " is IPv6" : " is IPv4",
         ", which this Nexus does not reach from ", impl_->local_address,
         ": listen on udp://[::]:PORT, which reaches both families, or name the server by another address"});
  }
  details->peer_endpoint = peer_endpoint;
  details->terms = terms;
  details->timeout = Duration(static_cast<int64_t>(std::min<uint64_t>(timeout_ns, INT64_MAX)));
  Command command;
  command.kind = Command::Kind::kConnect;
  command.from = impl_->name_of(from);
  command.details = std::move(details);
  return impl_->post(std::move(command), false) ? Status() : kNoMemory;
}

Status NexusCore::answer_connect(EndpointPort& from, uint64_t token, const Status& status, const SessionTerms& terms) {
  Command command;
  command.kind = Command::Kind::kAnswer;
  command.from = impl_->name_of(from);
  command.name = token;
  command.status = status;
  if (!status.ok()) {
    (void)impl_->post(std::move(command), true);
    return {};
  }
  command.details.reset(new (std::nothrow) Command::Details);
  const EndpointName name = command.from;
  if (command.details != nullptr) {
    command.details->terms = terms;
    if (impl_->post(std::move(command), false)) return {};
  }
  Command refusal;
  refusal.kind = Command::Kind::kAnswer;
  refusal.from = name;
  refusal.name = token;
  refusal.status = refusal_status(wire::Refusal::kNoMemory);
  (void)impl_->post(std::move(refusal), true);
  return kNoMemory;
}

void NexusCore::disconnect(EndpointPort& from, uint32_t local_key, bool is_client_side) {
  Command command;
  command.kind = Command::Kind::kDisconnect;
  command.from = impl_->name_of(from);
  command.name = local_key;
  command.is_client_side = is_client_side;
  (void)impl_->post(std::move(command), true);
}

void NexusCore::forget(EndpointPort& from, uint32_t local_key) { disconnect(from, local_key, true); }

/// A question that there is no memory for is as if lost: the session's own silence decides.
void NexusCore::ask_liveness(EndpointPort& from, uint32_t local_key) {
  Command command;
  command.kind = Command::Kind::kAskLiveness;
  command.from = impl_->name_of(from);
  command.name = local_key;
  (void)impl_->post(std::move(command), false);
}

bool NexusCore::submit_work(std::function<void()> task) {
  if (impl_->is_forked()) return false;
  std::lock_guard lock(impl_->workers_mutex);
  if (impl_->has_no_workers) return false;
  if (impl_->workers == nullptr) {
    auto started = impl_->environment.start_workers(impl_->options.worker_threads, impl_->options.worker_queue_limit);
    if (!started.ok()) return false;
    impl_->workers = std::move(*started);
  }
  return impl_->workers->submit(std::move(task));
}

}  // namespace tern::nexus

namespace tern {

Nexus::Nexus(std::shared_ptr<nexus::NexusCore> core) : core_(std::move(core)) {}
Nexus::~Nexus() { core_->shut_down(); }

Result<std::unique_ptr<Nexus>> Nexus::create(std::string_view listen_uri, NexusOptions options) {
  try {
    auto core = nexus::NexusCore::create(listen_uri, options);
    if (!core.ok()) return core.status();
    return std::unique_ptr<Nexus>(new Nexus(std::move(*core)));
  } catch (const std::bad_alloc&) {
    return Status{Code::kNoMemory, "no memory for a Nexus"};
  }
}

std::string Nexus::uri() const { return core_->uri(); }

}  // namespace tern
