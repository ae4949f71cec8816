// The management channel's thread, and the mailbox through which endpoints reach it. See nexus_impl.h.
#include <algorithm>
#include <utility>

#include "nexus/nexus_impl.h"

namespace tern::nexus {

namespace {
/// A step that found no memory is tried again after this time.
constexpr Duration kMemoryRetry = std::chrono::milliseconds(1);
/// Space for commands in addition to the reserved space.
constexpr size_t kSpareCommands = 64;
}  // namespace

NexusCore::Impl::Impl(const NexusOptions& nexus_options, Environment& env, const ManagementOptions& management_options)
    : options(nexus_options),
      environment(env),
      machine(management_options,
              {[this] { return environment.random(); }, [this](EndpointName name) { return iteration_of(name); },
               [this] {
                 channel_thread.assume();
                 send_datagrams();
               }}) {}

void NexusCore::Impl::on_datagram(std::string_view from, std::span<const std::byte> bytes) {
  channel_thread.assume();
  const Duration now = environment.now();
  // Runs commands first: if a peer has the address from an endpoint's owner, the endpoint is then registered.
  run_commands(now);
  // If the datagram begins a session, commands will answer it and end it. Those commands must not fail.
  if (!reserve_commands(machine.sessions() + 1)) return;
  machine.on_datagram(from, bytes, now);
  flush();
}

void NexusCore::Impl::on_unreachable(std::string_view to, Unreachable why) {
  channel_thread.assume();
  const Duration now = environment.now();
  if (!reserve_commands(machine.sessions() + 1)) return;
  machine.on_unreachable(to, why, now);
  flush();
}

Duration NexusCore::Impl::on_turn(Duration now) {
  channel_thread.assume();
  run_commands(now);
  if (reserve_commands(machine.sessions() + 2 * kSpareCommands)) {
    machine.on_time(now);
  } else {
    retry_at = now + kMemoryRetry;
  }
  flush();
  counters.store(machine.counters());
  const bool has_stalled = stalled.kind != Command::Kind::kNone || !machine.notices().empty();
  if (has_stalled) retry_at = std::max(retry_at, now + kMemoryRetry);
  const Duration next = machine.next_deadline();
  if (retry_at > now) return has_stalled ? retry_at : std::max(next, retry_at);
  return next;
}

void NexusCore::Impl::run_commands(Duration now) {
  while (true) {
    if (stalled.kind == Command::Kind::kNone) {
      base::MutexLock lock(mailbox_mutex);
      if (mailbox.empty()) return;
      stalled = mailbox.pop();
    }
    if (!run(stalled, now)) return;  // no memory: the next turn tries this command again; later commands wait
    stalled = {};
    sessions_known.store(machine.sessions(), std::memory_order_relaxed);
    flush();
  }
}

bool NexusCore::Impl::run(const Command& command, Duration now) {
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
      return machine.answer_connect(command.from, command.name, command.refusal,
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

void NexusCore::Impl::send_datagrams() {
  ManagementChannel* to = channel_in_use.load(std::memory_order_acquire);
  for (const Management::Datagram& datagram : machine.datagrams()) {
    if (to != nullptr) to->send(datagram.to, datagram.content.view());
  }
  machine.datagrams().clear();
}

void NexusCore::Impl::flush() {
  send_datagrams();
  // Before the channel is in use, no program has the Nexus, and the address is not known.
  if (channel_in_use.load(std::memory_order_acquire) != nullptr) log_events();
  auto& notices = machine.notices();
  if (notices.empty()) return;
  base::MutexLock lock(registry_mutex);  // remove_endpoint() waits for the lock, so that a port stays during push()
  size_t done = 0;
  for (; done < notices.size(); done++) {
    const auto found = registry.find(notices[done].to.id);
    if (found == registry.end() || found->second.number != notices[done].to.registration) continue;
    if (!found->second.port->push(notices[done].event)) break;  // no memory: the next flush() goes on from here
  }
  notices.erase(notices.begin(), notices.begin() + static_cast<ptrdiff_t>(done));
}

void NexusCore::Impl::log(LogEvent& event) const noexcept {
  if (options.log == nullptr) return;
  event.severity = severity_of(event.kind);
  event.time = environment.now();
  event.nexus = local_address;
  options.log->on_event(event);
}

void NexusCore::Impl::log_events() {
  for (const Management::Happening& happening : machine.happenings()) {
    LogEvent event;
    event.kind = happening.kind;
    if (happening.kind == LogKind::kSessionRefused) {
      event.endpoint = happening.endpoint;
      event.transport = happening.transport.view();
    }
    event.peer = happening.peer.view();
    event.status = happening.status;
    event.count = happening.sessions;
    event.left_out = happening.left_out;
    log(event);
  }
  machine.forget_happenings();
}

uint64_t NexusCore::Impl::iteration_of(EndpointName name) {
  base::MutexLock lock(registry_mutex);
  const auto found = registry.find(name.id);
  if (found == registry.end() || found->second.number != name.registration) return 0;
  return found->second.port->iteration.load(std::memory_order_relaxed);
}

void NexusCore::Impl::keep_reached(std::span<const AddressText> from, std::vector<AddressText>& to) {
  base::MutexLock lock(mailbox_mutex);
  for (const AddressText& address : from) {
    if (channel == nullptr || channel->reaches(address)) to.push_back(address);
  }
}

bool NexusCore::Impl::reserve_commands_locked(size_t sessions) {
  return mailbox.try_reserve(sessions + 2 * (mailbox.size() + 1) + endpoints + kSpareCommands);
}

bool NexusCore::Impl::post(Command command, bool is_reserved) {
  if (is_forked()) return true;  // a forked child must send nothing, and its locks may never be released
  base::MutexLock lock(mailbox_mutex);
  if (is_gone) return true;
  if (!is_reserved && !reserve_commands_locked(sessions_known.load(std::memory_order_relaxed))) return false;
  if (mailbox.size() == mailbox.capacity() && !mailbox.try_reserve(mailbox.size() + 1)) return false;
  const bool was_empty = mailbox.empty();
  mailbox.push(std::move(command));
  if (was_empty && channel != nullptr) channel->wake();
  return true;
}

EndpointName NexusCore::Impl::name_of(const EndpointPort& port) {
  if (is_forked()) return {};
  base::MutexLock lock(registry_mutex);
  const auto found = registry.find(port.id);
  return {port.id, found != registry.end() && found->second.port == &port ? found->second.number : 0};
}

}  // namespace tern::nexus
