// The storage on a disk: the data that it finds after it was closed, after a crash at any moment, and on a damaged
// disk.
#include "../apps/raft/disk_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "raft/memory_disk.h"
#include "raft/storage_model.h"

namespace raft_test {
namespace {

using testing::HasSubstr;

using replicated::DiskStorage;
using replicated::Saved;
using replicated::Snapshot;

std::shared_ptr<MemoryDisk> share(MemoryDisk disk) { return std::make_shared<MemoryDisk>(std::move(disk)); }

std::unique_ptr<DiskStorage> open(std::shared_ptr<MemoryDisk> disk) {
  // The limit is small, so that the log has several files.
  return std::make_unique<DiskStorage>(std::make_unique<MemoryDirectory>(std::move(disk)),
                                       replicated::DiskOptions{.log_bytes_max = 200, .has_thread = false});
}

/// Returns the text of load()'s error. Empty: `saved` has the found data.
std::string load(const std::shared_ptr<MemoryDisk>& disk, Saved& saved) { return open(disk)->load(saved); }

/// Returns a disk with all kinds of files: several log files, a snapshot that covers a part of the log, and a state.
std::shared_ptr<MemoryDisk> some_disk() {
  auto disk = std::make_shared<MemoryDisk>();
  Replica replica(open(disk));
  EXPECT_EQ(replica.load(), "");
  EXPECT_EQ(replica.set_term(1), "");
  EXPECT_EQ(replica.set_vote(3), "");
  for (int i = 0; i < 9; i++) {
    EXPECT_EQ(replica.append({"entry " + std::to_string(i), ""}), "");
    EXPECT_EQ(replica.sync(), "");
  }
  EXPECT_EQ(replica.put_snapshot(4), "");
  return disk;
}

std::vector<std::string> names_with(const MemoryDisk& disk, const std::string& beginning) {
  std::vector<std::string> names = disk.names();
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(beginning); });
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return std::pair(a.size(), a) < std::pair(b.size(), b); });
  return names;
}

TEST(DiskStorage, new_directory_has_nothing) {
  Saved saved;
  EXPECT_EQ(load(std::make_shared<MemoryDisk>(), saved), "");
  EXPECT_EQ(saved.term, 0u);
  EXPECT_EQ(saved.vote, 0u);
  EXPECT_EQ(saved.snapshot, nullptr);
  EXPECT_EQ(saved.first_index, 1u);
  EXPECT_TRUE(saved.entries.empty());
}

TEST(DiskStorage, all_is_found_again) {
  const auto disk = some_disk();
  ASSERT_GE(names_with(*disk, "log-").size(), 3u);
  Saved saved;
  ASSERT_EQ(load(disk, saved), "");
  EXPECT_EQ(saved.term, 1u);
  EXPECT_EQ(saved.vote, 3u);
  ASSERT_NE(saved.snapshot, nullptr);
  EXPECT_EQ(saved.snapshot->index, 4u);
  EXPECT_EQ(saved.snapshot->bytes, "state after 4");
  ASSERT_EQ(saved.entries.size(), 18u);
  EXPECT_EQ(saved.entries[16].bytes, "entry 8");
  EXPECT_EQ(saved.entries[17].bytes, "");
  EXPECT_EQ(saved.entries[17].term, 1u);
}

TEST(DiskStorage, dropped_entries_leave_the_disk_file_by_file) {
  const auto disk = some_disk();
  const size_t files = names_with(*disk, "log-").size();
  {
    Replica replica(open(disk));
    ASSERT_EQ(replica.load(), "");
    ASSERT_EQ(replica.drop_before(5), "");
  }
  EXPECT_LT(names_with(*disk, "log-").size(), files);
  Saved saved;
  ASSERT_EQ(load(disk, saved), "");
  EXPECT_LE(saved.first_index, 5u);
  EXPECT_GT(saved.first_index, 1u);
  EXPECT_EQ(saved.first_index + saved.entries.size(), 19u);
}

TEST(DiskStorage, every_truncation_is_found_again) {
  for (uint64_t index = 5; index <= 18; index++) {
    const auto disk = some_disk();
    {
      Replica replica(open(disk));
      ASSERT_EQ(replica.load(), "");
      ASSERT_EQ(replica.truncate(index), "");
      ASSERT_EQ(replica.append({"another"}), "");
      ASSERT_EQ(replica.sync(), "");
    }
    Saved saved;
    ASSERT_EQ(load(disk, saved), "");
    ASSERT_EQ(saved.entries.size(), index);
    EXPECT_EQ(saved.entries.back().bytes, "another");
  }
}

TEST(DiskStorage, log_begins_again_after_the_snapshot_of_another) {
  const auto disk = some_disk();
  {
    Replica replica(open(disk));
    ASSERT_EQ(replica.load(), "");
    ASSERT_EQ(replica.put_snapshot(100), "");
    ASSERT_EQ(replica.restart_log(101), "");
    ASSERT_EQ(replica.append({"first"}), "");
    ASSERT_EQ(replica.sync(), "");
  }
  Saved saved;
  ASSERT_EQ(load(disk, saved), "");
  EXPECT_EQ(saved.first_index, 101u);
  ASSERT_EQ(saved.entries.size(), 1u);
  EXPECT_EQ(names_with(*disk, "").size(), 3u);
}

TEST(DiskStorage, log_that_does_not_fit_the_snapshot_is_dropped) {
  for (const uint64_t index : {7u, 100u}) {  // an index in another term, and an index beyond the end
    const auto disk = some_disk();
    {
      Replica replica(open(disk));
      ASSERT_EQ(replica.load(), "");
      replica.model.term = 5;
      ASSERT_EQ(replica.put_snapshot(index), "");
    }
    Saved saved;
    ASSERT_EQ(load(disk, saved), "");
    EXPECT_EQ(saved.first_index, index + 1);
    EXPECT_TRUE(saved.entries.empty());
  }
}

// ---- Damage ----

/// Loads a copy of the disk with this change of the file. Returns the text of the error.
template <class Change>
std::string load_changed(const MemoryDisk& disk, const std::string& name, Change change, Saved& saved) {
  const auto changed = share(disk.copy());
  change(*changed->bytes_of(name));
  return load(changed, saved);
}

TEST(DiskStorage, every_changed_byte_of_every_file_is_found_and_the_file_named) {
  const auto disk = some_disk();
  size_t changes = 0;
  for (const std::string& name : disk->names()) {
    const std::string original = *disk->bytes_of(name);
    for (size_t i = 0; i < original.size(); i++) {
      for (const int mask : {0x01, 0x80, 0xff, int{static_cast<uint8_t>(original[i])}}) {
        if (mask == 0) continue;
        Saved saved;
        const std::string problem = load_changed(
            *disk, name, [&](std::string& bytes) { bytes[i] = static_cast<char>(bytes[i] ^ mask); }, saved);
        ASSERT_NE(problem.find("disk/" + name + " "), std::string::npos) << name << " byte " << i << ": " << problem;
        ASSERT_NE(problem.find("add it again with an empty directory"), std::string::npos) << problem;
        changes++;
      }
    }
  }
  EXPECT_GT(changes, 3000u);
}

/// Cuts the last log file to this length, or fills the rest with zeros. The storage must continue from a beginning of
/// its log.
void expect_cut(const MemoryDisk& disk, size_t length, bool has_zeros) {
  const std::string last = names_with(disk, "log-").back();
  Saved whole;
  ASSERT_EQ(load(share(disk.copy()), whole), "");
  const auto changed = share(disk.copy());
  std::string& bytes = *changed->bytes_of(last);
  const size_t full = bytes.size();
  bytes.resize(length);
  if (has_zeros) bytes.resize(full);
  Replica replica(open(changed));
  ASSERT_EQ(replica.load(), "") << length;
  const auto& found = replica.model.entries;
  ASSERT_LE(found.size(), whole.entries.size());
  ASSERT_EQ(found.size() < whole.entries.size(), length < full);
  for (size_t i = 0; i < found.size(); i++) ASSERT_EQ(found[i].bytes, whole.entries[i].bytes);
  // The storage continues from there.
  ASSERT_EQ(replica.append({"new"}), "");
  ASSERT_EQ(replica.sync(), "");
  Saved after;
  ASSERT_EQ(load(changed, after), "");
  ASSERT_EQ(after.entries.size(), found.size());
  ASSERT_EQ(after.entries.back().bytes, "new");
}

TEST(DiskStorage, torn_end_of_the_log_is_cut_off_at_every_byte) {
  const auto disk = some_disk();
  const size_t full = disk->bytes_of(names_with(*disk, "log-").back())->size();
  ASSERT_GT(full, 100u);
  for (size_t length = replicated::disk::kLogHeadBytes; length <= full; length++) {
    ASSERT_NO_FATAL_FAILURE(expect_cut(*disk, length, false));
  }
  for (size_t length = replicated::disk::kLogHeadBytes; length < full; length += 8) {
    ASSERT_NO_FATAL_FAILURE(expect_cut(*disk, length, true));
  }
}

TEST(DiskStorage, file_that_is_short_is_named) {
  const auto disk = some_disk();
  const std::string last = names_with(*disk, "log-").back();
  for (const std::string& name : disk->names()) {
    const size_t full = name == last ? replicated::disk::kLogHeadBytes : disk->bytes_of(name)->size();
    for (size_t length = 0; length < full; length++) {
      Saved saved;
      const std::string problem = load_changed(
          *disk, name, [length](std::string& bytes) { bytes.resize(length); }, saved);
      ASSERT_NE(problem.find("disk/" + name + " "), std::string::npos) << name << " of " << length << ": " << problem;
    }
  }
}

TEST(DiskStorage, file_that_is_missing_is_named) {
  const auto disk = some_disk();
  for (const std::string& name : disk->names()) {
    const auto changed = share(disk->copy());
    changed->forget(name);
    Saved saved;
    const std::string problem = load(changed, saved);
    EXPECT_NE(problem.find("disk/" + name + " is missing"), std::string::npos) << name << ": " << problem;
  }
}

TEST(DiskStorage, swapped_files_are_detected) {
  const auto disk = some_disk();
  const auto logs = names_with(*disk, "log-");
  std::swap(*disk->bytes_of(logs[0]), *disk->bytes_of(logs[1]));
  Saved saved;
  EXPECT_NE(load(disk, saved).find(logs[0] + " is damaged at its beginning"), std::string::npos);
}

TEST(DiskStorage, foreign_content_with_right_checksums_is_named) {
  namespace disk = replicated::disk;
  const auto with = [](const std::string& name, const std::string& bytes) {
    auto changed = share(some_disk()->copy());
    *changed->bytes_of(name) = bytes;
    Saved saved;
    return load(changed, saved);
  };
  const auto original = some_disk();
  const uint64_t first = disk::parse_log(*original->bytes_of("log-2"), 2)->first_index;
  const auto record = [&](uint64_t term, uint16_t type) {
    std::string bytes = disk::encode_log_head(2, first);
    disk::encode_record(first, {term, type, {}}, bytes);
    return bytes;
  };
  EXPECT_THAT(with("state", disk::encode(disk::State{1, 0, 3, 2, 1})), HasSubstr("disk/state is damaged")) << "no log";
  EXPECT_THAT(with("state", disk::encode(disk::State{1, 0, 0, 2, 1})), HasSubstr("disk/state is damaged"));
  EXPECT_THAT(with("state", disk::encode(disk::State{1, 0, 1, UINT64_MAX, 1})), HasSubstr("disk/state is damaged"));
  EXPECT_THAT(
      with("snapshot-1", disk::encode_snapshot_head({UINT64_MAX, 1, 1, "", ""}) +
                             disk::encode_snapshot_end({}, disk::encode_snapshot_head({UINT64_MAX, 1, 1, "", ""}))),
      HasSubstr("disk/snapshot-1 is damaged"));
  EXPECT_THAT(with("log-1", disk::encode_log_head(1, UINT64_MAX)), HasSubstr("disk/log-1 is damaged at its beginning"));
  EXPECT_THAT(with("log-1", disk::encode_log_head(1, 0)), HasSubstr("disk/log-1 is damaged at its beginning"));
  EXPECT_THAT(with("log-2", record(1, 7)), HasSubstr("disk/log-2 is damaged at byte 32"));
  EXPECT_THAT(with("log-2", record(0, 1)), HasSubstr("disk/log-2 is damaged at byte 32"));
}

// ---- Crashes and full disks ----

/// Runs the operations of a replica up to the first error.
std::string live(Replica& replica) {
  std::string problem = replica.load();
  const auto step = [&](auto function) {
    if (problem.empty()) problem = function();
  };
  step([&] { return replica.set_term(1); });
  step([&] { return replica.set_vote(2); });
  step([&] { return replica.append({"one", "two"}); });
  step([&] { return replica.sync(); });
  for (int i = 0; i < 6; i++) {
    step([&] { return replica.append({std::string(40, static_cast<char>('a' + i))}); });
    step([&] { return replica.append({"short"}); });
    step([&] { return replica.sync(); });
  }
  step([&] { return replica.set_term(2); });
  step([&] { return replica.truncate(13); });
  step([&] { return replica.append({"after"}); });
  step([&] { return replica.sync(); });
  step([&] { return replica.truncate(4); });
  step([&] { return replica.append({"unsynced"}); });
  step([&] { return replica.truncate(4); });
  step([&] { return replica.append({std::string(200, 'x'), "y"}); });
  step([&] { return replica.sync(); });
  step([&] { return replica.put_snapshot(4); });
  step([&] { return replica.drop_before(4); });
  step([&] { return replica.append({std::string(200, 'z')}); });
  step([&] { return replica.set_vote(1); });
  step([&] { return replica.sync(); });
  step([&] { return replica.put_snapshot(5); });
  step([&] { return replica.drop_before(6); });
  step([&] { return replica.put_snapshot(50); });
  step([&] { return replica.restart_log(51); });
  step([&] { return replica.append({"end"}); });
  step([&] { return replica.sync(); });
  return problem;
}

/// Calls `look(choose)` with every possible sequence of choices.
template <class Look>
size_t for_every_choice(Look look) {
  std::vector<std::pair<size_t, size_t>> choices;  // the choice taken, and the number of choices
  size_t rounds = 0;
  do {
    size_t at = 0;
    look([&](size_t count) {
      if (at == choices.size()) choices.emplace_back(0, count);
      return choices[at++].first;
    });
    rounds++;
    while (!choices.empty() && choices.back().first + 1 == choices.back().second) choices.pop_back();
    if (!choices.empty()) choices.back().first++;
  } while (!choices.empty() && !testing::Test::HasFatalFailure());
  return rounds;
}

/// Checks that the disk holds the promised data, with or without the failed operation, and that the storage continues.
void expect_recovery(const std::shared_ptr<MemoryDisk>& disk, const Replica& dead) {
  Replica replica(open(disk));
  ASSERT_EQ(replica.load(), "");
  ASSERT_EQ(dead.judge(replica.model), "");
  ASSERT_EQ(replica.set_term(9), "");
  ASSERT_EQ(replica.append({"new"}), "");
  ASSERT_EQ(replica.sync(), "");
  Replica again(open(disk));
  ASSERT_EQ(again.load(), "");
  ASSERT_EQ(replica.judge(again.model), "");
  ASSERT_EQ(again.model.entries.back().bytes, "new");
}

TEST(DiskStorage, crash_after_every_operation_keeps_all_promised_data) {
  size_t crashes = 0, operations = 0;
  for (bool has_ended = false; !has_ended; operations++) {
    auto disk = std::make_shared<MemoryDisk>();
    disk->fail_after(operations, EIO);
    Replica replica(open(disk));
    has_ended = live(replica).empty();
    crashes += for_every_choice(
        [&](const MemoryDisk::Choose& choose) { expect_recovery(share(disk->after_crash(choose)), replica); });
    if (HasFatalFailure()) FAIL() << "after " << operations << " operations";
  }
  EXPECT_GT(operations, 100u);
  EXPECT_GT(crashes, 500u);
}

/// Calls `look(disk, replica, problem)` after a replica's life that ends with a failure, for each operation that may be
/// the first to fail, and after one without a failure. The disk works again then.
template <class Look>
void for_every_failure(int error, Look look) {
  for (size_t operations = 0;; operations++) {
    auto disk = std::make_shared<MemoryDisk>();
    disk->fail_after(operations, error);
    Replica replica(open(disk));
    const std::string problem = live(replica);
    disk->work_again();
    look(disk, replica, problem);
    if (problem.empty() || testing::Test::HasFatalFailure()) return;
  }
}

TEST(DiskStorage, kill_after_every_operation_keeps_all_promised_data) {
  for_every_failure(EIO,
                    [](const auto& disk, const Replica& killed, const std::string&) { expect_recovery(disk, killed); });
}

/// A replica tells others what it has loaded, so that must outlast a loss of power.
TEST(DiskStorage, data_that_a_run_finds_after_a_kill_is_durable) {
  for_every_failure(EIO, [](const auto& disk, const Replica&, const std::string& problem) {
    Replica replica(open(disk));
    ASSERT_EQ(replica.load(), "") << problem;
    for_every_choice([&](const MemoryDisk::Choose& choose) {
      Replica again(open(share(disk->after_crash(choose))));
      ASSERT_EQ(again.load(), "") << problem;
      ASSERT_EQ(replica.judge(again.model), "") << problem;
    });
  });
}

TEST(DiskStorage, crash_after_every_operation_of_a_load_keeps_what_a_killed_run_has_promised) {
  bool is_cut = true;
  for (size_t operations = 0; is_cut; operations++) {
    is_cut = false;
    for_every_failure(EIO, [&](const auto& disk, const Replica& killed, const std::string&) {
      disk->fail_after(operations, EIO);
      is_cut |= !Replica(open(disk)).load().empty();
      disk->work_again();
      for_every_choice(
          [&](const MemoryDisk::Choose& choose) { expect_recovery(share(disk->after_crash(choose)), killed); });
    });
    if (HasFatalFailure()) FAIL() << "after " << operations << " operations";
  }
}

/// What could not be made durable is not there, so that a later run does not take it for durable.
TEST(DiskStorage, records_whose_sync_failed_are_not_found_again) {
  auto disk = std::make_shared<MemoryDisk>();
  Replica replica(open(disk));
  ASSERT_EQ(replica.load(), "");
  ASSERT_EQ(replica.append({"never durable"}), "");
  disk->fail_once_after(1, EIO);  // the sync after the write
  ASSERT_NE(replica.sync(), "");
  Saved saved;
  ASSERT_EQ(load(disk, saved), "");
  EXPECT_TRUE(saved.entries.empty());
}

TEST(DiskStorage, full_disk_is_said_and_nothing_is_lost) {
  size_t sentences = 0;
  for_every_failure(ENOSPC, [&](const auto& disk, const Replica& replica, const std::string& problem) {
    ASSERT_NO_FATAL_FAILURE(expect_recovery(disk, replica)) << problem;
    if (problem.empty()) return;
    sentences++;
    ASSERT_NE(problem.find("cannot write disk/"), std::string::npos) << problem;
    ASSERT_NE(problem.find("No space left on device"), std::string::npos) << problem;
    ASSERT_NE(problem.find("Make room on the disk, and start the replica again"), std::string::npos) << problem;
  });
  EXPECT_GT(sentences, 30u);
}

}  // namespace
}  // namespace raft_test
