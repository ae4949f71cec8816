#include "any_rpc.h"

#include <tern/rpc.h>
#include <tern/transport/faulty.h>
#include <tern/transport_options.h>

#include <chrono>
#include <tuple>

namespace e2e {

namespace {

/// The options of transport T. Each option takes the value of the setting with its name.
template <class T>
tern::Result<typename T::Options> transport_options(const Settings& settings) {
  typename T::Options options;
  // Both ends and other tests share a few CPUs: a round trip includes the wait for a CPU, as over the kernel's
  // transports.
  if constexpr (requires { options.delay_target_us; }) options.delay_target_us = 10'000;
  std::string problem;
  const auto set_if_given = [&](std::string_view field) {
    const std::string name(field);
    if (settings.has(name)) problem += tern::set_options(options, name + "=" + settings.text(name));
  };
  if constexpr (requires { T::Options::fields(); }) {
    std::apply([&](const auto&... field) { (set_if_given(field.name), ...); }, T::Options::fields());
  }
  if (!problem.empty()) return tern::Status(tern::Code::kMisuse, "a transport's option has a wrong value");
  return options;
}

tern::RpcOptions rpc_options(const Settings& settings, uint16_t endpoint_id) {
  tern::RpcOptions options;
  options.endpoint_id = endpoint_id;
  options.queue_limit = static_cast<uint32_t>(settings.number("queue_limit", options.queue_limit));
  options.receive_budget_bytes = settings.number("receive_budget", options.receive_budget_bytes);
  options.server_sessions_max = static_cast<uint32_t>(settings.number("sessions_max", options.server_sessions_max));
  options.server_sessions_per_peer_max =
      static_cast<uint32_t>(settings.number("sessions_per_peer_max", options.server_sessions_per_peer_max));
  const std::string wait = settings.text("wait", "adaptive");
  options.wait = wait == "poll" ? tern::Wait::kPoll : wait == "block" ? tern::Wait::kBlock : tern::Wait::kAdaptive;
  return options;
}

template <tern::Transport T>
tern::Result<std::unique_ptr<AnyRpc>> create_over(tern::Nexus& nexus, const Settings& settings, uint16_t endpoint_id) {
  auto make = [&]<class U>(typename U::Options options) -> tern::Result<std::unique_ptr<AnyRpc>> {
    auto rpc = tern::Rpc<U>::create(nexus, std::move(options), rpc_options(settings, endpoint_id));
    if (!rpc.ok()) return rpc.status();
    return std::unique_ptr<AnyRpc>(std::make_unique<tern::c::RpcOver<U>>(std::move(*rpc)));
  };
  auto inner = transport_options<T>(settings);
  if (!inner.ok()) return inner.status();
  if (!settings.has("faults")) return make.template operator()<T>(std::move(*inner));
  tern::FaultyOptions<typename T::Options> options;
  options.inner = std::move(*inner);
  options.drop = settings.probability("drop");
  options.duplicate = settings.probability("dup");
  options.reorder = settings.probability("reorder");
  options.delay = settings.probability("delay");
  options.corrupt = settings.probability("corrupt");
  options.delay_max = std::chrono::microseconds(settings.number("delay_us_max", 1000));
  options.seed = settings.number("seed", 1);
  return make.template operator()<tern::Faulty<T>>(std::move(options));
}

}  // namespace

tern::Result<std::unique_ptr<AnyRpc>> create_rpc(tern::Nexus& nexus, const Settings& settings, uint16_t endpoint_id) {
  auto made = tern::transports::with_transport(tern::transports::Real(), settings.text("transport"),
                                               [&]<class T>() { return create_over<T>(nexus, settings, endpoint_id); });
  if (!made) return tern::Status(tern::Code::kMisuse, "the setting transport names none of this build");
  return std::move(*made);
}

}  // namespace e2e
