// Counts of frames that a port, and not one of its endpoints, drops. Transport layer.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "frames/drop.h"
#include "transport/dpdk/dpdk_port.h"

namespace tern::transport {

/// Any thread may count. Each count is taken once, by the endpoint that calls take() first.
class DropCounts {
 public:
  void add(frames::Drop why) { add(frames_[static_cast<size_t>(why)]); }
  void add_no_space() { add(no_space_); }

  /// Returns the counts since the last call. Cheap if there are none.
  DpdkDrops take() {
    DpdkDrops taken;
    if (!has_news_.load(std::memory_order_relaxed)) [[likely]]
      return taken;
    has_news_.store(false, std::memory_order_seq_cst);  // before the counts are read: a later one is news again
    for (size_t i = 0; i < frames_.size(); ++i) taken.frames[i] = frames_[i].exchange(0, std::memory_order_seq_cst);
    taken.no_space = no_space_.exchange(0, std::memory_order_seq_cst);
    return taken;
  }

 private:
  void add(std::atomic<uint64_t>& count) {
    count.fetch_add(1, std::memory_order_seq_cst);
    has_news_.store(true, std::memory_order_seq_cst);
  }

  std::array<std::atomic<uint64_t>, frames::kDropReasons> frames_{};
  std::atomic<uint64_t> no_space_{0};
  std::atomic<bool> has_news_{false};
};

}  // namespace tern::transport
