// tern_endpoint_create() and tern_endpoint_destroy(): the transport by its name, and the options in C.
#include <tern/rpc.h>
#include <tern/tern.h>
#include <tern/transport_options.h>

#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/process.h"
#include "base/status_text.h"
#include "base/try.h"
#include "c/any_rpc.h"
#include "c/convert.h"
#include "c/objects.h"
#include "transport_list.h"

namespace tern::c {

constinit Objects<tern_endpoint> endpoints;

namespace {

static_assert(static_cast<int>(Wait::kPoll) + 1 == TERN_WAIT_POLL);
static_assert(static_cast<int>(Wait::kAdaptive) + 1 == TERN_WAIT_ADAPTIVE);
static_assert(static_cast<int>(Wait::kBlock) + 1 == TERN_WAIT_BLOCK);

Status range_problem(const tern_endpoint_options& options) {
  if (options.reserved != 0) return kReserved;
  if (options.spin_ns < 0 || options.report_delay_ns < 0) return kNegative;
  if (options.wait < TERN_WAIT_DEFAULT || options.wait > TERN_WAIT_BLOCK) {
    return {Code::kMisuse, "options->wait must be one of TERN_WAIT_*"};
  }
  return check_congestion_control(options.congestion_control);
}

RpcOptions rpc_options(const tern_endpoint_options& wanted) {
  RpcOptions options;
  options.endpoint_id = wanted.endpoint_id;
  options.receive_budget_bytes = or_default(wanted.receive_budget_bytes, options.receive_budget_bytes);
  options.response_budget_bytes = or_default(wanted.response_budget_bytes, options.response_budget_bytes);
  options.memory_limit_bytes = or_default(wanted.memory_limit_bytes, options.memory_limit_bytes);
  options.spin = or_default(wanted.spin_ns, options.spin);
  options.report_delay = or_default(wanted.report_delay_ns, options.report_delay);
  options.queue_limit = or_default(wanted.queue_limit, options.queue_limit);
  options.server_sessions_max = or_default(wanted.server_sessions_max, options.server_sessions_max);
  options.server_sessions_per_peer_max = wanted.server_sessions_per_peer_max;
  options.credit_limit = wanted.credit_limit;
  if (wanted.wait != TERN_WAIT_DEFAULT) options.wait = static_cast<Wait>(wanted.wait - 1);
  options.congestion_control = static_cast<CongestionControl>(wanted.congestion_control);
  options.huge_pages = wanted.no_huge_pages == 0;
  options.giant_pages = wanted.giant_pages != 0;
  return options;
}

using Made = Result<std::unique_ptr<AnyRpc>>;

/// May throw std::bad_alloc.
template <Transport T>
Made make(Nexus& nexus, std::string_view settings, const RpcOptions& options) {
  typename T::Options transport_options;
  if (const std::string problem = set_options(transport_options, settings); !problem.empty()) {
    return base::status_of(Code::kMisuse, "transport_options names an unknown option, or a value that is out of range",
                           {"transport_options: ", problem});
  }
  auto rpc = Rpc<T>::create(nexus, std::move(transport_options), options);
  if (!rpc.ok()) return rpc.status();
  return std::unique_ptr<AnyRpc>(new RpcOver<T>(std::move(*rpc)));
}

/// May throw std::bad_alloc.
Status unknown_transport(std::string_view name) {
  std::string names;
  for (const auto& entry : transports::kEntries) {
    if (entry.kind != transports::Kind::kReal) continue;
    if (entry.is_built()) {
      names.append(names.empty() ? "" : ", ").append(entry.name);
    } else if (name == entry.name) {
      return base::status_of(Code::kUnavailable, "this libtern_c was built without this transport",
                             {"this libtern_c was built without ", name, ", which needs ", entry.missing});
    }
  }
  return base::status_of(Code::kMisuse, "no transport has this name: tern_transport_name() lists the names",
                         {"no transport is called '", name, "'; choose from: ", names});
}

/// Counts an endpoint of the nexus, which another thread therefore cannot destroy. False: another thread destroys it.
bool try_count(tern_nexus* nexus) {
  uint32_t count = nexus->endpoints.load(std::memory_order_relaxed);
  while (count != tern_nexus::kEnded) {
    if (nexus->endpoints.compare_exchange_weak(count, count + 1, std::memory_order_acquire)) return true;
  }
  return false;
}

/// May throw std::bad_alloc.
Status create(tern_nexus* nexus, const tern_endpoint_options& wanted, tern_endpoint* object) {
  const char* const name = wanted.transport != nullptr ? wanted.transport : transports::kEntries[0].name;
  const char* const settings = wanted.transport_options != nullptr ? wanted.transport_options : "";
  auto made = transports::with_transport(
      transports::Real(), name, [&]<class T>() { return make<T>(*nexus->nexus, settings, rpc_options(wanted)); });
  if (!made) return unknown_transport(name);
  if (!made->ok()) return made->status();
  object->rpc = std::move(**made);
  object->endpoint = &object->rpc->endpoint();
  return {};
}

}  // namespace
}  // namespace tern::c

using namespace tern::c;  // NOLINT(google-build-using-namespace): what follows are names of C

const char* tern_transport_name(size_t index) noexcept {
  for (const auto& entry : tern::transports::kEntries) {
    if (entry.kind != tern::transports::Kind::kReal || !entry.is_built()) continue;
    if (index-- == 0) return entry.name;
  }
  return nullptr;
}

tern_status tern_endpoint_create(tern_nexus* nexus, const tern_endpoint_options* options,
                                 tern_endpoint** endpoint) noexcept {
  if (endpoint == nullptr) return misuse("endpoint is NULL: pass the address of a variable for the new one");
  *endpoint = nullptr;
  if (tern::Status status = check(nexus); !status.ok()) return to_c(status);
  tern_endpoint_options wanted;
  if (tern::Status status = read_options(options, 96, wanted); !status.ok()) return to_c(status);
  if (tern::Status status = range_problem(wanted); !status.ok()) return to_c(status);

  tern_endpoint* const object = endpoints.make();
  tern::Status status(tern::Code::kNoMemory, "no memory for an endpoint");
  if (object == nullptr) return to_c(status);
  if (!try_count(nexus)) {
    endpoints.end(object);
    return to_c(kNotANexus);
  }
  (void)tern::base::try_grow([&] { status = create(nexus, wanted, object); });
  if (!status.ok()) {
    endpoints.end(object);
    nexus->endpoints.fetch_sub(1, std::memory_order_release);
    return to_c(status);
  }
  object->nexus = nexus;
  object->process = tern::base::process_number();
  object->loop_calls.store(0, std::memory_order_relaxed);
  object->kind.store(Kind::kEndpoint, std::memory_order_relaxed);
  *endpoint = object;
  return to_c({});
}

tern_status tern_endpoint_destroy(tern_endpoint* endpoint) noexcept {
  if (endpoint == nullptr) return to_c({});
  if (tern::Status status = check(endpoint); !status.ok()) return to_c(status);
  // In a forked child the loop of the parent's thread does not run.
  const bool is_inherited = endpoint->process != tern::base::process_number();
  uint32_t none = 0;
  if (!endpoint->loop_calls.compare_exchange_strong(none, 1, std::memory_order_acquire) && !is_inherited) {
    return misuse(
        "the loop of the endpoint runs, in this thread or another: call tern_endpoint_stop(), and destroy the endpoint "
        "after tern_endpoint_run() has returned");
  }
  std::exchange(endpoint->rpc, nullptr).reset();  // continuations run here, and may still use the handle
  tern_nexus* const nexus = endpoint->nexus;
  endpoint->endpoint = nullptr;
  endpoints.end(endpoint);
  nexus->endpoints.fetch_sub(1, std::memory_order_release);
  return to_c({});
}
