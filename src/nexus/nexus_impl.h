// The state of a NexusCore, and the work of its management thread.
//
// Endpoints put commands into a mailbox. The management channel's thread runs them on the state machine, sends the
// machine's datagrams, and pushes its events to the endpoints.
//
// A thread that holds registry_mutex may take mailbox_mutex or an EndpointPort's mutex. No other order is allowed. A
// thread that holds workers_mutex takes no other mutex.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tern/environment.h>
#include <tern/log.h>

#include "base/process.h"
#include "base/ring_queue.h"
#include "base/thread_safety.h"
#include "nexus/control.h"
#include "nexus/management.h"
#include "nexus/nexus_core.h"
#include "page/page_file.h"

namespace tern::nexus {

/// A call of an endpoint, on its way to the state machine.
struct Command {
  enum class Kind : uint8_t { kNone, kAdd, kRemove, kConnect, kAnswer, kDisconnect, kAskLiveness };
  /// The details of kAdd, kConnect, and a kAnswer that accepts.
  struct Details {
    std::vector<AddressText> addresses;
    uint16_t peer_endpoint = 0;
    SessionTerms terms;
    Duration timeout{};
  };
  Kind kind = Kind::kNone;
  bool is_client_side = false;
  EndpointName from;
  uint64_t name = 0;                             ///< kAnswer: the token; otherwise the local key
  wire::Refusal refusal = wire::Refusal::kNone;  ///< kAnswer
  std::unique_ptr<Details> details;
};

/// The machine's counters for other threads: each value is current, but not all values are of one moment.
class SharedCounters {
 public:
  void store(const ManagementCounters& counters) {
    const auto words = std::bit_cast<Words>(counters);
    for (size_t i = 0; i < words.size(); i++) words_[i].store(words[i], std::memory_order_relaxed);
  }
  ManagementCounters load() const {
    Words words;
    for (size_t i = 0; i < words.size(); i++) words[i] = words_[i].load(std::memory_order_relaxed);
    return std::bit_cast<ManagementCounters>(words);
  }

 private:
  using Words = std::array<uint64_t, sizeof(ManagementCounters) / sizeof(uint64_t)>;
  std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words_{};
};

struct NexusCore::Impl final : ManagementSink {
  struct Registration {
    EndpointPort* port;
    uint64_t number;
  };

  Impl(const NexusOptions& nexus_options, Environment& env, const ManagementOptions& management_options);

  /// Only the process that made the Nexus may use its threads and locks.
  bool is_forked() const { return base::process_number() != process; }
  /// In a forked child: closes descriptors. It takes no lock, because a thread that the child does not have may hold
  /// it.
  void free_in_child() NO_THREAD_SAFETY_ANALYSIS {
    workers.reset();
    channel.reset();
  }

  // -- The channel's thread --

  void on_datagram(std::string_view from, std::span<const std::byte> bytes) override;
  void on_unreachable(std::string_view to, Unreachable why) override;
  Duration on_turn(Duration now) override;
  /// Runs the commands in the mailbox until one finds no memory. That command becomes `stalled`.
  void run_commands(Duration now) REQUIRES(channel_thread);
  /// Returns false if there is no memory; then the command has had no effect.
  bool run(const Command& command, Duration now) REQUIRES(channel_thread);
  void send_datagrams() REQUIRES(channel_thread);
  /// Sends the machine's datagrams, and pushes its events to the endpoints.
  void flush() REQUIRES(channel_thread) EXCLUDES(registry_mutex);
  /// Passes the machine's log events to the sink.
  void log_events() REQUIRES(channel_thread) EXCLUDES(registry_mutex, mailbox_mutex, workers_mutex);
  /// EndpointPort::iteration of that registration; 0 if it has ended.
  uint64_t iteration_of(EndpointName name) EXCLUDES(registry_mutex);

  // -- Any thread --

  /// See NexusCore::log(). Must be called only when `local_address` is known. An exception of the sink ends the
  /// process.
  void log(LogEvent& event) const noexcept;
  /// Appends the addresses that the channel reaches. May throw std::bad_alloc.
  void keep_reached(std::span<const AddressText> from, std::vector<AddressText>& to) EXCLUDES(mailbox_mutex);
  /// Reserves space for the commands that end `sessions` sessions, for the commands that wait, each of which may begin
  /// a session, and for the end of each endpoint. Returns false if there is no memory.
  bool reserve_commands(size_t sessions) EXCLUDES(mailbox_mutex) {
    base::MutexLock lock(mailbox_mutex);
    return reserve_commands_locked(sessions);
  }
  bool reserve_commands_locked(size_t sessions) REQUIRES(mailbox_mutex);
  /// `is_reserved`: reserve_commands() has reserved the space. Returns false if there is no memory.
  bool post(Command command, bool is_reserved) EXCLUDES(mailbox_mutex);
  /// The name under which the port is registered. If the port is not registered, the name's registration is 0, which
  /// the machine ignores.
  EndpointName name_of(const EndpointPort& port) EXCLUDES(registry_mutex);

  const NexusOptions options;
  Environment& environment;
  const uint32_t process = base::process_number();
  std::string local_address;  ///< the channel's address

  /// NexusOptions::page, or the reason why there is no page. Set before endpoints are added.
  Result<std::shared_ptr<page::PageFile>> page =
      Status(Code::kUnavailable, "this Nexus has no page, because NexusOptions::page is empty");

  base::ThreadRole channel_thread;
  Management machine GUARDED_BY(channel_thread);
  Command stalled GUARDED_BY(channel_thread);      ///< the command that runs, or that waits for memory
  Duration retry_at GUARDED_BY(channel_thread){};  ///< there was no memory before; commands wait until then
  SharedCounters counters;                         ///< machine.counters(), as of the last turn
  std::atomic<size_t> sessions_known{0};           ///< machine.sessions(); written by the channel's thread

  base::Mutex registry_mutex;
  std::unordered_map<uint16_t, Registration> registry GUARDED_BY(registry_mutex);  ///< by endpoint id
  uint64_t registrations GUARDED_BY(registry_mutex) = 0;                           ///< the last number given

  base::Mutex mailbox_mutex;
  base::RingQueue<Command> mailbox GUARDED_BY(mailbox_mutex);
  size_t endpoints GUARDED_BY(mailbox_mutex) = 0;  ///< the number of registered endpoints; a command will remove each
  bool is_gone GUARDED_BY(mailbox_mutex) = false;
  std::unique_ptr<ManagementChannel> channel GUARDED_BY(mailbox_mutex);
  /// The channel, once listen() has returned. The channel's thread may run before that; datagrams of that time are
  /// lost.
  std::atomic<ManagementChannel*> channel_in_use{nullptr};

  base::Mutex workers_mutex;
  std::unique_ptr<WorkerPool> workers GUARDED_BY(workers_mutex);
  bool has_no_workers GUARDED_BY(workers_mutex) = false;  ///< the Nexus is gone
};

}  // namespace tern::nexus
