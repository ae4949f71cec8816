// The implementation of tern::Nexus: the registry of endpoints, the management thread, the worker pool. Nexus layer.
// Calls may come from any thread; the state machine runs in the management channel's thread only. A registered endpoint
// keeps the core alive. After the Nexus is destroyed, the endpoint's calls are refused or have no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tern/counters.h>
#include <tern/detail/export.h>
#include <tern/environment.h>
#include <tern/log.h>
#include <tern/nexus.h>

#include "nexus/control.h"
#include "nexus/uri.h"
#include "page/page_file.h"

namespace tern::nexus {

/// The status of an endpoint's calls after its Nexus was destroyed.
inline constexpr Status kNexusGone{Code::kMisuse,
                                   "the Nexus was destroyed before its endpoint: it must outlive every Rpc that was "
                                   "created with it; destroy this Rpc"};

class TERN_API NexusCore : public std::enable_shared_from_this<NexusCore> {
 public:
  static Result<std::shared_ptr<NexusCore>> create(std::string_view listen_uri, const NexusOptions& options);
  ~NexusCore();
  /// Called when the Nexus is destroyed: ends the threads, and notifies the endpoints that are left. In a forked child
  /// it only frees memory and closes descriptors.
  void shut_down();

  /// The path of the page; kUnavailable: there is no page.
  Result<std::string> page() const;
  /// Makes a place in the page for an endpoint. Null: there is no page, no memory, or no space. Any thread.
  std::unique_ptr<page::SegmentWriter> add_to_page(uint16_t endpoint_id, std::string_view transport);

  /// True if there is a sink for events (NexusOptions::log).
  bool has_log() const;
  /// Passes the event to the sink, if there is one, with its severity, time and Nexus. Any thread, without a lock.
  void log(LogEvent& event) const;

  bool is_gone() const;
  /// The counters of the state machine, as of its thread's last turn. Any thread.
  ManagementCounters management_counters() const;
  Environment& environment();
  const NexusOptions& options() const;
  std::string uri() const;
  /// The numeric "HOST:PORT" at which the Nexus listens.
  std::string_view local_address() const;
  /// Numeric host of the listen address, without the port ("0.0.0.0", "::1").
  std::string listen_host() const;

  /// kMisuse: the id is taken. kNoMemory. The port must stay until remove_endpoint() has returned.
  Status add_endpoint(EndpointPort& port);
  /// After this call no event reaches the port. The caller must call disconnect() for its sessions before, so that
  /// their peers learn of the end.
  void remove_endpoint(EndpointPort& port);

  /// Client side: asks the endpoint `peer_endpoint` of the Nexus at one of `peer_addresses` for a session. If ok,
  /// exactly one kConnectResult follows, unless forget() comes first. The machine repeats the request until it is
  /// answered, or ends it with kPeerUnreachable after `timeout_ns`. kUnavailable: this Nexus reaches none of the
  /// addresses, because they are of another family. kNoMemory. After either error no event follows.
  Status connect(EndpointPort& from, std::span<const AddressText> peer_addresses, uint16_t peer_endpoint,
                 const SessionTerms& terms, uint64_t timeout_ns);
  /// Server side: answers a kConnectRequest. kNone accepts the request with `terms`; any other refusal travels to the
  /// client by its number. The machine repeats the answer if the request arrives again. kNoMemory, for kNone only: the
  /// client is refused for that reason, and the caller must drop the session.
  Status answer_connect(EndpointPort& from, uint64_t token, wire::Refusal refusal, const SessionTerms& terms);
  /// Either side ends the session. The machine repeats the disconnect until the peer acknowledges it or is gone. Never
  /// fails, because the space for the command was reserved when the session began.
  void disconnect(EndpointPort& from, uint32_t local_key, bool is_client_side);
  /// Client side, before kConnectResult: gives the session up. If a server accepts it later, the machine sends a
  /// disconnect. Never fails.
  void forget(EndpointPort& from, uint32_t local_key);
  /// Client side: asks whether the server end of this session is alive. At most one kLiveness follows. kPeerGone
  /// follows instead if the peer Nexus does not answer for the liveness timeout.
  void ask_liveness(EndpointPort& from, uint32_t local_key);

  /// Runs `task` on a worker thread, once flush_work() was called. Returns false if the queue is full, or the system
  /// has no threads or no memory.
  bool submit_work(std::function<void()> task);
  void flush_work();

 private:
  struct Impl;
  explicit NexusCore(std::unique_ptr<Impl> impl);
  void make_page();
  void log_own(LogKind kind, const Status& status = {}) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tern::nexus
