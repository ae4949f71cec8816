// The calls of endpoints and of the public Nexus. The state and the management thread are in nexus_impl.h.
#include "nexus/nexus_core.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/status_text.h"
#include "base/try.h"
#include "nexus/nexus_impl.h"

namespace tern::nexus {

namespace {
constexpr Status kEndpointInListenUri{Code::kMisuse,
                                      "a Nexus listens on \"tern://HOST:PORT\" without \"/E\": give each endpoint its "
                                      "id in RpcOptions::endpoint_id"};
constexpr Status kNoMemory{Code::kNoMemory, "no memory for the state of the Nexus; free some and try again"};
constexpr Status kNoRandomness{Code::kUnavailable,
                               "the system gives no random numbers: allow getrandom(2) or /dev/urandom in the sandbox"};

Status check_options(const NexusOptions& options) {
  if (options.liveness_timeout < std::chrono::milliseconds(1) || options.liveness_timeout > std::chrono::hours(1)) {
    return {Code::kMisuse, "NexusOptions::liveness_timeout must be between 1 ms and 1 hour"};
  }
  if (options.worker_threads < 1 || options.worker_threads > 1024 || options.worker_queue_limit < 1) {
    return {Code::kMisuse, "NexusOptions::worker_threads must be 1 to 1024, worker_queue_limit at least 1"};
  }
  if (options.peers_per_address_max < 1 || options.sessions_per_address_max < 1) {
    return {Code::kMisuse,
            "NexusOptions::peers_per_address_max and NexusOptions::sessions_per_address_max must be at least 1"};
  }
  return options.page.empty() ? Status() : page::PageFile::check(options.page);
}
}  // namespace

Result<std::shared_ptr<NexusCore>> NexusCore::create(std::string_view listen_uri, const NexusOptions& options) {
  auto parsed = parse_uri(listen_uri);
  if (!parsed.ok()) return parsed.status();
  if (parsed->has_endpoint) return kEndpointInListenUri;
  if (const Status status = check_options(options); !status.ok()) return status;
  Environment& environment = options.environment != nullptr ? *options.environment : real_environment();
  if (environment.random() == 0) return kNoRandomness;  // each session needs random numbers
  auto address = environment.resolve(parsed->host_and_port);
  if (!address.ok()) return address.status();
  ManagementOptions management_options;
  management_options.liveness_timeout = options.liveness_timeout;
  management_options.peers_per_address_max = options.peers_per_address_max;
  management_options.sessions_per_address_max = options.sessions_per_address_max;
  auto impl = std::make_unique<Impl>(options, environment, management_options);
  impl->channel_thread.assume();  // listen() starts that thread
  if (!impl->machine.has_secrets()) return kNoRandomness;
  if (!impl->reserve_commands(0)) return kNoMemory;
  auto core = std::shared_ptr<NexusCore>(new NexusCore(std::move(impl)));
  auto channel = environment.listen(*address, *core->impl_);
  if (!channel.ok()) return channel.status();
  core->impl_->local_address = (*channel)->local_address();
  ManagementChannel* const in_use = channel->get();
  {
    base::MutexLock lock(core->impl_->mailbox_mutex);
    core->impl_->channel = std::move(*channel);
  }
  core->impl_->channel_in_use.store(in_use, std::memory_order_release);
  core->make_page();
  core->log_own(LogKind::kNexusCreated);
  if (const Status page = core->page().status(); !options.page.empty() && !page.ok()) {
    core->log_own(LogKind::kPageMissing, page);
  }
  return core;
}

bool NexusCore::has_log() const { return impl_->options.log != nullptr; }

void NexusCore::log(LogEvent& event) const { impl_->log(event); }

void NexusCore::log_own(LogKind kind, const Status& status) const {
  LogEvent event;
  event.kind = kind;
  event.status = status;
  log(event);
}

/// The page is for other processes; the Nexus does not depend on it.
void NexusCore::make_page() {
  if (impl_->options.page.empty()) return;
  impl_->page = Status(Code::kNoMemory, "no memory for a page");
  (void)base::try_grow([this] { impl_->page = page::PageFile::create(impl_->options.page, uri()); });
}

Result<std::string> NexusCore::page() const {
  if (!impl_->page.ok()) return impl_->page.status();
  return (*impl_->page)->path();
}

std::unique_ptr<page::SegmentWriter> NexusCore::add_to_page(uint16_t endpoint_id, std::string_view transport) {
  return impl_->page.ok() ? (*impl_->page)->add(endpoint_id, transport) : nullptr;
}

NexusCore::NexusCore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

NexusCore::~NexusCore() {
  shut_down();
  // In a forked child the memory stays, because another thread may have been changing it at the fork.
  if (impl_->is_forked()) (void)impl_.release();
}

void NexusCore::shut_down() {
  if (impl_->is_forked()) return impl_->free_in_child();
  // Workers end first, because their tasks may use the Nexus. The channel's destructor gives its thread a last turn,
  // which sends the posted disconnects.
  std::unique_ptr<WorkerPool> workers;
  {
    base::MutexLock lock(impl_->workers_mutex);
    impl_->has_no_workers = true;
    workers = std::move(impl_->workers);
  }
  workers.reset();
  std::unique_ptr<ManagementChannel> channel;
  {
    base::MutexLock lock(impl_->mailbox_mutex);
    impl_->is_gone = true;
    channel = std::move(impl_->channel);
  }
  const bool was_open = channel != nullptr;
  channel.reset();
  impl_->channel_in_use.store(nullptr, std::memory_order_release);
  {
    base::MutexLock lock(impl_->registry_mutex);
    for (auto& [id, registration] : impl_->registry) registration.port->become_orphan();
  }
  if (was_open) log_own(LogKind::kNexusClosed);
}

ManagementCounters NexusCore::management_counters() const { return impl_->counters.load(); }
Environment& NexusCore::environment() { return impl_->environment; }
const NexusOptions& NexusCore::options() const { return impl_->options; }

std::string_view NexusCore::local_address() const { return impl_->local_address; }

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
  const std::string scheme(kUriScheme);
  if (host == "0.0.0.0") return scheme + "127.0.0.1" + port;
  if (host == "::") return scheme + "[::1]" + port;
  return scheme + address;
}

Status NexusCore::add_endpoint(EndpointPort& port) {
  auto details = std::unique_ptr<Command::Details>(new (std::nothrow) Command::Details);
  if (details == nullptr || !port.reserve()) return kNoMemory;
  details->terms.transport = port.transport;
  base::MutexLock lock(impl_->registry_mutex);
  if (is_gone()) return kNexusGone;
  const EndpointName name{port.id, impl_->registrations + 1};
  bool is_new = false;
  const bool has_memory = base::try_grow([&] {
    impl_->registry_mutex.assert_held();
    is_new = impl_->registry.try_emplace(port.id, Impl::Registration{&port, name.registration}).second;
  });
  if (!has_memory) return kNoMemory;
  if (!is_new) {
    return {Code::kMisuse,
            "this Nexus has an endpoint with that id already; give each endpoint its own RpcOptions::endpoint_id"};
  }
  Command command;
  command.kind = Command::Kind::kAdd;
  command.from = name;
  command.details = std::move(details);
  // Keeps the registry locked, so that the machine sees the additions and removals of one id in their order.
  if (!impl_->post(std::move(command), false)) {
    impl_->registry.erase(port.id);
    return kNoMemory;
  }
  impl_->registrations++;
  {
    base::MutexLock mailbox_lock(impl_->mailbox_mutex);
    impl_->endpoints++;
  }
  port.nexus_ = shared_from_this();
  return {};
}

void NexusCore::remove_endpoint(EndpointPort& port) {
  if (impl_->is_forked()) return;
  base::MutexLock lock(impl_->registry_mutex);
  const auto found = impl_->registry.find(port.id);
  if (found == impl_->registry.end() || found->second.port != &port) return;
  Command command;
  command.kind = Command::Kind::kRemove;
  command.from = {port.id, found->second.number};
  impl_->registry.erase(found);
  (void)impl_->post(std::move(command), true);
  base::MutexLock mailbox_lock(impl_->mailbox_mutex);
  impl_->endpoints--;
}

bool NexusCore::is_gone() const {
  base::MutexLock lock(impl_->mailbox_mutex);
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
        "tern://[::]:PORT, which reaches both",
        {"the server's address ", first, first.starts_with('[') ? " is IPv6" : " is IPv4",
         ", which this Nexus does not reach from ", impl_->local_address,
         ": listen on tern://[::]:PORT, which reaches both families, or name the server by another address"});
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

Status NexusCore::answer_connect(EndpointPort& from, uint64_t token, wire::Refusal refusal, const SessionTerms& terms) {
  Command command;
  command.kind = Command::Kind::kAnswer;
  command.from = impl_->name_of(from);
  command.name = token;
  command.refusal = refusal;
  if (refusal != wire::Refusal::kNone) {
    (void)impl_->post(std::move(command), true);
    return {};
  }
  command.details.reset(new (std::nothrow) Command::Details);
  const EndpointName name = command.from;
  if (command.details != nullptr) {
    command.details->terms = terms;
    if (impl_->post(std::move(command), false)) return {};
  }
  Command no_memory;
  no_memory.kind = Command::Kind::kAnswer;
  no_memory.from = name;
  no_memory.name = token;
  no_memory.refusal = wire::Refusal::kNoMemory;
  (void)impl_->post(std::move(no_memory), true);
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

/// If there is no memory, the question is lost, and the silence of the session itself decides.
void NexusCore::ask_liveness(EndpointPort& from, uint32_t local_key) {
  Command command;
  command.kind = Command::Kind::kAskLiveness;
  command.from = impl_->name_of(from);
  command.name = local_key;
  (void)impl_->post(std::move(command), false);
}

bool NexusCore::submit_work(std::function<void()> task) {
  if (impl_->is_forked()) return false;
  base::MutexLock lock(impl_->workers_mutex);
  if (impl_->has_no_workers) return false;
  if (impl_->workers == nullptr) {
    auto started = impl_->environment.start_workers(impl_->options.worker_threads, impl_->options.worker_queue_limit);
    if (!started.ok()) return false;
    impl_->workers = std::move(*started);
  }
  return impl_->workers->submit_later(std::move(task));
}

void NexusCore::flush_work() {
  if (impl_->is_forked()) return;
  base::MutexLock lock(impl_->workers_mutex);
  if (impl_->workers != nullptr) impl_->workers->flush();
}

}  // namespace tern::nexus

namespace tern {

Nexus::Nexus(std::shared_ptr<nexus::NexusCore> core) : core_(std::move(core)) {}
Nexus::~Nexus() { core_->shut_down(); }

// NOLINTNEXTLINE(performance-unnecessary-value-param): all functions take options by value; a Nexus is made seldom
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
Result<std::string> Nexus::page() const { return core_->page(); }

}  // namespace tern
