// A resolver whose answers the test sets.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "neighbours/resolver.h"

namespace tern::ethernet_test {

class FakeResolver final : public neighbours::Resolver {
 public:
  struct Entry {
    neighbours::State state = neighbours::State::kAsking;
    frames::MacAddress mac;
    uint32_t references = 0;
  };

  /// Sets the state of a destination. The next update() reports the change.
  void set(const std::string& ip, neighbours::State state, const frames::MacAddress& mac = {}) {
    const neighbours::Id id = id_of(ip);
    entries_[id].state = state;
    entries_[id].mac = mac;
    changed_.push_back(id);
  }
  uint32_t references(const std::string& ip) { return entries_[id_of(ip)].references; }

  Result<neighbours::Id> find(const base::SocketAddress& destination, uint64_t) override {
    if (!find_failure.ok()) return find_failure;
    const neighbours::Id id = id_of(destination.ip_text());
    ++entries_[id].references;
    return id;
  }
  void release(neighbours::Id id) override { --entries_[id].references; }
  neighbours::State state(neighbours::Id id) const override { return entries_.at(id).state; }
  const frames::MacAddress& mac(neighbours::Id id) const override { return entries_.at(id).mac; }
  Status failure(neighbours::Id) const override { return {Code::kUnavailable, "it does not answer"}; }
  Changes update(uint64_t) override {
    reported_ = std::exchange(changed_, {});
    return {reported_, std::exchange(is_interface_changed, false)};
  }
  int descriptor() const override { return -1; }
  uint64_t next_update_ns() const override { return UINT64_MAX; }
  const neighbours::Interface& interface() const override { return own; }
  Status own_failure() const override { return own_status; }

  neighbours::Interface own;
  Status own_status;
  Status find_failure;
  bool is_interface_changed = false;

 private:
  neighbours::Id id_of(const std::string& ip) {
    const auto next = static_cast<neighbours::Id>(ids_.size());
    const neighbours::Id id = ids_.emplace(ip, next).first->second;
    entries_.try_emplace(id);
    return id;
  }

  std::map<std::string, neighbours::Id> ids_;
  std::map<neighbours::Id, Entry> entries_;
  std::vector<neighbours::Id> changed_, reported_;
};

}  // namespace tern::ethernet_test
