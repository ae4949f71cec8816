// Programs written for eRPC: names that every header there has. See docs/erpc-migration.md.
#pragma once

// Programs rely on some of these without including them, because eRPC's headers include them.
#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

// These are macros, because programs written for eRPC use them as macros.
#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#endif
#ifndef unlikely
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif
#define _unused(x) ((void)(x))
#define KB(x) (static_cast<size_t>(x) << 10)
#define MB(x) (static_cast<size_t>(x) << 20)
#define GB(x) (static_cast<size_t>(x) << 30)

namespace erpc {

inline constexpr bool kTesting = false;        ///< fault injection by the program; tern has Faulty<T> instead
inline constexpr bool kIsWindows = false;      ///< tern runs on Linux
inline constexpr size_t kIsAzure = false;      ///< makes programs choose a finer unit of time
inline constexpr bool kCcRateComp = true;      ///< congestion control is on
inline constexpr bool kDatapathStats = false;  ///< get_avg_rx_batch() and get_avg_tx_batch() have no values
inline constexpr size_t kMaxRpcId = UINT8_MAX - 1;
inline constexpr size_t kMaxBgThreads = 8;
inline constexpr size_t kMaxNumERpcProcesses = 32;
inline constexpr uint16_t kBaseSmUdpPort = 31850;  ///< where eRPC's ports begin; tern takes any
inline constexpr uint8_t kInvalidRpcId = kMaxRpcId + 1;
inline constexpr size_t kMaxPhyPorts = 16;
inline constexpr size_t kMaxNumaNodes = 8;
inline constexpr size_t kHugepageSize = size_t{2} << 20;
inline constexpr size_t kSessionCredits = 32;  ///< eRPC's value; tern's servers limit the packets in flight
inline constexpr size_t kSessionReqWindow = 8;
inline constexpr uint16_t kInvalidSessionNum = UINT16_MAX;

/// Throws std::runtime_error if `condition` is false.
inline void rt_assert(bool condition) {
  if (unlikely(!condition)) throw std::runtime_error("Error");
}
/// Throws std::runtime_error with this text if `condition` is false.
inline void rt_assert(bool condition, const char* text) {
  if (unlikely(!condition)) throw std::runtime_error(text);
}
/// Throws std::runtime_error with this text if `condition` is false.
inline void rt_assert(bool condition, const std::string& text) {
  if (unlikely(!condition)) throw std::runtime_error(text);
}
/// Throws std::runtime_error with both texts if `condition` is false.
inline void rt_assert(bool condition, const std::string& text, const char* more) {
  if (unlikely(!condition)) throw std::runtime_error(text + more);
}
/// Ends the process with this text if `condition` is false.
inline void exit_assert(bool condition, const std::string& text) {
  if (likely(condition)) return;
  std::fprintf(stderr, "%s. Exiting.\n", text.c_str());
  std::exit(-1);
}

}  // namespace erpc
