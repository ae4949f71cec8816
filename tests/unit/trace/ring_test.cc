// The ring of a trace: wrap-around, readers during writes, and the file of a dump.
#include "trace/ring.h"

#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/status_text.h"
#include "own_folder.h"
#include "trace/dump.h"
#include "unit/trace/dump_reader.h"

namespace tern::trace {
namespace {

std::unique_ptr<Ring> make(size_t records) { return Ring::create(records, "127.0.0.1:1", "udp", 7); }

/// Returns a record with `number` in each word.
Record record_of(uint64_t number) {
  Record record;
  record.time_ns = number;
  record.session = record.own_key = record.request = record.packet = record.value = static_cast<uint32_t>(number);
  record.kind = Kind::kSent;
  return record;
}
bool is_whole(const Record& record) {
  const auto number = static_cast<uint32_t>(record.time_ns);
  return record.session == number && record.own_key == number && record.request == number && record.packet == number &&
         record.value == number && record.kind == Kind::kSent;
}

struct Folder : test::OwnFolder {
  Folder() : OwnFolder(::testing::TempDir() + "tern-trace-test") {}
};

TEST(Ring, size_is_rounded_up_to_a_power_of_two) {
  EXPECT_EQ(make(1)->capacity(), 1u);
  EXPECT_EQ(make(100)->capacity(), 128u);
}

TEST(Ring, full_ring_keeps_the_newest_in_order) {
  auto ring = make(128);
  for (uint64_t i = 0; i < 1000; i++) ring->put(record_of(i));
  uint64_t from = 0;
  std::array<Record, 64> records;
  // A copy omits the record that a writer may be replacing now.
  uint64_t next = 1000 - 127;
  while (const size_t count = ring->copy(from, 1000, records)) {
    EXPECT_EQ(from, next);
    for (size_t i = 0; i < count; i++) {
      EXPECT_EQ(records[i].time_ns, next++);
      EXPECT_TRUE(is_whole(records[i]));
    }
    from += count;
  }
  EXPECT_EQ(next, 1000u);
}

TEST(Ring, dump_has_header_names_and_records) {
  Folder folder;
  auto ring = make(64);
  for (uint64_t i = 0; i < 10; i++) ring->put(record_of(i));
  ASSERT_TRUE(dump(*ring, folder.file("a")).ok());
  const Dump read = read_dump(folder.file("a"));
  ASSERT_TRUE(read.is_whole);
  EXPECT_EQ(read.header.pid, static_cast<uint64_t>(getpid()));
  EXPECT_NE(read.names.find("kind 3 sent\n"), std::string::npos);
  ASSERT_EQ(read.rings.size(), 1u);
  EXPECT_EQ(read.rings[0].header.endpoint, 7);
  EXPECT_STREQ(read.rings[0].header.nexus.data(), "127.0.0.1:1");
  EXPECT_STREQ(read.rings[0].header.transport.data(), "udp");
  EXPECT_EQ(read.rings[0].header.records, 10u);
  ASSERT_EQ(read.rings[0].records.size(), 10u);
  for (uint64_t i = 0; i < 10; i++) EXPECT_EQ(read.rings[0].records[i].time_ns, i);
  const auto mode = std::filesystem::status(folder.file("a")).permissions();
  EXPECT_EQ(mode, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST(Ring, dump_over_an_older_file_of_another_mode_makes_it_private) {
  using std::filesystem::perms;
  Folder folder;
  auto ring = make(64);
  std::ofstream(folder.file("c")) << "older";
  std::filesystem::permissions(folder.file("c"), perms::owner_all | perms::group_all | perms::others_all);
  ASSERT_TRUE(dump(*ring, folder.file("c")).ok());
  EXPECT_TRUE(read_dump(folder.file("c")).is_whole);
  EXPECT_EQ(std::filesystem::status(folder.file("c")).permissions(), perms::owner_read | perms::owner_write);
}

TEST(Ring, dump_to_a_missing_folder_fails_with_the_reason) {
  auto ring = make(64);
  const Status status = dump(*ring, "/nowhere/at/all");
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("No such file or directory"), std::string_view::npos) << status.message();
}

TEST(Ring, many_failed_dumps_leave_space_for_the_texts_of_others) {
  auto ring = make(64);
  for (size_t i = 0; i < base::kStatusTextsMax + 10; i++) {
    EXPECT_FALSE(dump(*ring, "/nowhere/" + std::to_string(i)).ok());
  }
  EXPECT_EQ(base::status_of(Code::kMisuse, "short", {"long"}).message(), "long");
}

TEST(Ring, dump_to_another_kind_of_file_is_refused) {
  Folder folder;
  auto ring = make(64);
  const std::string fifo = folder.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(dump(*ring, fifo).message(), "the file for the trace cannot be written: it is not a regular file");
  const base::Descriptor reader(open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(reader);
  EXPECT_EQ(dump(*ring, fifo).message(), "the file for the trace cannot be written: it is not a regular file");
  EXPECT_FALSE(dump(*ring, folder.path()).ok());
}

/// Returns body(), which runs with a limit of file sizes between those of a trace's header and its records.
template <class Body>
Status with_small_files(Body body) {
  rlimit before;
  EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few = {.rlim_cur = 16384, .rlim_max = before.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  const Status status = body();
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  return status;
}

TEST(Ring, dump_above_the_limit_of_file_sizes_fails_without_a_signal) {
  Folder folder;
  auto ring = make(1024);
  for (uint64_t i = 0; i < 1024; i++) ring->put(record_of(i));
  const Status status = with_small_files([&] { return dump(*ring, folder.file("d")); });
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.message().find("File too large"), std::string_view::npos) << status.message();
}

TEST(Ring, failed_dump_into_a_folder_leaves_no_file) {
  Folder folder;
  auto ring = make(1024);
  for (uint64_t i = 0; i < 1024; i++) ring->put(record_of(i));
  EXPECT_FALSE(with_small_files([&] { return dump_into(*ring, folder.path()); }).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

/// The writer does not stop. Each copied record is whole, and the records are in order.
TEST(Ring, dumps_of_another_thread_have_whole_records_in_order) {
  Folder folder;
  auto ring = make(256);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (uint64_t i = 0; !is_over.load(std::memory_order_relaxed); i++) ring->put(record_of(i));
  });
  size_t seen = 0;
  for (int round = 0; round < 200 || seen == 0; round++) {
    ASSERT_TRUE(dump(*ring, folder.file("b")).ok());
    const Dump read = read_dump(folder.file("b"));
    ASSERT_TRUE(read.is_whole);
    uint64_t next = 0;
    for (const Record& record : read.rings.at(0).records) {
      ASSERT_TRUE(is_whole(record));
      ASSERT_GE(record.time_ns, next);
      next = record.time_ns + 1;
      seen++;
    }
  }
  is_over = true;
  writer.join();
}

TEST(RingDeathTest, failed_check_writes_all_rings_and_names_the_file) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr const char* kVariable = "TERN_TRACE_TEST_FOLDER";  // for the process that runs this case again, and fails
  std::optional<Folder> folder;
  if (std::getenv(kVariable) == nullptr) setenv(kVariable, folder.emplace().path().c_str(), 1);
  const std::string path = std::getenv(kVariable);
  const auto fail = [&] {
    std::filesystem::current_path(path);
    auto first = make(64), second = Ring::create(64, "127.0.0.1:2", "shm", 9);
    { auto gone = make(64); }
    first->put(record_of(1));
    second->put(record_of(2));
    second->put(record_of(3));
    CHECK(1, ==, 2);
  };
  EXPECT_DEATH(fail(), "CHECK failed: 1 == 2 .*\n.*traces of this process's endpoints are in ./tern-trace-[0-9]+-0 ");
  unsetenv(kVariable);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 1u);
  const Dump read = read_dump(files[0]);
  ASSERT_TRUE(read.is_whole);
  ASSERT_EQ(read.rings.size(), 2u);
  EXPECT_EQ(read.rings[0].header.endpoint, 9);
  ASSERT_EQ(read.rings[0].records.size(), 2u);
  EXPECT_EQ(read.rings[0].records[1].time_ns, 3u);
  EXPECT_EQ(read.rings[1].header.endpoint, 7);
  EXPECT_EQ(read.rings[1].records.size(), 1u);
}

/// The exit code of fail_on_full_disk() if the process may not mount.
constexpr int kNotHere = 77;

/// Number of files and folders for which the working directory's file system has space. Signal handlers may call it.
uint64_t free_files() {
  struct statfs about;
  return statfs(".", &about) == 0 ? about.f_ffree : 0;
}
uint64_t free_files_before = 0;

/// In a child process: fails a CHECK in a working directory that has no space for the trace. The exit code is 0 if that
/// directory is empty afterwards.
[[noreturn]] void fail_on_full_disk(const std::string& folder) {
  const bool is_set = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                      mount("none", folder.c_str(), "tmpfs", 0, "size=16k") == 0 && chdir(folder.c_str()) == 0;
  if (!is_set) _exit(kNotHere);
  free_files_before = free_files();
  std::signal(SIGABRT, [](int) { _exit(free_files() == free_files_before ? 0 : 1); });
  if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(3);
  auto ring = make(1024);
  for (uint64_t i = 0; i < 1024; i++) ring->put(record_of(i));
  CHECK(1, ==, 2);
  _exit(2);
}

TEST(Ring, failed_check_on_a_full_disk_writes_the_rings_to_tmp) {
  Folder folder;
  const pid_t child = fork();
  if (child == 0) fail_on_full_disk(folder.path());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNotHere) GTEST_SKIP() << "no rights to mount a full disk";
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "a part of a trace is left";
  const std::string path = "/tmp/tern-trace-" + std::to_string(child) + "-0";
  EXPECT_TRUE(read_dump(path).is_whole);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tern::trace
