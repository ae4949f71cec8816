// An endpoint over a transport that is chosen by name, and the settings by which processes tell each other which.
// Test code; used by one thread at a time, as an endpoint is.
#pragma once

#include <tern/rpc.h>
#include <tern/transport/faulty.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace e2e {

/// Every case runs over each of these. A new transport is a name here and a line in create_rpc().
inline constexpr const char* kTransports[] = {"shm", "udp"};

/// "key=value" pairs: options of an endpoint, of a process, or both.
class Settings {
 public:
  Settings() = default;
  Settings(std::initializer_list<std::pair<const std::string, std::string>> values) : values_(values) {}

  Settings& set(const std::string& key, const std::string& value) {
    values_[key] = value;
    return *this;
  }
  Settings& set(const std::string& key, uint64_t value) { return set(key, std::to_string(value)); }
  Settings with(const std::string& key, const std::string& value) const { return Settings(*this).set(key, value); }
  Settings with(const std::string& key, uint64_t value) const { return Settings(*this).set(key, value); }
  bool has(const std::string& key) const { return values_.contains(key); }
  std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto found = values_.find(key);
    return found == values_.end() ? otherwise : found->second;
  }
  uint64_t number(const std::string& key, uint64_t otherwise = 0) const {
    const auto found = values_.find(key);
    return found == values_.end() ? otherwise : std::strtoull(found->second.c_str(), nullptr, 10);
  }
  double probability(const std::string& key) const { return std::strtod(text(key, "0").c_str(), nullptr); }
  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  std::map<std::string, std::string> values_;
};

/// Rpc<T> without its type.
class AnyRpc {
 public:
  virtual ~AnyRpc() = default;
  virtual tern::Endpoint& endpoint() = 0;
  virtual tern::Status run(tern::Duration duration) = 0;
  virtual tern::Result<int> descriptor() = 0;
  virtual tern::Result<size_t> run_once() = 0;
  virtual tern::Status close(tern::Duration drain) = 0;
};

template <tern::Transport T>
class RpcOver final : public AnyRpc {
 public:
  explicit RpcOver(std::unique_ptr<tern::Rpc<T>> rpc) : rpc_(std::move(rpc)) {}
  tern::Endpoint& endpoint() override { return *rpc_; }
  tern::Status run(tern::Duration duration) override { return rpc_->run_event_loop(duration); }
  tern::Result<int> descriptor() override { return rpc_->descriptor(); }
  tern::Result<size_t> run_once() override { return rpc_->run_event_loop_once(); }
  tern::Status close(tern::Duration drain) override { return rpc_->close(drain); }

 private:
  std::unique_ptr<tern::Rpc<T>> rpc_;
};

/// What the settings say about transport T's options.
template <class T>
typename T::Options transport_options(const Settings& settings) {
  typename T::Options options;
  if constexpr (requires { options.datagram_bytes; }) {
    options.datagram_bytes = settings.number("datagram_bytes", options.datagram_bytes);
    options.offload = settings.number("offload", 1) != 0;
    options.bind = settings.text("data");
  }
  if constexpr (requires { options.trust_peers; }) options.trust_peers = settings.number("trust") != 0;
  return options;
}

inline tern::RpcOptions rpc_options(const Settings& settings, uint16_t endpoint_id) {
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
    return std::unique_ptr<AnyRpc>(std::make_unique<RpcOver<U>>(std::move(*rpc)));
  };
  if (!settings.has("faults")) return make.template operator()<T>(transport_options<T>(settings));
  tern::FaultyOptions<typename T::Options> options;
  options.inner = transport_options<T>(settings);
  options.drop = settings.probability("drop");
  options.duplicate = settings.probability("dup");
  options.reorder = settings.probability("reorder");
  options.delay = settings.probability("delay");
  options.corrupt = settings.probability("corrupt");
  options.delay_max = std::chrono::microseconds(settings.number("delay_us_max", 1000));
  options.seed = settings.number("seed", 1);
  return make.template operator()<tern::Faulty<T>>(std::move(options));
}

/// The endpoint that the settings describe: "transport" is its name, "faults" puts the fault layer over it.
inline tern::Result<std::unique_ptr<AnyRpc>> create_rpc(tern::Nexus& nexus, const Settings& settings,
                                                        uint16_t endpoint_id = 0) {
  const std::string name = settings.text("transport");
  if (name == tern::Shm::kName) return create_over<tern::Shm>(nexus, settings, endpoint_id);
  if (name == tern::Udp::kName) return create_over<tern::Udp>(nexus, settings, endpoint_id);
  return tern::Status(tern::Code::kMisuse, "no transport of this name in tests/e2e/any_rpc.h");
}

}  // namespace e2e
