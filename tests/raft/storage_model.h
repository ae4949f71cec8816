// A replica's storage with a model of its promises. The model judges the state found after a crash. Test code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../apps/raft/storage.h"

namespace raft_test {

/// The content that a storage should have.
struct Model {
  uint64_t term = 0, vote = 0;
  uint64_t snapshot = 0;  ///< its index
  uint64_t first_index = 1;
  std::vector<replicated::StoredEntry> entries;  ///< from first_index on
  uint64_t promised = 0;                         ///< entries below this index are durable

  uint64_t next_index() const { return first_index + entries.size(); }
};

class Replica {
 public:
  explicit Replica(std::unique_ptr<replicated::Storage> storage) : storage_(std::move(storage)) {}

  Model model;

  /// Sets the model to the found state.
  std::string load() {
    replicated::Saved saved;
    auto problem = storage_->load(saved);
    if (!problem.empty()) return problem;
    model.term = saved.term;
    model.vote = saved.vote;
    model.snapshot = saved.snapshot != nullptr ? saved.snapshot->index : 0;
    if (saved.snapshot != nullptr && saved.snapshot->bytes != text(model.snapshot)) return "another snapshot";
    model.first_index = saved.first_index;
    model.entries = std::move(saved.entries);
    model.promised = model.next_index();
    before_ = model;
    return {};
  }
  std::string set_term(uint64_t term) {
    return change([&](Model& after) { after.term = term, after.vote = 0; }, [&] { return storage_->set_term(term); });
  }
  std::string set_vote(uint64_t vote) {
    return change([&](Model& after) { after.vote = vote; }, [&] { return storage_->set_vote(vote); });
  }
  std::string append(const std::vector<std::string>& texts) {
    std::vector<replicated::Entry> entries;
    for (const auto& text : texts) entries.push_back({model.term, 1, replicated::as_bytes(text)});
    return change(
        [&](Model& after) {
          for (const auto& text : texts) after.entries.push_back({model.term, 1, text});
        },
        [&] { return storage_->append(entries); });
  }
  std::string sync() {
    return change([](Model& after) { after.promised = after.next_index(); }, [&] { return storage_->sync(); });
  }
  std::string truncate(uint64_t index) {
    return change(
        [&](Model& after) {
          after.entries.resize(index - after.first_index);
          after.promised = std::min(after.promised, index);
          model.promised = std::min(model.promised, index);  // from the beginning of the call
        },
        [&] { return storage_->truncate(index); });
  }
  std::string put_snapshot(uint64_t index) {
    auto snapshot = std::make_shared<replicated::Snapshot>();
    snapshot->index = index;
    snapshot->term = model.term;
    snapshot->configuration_index = 1;
    snapshot->configuration = "the replicas";
    snapshot->bytes = text(index);
    return change([&](Model& after) { after.snapshot = index; },
                  [&] {
                    std::string outcome = "not done";
                    storage_->put_snapshot(snapshot, [&](std::string problem) { outcome = std::move(problem); });
                    return outcome;
                  });
  }
  std::string drop_before(uint64_t index) {
    return change(
        [&](Model& after) {
          const auto count = static_cast<ptrdiff_t>(std::min(index, after.next_index()) - after.first_index);
          after.entries.erase(after.entries.begin(), after.entries.begin() + count);
          after.first_index += static_cast<uint64_t>(count);
        },
        [&] { return storage_->drop_before(index); });
  }
  std::string restart_log(uint64_t index) {
    return change([&](Model& after) { after.entries.clear(), after.first_index = after.promised = index; },
                  [&] { return storage_->restart_log(index); });
  }

  /// Checks a state found after the storage failed or ended now. Empty: the state is allowed.
  std::string judge(const Model& found) const {
    const std::string before = judge(before_, found), after = judge(model, found);
    return before.empty() || after.empty() ? "" : before + "; with the last change: " + after;
  }

 private:
  static std::string text(uint64_t index) { return "state after " + std::to_string(index); }

  /// `model` is the expected content with the failed change, and before_ the content without it.
  template <class Change, class Do>
  std::string change(Change change_model, Do change_storage) {
    Model after = model;
    change_model(after);
    before_ = std::exchange(model, std::move(after));
    auto problem = change_storage();
    if (problem.empty()) before_ = model;
    return problem;
  }

  static std::string judge(const Model& expected, const Model& found) {
    if (found.term != expected.term || found.vote != expected.vote) return "another term or vote";
    if (found.snapshot != expected.snapshot) return "another snapshot";
    // The log need not reach a snapshot beyond its promised end; it then begins after the snapshot.
    const bool may_restart = expected.snapshot >= expected.promised;
    if (may_restart && found.first_index == expected.snapshot + 1 && found.entries.empty()) return "";
    if (found.first_index > expected.first_index) return "the log begins too late";
    if (found.next_index() < expected.promised) return "promised entries are missing";
    if (found.next_index() > expected.next_index()) return "there are more entries";
    for (uint64_t i = expected.first_index; i < found.next_index(); i++) {
      const auto& entry = found.entries[i - found.first_index];
      const auto& wanted = expected.entries[i - expected.first_index];
      if (entry.bytes != wanted.bytes || entry.term != wanted.term) return "another entry " + std::to_string(i);
    }
    return "";
  }

  const std::unique_ptr<replicated::Storage> storage_;
  Model before_;
};

}  // namespace raft_test
