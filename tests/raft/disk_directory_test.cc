// The storage on a disk of this machine: every kind of sync, a full disk, two replicas in one directory, and snapshots
// that a thread writes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "../apps/raft/disk_storage.h"
#include "own_folder.h"
#include "raft/storage_model.h"

namespace raft_test {
namespace {

using replicated::DiskStorage;
using replicated::Saved;
using replicated::Snapshot;
using replicated::Sync;

/// A temporary directory, which is removed with this object.
class Folder : public tern::test::OwnFolder {
 public:
  Folder() : OwnFolder(testing::TempDir() + "raft-disk") {}
};

std::unique_ptr<DiskStorage> open(const std::string& path, Sync sync = Sync::kData, bool has_thread = false) {
  std::string problem;
  auto directory = replicated::open_directory(path, sync, problem);
  EXPECT_EQ(problem, "");
  if (directory == nullptr) return nullptr;
  return std::make_unique<DiskStorage>(std::move(directory),
                                       replicated::DiskOptions{.log_bytes_max = 4096, .has_thread = has_thread});
}

TEST(DiskDirectory, all_is_found_again_with_every_kind_of_sync) {
  for (const Sync sync : {Sync::kNever, Sync::kData, Sync::kWrite}) {
    const Folder folder;
    const std::string path = folder.path() + "/replica";  // open() creates it
    {
      Replica replica(open(path, sync));
      ASSERT_EQ(replica.load(), "");
      ASSERT_EQ(replica.set_term(3), "");
      ASSERT_EQ(replica.set_vote(2), "");
      for (int i = 0; i < 100; i++) {
        ASSERT_EQ(replica.append({"entry", std::string(100, 'x')}), "");
        ASSERT_EQ(replica.sync(), "");
      }
      ASSERT_EQ(replica.put_snapshot(150), "");
      ASSERT_EQ(replica.drop_before(140), "");
      ASSERT_EQ(replica.truncate(180), "");
    }
    Replica replica(open(path, sync));
    ASSERT_EQ(replica.load(), "");
    EXPECT_EQ(replica.model.term, 3u);
    EXPECT_EQ(replica.model.vote, 2u);
    EXPECT_EQ(replica.model.snapshot, 150u);
    EXPECT_EQ(replica.model.next_index(), 180u);
    EXPECT_GT(replica.model.first_index, 100u);
    EXPECT_LE(replica.model.first_index, 140u);
  }
}

TEST(DiskDirectory, second_replica_in_a_directory_is_refused) {
  const Folder folder;
  const auto first = open(folder.path());
  std::string problem;
  EXPECT_EQ(replicated::open_directory(folder.path(), Sync::kData, problem), nullptr);
  EXPECT_EQ(problem, "the directory " + folder.path() +
                         " cannot be used: another replica uses it; give each replica its own directory");
}

TEST(DiskDirectory, directory_that_cannot_be_made_is_named) {
  const Folder folder;
  std::string problem;
  EXPECT_EQ(replicated::open_directory(folder.path() + "/a/b", Sync::kData, problem), nullptr);
  EXPECT_EQ(problem, "the directory " + folder.path() + "/a/b cannot be used: No such file or directory");
}

/// Appends until the disk refuses. Then opens the storage again and looks for all promised entries.
void expect_said_and_nothing_lost(const std::string& path, const std::string& reason) {
  Model promised;
  std::string problem;
  {
    Replica replica(open(path));
    ASSERT_EQ(replica.load(), "");
    ASSERT_EQ(replica.set_term(1), "");
    while (problem.empty() && replica.model.entries.size() < 10'000) {
      promised = replica.model;
      problem = replica.append({std::string(300, 'x')});
      if (problem.empty()) problem = replica.sync();
    }
  }
  EXPECT_NE(problem.find("cannot write " + path + "/"), std::string::npos) << problem;
  EXPECT_NE(problem.find(reason + ". Nothing that was acknowledged is lost. Make room"), std::string::npos) << problem;
  Replica again(open(path));
  ASSERT_EQ(again.load(), "");
  EXPECT_GT(promised.entries.size(), 20u);
  EXPECT_GE(again.model.entries.size(), promised.entries.size());
}

TEST(DiskDirectory, full_disk_is_said_and_nothing_is_lost) {
  const Folder folder;
  if (mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "SKIPPED: to mount a small disk takes root";
  }
  expect_said_and_nothing_lost(folder.path() + "/replica", "No space left on device");
  EXPECT_EQ(umount(folder.path().c_str()), 0);
}

TEST(DiskDirectory, longest_file_that_is_allowed_is_said_and_nothing_is_lost) {
  const Folder folder;
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    std::string problem;
    {
      Replica replica(open(folder.path()));
      problem = replica.load();
      if (problem.empty()) problem = replica.set_term(1);
      const rlimit limit{3000, 3000};
      if (!problem.empty() || setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
      while (problem.empty()) {
        problem = replica.append({std::string(300, 'x')});
        if (problem.empty()) problem = replica.sync();
      }
    }
    _exit(problem.find("log-1: File too large. Nothing") != std::string::npos ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  Replica again(open(folder.path()));
  ASSERT_EQ(again.load(), "");
  EXPECT_EQ(again.model.entries.size(), 2968u / 344);
}

TEST(DiskDirectory, file_that_cannot_be_read_is_named) {
  const Folder folder;
  ASSERT_EQ(mkdir((folder.path() + "/state").c_str(), 0700), 0);  // a directory in the place of the file
  Saved saved;
  const std::string problem = open(folder.path())->load(saved);
  EXPECT_NE(problem.find("cannot read " + folder.path() + "/state: Is a directory"), std::string::npos) << problem;
}

TEST(DiskDirectory, large_snapshot_is_written_while_the_log_goes_on) {
  const Folder folder;
  auto snapshot = std::make_shared<Snapshot>(Snapshot{
      .index = 5, .term = 1, .configuration_index = 1, .configuration = "c", .bytes = std::string(20u << 20, 's')});
  {
    const auto storage = open(folder.path(), Sync::kData, true);
    Saved saved;
    ASSERT_EQ(storage->load(saved), "");
    ASSERT_EQ(storage->set_term(1), "");
    const replicated::Entry entry{1, 1, replicated::as_bytes("entry")};
    const std::vector<replicated::Entry> entries(10, entry);
    ASSERT_EQ(storage->append(entries), "");
    ASSERT_EQ(storage->sync(), "");
    std::promise<std::string> done;
    storage->put_snapshot(snapshot, [&](std::string problem) { done.set_value(std::move(problem)); });
    for (uint64_t term = 2; term < 50; term++) {
      ASSERT_EQ(storage->set_term(term), "");
      ASSERT_EQ(storage->append(entries), "");
      ASSERT_EQ(storage->sync(), "");
    }
    EXPECT_EQ(done.get_future().get(), "");
  }
  Saved saved;
  ASSERT_EQ(open(folder.path())->load(saved), "");
  EXPECT_EQ(saved.term, 49u);
  EXPECT_EQ(saved.first_index + saved.entries.size(), 491u);
  ASSERT_NE(saved.snapshot, nullptr);
  EXPECT_EQ(saved.snapshot->bytes, snapshot->bytes);
}

/// The destructor waits for the snapshot.
TEST(DiskDirectory, snapshot_under_way_ends_before_the_storage) {
  const Folder folder;
  bool is_done = false;
  {
    const auto storage = open(folder.path(), Sync::kNever, true);
    Saved saved;
    ASSERT_EQ(storage->load(saved), "");
    storage->put_snapshot(std::make_shared<Snapshot>(Snapshot{
                              .index = 7, .term = 1, .configuration_index = 1, .configuration = "", .bytes = "s"}),
                          [&](const std::string& problem) { is_done = problem.empty(); });
  }
  EXPECT_TRUE(is_done);
  Saved saved;
  ASSERT_EQ(open(folder.path())->load(saved), "");
  ASSERT_NE(saved.snapshot, nullptr);
  EXPECT_EQ(saved.snapshot->index, 7u);
  EXPECT_EQ(saved.first_index, 8u);
}

}  // namespace
}  // namespace raft_test
