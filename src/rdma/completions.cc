#include "rdma/completions.h"

#include <unistd.h>

#include "base/descriptor.h"

namespace tern::rdma {

bool CompletionEvents::open(ibv_context* context) {
  channel_.reset(ibv_create_comp_channel(context));
  return channel_ != nullptr && base::set_nonblocking(channel_->fd);
}

CompletionQueue CompletionEvents::make_queue(ibv_context* context, uint32_t entries) {
  return CompletionQueue(ibv_create_cq(context, static_cast<int>(entries), nullptr, channel_.get(), 0));
}

/// Acknowledges each event at once, because ibv_destroy_cq(3) blocks until all events are acknowledged.
uint32_t CompletionEvents::drain() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  uint32_t count = 0;
  while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) {
    ibv_ack_cq_events(queue, 1);
    ++count;
  }
  return count;
}

void CompletionEvents::abandon() {
  if (ibv_comp_channel* channel = channel_.release()) close(channel->fd);
}

}  // namespace tern::rdma
