// The storage of a replica without a disk: it stores nothing. The log is in libraft's memory and the snapshot in Port's
// memory. The replica never comes back under its id (README.md). The replica's thread owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "storage.h"

namespace replicated {

class NoStorage final : public Storage {
 public:
  std::string load(Saved&) override { return {}; }
  std::string set_term(uint64_t) override { return {}; }
  std::string set_vote(uint64_t) override { return {}; }
  std::string append(std::span<const Entry>) override { return {}; }
  std::string sync() override { return {}; }
  bool is_sync_free() const override { return true; }
  std::string truncate(uint64_t) override { return {}; }
  void put_snapshot(std::shared_ptr<const Snapshot>, std::function<void(std::string)> done) override { done({}); }
  std::string drop_before(uint64_t) override { return {}; }
  std::string restart_log(uint64_t) override { return {}; }
};

}  // namespace replicated
