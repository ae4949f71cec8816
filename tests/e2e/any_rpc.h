// An endpoint over a transport chosen by its name, and the settings that processes pass to each other. Test code; one
// thread at a time uses an endpoint.
#pragma once

#include <tern/endpoint.h>
#include <tern/nexus.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c/any_rpc.h"
#include "transport_list.h"

namespace e2e {

/// The names of this build's transports between processes. Every case runs over each of them.
inline std::vector<const char*> transports() {
  std::vector<const char*> names;
  for (const auto& entry : tern::transports::kEntries) {
    if (entry.is_built() && entry.kind == tern::transports::Kind::kReal) names.push_back(entry.name);
  }
  return names;
}

/// The transports over which any number of processes of a host reach each other. dpdk and xdp are not among them,
/// because each process needs a device of its own over DPDK, and a queue of an interface over AF_XDP.
inline std::vector<const char*> transports_of_one_host() {
  std::vector<const char*> names = transports();
  std::erase_if(names, [](std::string_view name) { return name == "dpdk" || name == "xdp"; });
  return names;
}

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
  /// Adds the "key=value" words of an environment variable for keys that have no value yet.
  Settings with_defaults_of(const char* variable) const {
    Settings all = *this;
    const char* text = std::getenv(variable);
    std::istringstream words(text != nullptr ? text : "");
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      all.values_.emplace(word.substr(0, equals), word.substr(equals + 1));
    }
    return all;
  }

 private:
  std::map<std::string, std::string> values_;
};

using AnyRpc = tern::c::AnyRpc;

/// Makes the endpoint that the settings describe. "transport" names the transport; "faults" adds the fault layer.
tern::Result<std::unique_ptr<AnyRpc>> create_rpc(tern::Nexus& nexus, const Settings& settings,
                                                 uint16_t endpoint_id = 0);

}  // namespace e2e
