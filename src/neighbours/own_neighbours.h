// The neighbours of an endpoint whose address the kernel does not know. Neighbours layer; one thread.
#pragma once

#include <cstdint>
#include <memory>

#include <tern/status.h>

#include "base/address.h"
#include "frames/mac_address.h"
#include "neighbours/interface.h"
#include "neighbours/own_host.h"
#include "neighbours/resolver.h"
#include "neighbours/table.h"

namespace tern::neighbours {

/// Destinations within the prefix of an OwnHost are neighbours; all others go to its gateway. The host has the table of
/// neighbours and asks for them. All endpoints of the port share it.
class OwnNeighbours : public Resolver {
 public:
  /// The value of interface().index, which is no index of the kernel.
  static constexpr uint32_t kNoInterface = UINT32_MAX;

  /// `host` must outlive the resolver. kUnavailable: the kernel gives no event or randomness. kNoMemory.
  static Result<std::unique_ptr<OwnNeighbours>> create(OwnHost* host);
  ~OwnNeighbours() override;

  Result<Id> find(const base::SocketAddress& destination, uint64_t now_ns) override;
  void release(Id id) override { table_.release(id); }
  State state(Id id) const override { return table_.state(id); }
  const frames::MacAddress& mac(Id id) const override { return table_.mac(id); }
  Status failure(Id id) const override;
  Changes update(uint64_t now_ns) override;
  int descriptor() const override { return listener_.event.descriptor(); }
  uint64_t next_update_ns() const override { return table_.next_action_ns(); }
  const Interface& interface() const override { return interface_; }
  Status own_failure() const override { return own_failure_; }

 private:
  OwnNeighbours(OwnHost* host, uint64_t salt);

  bool read_news();
  void read_own();
  void ask(uint64_t now_ns);
  void ask_for_route(const Table::Action& action, uint64_t now_ns);
  void ask_for_neighbour(const Table::Action& action, uint64_t now_ns);

  OwnHost& host_;
  OwnHost::Listener listener_;
  Interface interface_;
  Status own_failure_;
  Table table_;
};

}  // namespace tern::neighbours
