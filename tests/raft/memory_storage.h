// A storage in memory: a disk that never fails, if it outlives the simulated host of its replica.
// Owned by the replica's thread. Standard library only.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "../apps/raft/storage.h"

namespace replicated {

class MemoryStorage : public Storage {
 public:
  std::string load(Saved& saved) override {
    saved.term = term_;
    saved.vote = vote_;
    saved.snapshot = snapshot_;
    const uint64_t next_index = first_index_ + log_.size();
    if (snapshot_ != nullptr) {
      const uint64_t index = snapshot_->index;
      const bool has_entry = index >= first_index_ && index < next_index;
      const bool fits = has_entry ? log_[index - first_index_].term == snapshot_->term : index + 1 == first_index_;
      if (!fits) restart(index + 1);
    }
    saved.first_index = first_index_;
    saved.entries.assign(log_.begin(), log_.end());
    return {};
  }
  std::string set_term(uint64_t term) override {
    term_ = term;
    vote_ = 0;
    return {};
  }
  std::string set_vote(uint64_t replica) override {
    vote_ = replica;
    return {};
  }
  std::string append(std::span<const Entry> entries) override {
    for (const Entry& entry : entries) log_.push_back({entry.term, entry.type, std::string(as_text(entry.bytes))});
    return {};
  }
  std::string sync() override { return {}; }
  bool is_sync_free() const override { return true; }
  std::string truncate(uint64_t index) override {
    log_.resize(index - first_index_);
    return {};
  }
  void put_snapshot(std::shared_ptr<const Snapshot> snapshot, std::function<void(std::string)> done) override {
    snapshot_ = std::move(snapshot);
    done({});
  }
  std::string drop_before(uint64_t index) override {
    while (first_index_ < index && !log_.empty()) {
      log_.pop_front();
      first_index_++;
    }
    return {};
  }
  std::string restart_log(uint64_t index) override {
    restart(index);
    return {};
  }

 private:
  void restart(uint64_t index) {
    log_.clear();
    first_index_ = index;
  }

  uint64_t term_ = 0, vote_ = 0;
  std::shared_ptr<const Snapshot> snapshot_;
  uint64_t first_index_ = 1;  ///< index of log_[0]
  std::deque<StoredEntry> log_;
};

}  // namespace replicated
