// The store of kv: versions, capacity, and the data that outlive a process that is killed.

#include <gtest/gtest.h>

#ifdef TERN_HAS_LMDB

#include "../apps/kv/store.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "../apps/kv/workload.h"
#include "own_folder.h"

using namespace kv;

namespace {

constexpr size_t kMiB = 1u << 20;

constexpr const char* kFolder = "/dev/shm/tern-kv-test";

Store::Outcome put(Store& store, uint64_t key, uint64_t version, size_t len_bytes, uint64_t* stored = nullptr) {
  std::vector<std::byte> value(len_bytes);
  fill_value(value, key, version);
  uint64_t ignored;
  return store.put({key, version, value}, stored != nullptr ? *stored : ignored);
}

Record get(Store& store, uint64_t key) {
  Record record;
  EXPECT_EQ(store.get(key, record), Store::Outcome::kDone);
  EXPECT_EQ(damage_in(record.value, key, record.version), record.value.size());
  return record;
}

}  // namespace

TEST(KvStore, put__the_newest_version_stays) {
  Stores stores;
  ASSERT_EQ(stores.open("", 1, 8 * kMiB), "");
  Store& store = stores[0];
  EXPECT_EQ(get(store, 5).version, 0u);
  uint64_t stored = 0;
  EXPECT_EQ(put(store, 5, 3, 100, &stored), Store::Outcome::kDone);
  EXPECT_EQ(stored, 3u);
  EXPECT_EQ(put(store, 5, 2, 200, &stored), Store::Outcome::kDone);
  EXPECT_EQ(stored, 3u);
  EXPECT_EQ(put(store, 5, 3, 200, &stored), Store::Outcome::kDone);
  EXPECT_EQ(get(store, 5).value.size(), 100u) << "an older PUT, or the same again, changes nothing";
  EXPECT_EQ(put(store, 5, 4, 0, &stored), Store::Outcome::kDone);
  EXPECT_EQ(stored, 4u);
  EXPECT_EQ(get(store, 5).value.size(), 0u);
}

TEST(KvStore, put__refused_when_full_and_nothing_is_lost) {
  Stores stores;
  ASSERT_EQ(stores.open("", 1, kMiB), "");
  Store& store = stores[0];
  std::map<uint64_t, uint64_t> versions;
  std::mt19937_64 random(1);
  int refused = 0;
  for (int i = 0; i < 5000; i++) {
    const uint64_t key = random() % 500;
    const uint64_t version = versions[key] + 1;
    const auto outcome = put(store, key, version, 1 + random() % 10000);
    ASSERT_NE(outcome, Store::Outcome::kFailed);
    if (outcome == Store::Outcome::kDone) versions[key] = version;
    if (outcome == Store::Outcome::kFull) refused++;
  }
  EXPECT_GT(refused, 0);
  for (const auto& [key, version] : versions) EXPECT_EQ(get(store, key).version, version) << key;
}

TEST(KvStore, open__twice_or_with_other_partitions) {
  const tern::test::OwnFolder directory(kFolder);
  {
    Stores stores;
    ASSERT_EQ(stores.open(directory.path(), 2, 8 * kMiB), "");
    EXPECT_EQ(put(stores[1], 5, 3, 100), Store::Outcome::kDone);
    EXPECT_EQ(Stores().open(directory.path(), 2, 8 * kMiB),
              "another server uses the store at " + directory.path() + "; give each server its own --store");
  }
  EXPECT_NE(Stores().open(directory.path(), 3, 8 * kMiB).find("another --server_threads"), std::string::npos);
  Stores stores;
  ASSERT_EQ(stores.open(directory.path(), 2, 8 * kMiB), "");
  EXPECT_EQ(get(stores[1], 5).version, 3u);
}

TEST(KvStore, open__without_space_is_refused) {
  Stores stores;
  const std::string problem = stores.open("", 1, size_t{1} << 46);
  EXPECT_NE(problem, "") << "a store beyond the machine's memory would die of SIGBUS later";
  EXPECT_NE(Stores().open("/nowhere/kv", 1, kMiB), "");
  const std::string own = "tern-kv." + std::to_string(getpid());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(own)) << entry.path();
  }
}

/// The child notes each version that is committed. The kill comes at a different moment in each round, in any
/// instruction.
TEST(KvStore, committed_writes_outlive_a_kill) {
  constexpr uint64_t kKeys = 32;
  struct Board {
    std::atomic<uint64_t> committed[kKeys];
    std::atomic<uint64_t> puts;
  };
  auto* board =
      static_cast<Board*>(mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(board, MAP_FAILED);
  const tern::test::OwnFolder directory(kFolder);
  std::mt19937_64 random(7);
  for (int round = 0; round < 30; round++) {
    const uint64_t puts_before = board->puts;
    const pid_t child = fork();
    if (child == 0) {
      Stores stores;
      if (!stores.open(directory.path(), 1, 8 * kMiB).empty()) _exit(1);
      for (std::mt19937_64 own(round);; board->puts++) {
        const uint64_t key = own() % kKeys;
        const uint64_t version = board->committed[key] + 1;
        if (put(stores[0], key, version, own() % 9000) != Store::Outcome::kDone) _exit(1);
        board->committed[key] = version;
      }
    }
    while (board->puts < puts_before + 50 && waitpid(child, nullptr, WNOHANG) == 0) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    ASSERT_GE(board->puts, puts_before + 50) << "the child ended by itself";

    Stores stores;
    ASSERT_EQ(stores.open(directory.path(), 1, 8 * kMiB), "");
    for (uint64_t key = 0; key < kKeys; key++) {
      const uint64_t version = get(stores[0], key).version;
      EXPECT_GE(version, board->committed[key]) << "key " << key;
      EXPECT_LE(version, board->committed[key] + 1) << "key " << key;
      board->committed[key] = version;
    }
  }
  munmap(board, sizeof(Board));
}

#else

TEST(KvStore, all) { GTEST_SKIP() << "lmdb is not installed: scripts/setup programs"; }

#endif
