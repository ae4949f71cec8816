// Completion queues that an endpoint polls, and that end its sleep. RDMA layer; owner thread only.
#pragma once

#include <cstdint>

#include "rdma/handles.h"

namespace tern::rdma {

/// The descriptor through which armed completion queues end a sleep. It must outlive its queues.
class CompletionEvents {
 public:
  /// False: errno says why.
  [[nodiscard]] bool open(ibv_context* context);
  /// Readable after a completion has come to an armed queue, until drain(); -1 before open().
  int descriptor() const { return channel_ == nullptr ? -1 : channel_->fd; }

  /// Makes a queue for `entries` completions. Null: errno says why.
  CompletionQueue make_queue(ibv_context* context, uint32_t entries);
  /// The next completion of `queue` makes the descriptor readable. The caller must poll the queue once more after this
  /// call, because earlier completions do not make it readable. Returns false if the device refuses.
  [[nodiscard]] static bool arm(ibv_cq* queue) { return ibv_req_notify_cq(queue, 0) == 0; }
  /// Takes all events, and returns their number. Does not block.
  uint32_t drain();
  ibv_comp_channel* channel() const { return channel_.get(); }

  /// In a forked child: closes the descriptor, and leaves the parent's object alone.
  void abandon();

 private:
  CompletionChannel channel_;
};

}  // namespace tern::rdma
