// The arena: against a naive model, at its limits, with several threads, and its memory in peers and child processes.
#include "memory/arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tern/msgbuf.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "huge_pages.h"

namespace tern::memory {
namespace {

using detail::Buffer;

Arena* make(ArenaOptions options = {}) {
  auto arena = Arena::create(options);
  EXPECT_TRUE(arena.ok()) << arena.status().message();
  return arena.ok() ? *arena : nullptr;
}

/// Private memory in pages of normal size. The arena grows by 2 MB at a time.
ArenaOptions small_options() {
  ArenaOptions options;
  options.huge_pages = false;
  options.chunk_bytes = 2u << 20;
  return options;
}

bool is_mapped(const void* at) {
  unsigned char state = 0;
  return mincore(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) & ~uintptr_t{4095}), 1, &state) == 0;
}

/// Writes into every page of a message a word that is unique to the message and the position.
void stamp(Buffer* buffer, uint64_t id) {
  for (size_t at = 0; at + 8 <= buffer->capacity_bytes; at += 1024) {
    const uint64_t word = id << 32 | at;
    std::memcpy(buffer->data() + at, &word, 8);
  }
}
bool has_stamp(const Buffer* buffer, uint64_t id) {
  for (size_t at = 0; at + 8 <= buffer->capacity_bytes; at += 1024) {
    uint64_t word = 0;
    std::memcpy(&word, buffer->data() + at, 8);
    if (word != (id << 32 | at)) return false;
  }
  return true;
}

/// A thread that runs one function after the other for its caller.
class OtherThread {
 public:
  ~OtherThread() { run(nullptr); }
  /// Runs `f`, and waits for its end. Null ends the thread.
  void run(std::function<void()> f) {
    f_ = std::move(f);
    begin_.release();
    end_.acquire();
  }

 private:
  std::function<void()> f_;
  std::binary_semaphore begin_{0}, end_{0};
  std::jthread thread_{[this] {
    for (bool is_over = false; !is_over; end_.release()) {
      begin_.acquire();
      is_over = f_ == nullptr;
      if (!is_over) f_();
    }
  }};
};

struct ModelCase {
  const char* name;
  bool shared;
  bool huge_pages;
  size_t limit_bytes;
};
void PrintTo(const ModelCase& c, std::ostream* out) { *out << c.name; }

#ifdef TERN_IS_SANITIZED
constexpr unsigned kModelSeeds = 1;
#else
constexpr unsigned kModelSeeds = 4;
#endif

class ArenaModel : public testing::TestWithParam<ModelCase> {};

TEST_P(ArenaModel, random_operations_keep_messages_apart) {
  for (unsigned seed = 1; seed <= kModelSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ArenaOptions options = small_options();
    options.shared = GetParam().shared;
    options.huge_pages = GetParam().huge_pages;
    options.limit_bytes = GetParam().limit_bytes;
    Arena* arena = make(options);
    ASSERT_NE(arena, nullptr);
    struct Message {
      Buffer* buffer;
      uint64_t id;
    };
    std::map<const std::byte*, size_t> taken;  // by start: the number of bytes, with control line and data
    std::vector<Message> messages;
    size_t refused = 0;
    OtherThread other;
    for (uint64_t step = 1; step <= 1500; ++step) {
      const bool growing = (step / 200) % 2 == 0;
      if (random() % 8 < (growing ? 6u : 2u)) {
        const unsigned kind = random() % 10;
        const size_t len = kind < 6 ? random() % 300 : kind < 8 ? random() % 70000 : random() % 600000;
        Buffer* buffer = nullptr;
        if (random() % 4 == 0) {
          other.run([&] { buffer = arena->alloc(len); });
        } else {
          buffer = arena->alloc(len);
        }
        if (buffer == nullptr) {
          ++refused;
        } else {
          ASSERT_EQ(buffer->length_bytes, len);
          ASSERT_GE(buffer->capacity_bytes, len);
          ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
          ASSERT_FALSE(buffer->exposed);
          ASSERT_EQ(buffer->in_use, 1);
          ASSERT_TRUE(arena->owns(buffer));
          const auto* start = reinterpret_cast<const std::byte*>(buffer);
          const size_t bytes = sizeof(Buffer) + buffer->capacity_bytes;
          const auto above = taken.upper_bound(start);
          if (above != taken.end()) {
            ASSERT_LE(start + bytes, above->first);
          }
          if (above != taken.begin()) {
            ASSERT_LE(std::prev(above)->first + std::prev(above)->second, start);
          }
          const Chunk& chunk = arena->chunk_of(buffer);
          ASSERT_GE(start, chunk.base);
          ASSERT_LE(start + bytes, chunk.base + chunk.bytes);
          taken.emplace(start, bytes);
          stamp(buffer, step);
          messages.push_back({buffer, step});
        }
      } else if (!messages.empty()) {
        const size_t victim = random() % messages.size();
        const Message message = messages[victim];
        messages[victim] = messages.back();
        messages.pop_back();
        ASSERT_TRUE(has_stamp(message.buffer, message.id));
        taken.erase(reinterpret_cast<const std::byte*>(message.buffer));
        if (random() % 4 == 0) {
          other.run([&] { Arena::release(message.buffer); });
        } else {
          Arena::release(message.buffer);
        }
      }
      if (random() % 16 == 0) arena->share_if_short();
      ASSERT_EQ(arena->buffers_out(), messages.size());
      ASSERT_LE(arena->bytes_mapped(), options.limit_bytes);
      arena->check_invariants();
    }
    if (options.limit_bytes != SIZE_MAX) {
      EXPECT_GT(refused, 0u) << "the limit was never reached: the test is too small";
    }
    for (const Message& message : messages) {
      EXPECT_TRUE(has_stamp(message.buffer, message.id));
      Arena::release(message.buffer);
    }
    arena->check_invariants();
    EXPECT_EQ(arena->buffers_out(), 0u);
    arena->orphan();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ArenaModel,
                         testing::Values(ModelCase{"private_normal", false, false, SIZE_MAX},
                                         ModelCase{"private_normal_limited", false, false, 9u << 20},
                                         ModelCase{"private_huge_limited", false, true, 9u << 20},
                                         ModelCase{"shared_limited", true, false, 9u << 20},
                                         ModelCase{"shared_huge", true, true, SIZE_MAX}),
                         [](const auto& model) { return model.param.name; });

TEST(Arena, sizes_around_each_class_boundary) {
  Arena* arena = make(small_options());
  for (size_t block = 128; block <= 65536; block *= 2) {
    for (const size_t len : {block - 65, block - 64}) {
      Buffer* buffer = arena->alloc(len);
      ASSERT_NE(buffer, nullptr);
      EXPECT_EQ(buffer->capacity_bytes, block - 64) << len;
      Arena::release(buffer);
    }
  }
  for (const size_t len : {size_t{65473}, size_t{65536}, 17 * size_t{4096} - 64}) {
    Buffer* buffer = arena->alloc(len);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(buffer->capacity_bytes, 17 * 4096 - 64) << len;
    Arena::release(buffer);
  }
  Buffer* empty = arena->alloc(0);
  ASSERT_NE(empty, nullptr);
  EXPECT_EQ(empty->length_bytes, 0u);
  EXPECT_EQ(empty->capacity_bytes, 64u);
  Arena::release(empty);
  arena->check_invariants();
  arena->orphan();
}

TEST(Arena, a_released_block_is_the_next_one_of_its_class) {
  Arena* arena = make(small_options());
  Buffer* first = arena->alloc(32);
  Arena::release(first);
  EXPECT_EQ(arena->alloc(50), first);
  Arena::release(first);
  arena->orphan();
}

TEST(Arena, destroyed_msgbuf_returns_its_buffer) {
  Arena* arena = make(small_options());
  {
    MsgBuf message(arena->alloc(10));
    EXPECT_EQ(arena->buffers_out(), 1u);
    EXPECT_EQ(message.capacity(), 64u);
  }
  EXPECT_EQ(arena->buffers_out(), 0u);
  arena->orphan();
}

TEST(Arena, largest_block_is_one_gibibyte) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    ArenaOptions options;
    options.shared = shared;
    Arena* arena = make(options);
    EXPECT_EQ(arena->alloc(Arena::kMessageBytesMax + 1), nullptr);
    EXPECT_EQ(arena->alloc(SIZE_MAX), nullptr);
    Buffer* buffer = arena->alloc(Arena::kMessageBytesMax);
    while (buffer == nullptr && std::chrono::steady_clock::now() < until) {  // other tests may have the memory now
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      buffer = arena->alloc(Arena::kMessageBytesMax);
    }
    if (buffer == nullptr) GTEST_SKIP() << "this machine has less than 1 GiB to spare";
    EXPECT_EQ(buffer->length_bytes, Arena::kMessageBytesMax);
    EXPECT_EQ(buffer->capacity_bytes, Arena::kMessageBytesMax);
    buffer->data()[0] = std::byte{1};
    buffer->data()[Arena::kMessageBytesMax - 1] = std::byte{2};
    EXPECT_EQ(arena->chunk_of(buffer).id, 1u);
    EXPECT_GT(arena->bytes_mapped(), Arena::kMessageBytesMax);
    arena->check_invariants();
    Arena::release(buffer);
    arena->orphan();
  }
}

TEST(Arena, grows_by_chunks_that_keep_their_index) {
  Arena* arena = make(small_options());
  std::vector<Buffer*> buffers;
  const std::byte* first_base = arena->chunks()[0].base;
  while (arena->chunks().size() < 5) buffers.push_back(arena->alloc(300000));
  EXPECT_EQ(arena->chunks()[0].base, first_base);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(arena->chunks()[i].id, i);
  for (Buffer* buffer : buffers) {
    const Chunk& chunk = arena->chunk_of(buffer);
    EXPECT_GE(reinterpret_cast<std::byte*>(buffer), chunk.base);
    EXPECT_LT(reinterpret_cast<std::byte*>(buffer), chunk.base + chunk.bytes);
    EXPECT_EQ(arena->chunks()[chunk.id].base, chunk.base);
    Arena::release(buffer);
  }
  arena->orphan();
}

TEST(Arena, limit_holds_and_memory_comes_back_in_other_sizes) {
  ArenaOptions options = small_options();
  options.limit_bytes = 3u << 20;
  Arena* arena = make(options);
  std::vector<Buffer*> buffers;
  while (Buffer* buffer = arena->alloc(100)) buffers.push_back(buffer);
  EXPECT_EQ(buffers.size(), (3u << 20) / 256);
  EXPECT_EQ(arena->alloc(1u << 20), nullptr);
  Buffer* kept = buffers.back();
  buffers.pop_back();
  const auto middle = buffers.begin() + static_cast<long>(buffers.size() / 2);
  std::for_each(buffers.begin(), middle, Arena::release);
  std::thread([&] { std::for_each(middle, buffers.end(), Arena::release); }).join();
  // All 256 B blocks but one are free. Their runs then serve a large message, and later small ones.
  Buffer* large = nullptr;
  for (size_t attempt = 0; large == nullptr && attempt < 10000; ++attempt) large = arena->alloc(1u << 20);
  ASSERT_NE(large, nullptr);
  arena->check_invariants();
  Arena::release(large);
  buffers.clear();
  while (Buffer* buffer = arena->alloc(100)) buffers.push_back(buffer);
  EXPECT_EQ(buffers.size(), (3u << 20) / 256 - 1);
  arena->check_invariants();
  buffers.push_back(kept);
  for (Buffer* buffer : buffers) Arena::release(buffer);
  arena->orphan();
}

TEST(Arena, create_with_impossible_options_is_refused) {
  ArenaOptions options = small_options();
  options.limit_bytes = 1000;
  EXPECT_EQ(Arena::create(options).status().code(), Code::kMisuse);
  options = small_options();
  options.numa_node = 100000;
  EXPECT_EQ(Arena::create(options).status().code(), Code::kMisuse);
  options = small_options();
  options.shared = true;
  // Exceeds the machine's memory: the arena must refuse instead of a SIGBUS or an OOM kill.
  options.chunk_bytes = size_t{1} << 42;
  EXPECT_EQ(Arena::create(options).status().code(), Code::kNoMemory);
}

TEST(Arena, shared_memory_without_descriptors_fails_with_the_reason) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  ArenaOptions options = small_options();
  options.shared = true;
  const auto arena = Arena::create(options);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(arena.status().code(), Code::kUnavailable);
}

TEST(Arena, shared_memory_beyond_the_file_size_limit_fails_with_the_reason) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  ArenaOptions options = small_options();
  options.shared = true;
  const auto arena = Arena::create(options);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(arena.status().code(), Code::kUnavailable) << arena.status().message();
}

TEST(Arena, a_chunk_is_as_large_as_all_before_it_up_to_a_limit) {
  ArenaOptions options = small_options();
  options.doublings = 2;
  Arena* const arena = make(options);
  ASSERT_NE(arena, nullptr);
  std::vector<detail::Buffer*> buffers;
  while (arena->chunks().size() < 6) {
    buffers.push_back(arena->alloc(options.chunk_bytes / 2));
    ASSERT_NE(buffers.back(), nullptr);
  }
  std::vector<size_t> steps;
  for (const Chunk& chunk : arena->chunks()) steps.push_back(chunk.bytes / options.chunk_bytes);
  EXPECT_EQ(steps, (std::vector<size_t>{1, 1, 2, 4, 4, 4}));
  for (detail::Buffer* buffer : buffers) Arena::release(buffer);
  arena->orphan();
}

/// Later chunks are larger than the first ones, unless the system has only as much as a message needs.
TEST(Arena, shared_memory_grows_by_what_is_needed_where_a_larger_chunk_fails) {
  ArenaOptions options = small_options();
  options.shared = true;
  const auto made = Arena::create(options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Arena* const arena = *made;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = kHugePageBytes;
  std::vector<detail::Buffer*> buffers;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  for (size_t bytes = 0; bytes < 64 * options.chunk_bytes; bytes += options.chunk_bytes / 2) {
    buffers.push_back(arena->alloc(options.chunk_bytes / 2));
    if (buffers.back() == nullptr) break;
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(buffers.back(), nullptr) << buffers.size();
  for (detail::Buffer* buffer : buffers) {
    if (buffer != nullptr) Arena::release(buffer);
  }
  arena->orphan();
}

TEST(Arena, memory_prefers_its_numa_node) {
  if (numa_available() < 0) GTEST_SKIP() << "the system knows no NUMA nodes";
  for (const int node : {-1, 0}) {
    ArenaOptions options = small_options();
    options.numa_node = node;
    Arena* arena = make(options);
    ASSERT_NE(arena, nullptr);
    int policy = -1;
    ASSERT_EQ(get_mempolicy(&policy, nullptr, 0, arena->chunks()[0].base, MPOL_F_ADDR), 0);
    EXPECT_EQ(policy, MPOL_PREFERRED);
    arena->orphan();
  }
}

// ---- Leases

TEST(Arena, lease_changes_on_release_only_when_exposed) {
  Arena* arena = make(small_options());
  for (const size_t len : {size_t{32}, size_t{1} << 20}) {
    Buffer* buffer = arena->alloc(len);
    const uint32_t before = buffer->lease.load();
    Arena::release(buffer);
    ASSERT_EQ(arena->alloc(len), buffer);
    EXPECT_EQ(buffer->lease.load(), before);
    buffer->exposed = true;
    Arena::release(buffer);
    ASSERT_EQ(arena->alloc(len), buffer);
    EXPECT_EQ(buffer->lease.load(), before + 1);
    EXPECT_FALSE(buffer->exposed);
    Arena::release(buffer);
  }
  arena->orphan();
}

TEST(Arena, lease_of_a_place_never_goes_back_when_blocks_change_their_shape) {
  ArenaOptions options = small_options();
  options.limit_bytes = 2u << 20;
  Arena* arena = make(options);
  std::map<const Buffer*, uint32_t> last;  // by address: the newest value that a peer was given
  std::mt19937 random(7);
  size_t seen_again = 0;
  for (int round = 0; round < 60; ++round) {
    const size_t len = size_t{1} << (5 + random() % 14);
    std::vector<Buffer*> buffers;
    for (int failures = 0; failures < 1500 && buffers.size() < 200;) {
      Buffer* buffer = arena->alloc(len);
      if (buffer == nullptr) {
        ++failures;  // the arena pauses between two walks over its free lists
        if (!buffers.empty()) break;
        continue;
      }
      buffers.push_back(buffer);
      const uint32_t lease = buffer->lease.load();
      if (const auto known = last.find(buffer); known != last.end()) {
        ++seen_again;
        ASSERT_GT(static_cast<int32_t>(lease - known->second), 0);
      }
      buffer->exposed = true;
      last[buffer] = lease;
    }
    for (Buffer* buffer : buffers) Arena::release(buffer);
    arena->check_invariants();
  }
  EXPECT_GT(seen_again, 100u);
  arena->orphan();
}

// ---- Kinds of memory

/// Adds explicit 2 MB pages to the machine's pool during its lifetime, if this process has permission.
class MoreHugePages {
 public:
  explicit MoreHugePages(size_t more) : before_(test::read_huge_pages("nr_hugepages")) { write(before_ + more); }
  ~MoreHugePages() { write(before_); }

 private:
  static void write(size_t value) { std::ofstream(test::huge_pages_file("nr_hugepages")) << value; }
  const size_t before_;
};

/// Reserves explicit 2 MB pages during its lifetime, so that at most `left` are free. It does not use their memory.
class ReservedHugePages {
 public:
  explicit ReservedHugePages(size_t left) {
    size_t free = 0;
    while (base_ == MAP_FAILED &&
           (free = test::unused_huge_pages()) > left) {  // other processes may use some meanwhile
      bytes_ = (free - left) * kHugePageBytes;
      base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    }
  }
  ~ReservedHugePages() {
    if (base_ != MAP_FAILED) munmap(base_, bytes_);
  }
  ReservedHugePages(const ReservedHugePages&) = delete;
  ReservedHugePages& operator=(const ReservedHugePages&) = delete;

 private:
  void* base_ = MAP_FAILED;
  size_t bytes_ = 0;
};

void expect_usable(Arena* arena, bool shared) {
  Buffer* large = arena->alloc(1u << 20);
  ASSERT_NE(large, nullptr);
  std::memset(large->data(), 0x5a, large->capacity_bytes);
  Arena::release(large);
  const Chunk& chunk = arena->chunks()[0];
  EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.base) % (2u << 20), 0u);
  EXPECT_EQ(chunk.fd >= 0, shared);
  arena->check_invariants();
}

TEST(Arena, normal_pages) {
  for (const bool shared : {false, true}) {
    ArenaOptions options = small_options();
    options.shared = shared;
    Arena* arena = make(options);
    ASSERT_NE(arena, nullptr);
    EXPECT_STREQ(arena->chunks()[0].pages, "normal");
    expect_usable(arena, shared);
    arena->orphan();
  }
}

TEST(Arena, transparent_pages_where_no_explicit_ones_are) {
  std::string setting;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), setting);
  ArenaOptions options = small_options();
  options.huge_pages = true;
  // More memory than the free explicit pages, if there are any, because the arena tries those first.
  if (test::unused_huge_pages() != 0) options.chunk_bytes = (test::unused_huge_pages() + 16) * (size_t{2} << 20);
  Arena* arena = make(options);
  ASSERT_NE(arena, nullptr);
  const bool allowed = !setting.empty() && setting.find("[never]") == std::string::npos;
  EXPECT_STREQ(arena->chunks()[0].pages, allowed ? "transparent" : "normal");
  expect_usable(arena, false);
  arena->orphan();
}

int seals_of(int fd) { return fcntl(fd, F_GET_SEALS); }
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

TEST(Arena, explicit_huge_pages) {
  MoreHugePages some(16);
  if (test::unused_huge_pages() < 16) GTEST_SKIP() << "no explicit 2 MB pages: needs root and free memory";
  const ReservedHugePages others(200);  // a machine may have more pages than the largest message needs
  for (const bool shared : {false, true}) {
    SCOPED_TRACE(shared);
    ArenaOptions options = small_options();
    options.huge_pages = true;
    options.shared = shared;
    Arena* arena = make(options);
    ASSERT_NE(arena, nullptr);
    EXPECT_STREQ(arena->chunks()[0].pages, "2MB");
    expect_usable(arena, shared);
    if (shared) {
      EXPECT_EQ(seals_of(arena->chunks()[0].fd) & kSeals, kSeals);
      EXPECT_EQ(mmap(nullptr, 2u << 20, PROT_READ | PROT_WRITE, MAP_SHARED, arena->chunks()[0].fd, 0), MAP_FAILED);
    }
    // The message needs more pages than are free, even if other tests return some meanwhile. The next chunk falls back
    // to other pages, and no access to them kills the process.
    Buffer* large = arena->alloc((test::unused_huge_pages() + 32) * kHugePageBytes);
    ASSERT_NE(large, nullptr);
    EXPECT_STRNE(arena->chunk_of(large).pages, "2MB");
    std::memset(large->data(), 1, large->capacity_bytes);
    Arena::release(large);
    arena->orphan();
  }
}

TEST(Arena, giant_pages_are_used_or_the_largest_available) {
  ArenaOptions options = small_options();
  options.giant_pages = true;
  Arena* arena = make(options);
  ASSERT_NE(arena, nullptr);
  expect_usable(arena, false);
  arena->orphan();
}

TEST(Arena, peers_can_map_a_shared_chunk_for_reading_only) {
  ArenaOptions options = small_options();
  options.shared = true;
  Arena* arena = make(options);
  ASSERT_NE(arena, nullptr);
  const Chunk chunk = arena->chunks()[0];
  EXPECT_EQ(seals_of(chunk.fd) & kSeals, kSeals);
  EXPECT_EQ(fcntl(chunk.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);

  Buffer* buffer = arena->alloc(5);
  std::memcpy(buffer->data(), "hello", 5);
  void* view = mmap(nullptr, chunk.bytes, PROT_READ, MAP_SHARED, chunk.fd, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_EQ(std::memcmp(static_cast<std::byte*>(view) + (buffer->data() - chunk.base), "hello", 5), 0);
  EXPECT_EQ(mprotect(view, chunk.bytes, PROT_READ | PROT_WRITE), -1);
  munmap(view, chunk.bytes);

  EXPECT_EQ(mmap(nullptr, chunk.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, chunk.fd, 0), MAP_FAILED);
  EXPECT_EQ(pwrite(chunk.fd, "x", 1, 0), -1);
  EXPECT_EQ(ftruncate(chunk.fd, 4096), -1);
  EXPECT_EQ(ftruncate(chunk.fd, static_cast<off_t>(chunk.bytes) + 4096), -1);
  EXPECT_EQ(fallocate(chunk.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  const int again = open(("/proc/self/fd/" + std::to_string(chunk.fd)).c_str(), O_RDWR | O_CLOEXEC);
  if (again >= 0) {
    EXPECT_EQ(mmap(nullptr, chunk.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0), MAP_FAILED);
    EXPECT_EQ(pwrite(again, "x", 1, 0), -1);
    close(again);
  }
  // The arena's own mapping is still writable.
  std::memcpy(buffer->data(), "HELLO", 5);
  Arena::release(buffer);
  arena->orphan();
  EXPECT_EQ(fcntl(chunk.fd, F_GETFD), -1);
}

TEST(Arena, a_forked_child_does_not_have_the_memory) {
  for (const bool shared : {false, true}) {
    ArenaOptions options = small_options();
    options.shared = shared;
    Arena* arena = make(options);
    ASSERT_NE(arena, nullptr);
    Buffer* buffer = arena->alloc(5);
    std::memcpy(buffer->data(), "hello", 5);
    ASSERT_TRUE(is_mapped(buffer));
    const pid_t child = fork();
    // In the child, a sanitizer's runtime may map other memory at the free address.
    if (child == 0) _exit(is_mapped(buffer) && std::memcmp(buffer->data(), "hello", 5) == 0 ? 1 : 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    Arena::release(buffer);
    arena->orphan();
  }
}

// ---- Threads

TEST(Arena, foreign_threads_and_the_owner_exchange_buffers) {
  Arena* arena = make(small_options());
  constexpr int kThreads = 3;
  constexpr int kSteps = 2000;
  std::barrier start(kThreads + 1);
  std::mutex mutex;
  std::vector<Buffer*> exchanged;  // guarded by mutex
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    start.arrive_and_wait();
    for (int i = 0; i < kSteps; ++i) {
      Buffer* mine = arena->alloc(random() % 100 == 0 ? 100000 : random() % 5000);
      ASSERT_NE(mine, nullptr);
      std::memset(mine->data(), static_cast<int>(seed), 16);
      std::lock_guard lock(mutex);
      exchanged.push_back(mine);
      if (exchanged.size() > 50) {
        std::swap(exchanged[random() % exchanged.size()], exchanged.back());
        Arena::release(exchanged.back());
        exchanged.pop_back();
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= kThreads; ++seed) threads.emplace_back(work, seed);
  work(0);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena->buffers_out(), exchanged.size());
  arena->check_invariants();
  for (Buffer* buffer : exchanged) Arena::release(buffer);
  EXPECT_EQ(arena->buffers_out(), 0u);
  arena->check_invariants();
  arena->orphan();
}

TEST(Arena, owner_reuses_blocks_that_other_threads_released) {
  ArenaOptions options = small_options();
  options.limit_bytes = kHugePageBytes;
  Arena* arena = make(options);
  std::vector<Buffer*> buffers;
  while (Buffer* buffer = arena->alloc(1000)) buffers.push_back(buffer);
  const size_t all = buffers.size();
  std::thread([&] {
    for (Buffer* buffer : buffers) Arena::release(buffer);
  }).join();
  EXPECT_EQ(arena->buffers_out(), 0u);
  buffers.clear();
  while (Buffer* buffer = arena->alloc(1000)) buffers.push_back(buffer);
  EXPECT_EQ(buffers.size(), all);
  for (Buffer* buffer : buffers) Arena::release(buffer);
  arena->orphan();
}

/// Runs `f` in another thread.
template <class F>
void elsewhere(F&& f) {
  std::thread(std::forward<F>(f)).join();
}

std::vector<Buffer*> take(Arena* arena, size_t count, size_t len_bytes) {
  std::vector<Buffer*> buffers;
  while (buffers.size() < count) {
    Buffer* buffer = arena->alloc(len_bytes);
    if (buffer == nullptr) break;
    buffers.push_back(buffer);
  }
  return buffers;
}

void give(std::vector<Buffer*>& buffers) {
  for (Buffer* buffer : std::exchange(buffers, {})) Arena::release(buffer);
}

constexpr size_t kLength = 100;               ///< of a message in a block of 256 B
constexpr size_t kBlocksInRun = 65536 / 256;  ///< blocks of that size

/// Memory for kHugePageBytes / 256 messages of kLength.
Arena* make_limited() {
  ArenaOptions options = small_options();
  options.limit_bytes = kHugePageBytes;
  return make(options);
}

/// Gives back all blocks but one of each run, so that no run becomes free pages. Returns those.
std::vector<Buffer*> give_most(std::vector<Buffer*>& buffers) {
  std::vector<Buffer*> kept;
  for (size_t i = 0; i < buffers.size(); i += kBlocksInRun) kept.push_back(std::exchange(buffers[i], nullptr));
  std::erase(buffers, nullptr);
  give(buffers);
  return kept;
}

TEST(Arena, blocks_that_one_side_takes_and_the_other_gives_back_do_not_pile_up) {
  for (const bool owner_takes : {false, true}) {
    SCOPED_TRACE(owner_takes);
    Arena* arena = make(small_options());
    const size_t before = arena->bytes_mapped();
    for (int round = 0; round < 500; ++round) {
      std::vector<Buffer*> buffers;
      const auto take_some = [&] { buffers = take(arena, 200, 100); };
      const auto give_all = [&] { give(buffers); };
      if (owner_takes) {
        take_some();
        elsewhere(give_all);
      } else {
        elsewhere(take_some);
        give_all();
      }
    }
    EXPECT_EQ(arena->bytes_mapped(), before);
    arena->check_invariants();
    arena->orphan();
  }
}

TEST(Arena, each_side_gets_what_the_other_one_has_given_back_when_memory_is_short) {
  Arena* arena = make_limited();
  std::vector<Buffer*> buffers;
  elsewhere([&] { buffers = take(arena, SIZE_MAX, kLength); });
  const size_t all = buffers.size();
  EXPECT_EQ(all, kHugePageBytes / 256);
  std::vector<Buffer*> kept = give_most(buffers);
  buffers = take(arena, SIZE_MAX, kLength);
  EXPECT_EQ(buffers.size(), all - kept.size()) << "the owner gets the other threads' blocks";
  arena->check_invariants();

  elsewhere([&] { give(buffers); });
  elsewhere([&] { buffers = take(arena, SIZE_MAX, kLength); });
  EXPECT_EQ(buffers.size(), all - kept.size()) << "and they get those of the owner that they have given back";
  arena->check_invariants();
  give(buffers);
  give(kept);
  EXPECT_EQ(arena->buffers_out(), 0u);
  arena->orphan();
}

TEST(Arena, owner_shares_its_free_blocks_with_threads_that_find_none) {
  Arena* arena = make_limited();
  std::vector<Buffer*> buffers = take(arena, SIZE_MAX, kLength);
  std::vector<Buffer*> kept = give_most(buffers);
  elsewhere([&] { EXPECT_EQ(arena->alloc(kLength), nullptr) << "only the owner sees its free blocks"; });
  arena->share_if_short();
  elsewhere([&] { buffers = take(arena, SIZE_MAX, kLength); });
  EXPECT_EQ(buffers.size(), 1024u) << "so many at a time";
  arena->check_invariants();
  give(buffers);
  give(kept);
  arena->orphan();
}

TEST(Arena, owner_shares_the_pages_of_its_free_blocks_with_threads_that_want_other_sizes) {
  for (const size_t len_bytes : {size_t{1000}, size_t{100'000}}) {
    SCOPED_TRACE(len_bytes);
    Arena* arena = make_limited();
    std::vector<Buffer*> buffers, kept;
    // Free blocks of the other threads, which they look at in vain.
    elsewhere([&] {
      buffers = take(arena, 20, 100);
      kept = take(arena, 1, 100);
    });
    elsewhere([&] { give(buffers); });
    buffers = take(arena, SIZE_MAX, 100);
    elsewhere([&] { EXPECT_EQ(arena->alloc(len_bytes), nullptr); });
    arena->share_if_short();  // in vain
    give(buffers);
    // The owner looks again when it was asked once for each run of 64 KiB.
    for (size_t i = 0; i <= kHugePageBytes / 65536; ++i) {
      elsewhere([&] { EXPECT_EQ(arena->alloc(len_bytes), nullptr); });
      arena->share_if_short();
    }
    elsewhere([&] { buffers = take(arena, SIZE_MAX, len_bytes); });
    EXPECT_FALSE(buffers.empty());
    give(buffers);
    give(kept);
    arena->check_invariants();
    arena->orphan();
  }
}

TEST(Arena, another_thread_can_become_the_owner) {
  Arena* arena = make(small_options());
  Buffer* old_owners = arena->alloc(10);
  std::thread([&] {
    arena->bind_owner();
    Buffer* buffer = arena->alloc(10);
    ASSERT_NE(buffer, nullptr);
    Arena::release(buffer);
    Arena::release(old_owners);
    arena->check_invariants();
  }).join();
  Buffer* foreign_now = arena->alloc(10);
  ASSERT_NE(foreign_now, nullptr);
  Arena::release(foreign_now);
  EXPECT_EQ(arena->buffers_out(), 0u);
  arena->orphan();
}

/// Several threads allocate and release before one of them becomes the owner, and meanwhile.
TEST(Arena, a_thread_can_become_the_owner_while_others_allocate) {
  for (int round = 0; round < 200; round++) {
    Arena* arena = make(small_options());
    arena->disown();
    std::atomic<int> ready{0};
    const auto use = [&](bool becomes_owner) {
      ready++;
      while (ready != 3) {
      }
      std::vector<Buffer*> mine;
      for (int i = 0; i < 100; i++) {
        if (becomes_owner && i == 10) arena->bind_owner();
        Buffer* buffer = arena->alloc(100);
        ASSERT_NE(buffer, nullptr);
        stamp(buffer, reinterpret_cast<uintptr_t>(buffer));
        mine.push_back(buffer);
        if (i % 3 == 2) {
          Arena::release(mine.front());
          mine.erase(mine.begin());
        }
      }
      give(mine);
    };
    std::thread owner(use, true), other(use, false);
    use(false);
    other.join();
    owner.join();
    EXPECT_EQ(arena->buffers_out(), 0u);
    arena->disown();
    arena->check_invariants();
    arena->orphan();
  }
}

/// A block that was allocated while there was no owner belongs to the later owner.
TEST(Arena, a_block_from_before_the_owner_goes_to_the_owner) {
  Arena* arena = make(small_options());
  arena->disown();
  Buffer* const early = arena->alloc(100);
  arena->bind_owner();
  Arena::release(early);
  EXPECT_EQ(arena->alloc(100), early);
  Arena::release(early);
  EXPECT_EQ(arena->buffers_out(), 0u);
  arena->orphan();
}

/// Shared arenas: a descriptor shows whether the arena still exists.
int descriptor_of(Arena* arena) { return arena->chunks()[0].fd; }
bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(Arena, orphan_with_nothing_out_deletes_at_once) {
  ArenaOptions options = small_options();
  options.shared = true;
  Arena* arena = make(options);
  const int fd = descriptor_of(arena);
  Arena::release(arena->alloc(1));
  ASSERT_TRUE(is_open(fd));
  arena->orphan();
  EXPECT_FALSE(is_open(fd));
}

TEST(Arena, orphan_lives_until_the_last_release) {
  ArenaOptions options = small_options();
  options.shared = true;
  Arena* arena = make(options);
  const int fd = descriptor_of(arena);
  Buffer* small = arena->alloc(1);
  Buffer* large = arena->alloc(1u << 20);
  arena->orphan();
  ASSERT_TRUE(is_open(fd));
  EXPECT_EQ(arena->alloc(1), nullptr);
  EXPECT_EQ(arena->alloc(1u << 20), nullptr);
  EXPECT_EQ(arena->buffers_out(), 2u);
  small->data()[0] = std::byte{1};
  Arena::release(small);
  ASSERT_TRUE(is_open(fd));
  large->data()[0] = std::byte{1};
  std::thread([&] { Arena::release(large); }).join();
  EXPECT_FALSE(is_open(fd));
}

TEST(Arena, foreign_releases_while_it_becomes_an_orphan) {
  ArenaOptions options = small_options();
  options.shared = true;
  options.chunk_bytes = kHugePageBytes;
  for (int round = 0; round < 100; ++round) {
    Arena* arena = make(options);
    ASSERT_NE(arena, nullptr);
    const int fd = descriptor_of(arena);
    constexpr int kThreads = 3;
    std::vector<std::vector<Buffer*>> shares(kThreads);
    for (auto& share : shares) {
      for (int i = 0; i < 4; ++i) share.push_back(arena->alloc(i == 0 ? 100000 : 100));
    }
    std::barrier start(kThreads + 1);
    std::vector<std::thread> threads;
    for (auto& share : shares) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        for (Buffer* buffer : share) Arena::release(buffer);
      });
    }
    start.arrive_and_wait();
    arena->orphan();
    for (std::thread& thread : threads) thread.join();
    EXPECT_FALSE(is_open(fd));
  }
}

// ---- Observers of chunks

/// Registers chunks as a NIC's driver does, and refuses one chunk.
struct Registrar final : ChunkObserver {
  Status on_chunk_made(const Chunk& chunk) override {
    if (chunk.id == refused_id) return {Code::kNoMemory, "the NIC takes no more memory"};
    EXPECT_TRUE(known.emplace(chunk.id, chunk.base).second);
    return {};
  }
  void on_chunk_gone(const Chunk& chunk) override {
    EXPECT_TRUE(is_mapped(chunk.base)) << "the memory must outlive its registration";
    EXPECT_EQ(known.erase(chunk.id), 1u);
  }
  bool knows(Arena& arena, const Buffer* buffer) { return known.contains(arena.chunk_of(buffer).id); }

  uint32_t refused_id = UINT32_MAX;
  std::map<uint32_t, const std::byte*> known;
};

TEST(ArenaObserver, knows_every_chunk_before_a_buffer_of_it_is_handed_out) {
  Arena* arena = make(small_options());
  Buffer* early = arena->alloc(100);
  Registrar registrar;
  ASSERT_TRUE(arena->observe(registrar).ok());
  EXPECT_TRUE(registrar.knows(*arena, early));
  std::vector<Buffer*> buffers{early};
  for (int i = 0; i < 20; ++i) {
    buffers.push_back(arena->alloc(1u << 20));
    ASSERT_NE(buffers.back(), nullptr);
    EXPECT_TRUE(registrar.knows(*arena, buffers.back()));
  }
  Buffer* foreign = nullptr;  // the allocation of another thread makes a chunk, too
  std::thread([&] { foreign = arena->alloc(60u << 20); }).join();
  ASSERT_NE(foreign, nullptr);
  EXPECT_TRUE(registrar.knows(*arena, foreign));
  EXPECT_EQ(registrar.known.size(), arena->chunks().size());
  EXPECT_GT(registrar.known.size(), 2u);
  arena->unobserve();
  EXPECT_TRUE(registrar.known.empty());
  Buffer* late = arena->alloc(100u << 20);  // the observer is not notified any more
  EXPECT_TRUE(registrar.known.empty());
  buffers.insert(buffers.end(), {foreign, late});
  for (Buffer* buffer : buffers) Arena::release(buffer);
  arena->orphan();
}

TEST(ArenaObserver, refused_chunk_fails_the_allocation_and_leaves_the_arena_whole) {
  Arena* arena = make(small_options());
  Registrar registrar;
  ASSERT_TRUE(arena->observe(registrar).ok());
  registrar.refused_id = 1;
  const size_t mapped = arena->bytes_mapped();
  EXPECT_EQ(arena->alloc(8u << 20), nullptr);
  EXPECT_EQ(arena->bytes_mapped(), mapped);
  EXPECT_EQ(registrar.known.size(), 1u);
  arena->check_invariants();
  registrar.refused_id = UINT32_MAX;
  Buffer* buffer = arena->alloc(8u << 20);
  ASSERT_NE(buffer, nullptr);
  EXPECT_TRUE(registrar.knows(*arena, buffer));
  Arena::release(buffer);
  arena->check_invariants();
  arena->orphan();  // ends the observation
  EXPECT_TRUE(registrar.known.empty());
}

TEST(ArenaObserver, refused_chunk_at_the_beginning_is_an_error_and_undoes_the_others) {
  Arena* arena = make(small_options());
  Buffer* large = arena->alloc(8u << 20);  // a second chunk
  Registrar registrar;
  registrar.refused_id = 1;
  EXPECT_EQ(arena->observe(registrar).code(), Code::kNoMemory);
  EXPECT_TRUE(registrar.known.empty());
  registrar.refused_id = UINT32_MAX;
  EXPECT_TRUE(arena->observe(registrar).ok()) << "the failed attempt left no observer";
  arena->unobserve();
  Arena::release(large);
  arena->orphan();
}

// ---- Misuse

TEST(ArenaDeathTest, a_second_release_is_caught) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const size_t len : {size_t{10}, size_t{1} << 20}) {
    EXPECT_DEATH(
        {
          Arena* arena = make(small_options());
          Buffer* buffer = arena->alloc(len);
          Arena::release(buffer);
          Arena::release(buffer);
        },
        "CHECK failed.*in_use");
    EXPECT_DEATH(
        {
          Arena* arena = make(small_options());
          Buffer* buffer = arena->alloc(len);
          std::thread([&] { Arena::release(buffer); }).join();
          std::thread([&] { Arena::release(buffer); }).join();
        },
        "CHECK failed.*in_use");
  }
}

#ifdef TERN_ASAN
TEST(ArenaDeathTest, sanitizer_sees_a_use_after_release) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (const size_t len : {size_t{10}, size_t{1} << 20}) {
    EXPECT_DEATH(
        {
          Arena* arena = make(small_options());
          Buffer* buffer = arena->alloc(len);
          Arena::release(buffer);
          buffer->data()[0] = std::byte{1};
        },
        "use-after-poison");
  }
}
#endif

}  // namespace
}  // namespace tern::memory
