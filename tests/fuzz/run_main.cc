// Runs a fuzz target over inputs made from seeds, without libFuzzer: NAME_run [--seeds=A-B] [--bytes=N] [--cpu-s=S]
// [--save=FILE]. It stops after S seconds of CPU time, or at the first input that ends the process; then it prints the
// seed and saves the input.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "fuzz/fuzz_parts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern uint64_t fuzz_packets;

namespace {

struct Arguments {
  uint64_t first = 1, last = UINT64_MAX;
  size_t bytes = 4096;
  double cpu_s = 0;  ///< limit; 0: none if the last seed is given, otherwise 60 s
  const char* save = nullptr;
};

bool parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; i++) {
    const std::string_view text = argv[i];
    if (text.starts_with("--seeds=")) {
      char* end = nullptr;
      arguments.first = arguments.last = std::strtoull(argv[i] + 8, &end, 10);
      if (*end == '-') arguments.last = std::strtoull(end + 1, &end, 10);
      if (*end != 0) return false;
    } else if (text.starts_with("--bytes=")) {
      arguments.bytes = std::strtoull(argv[i] + 8, nullptr, 10);
    } else if (text.starts_with("--cpu-s=")) {
      arguments.cpu_s = std::strtod(argv[i] + 8, nullptr);
    } else if (text.starts_with("--save=")) {
      arguments.save = argv[i] + 7;
    } else {
      return false;
    }
  }
  if (arguments.cpu_s == 0) arguments.cpu_s = arguments.last == UINT64_MAX ? 60 : HUGE_VAL;
  return arguments.bytes > 0;
}

std::vector<uint8_t> input_of(uint64_t seed, size_t bytes) {
  std::vector<uint8_t> input(bytes);
  uint64_t state = seed;
  for (uint8_t& byte : input) byte = static_cast<uint8_t>(tern::fuzz::next_random(state));
  return input;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Progress that the process with the target reports to its waiting parent.
struct Progress {
  uint64_t seed;
  uint64_t packets;  ///< packets up to the last finished input
  double cpu_s;
};

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!parse(argc, argv, arguments)) {
    std::fprintf(stderr, "usage: %s [--seeds=A-B] [--bytes=N] [--cpu-s=S] [--save=FILE]\n", argv[0]);
    return 2;
  }
  void* shared = mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  auto* progress = new (shared) Progress{arguments.first, 0, 0};

  const pid_t child = fork();
  if (child == 0) {
    for (uint64_t seed = arguments.first; seed <= arguments.last && cpu_seconds() < arguments.cpu_s; seed++) {
      progress->seed = seed;
      const std::vector<uint8_t> input = input_of(seed, arguments.bytes);
      LLVMFuzzerTestOneInput(input.data(), input.size());
      progress->packets = fuzz_packets;
      progress->cpu_s = cpu_seconds();
    }
    std::exit(0);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 2;
  std::printf("%llu inputs of %zu bytes, %llu packets in %.1f s of CPU time: %.0f a second\n",
              static_cast<unsigned long long>(progress->seed - arguments.first + 1), arguments.bytes,
              static_cast<unsigned long long>(progress->packets), progress->cpu_s,
              static_cast<double>(progress->packets) / (progress->cpu_s > 0 ? progress->cpu_s : 1));
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  std::printf("ended by the input of seed %llu, by %s %d: --seeds=%llu --bytes=%zu\n",
              static_cast<unsigned long long>(progress->seed), WIFSIGNALED(status) ? "signal" : "status",
              WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
              static_cast<unsigned long long>(progress->seed), arguments.bytes);
  if (arguments.save != nullptr) {
    const std::vector<uint8_t> input = input_of(progress->seed, arguments.bytes);
    std::FILE* file = std::fopen(arguments.save, "wb");
    if (file == nullptr || std::fwrite(input.data(), 1, input.size(), file) != input.size() || std::fclose(file) != 0) {
      std::fprintf(stderr, "cannot write %s\n", arguments.save);
    }
  }
  return 1;
}
