// Completion queues that an endpoint polls, and sleeps by. RDMA layer; owner thread only.
#pragma once

#include <cstdint>

#include "rdma/handles.h"

namespace tern::rdma {

/// The descriptor by which armed completion queues end a sleep. Outlives its queues.
class CompletionEvents {
 public:
  /// False: errno says why.
  [[nodiscard]] bool open(ibv_context* context);
  /// Readable after a completion came to an armed queue, until drain(); -1 before open().
  int descriptor() const { return channel_ == nullptr ? -1 : channel_->fd; }

  /// A queue for `entries` completions. Null: errno says why.
  CompletionQueue make_queue(ibv_context* context, uint32_t entries);
  /// The next completion that comes to `queue` makes the descriptor readable. The caller polls the queue once more
  /// afterwards: what has come before makes nothing readable. False: the device refuses.
  [[nodiscard]] static bool arm(ibv_cq* queue) { return ibv_req_notify_cq(queue, 0) == 0; }
  /// Takes all events, and returns how many there were. Does not block.
  uint32_t drain();
  ibv_comp_channel* channel() const { return channel_.get(); }

  /// In a forked child: closes the descriptor, and leaves the parent's object alone.
  void abandon();

 private:
  CompletionChannel channel_;
};

}  // namespace tern::rdma
