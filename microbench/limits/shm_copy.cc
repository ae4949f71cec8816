// The bare limit of large messages between two threads: one copy of --size bytes out of the other side's memory.
//
// One thread has a message (as it is but for stamps, or with --rewrite written anew each time, as large_rpc_bandwidth
// has it) and raises a flag; the other copies it into a buffer of its own, always the same, and raises another. Nothing
// of the library is in here: it is what the library's figures are divided by. So every way to copy that has ever won on
// one of our machines is tried, on normal pages of a memfd (what two processes get here) and on transparent huge ones
// (which two threads can share, and two processes only where the system allows huge pages in shared memory). The
// fastest counts.

#include <gflags/gflags.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../percentiles.h"
#include "../placement.h"

DEFINE_uint64(size, 8 << 20, "bytes of a message");
DEFINE_bool(rewrite, false, "the writer writes all of a message before it hands it over; this time does not count");
DEFINE_double(seconds, 2, "how long to measure the fastest way; the trials before take a quarter of it");
DEFINE_string(cpus, "0,1", "the two CPUs to pin the two sides to: the reader's first");
DEFINE_bool(json, false, "one JSON object on standard output instead of a table");

namespace {

using tern::microbench::Percentiles;
using tern::microbench::Ticks;
using Copy = void (*)(std::byte* to, const std::byte* from, size_t bytes);

constexpr size_t kLineBytes = 64, kPageBytes = 4096, kHugePageBytes = 2u << 20, kPieceBytes = 64u << 10;

void copy_memcpy(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }

/// Below the size from which the C library goes around the caches.
void copy_memcpy_pieces(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    std::memcpy(to + at, from + at, std::min(kPieceBytes, bytes - at));
  }
}

using Vector [[gnu::vector_size(16)]] = long long;

void copy_lines(std::byte* to, const std::byte* from, size_t bytes) {
  size_t at = 0;
  for (; bytes - at >= kLineBytes; at += kLineBytes) {
    Vector a, b, c, d;  // each a register: an array of them would be memory
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

/// The first line of the next page is asked for before this one is copied: prefetchers of the hardware end with a page.
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

/// Four pages at a time: while one line is waited for, the next of three other pages are on their way.
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

/// Around the reader's cache.
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

/// Two buffers of a kind of pages, touched. Unmapped at the end of the process.
struct Memory {
  const char* pages;
  std::byte* from = nullptr;
  std::byte* to = nullptr;
};

std::byte* map_memory(bool is_huge, size_t bytes) {
  const size_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const int fd = is_huge ? -1 : memfd_create("shm_copy", MFD_CLOEXEC);
  if (!is_huge && (fd < 0 || ftruncate(fd, static_cast<off_t>(whole)) != 0)) return nullptr;
  // One huge page more, so that there is a border of one in it.
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

struct Result {
  Percentiles ticks;
  double total_ticks = 0;
  double bytes_per_tick() const {
    return static_cast<double>(ticks.count()) * static_cast<double>(FLAGS_size) / total_ticks;
  }
};

/// Hands messages over for so long. False: the CPUs cannot be pinned to, or a message has arrived torn.
bool measure(const Memory& memory, Copy copy, int reader_cpu, int writer_cpu, double seconds, Result& result) {
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  alignas(64) std::atomic<bool> stop{false};
  std::atomic<bool> is_good{true};
  const size_t last = FLAGS_size - sizeof(uint64_t);
  std::thread reader([&] {
    if (!tern::microbench::pin_to_cpu(reader_cpu)) is_good = false;
    for (uint64_t number = 1;; ++number) {
      while (written.load(std::memory_order_acquire) != number) {
        if (stop.load(std::memory_order_relaxed)) return;
      }
      copy(memory.to, memory.from, FLAGS_size);
      uint64_t first_stamp, last_stamp;
      std::memcpy(&first_stamp, memory.to, sizeof first_stamp);
      std::memcpy(&last_stamp, memory.to + last, sizeof last_stamp);
      if (first_stamp != number || last_stamp != number) is_good = false;
      read.store(number, std::memory_order_release);
    }
  });
  std::thread writer([&] {
    if (!tern::microbench::pin_to_cpu(writer_cpu)) is_good = false;
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    uint64_t before = Ticks::now();
    for (uint64_t number = 1; is_good.load(std::memory_order_relaxed); ++number) {
      if (FLAGS_rewrite) {
        std::memset(memory.from, static_cast<int>(number), FLAGS_size);
        before = Ticks::now();
      }
      std::memcpy(memory.from, &number, sizeof number);
      std::memcpy(memory.from + last, &number, sizeof number);
      written.store(number, std::memory_order_release);
      while (read.load(std::memory_order_acquire) != number) {
      }
      const uint64_t after = Ticks::now();
      constexpr uint64_t kWarmUp = 4;
      if (number > kWarmUp) {
        result.ticks.add(after - before);
        result.total_ticks += static_cast<double>(after - before);
      }
      before = after;
      if (number > kWarmUp && std::chrono::steady_clock::now() > end) break;
    }
    stop = true;
  });
  writer.join();
  reader.join();
  return is_good;
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage("bare copy of messages out of another thread's memory");
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  int reader_cpu = 0, writer_cpu = 0;
  if (std::sscanf(FLAGS_cpus.c_str(), "%d,%d", &reader_cpu, &writer_cpu) != 2 || reader_cpu == writer_cpu) {
    std::fprintf(stderr, "--cpus wants two different CPUs, like 0,1\n");
    return 1;
  }
  if (FLAGS_size < kLineBytes || FLAGS_size > size_t{1} << 30 || !(FLAGS_seconds > 0 && FLAGS_seconds <= 1e6)) {
    std::fprintf(stderr, "--size is 64 to 1 GiB, --seconds above 0 and at most 1000000\n");
    return 1;
  }
  std::vector<Memory> memories = {{"normal"}, {"transparent"}};
  for (Memory& memory : memories) {
    const bool is_huge = &memory != &memories.front();
    memory.from = map_memory(is_huge, FLAGS_size);
    memory.to = map_memory(is_huge, FLAGS_size);
    if (memory.from == nullptr || memory.to == nullptr) {
      std::fprintf(stderr, "no memory for two messages of --size=%lu\n", FLAGS_size);
      return 1;
    }
  }

  const double placement_before = tern::microbench::placement_ns(reader_cpu, writer_cpu);
  const std::vector<Way> all = ways();
  const double trial_seconds = FLAGS_seconds / 4 / static_cast<double>(all.size() * memories.size());
  const double gbps_per_rate = 8 / Ticks::ns_per_tick();
  nlohmann::ordered_json tried = nlohmann::ordered_json::object();
  const Memory* best_memory = nullptr;
  Way best_way = {};
  double best_rate = 0;
  bool is_good = placement_before >= 0;
  for (const Memory& memory : memories) {
    for (const Way& way : all) {
      Result trial;
      is_good = is_good && measure(memory, way.copy, reader_cpu, writer_cpu, trial_seconds, trial);
      if (!is_good) break;
      // The median: a trial is short, and the hypervisor may take a CPU away in the middle of it.
      const double rate = static_cast<double>(FLAGS_size) / trial.ticks.at(0.5);
      tried[std::string(way.name) + "_" + memory.pages] = rate * gbps_per_rate;
      if (rate <= best_rate) continue;
      best_rate = rate;
      best_way = way;
      best_memory = &memory;
    }
  }
  Result result;
  is_good = is_good && measure(*best_memory, best_way.copy, reader_cpu, writer_cpu, FLAGS_seconds, result);
  if (!is_good) {
    std::fprintf(stderr, "cannot pin to CPUs %s, or a message arrived torn: choose two that this process may use\n",
                 FLAGS_cpus.c_str());
    return 1;
  }
  const double placement = std::max(placement_before, tern::microbench::placement_ns(reader_cpu, writer_cpu));

  const auto us_at = [&](double share) { return result.ticks.at(share) * Ticks::ns_per_tick() / 1e3; };
  const double bandwidth_gbps = result.bytes_per_tick() * gbps_per_rate;
  const double rate_rps = bandwidth_gbps / 8 * 1e9 / static_cast<double>(FLAGS_size);
  if (FLAGS_json) {
    const nlohmann::ordered_json line = {
        {"bench", "shm_copy"},
        {"transport", "copy"},
        {"params",
         {{"size", FLAGS_size}, {"rewrite", FLAGS_rewrite}, {"cpus", FLAGS_cpus}, {"seconds", FLAGS_seconds}}},
        {"metrics",
         {{"bandwidth_gbps", bandwidth_gbps},
          {"rate_rps", rate_rps},
          {"p50_us", us_at(0.5)},
          {"p99_us", us_at(0.99)},
          {"p999_us", us_at(0.999)}}},
        {"way", std::string(best_way.name) + "_" + best_memory->pages},
        {"tried_gbps", tried},
        {"placement_ns", placement}};
    std::puts(line.dump().c_str());
    return 0;
  }
  std::printf("one copy of %lu bytes out of another thread's memory, cache line %.0f ns\n", FLAGS_size, placement);
  for (const auto& [name, gbps] : tried.items())
    std::printf("  %-28s %8.1f Gbit/s\n", name.c_str(), gbps.get<double>());
  std::printf("fastest: %s on %s pages\n%14s %10s %10s %10s\n%14.1f %10.1f %10.1f %10.1f\n", best_way.name,
              best_memory->pages, "Gbit/s", "p50 us", "p99 us", "p99.9 us", bandwidth_gbps, us_at(0.5), us_at(0.99),
              us_at(0.999));
}
