// The bare limit of large messages between two threads: one copy of --size bytes out of the other side's memory.
//
// One thread has a message and raises a flag. It writes only stamps into the message or, with --rewrite, the whole
// message each time, as in large_rpc_bandwidth. The other thread copies the message into its own buffer, always the
// same, and raises another flag. The program contains no code of the library, because the library's results are divided
// by its result. Therefore it tries every way to copy that was ever the fastest on one of our machines, on normal pages
// of a memfd (which two processes get here) and on transparent huge pages (which two threads can share, and two
// processes only if the system allows huge pages in shared memory). The result is the fastest way.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common.h"

DEFINE_uint64(size, 8 << 20, "bytes of a message");
DEFINE_bool(rewrite, false, "the writer writes the whole message before it hands it over; this time does not count");

namespace {

using tern::microbench::Percentiles;
using tern::microbench::Ticks;
using Copy = void (*)(std::byte* to, const std::byte* from, size_t bytes);

constexpr size_t kLineBytes = 64, kPageBytes = 4096, kHugePageBytes = 2u << 20, kPieceBytes = 64u << 10;

void copy_memcpy(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

/// Copies in pieces below the size from which the C library bypasses the caches.
void copy_memcpy_pieces(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    std::memcpy(to + at, from + at, std::min(kPieceBytes, bytes - at));
  }
}

using Vector [[gnu::vector_size(16)]] = long long;

void copy_lines(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; bytes - at >= kLineBytes; at += kLineBytes) {
    Vector a, b, c, d;  // each is a register; an array of them would be memory
    std::memcpy(&a, from + at, sizeof a);
    std::memcpy(&b, from + at + 16, sizeof b);
    std::memcpy(&c, from + at + 32, sizeof c);
    std::memcpy(&d, from + at + 48, sizeof d);
    std::memcpy(to + at, &a, sizeof a);
    std::memcpy(to + at + 16, &b, sizeof b);
    std::memcpy(to + at + 32, &c, sizeof c);
    std::memcpy(to + at + 48, &d, sizeof d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

/// Prefetches the first line of the next page before it copies this page, because the hardware's prefetchers stop at
/// the end of a page.
void copy_next_page(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; bytes - at > kPageBytes; at += kPageBytes) {
    __builtin_prefetch(from + at + kPageBytes);
    copy_lines(to + at, from + at, kPageBytes);
  }
  copy_lines(to + at, from + at, bytes - at);
}

#if defined(__x86_64__)
void copy_movsb(std::byte* to, const std::byte* from, size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
}

[[gnu::target("avx2")]] void copy_avx2(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; bytes - at >= 2 * kLineBytes; at += 2 * kLineBytes) {
    const auto* source = reinterpret_cast<const __m256i*>(from + at);
    auto* target = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_storeu_si256(target, a);
    _mm256_storeu_si256(target + 1, b);
    _mm256_storeu_si256(target + 2, c);
    _mm256_storeu_si256(target + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}

/// Copies four pages at a time: while one line is awaited, the next lines of the three other pages are on their way.
[[gnu::target("avx2")]] void copy_avx2_4_pages(std::byte* to, const std::byte* from, size_t bytes) {
  size_t group = 0;
  for (; bytes - group >= 4 * kPageBytes; group += 4 * kPageBytes) {
    for (size_t line = 0; line < kPageBytes; line += kLineBytes) {
      for (size_t page = 0; page < 4; ++page) {
        const size_t at = group + page * kPageBytes + line;
        const auto* source = reinterpret_cast<const __m256i*>(from + at);
        const __m256i low = _mm256_loadu_si256(source), high = _mm256_loadu_si256(source + 1);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at), low);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + at) + 1, high);
      }
    }
  }
  std::memcpy(to + group, from + group, bytes - group);
}

/// Bypasses the reader's cache.
[[gnu::target("avx2")]] void copy_avx2_streaming(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; bytes - at >= 2 * kLineBytes; at += 2 * kLineBytes) {
    const auto* source = reinterpret_cast<const __m256i*>(from + at);
    auto* target = reinterpret_cast<__m256i*>(to + at);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, bytes - at);
}

[[gnu::target("avx512f")]] void copy_avx512(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; bytes - at >= 4 * kLineBytes; at += 4 * kLineBytes) {
    const std::byte* const source = from + at;
    std::byte* const target = to + at;
    const __m512i a = _mm512_loadu_si512(source), b = _mm512_loadu_si512(source + kLineBytes);
    const __m512i c = _mm512_loadu_si512(source + 2 * kLineBytes), d = _mm512_loadu_si512(source + 3 * kLineBytes);
    _mm512_storeu_si512(target, a);
    _mm512_storeu_si512(target + kLineBytes, b);
    _mm512_storeu_si512(target + 2 * kLineBytes, c);
    _mm512_storeu_si512(target + 3 * kLineBytes, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
}
#endif

struct Way {
  const char* name;
  Copy copy;
};

std::vector<Way> ways() {
  std::vector<Way> all = {{"memcpy", copy_memcpy},
                          {"memcpy_64k", copy_memcpy_pieces},
                          {"lines", copy_lines},
                          {"next_page", copy_next_page}};
#if defined(__x86_64__)
  all.push_back({"movsb", copy_movsb});
  if (__builtin_cpu_supports("avx2")) {
    all.insert(all.end(),
               {{"avx2", copy_avx2}, {"avx2_4_pages", copy_avx2_4_pages}, {"avx2_streaming", copy_avx2_streaming}});
  }
  if (__builtin_cpu_supports("avx512f")) all.push_back({"avx512", copy_avx512});
#endif
  return all;
}

/// Two buffers on one kind of pages, touched. They are unmapped at the end of the process.
struct Memory {
  const char* pages;
  std::byte* from = nullptr;
  std::byte* to = nullptr;
};

std::byte* map_memory(bool is_huge, size_t bytes) {
  const size_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const int fd = is_huge ? -1 : memfd_create("shm_copy", MFD_CLOEXEC);
  if (!is_huge && (fd < 0 || ftruncate(fd, static_cast<off_t>(whole)) != 0)) return nullptr;
  // One huge page is added so that the mapping contains an aligned address.
  void* mapped = mmap(nullptr, whole + (is_huge ? kHugePageBytes : 0), PROT_READ | PROT_WRITE,
                      is_huge ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (mapped == MAP_FAILED) return nullptr;
  auto* memory = static_cast<std::byte*>(mapped);
  if (is_huge) {
    memory += -reinterpret_cast<uintptr_t>(memory) % kHugePageBytes;
    madvise(memory, whole, MADV_HUGEPAGE);
  }
  std::memset(memory, 0x5a, bytes);
  return memory;
}

struct Trial {
  const Memory* memory = nullptr;
  Way way = {};
  double seconds = 0;
};

struct Result {
  Trial trial;
  Percentiles ticks;
  double total_ticks = 0;

  /// The bandwidth of the median time, because a trial is short, and the hypervisor may take a CPU away during it.
  double typical_gbps() const { return static_cast<double>(FLAGS_size) / ticks.at(0.5) * 8 / Ticks::ns_per_tick(); }
  double mean_gbps() const {
    return static_cast<double>(ticks.count()) * static_cast<double>(FLAGS_size) / total_ticks * 8 /
           Ticks::ns_per_tick();
  }
};

/// The state that the two sides share. The writer selects the next trial; both sides meet before and after each trial.
struct Exchange {
  std::barrier<> meeting{2};
  Trial trial;
  bool is_over = false;
  std::atomic<bool> is_intact{true};
  alignas(64) std::atomic<uint64_t> written{0};  ///< number of the message that is ready
  alignas(64) std::atomic<uint64_t> read{0};     ///< number of the last message that was copied
  alignas(64) std::atomic<bool> stop{false};
};

/// Reader side: takes messages until the trial ends.
void take_messages(Exchange& exchange) {
  const Memory& memory = *exchange.trial.memory;
  const Copy copy = exchange.trial.way.copy;
  const size_t last = FLAGS_size - sizeof(uint64_t);
  for (uint64_t number = 1;; ++number) {
    while (exchange.written.load(std::memory_order_acquire) != number) {
      if (exchange.stop.load(std::memory_order_relaxed)) return;
    }
    copy(memory.to, memory.from, FLAGS_size);
    uint64_t first_stamp, last_stamp;
    std::memcpy(&first_stamp, memory.to, sizeof first_stamp);
    std::memcpy(&last_stamp, memory.to + last, sizeof last_stamp);
    if (first_stamp != number || last_stamp != number) exchange.is_intact = false;
    exchange.read.store(number, std::memory_order_release);
  }
}

void serve(Exchange& exchange) {
  while (true) {
    exchange.meeting.arrive_and_wait();
    if (exchange.is_over) return;
    take_messages(exchange);
    exchange.meeting.arrive_and_wait();
  }
}

/// Writer side: runs one trial.
Result hand_over(Exchange& exchange, const Trial& trial) {
  Result result = {trial, {}, 0};
  exchange.trial = trial;
  exchange.written = exchange.read = 0;
  exchange.stop = false;
  exchange.meeting.arrive_and_wait();
  std::byte* const message = trial.memory->from;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(trial.seconds);
  constexpr uint64_t kWarmUp = 4;
  uint64_t before = Ticks::now();
  for (uint64_t number = 1;; ++number) {
    if (FLAGS_rewrite) {
      std::memset(message, static_cast<int>(number), FLAGS_size);
      before = Ticks::now();
    }
    std::memcpy(message, &number, sizeof number);
    std::memcpy(message + FLAGS_size - sizeof number, &number, sizeof number);
    exchange.written.store(number, std::memory_order_release);
    while (exchange.read.load(std::memory_order_acquire) != number) {
    }
    const uint64_t after = Ticks::now();
    if (number > kWarmUp) {
      result.ticks.add(after - before);
      result.total_ticks += static_cast<double>(after - before);
      if (std::chrono::steady_clock::now() > end) break;
    }
    before = after;
  }
  exchange.stop = true;
  exchange.meeting.arrive_and_wait();
  return result;
}

/// Writer side: tries every way on every kind of pages, then runs the best for --seconds. `tried` gets the results in
/// Gbit/s by name.
Result find_limit(Exchange& exchange, const std::vector<Memory>& memories, limits::Json& tried) {
  const std::vector<Way> all = ways();
  const double trial_seconds = FLAGS_seconds / 4 / static_cast<double>(all.size() * memories.size());
  Trial best;
  double best_gbps = 0;
  for (const Memory& memory : memories) {
    for (const Way& way : all) {
      const double gbps = hand_over(exchange, {&memory, way, trial_seconds}).typical_gbps();
      tried[std::string(way.name) + "_" + memory.pages] = gbps;
      if (gbps <= best_gbps) continue;
      best_gbps = gbps;
      best = {&memory, way, FLAGS_seconds};
    }
  }
  Result result = hand_over(exchange, best);
  exchange.is_over = true;
  exchange.meeting.arrive_and_wait();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (!limits::parse_flags(argc, argv,
                           "The highest bandwidth of one copy of a message out of another thread's memory; trials of "
                           "the ways to copy take a quarter of --seconds more"))
    return 1;
  if (FLAGS_size < kLineBytes || FLAGS_size > size_t{1} << 30) {
    return limits::fail("--size=%lu is not between 64 and 1 GiB", FLAGS_size);
  }
  std::vector<Memory> memories = {{"normal"}, {"transparent"}};
  for (Memory& memory : memories) {
    const bool is_huge = &memory != &memories.front();
    memory.from = map_memory(is_huge, FLAGS_size);
    memory.to = map_memory(is_huge, FLAGS_size);
    if (memory.from == nullptr || memory.to == nullptr) {
      return limits::fail("no memory for two messages of --size=%lu", FLAGS_size);
    }
  }

  Exchange exchange;
  Result result;
  limits::Json tried = limits::Json::object();
  const auto placement =
      limits::run_pinned([&] { serve(exchange); }, [&] { result = find_limit(exchange, memories, tried); });
  if (!placement) return 1;
  if (!exchange.is_intact) return limits::fail("a message arrived torn");

  const double gbps = result.mean_gbps();
  limits::Json metrics = {{"bandwidth_gbps", gbps}, {"rate_rps", gbps / 8 * 1e9 / static_cast<double>(FLAGS_size)}};
  metrics.update(limits::latency_metrics(result.ticks, result.total_ticks * Ticks::ns_per_tick() / 1e9));
  metrics.erase("rate_mrps");
  for (const auto& [name, one] : tried.items()) metrics["tried_" + name + "_gbps"] = one;
  const std::string way = std::string(result.trial.way.name) + "_" + result.trial.memory->pages;
  return limits::print("shm_copy", "copy", {{"size", FLAGS_size}, {"rewrite", FLAGS_rewrite}, {"way", way}}, metrics,
                       *placement);
}
