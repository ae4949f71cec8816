// Pages: other processes read the written values, after the writer's death and during writes, too. A file that is not a
// valid page is refused.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "own_folder.h"
#include "page/page_file.h"
#include "page/process.h"
#include "page/read.h"

namespace tern::page {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class Pages : public ::testing::Test {
 protected:
  std::string path(const char* name = "page") const { return folder_.file(name); }
  std::shared_ptr<PageFile> make(const std::string& option) {
    auto file = PageFile::create(option, "tern://127.0.0.1:31850");
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? *file : nullptr;
  }
  std::shared_ptr<PageFile> make() { return make(path()); }
  Page read(const std::string& file) {
    auto page = tern::read_page(file);
    EXPECT_TRUE(page.ok()) << page.status().message();
    return page.ok() ? std::move(*page) : Page();
  }
  static std::string bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  static void write(const std::string& file, std::string_view bytes) {
    std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  /// Changes the header of a file in place.
  template <class F>
  static void change_header(const std::string& file, F&& change) {
    std::string bytes = bytes_of(file);
    Header header;
    ASSERT_GE(bytes.size(), sizeof(header));
    std::memcpy(&header, bytes.data(), sizeof(header));
    change(header);
    std::memcpy(bytes.data(), &header, sizeof(header));
    write(file, bytes);
  }

 private:
  const test::OwnFolder folder_{::testing::TempDir() + "tern-page-test"};
};

constexpr uid_t kNobody = 65534;

using Words = std::array<uint64_t, sizeof(EndpointCounters) / sizeof(uint64_t)>;

/// Returns counters that all have different values.
EndpointCounters numbered() {
  Words values;
  for (size_t i = 0; i < values.size(); i++) values[i] = i + 1;
  return std::bit_cast<EndpointCounters>(values);
}

TEST_F(Pages, counters_of_the_table_are_read_under_their_names) {
  const auto file = make();
  const auto writer = file->add(7, "udp");
  ASSERT_NE(writer, nullptr);
  const EndpointCounters counters = numbered();
  writer->begin();
  writer->write_counters(counters);
  writer->end();
  const Page page = read(path());
  ASSERT_EQ(page.endpoints.size(), 1u);
  const PageEndpoint& endpoint = page.endpoints[0];
  EXPECT_EQ(endpoint.id, 7u);
  EXPECT_EQ(endpoint.transport, "udp");
  EXPECT_TRUE(endpoint.is_consistent);
  EXPECT_FALSE(endpoint.is_closed);
  EXPECT_GT(endpoint.published.count(), 0);
  ASSERT_EQ(page.counter_names.size(), kCounters);
  ASSERT_EQ(endpoint.counters.size(), kCounters);
  size_t index = 0;
  for_each_counter(counters, [&](const char* part, const char* name, const char*, uint64_t value) {
    ASSERT_LT(index, kCounters);
    EXPECT_EQ(page.counter_names[index], std::string(part) + "." + name);
    EXPECT_EQ(endpoint.counters[index], value) << name;
    index++;
  });
  EXPECT_EQ(index, kCounters);
  EXPECT_THAT(page.counter_names, Contains("transport.dropped_frames_other_mac"));
}

TEST_F(Pages, header_names_the_process) {
  const auto file = make();
  const Page page = read(path());
  EXPECT_EQ(page.pid, static_cast<uint64_t>(getpid()));
  EXPECT_EQ(page.life, PageLife::kAlive);
  EXPECT_EQ(page.uri, "tern://127.0.0.1:31850");
  EXPECT_FALSE(page.program.empty());
  EXPECT_FALSE(page.is_closed);
  struct stat about;
  ASSERT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 07777, 0600u);
}

TEST_F(Pages, shared_memory_is_found_and_goes_with_its_page) {
  auto file = make("shm");
  ASSERT_NE(file, nullptr);
  const std::string at = file->path();
  EXPECT_THAT(find_pages(), Contains(at));
  auto second = make("shm");
  EXPECT_NE(second->path(), at);
  second.reset();
  file.reset();
  EXPECT_THAT(find_pages(), Not(Contains(at)));
}

TEST_F(Pages, files_of_other_users_are_not_found) {
  const std::string at = shared_memory_prefix() + "0." + std::to_string(getpid()) + ".other";
  write(at, "");
  EXPECT_THAT(find_pages(), Contains(at));
  const bool is_given_away = chown(at.c_str(), kNobody, kNobody) == 0;
  const std::vector<std::string> found = find_pages();
  unlink(at.c_str());
  if (!is_given_away) GTEST_SKIP() << "no rights to give a file to another user";
  EXPECT_THAT(found, Not(Contains(at)));
}

TEST_F(Pages, named_file_stays_closed_and_is_replaced) {
  auto file = make();
  auto writer = file->add(1, "udp");
  writer.reset();
  file.reset();
  const Page page = read(path());
  EXPECT_TRUE(page.is_closed);
  ASSERT_EQ(page.endpoints.size(), 1u);
  EXPECT_TRUE(page.endpoints[0].is_closed);
  file = make();
  EXPECT_FALSE(read(path()).is_closed);
  EXPECT_TRUE(read(path()).endpoints.empty());
}

TEST_F(Pages, page_of_a_living_nexus_is_not_replaced) {
  const auto file = make();
  const auto second = PageFile::create(path(), "tern://127.0.0.1:1");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("running Nexus"));
  EXPECT_EQ(read(path()).uri, "tern://127.0.0.1:31850");
}

TEST_F(Pages, foreign_file_is_not_replaced) {
  write(path(), "a letter to somebody");
  const auto file = PageFile::create(path(), "tern://127.0.0.1:1");
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("is not a page"));
  EXPECT_EQ(bytes_of(path()), "a letter to somebody");
  EXPECT_EQ(tern::read_page(path()).status().code(), Code::kUnavailable);
}

TEST_F(Pages, only_regular_files_of_the_user_are_read) {
  EXPECT_EQ(tern::read_page(path("absent")).status().code(), Code::kUnavailable);
  EXPECT_EQ(tern::read_page("/dev/zero").status().code(), Code::kUnavailable);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(tern::read_page(path("pipe")).status().code(), Code::kUnavailable);
  for (const std::string& other : {path("pipe"), std::string("/tmp")}) {
    EXPECT_THAT(std::string(tern::read_page(other).status().message()), HasSubstr("it is not a regular file"));
    const auto over_it = PageFile::create(other, "tern://127.0.0.1:1");
    EXPECT_THAT(std::string(over_it.status().message()), HasSubstr("it is not a regular file"));
  }
  const auto file = make();
  ASSERT_EQ(symlink(path().c_str(), path("link").c_str()), 0);
  EXPECT_EQ(tern::read_page(path("link")).status().code(), Code::kUnavailable);
}

TEST_F(Pages, option_is_shm_or_has_a_slash) {
  EXPECT_EQ(PageFile::check("page").code(), Code::kMisuse);
  EXPECT_TRUE(PageFile::check("shm").ok());
  EXPECT_TRUE(PageFile::check("./page").ok());
}

TEST_F(Pages, segment_of_a_closed_endpoint_is_used_again) {
  const auto file = make();
  auto first = file->add(1, "udp");
  auto second = file->add(2, "shm");
  first->begin();
  first->write_counters(numbered());
  first->end();
  first.reset();
  auto third = file->add(3, "udp");
  const Page page = read(path());
  ASSERT_EQ(page.endpoints.size(), 2u);
  EXPECT_EQ(page.endpoints[0].id, 3u);
  EXPECT_FALSE(page.endpoints[0].is_closed);
  EXPECT_EQ(page.endpoints[0].counters[0], 0u) << "of the endpoint before";
  EXPECT_EQ(page.endpoints[1].id, 2u);
}

TEST_F(Pages, limit_of_file_sizes_leaves_no_page) {
  struct Limit {
    Limit() {
      getrlimit(RLIMIT_FSIZE, &before);
      const rlimit small{100'000, before.rlim_max};
      setrlimit(RLIMIT_FSIZE, &small);
    }
    ~Limit() { setrlimit(RLIMIT_FSIZE, &before); }
    rlimit before;
  };
  auto file = make();  // the limit permits the header
  {
    const Limit limit;
    EXPECT_EQ(file->add(1, "udp"), nullptr);
  }
  EXPECT_TRUE(read(path()).endpoints.empty());
  EXPECT_NE(file->add(1, "udp"), nullptr);
  EXPECT_EQ(read(path()).endpoints.size(), 1u);
}

TEST_F(Pages, killed_process_leaves_its_last_values) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto file = PageFile::create(path(), "tern://127.0.0.1:1");
    auto writer = file.ok() ? (*file)->add(1, "udp") : nullptr;
    if (writer != nullptr) {
      writer->begin();
      writer->write_counters(numbered());
      writer->end();
      writer->begin();  // the process is killed during a write
    }
    (void)!::write(ready[1], "x", 1);
    while (true) pause();
  }
  close(ready[1]);
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(read(path()).life, PageLife::kAlive);
  kill(child, SIGKILL);
  // A zombie counts as dead.
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(read(path()).life, PageLife::kDead);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const Page page = read(path());
  EXPECT_EQ(page.life, PageLife::kDead);
  EXPECT_FALSE(page.is_closed);
  ASSERT_EQ(page.endpoints.size(), 1u);
  EXPECT_FALSE(page.endpoints[0].is_consistent);
  EXPECT_EQ(page.endpoints[0].counters[0], 1u);
  close(ready[0]);
  EXPECT_NE(make(), nullptr) << "the page of a dead process is replaced";
}

TEST_F(Pages, process_is_known_by_more_than_its_id) {
  ProcessName process = own_process();
  EXPECT_NE(process.start_ticks, 0u);
  EXPECT_EQ(life_of(process), PageLife::kAlive);
  process.start_ticks++;
  EXPECT_EQ(life_of(process), PageLife::kDead);
  process = own_process();
  process.boot_id[0] = process.boot_id[0] == '0' ? '1' : '0';
  EXPECT_EQ(life_of(process), PageLife::kDead);
  process = own_process();
  process.pid_namespace++;
  EXPECT_EQ(life_of(process), PageLife::kUnknown);
}

/// Gives up root's rights, and with them the right to be traced by other processes of the user. `effective`: the user
/// that the process has taken since then, as a program that is set-user-ID may.
void become_nobody(uid_t effective = kNobody) {
  if (geteuid() == 0 && (setresgid(kNobody, kNobody, kNobody) != 0 || setresuid(kNobody, effective, kNobody) != 0)) {
    _exit(UINT8_MAX);
  }
}

/// life_of() in a process without root's rights.
PageLife life_for_nobody(const ProcessName& process) {
  const pid_t child = fork();
  if (child == 0) {
    become_nobody();
    _exit(static_cast<int>(life_of(process)));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_LE(WEXITSTATUS(status), static_cast<int>(PageLife::kUnknown));
  return static_cast<PageLife>(WEXITSTATUS(status));
}

TEST_F(Pages, process_of_another_user_is_not_the_writer) {
  ProcessName process = own_process();
  process.pid = 1;  // the time namespace of root's processes is hidden from others
  process.start_ticks++;
  EXPECT_EQ(life_for_nobody(process), PageLife::kDead);
}

/// A process whose boot clock is ahead by 1000 s. It ends with the object, or at the latest with this process.
class InTimeNamespace {
 public:
  /// `user`: the process has no rights of root, and this effective user.
  explicit InTimeNamespace(std::optional<uid_t> user = {}) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    parent_ = fork();
    if (parent_ == 0) live(ready[1], user);
    close(ready[1]);
    EXPECT_EQ(::read(ready[0], &name, sizeof(name)), static_cast<ssize_t>(sizeof(name)));
    close(ready[0]);
  }
  ~InTimeNamespace() { end(); }
  InTimeNamespace(const InTimeNamespace&) = delete;
  InTimeNamespace& operator=(const InTimeNamespace&) = delete;

  void end() {
    if (parent_ <= 0) return;
    if (name.pid != 0) kill(static_cast<pid_t>(name.pid), SIGKILL);
    EXPECT_EQ(waitpid(parent_, nullptr, 0), parent_);
    parent_ = 0;
  }

  ProcessName name;  ///< pid 0: this process may not make a time namespace

 private:
  /// Writes the name to `out` and waits. The namespace's first process is a child of the one that made the namespace.
  [[noreturn]] static void live(int out, std::optional<uid_t> user) {
    constexpr int kNewTime = 0x80;  // CLONE_NEWTIME of <linux/sched.h>
    constexpr std::string_view kOffset = "boottime 1000 0\n";
    ProcessName name;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int offsets = unshare(kNewTime) == 0 ? open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC) : -1;
    if (offsets >= 0 && ::write(offsets, kOffset.data(), kOffset.size()) == static_cast<ssize_t>(kOffset.size())) {
      const pid_t child = fork();
      if (child != 0) _exit(child > 0 && waitpid(child, nullptr, 0) == child ? 0 : 1);
      if (user) become_nobody(*user);
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of the user would cancel it
      name = own_process();
    }
    (void)!::write(out, &name, sizeof(name));
    while (name.pid != 0) pause();
    _exit(0);
  }

  pid_t parent_;
};

TEST_F(Pages, process_in_another_time_namespace_is_not_called_dead) {
  InTimeNamespace process;
  if (process.name.pid == 0) GTEST_SKIP() << "no rights for a time namespace";
  EXPECT_EQ(life_of(process.name), PageLife::kUnknown);
  process.end();
  EXPECT_EQ(life_of(process.name), PageLife::kDead);
}

TEST_F(Pages, writer_that_hides_its_time_namespace_is_not_called_dead) {
  const InTimeNamespace process(kNobody);
  if (process.name.pid == 0) GTEST_SKIP() << "no rights for a time namespace";
  EXPECT_EQ(life_for_nobody(process.name), PageLife::kUnknown);
}

TEST_F(Pages, writer_that_has_taken_another_user_is_not_called_dead) {
  const InTimeNamespace process(kNobody - 1);
  if (process.name.pid == 0) GTEST_SKIP() << "no rights for a time namespace";
  EXPECT_EQ(life_for_nobody(process.name), PageLife::kUnknown);
}

TEST_F(Pages, forked_child_leaves_the_page_alone) {
  auto file = make("shm");
  auto writer = file->add(1, "udp");
  const pid_t child = fork();
  if (child == 0) {
    writer.reset();
    file.reset();
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const Page page = read(file->path());
  EXPECT_FALSE(page.is_closed);
  ASSERT_EQ(page.endpoints.size(), 1u);
  EXPECT_FALSE(page.endpoints[0].is_closed);
}

TEST_F(Pages, old_pages_of_dead_processes_are_removed_but_for_sixteen) {
  auto model = make("shm");
  const std::string bytes = bytes_of(model->path());
  std::vector<std::string> dead;
  for (int i = 0; i < 20; i++) {
    dead.push_back(shared_memory_prefix() + "0." + std::to_string(getpid()) + "." + std::to_string(i));
    write(dead.back(), bytes);
    change_header(dead.back(), [](Header& header) { header.process.start_ticks++; });
    const timespec times[2] = {{2'000'000'000 + i, 0}, {2'000'000'000 + i, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, dead.back().c_str(), times, 0), 0);
  }
  make("shm");
  const std::vector<std::string> left = find_pages();
  EXPECT_THAT(left, Contains(model->path())) << "its process lives";
  for (size_t i = 0; i < dead.size(); i++) {
    if (i < 4) {
      EXPECT_THAT(left, Not(Contains(dead[i])));
    } else {
      EXPECT_THAT(left, Contains(dead[i]));
    }
    unlink(dead[i].c_str());
  }
}

TEST_F(Pages, cut_and_changed_pages_do_no_harm) {
  {
    const auto file = make();
    const auto writer = file->add(1, "udp");
    writer->begin();
    writer->write_counters(numbered());
    writer->segment().sessions = 3;
    writer->segment().ends = 2;
    writer->end();
  }
  const std::string bytes = bytes_of(path());
  const size_t whole = header_bytes(kCounters) + sizeof(Segment) + kCounters * sizeof(uint64_t) +
                       kSessionsMax * sizeof(SessionRecord) + kEndsMax * sizeof(EndRecord);
  for (size_t length = bytes.size(); length > 0; length -= length > 1000 ? std::min<size_t>(length - 1000, 4999) : 1) {
    std::filesystem::resize_file(path(), length);
    auto page = tern::read_page(path());
    EXPECT_EQ(page.ok() && !page->endpoints.empty(), length >= whole) << length;
  }
  write(path(), bytes);
  const base::Descriptor file(open(path().c_str(), O_RDWR | O_CLOEXEC));
  for (size_t at = 0; at < sizeof(Header); at++) {
    for (const char value : {'\xff', '\0', '\x80'}) {
      ASSERT_EQ(pwrite(file.get(), &value, 1, static_cast<off_t>(at)), 1);
      (void)tern::read_page(path());
    }
    ASSERT_EQ(pwrite(file.get(), &bytes[at], 1, static_cast<off_t>(at)), 1);
  }
  EXPECT_TRUE(tern::read_page(path()).ok());
}

TEST_F(Pages, readers_see_no_half_of_two_writings) {
  const auto file = make();
  const auto writer = file->add(1, "udp");
  std::atomic<bool> is_over{false};
  std::thread owner([&] {
    for (uint64_t round = 1; !is_over; round++) {
      Words values;
      values.fill(round);
      const auto counters = std::bit_cast<EndpointCounters>(values);
      writer->begin();
      writer->write_counters(counters);
      for (size_t i = 0; i < kSessionsMax; i++) writer->sessions()[i].packets_sent = round;
      writer->segment().sessions = kSessionsMax;
      writer->end();
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
  });
  int whole = 0;
  for (int i = 0; i < 200; i++) {
    const Page page = read(path());
    const PageEndpoint& endpoint = page.endpoints.at(0);
    if (!endpoint.is_consistent || endpoint.sessions.empty()) continue;
    whole++;
    for (const uint64_t value : endpoint.counters) ASSERT_EQ(value, endpoint.counters[0]);
    for (const PageSession& session : endpoint.sessions) ASSERT_EQ(session.info.packets_sent, endpoint.counters[0]);
  }
  is_over = true;
  owner.join();
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace tern::page
