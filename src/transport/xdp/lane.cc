#include <algorithm>

#include "base/try.h"
#include "transport/xdp/names.h"
#include "transport/xdp/port.h"

namespace tern::transport::xdp {

Lane::~Lane() {
  stop_waiting();
  if (is_attached_) port_->detach(slot_, is_place_free_);
}

/// Reads the new shares of queues. If another thread holds the mutex, this does nothing, and a later poll tries again:
/// that thread may be waiting for the driver, which takes milliseconds.
[[gnu::noinline]] void Lane::try_refresh() {
  if (!port_->mutex_.try_lock()) return;
  (void)base::try_grow([this] {
    port_->mutex_.assert_held();
    (void)refresh();
  });
  port_->mutex_.unlock();
}

/// Updates the queues after a change of their endpoints. False: not all of their descriptors can be waited for, and the
/// next poll tries it again. If it throws std::bad_alloc, nothing has changed.
bool Lane::refresh() {
  std::vector<Port::Slot*> used;
  for (const auto& slot : port_->owned_slots_) {
    if (slot->is_used) used.push_back(slot.get());
  }
  std::vector<Queue*> own = {&home_}, foreign;
  for (uint32_t i = 0; i < port_->owned_queues_.size(); ++i) {
    Queue* const queue = port_->owned_queues_[i].get();
    if (queue == &home_) continue;
    const bool is_own = port_->lanes_at(i) == 0 && used[i % used.size()] == &slot_;
    (is_own ? own : foreign).push_back(queue);
  }
  own.swap(own_);
  foreign_.swap(foreign);
  if (turn_ >= own_.size()) turn_ = 0;
  bool is_added = true;
  if (waits_ != nullptr) {
    for (Queue* queue : own) {
      if (std::find(own_.begin(), own_.end(), queue) == own_.end()) waits_->remove(queue->descriptor());
    }
    for (Queue* queue : own_) is_added = waits_->add(queue->descriptor(), EPOLLIN, name_) && is_added;
  }
  if (is_added) version_ = port_->version_.load(std::memory_order_relaxed);
  return is_added;
}

uint32_t Lane::receive(std::span<Frame, kBurstMax> frames) {
  if (version_ != port_->version_.load(std::memory_order_acquire)) [[unlikely]]
    try_refresh();
  is_inbox_first_ = !is_inbox_first_;
  if (is_inbox_first_ && !slot_.inbox.is_empty()) [[unlikely]]
    return slot_.inbox.pop(frames);
  Queue* const queue = own_[turn_];
  if (++turn_ == own_.size()) turn_ = 0;
  if (queue->has_received()) {
    if (const uint32_t count = queue->take(frames); count != 0) return count;
  }
  if (!slot_.inbox.is_empty()) [[unlikely]]
    return slot_.inbox.pop(frames);
  return --until_foreign_ == 0 ? receive_foreign(frames) : 0;
}

/// Takes frames of the next queue of another endpoint that has some.
[[gnu::noinline]] uint32_t Lane::receive_foreign(std::span<Frame, kBurstMax> frames) {
  until_foreign_ = kForeignLooks;
  for (size_t i = 0; i < foreign_.size(); ++i) {
    foreign_turn_ = (foreign_turn_ + 1) % foreign_.size();
    Queue* const queue = foreign_[foreign_turn_];
    if (!queue->has_received()) continue;
    if (const uint32_t count = queue->take(frames); count != 0) return count;
  }
  return 0;
}

/// Frames of the inbox may be of several queues.
void Lane::give_back(std::span<const Frame> frames) {
  while (!frames.empty()) {
    const auto is_other = [&](const Frame& frame) { return frame.queue != frames.front().queue; };
    const auto count = static_cast<size_t>(std::find_if(frames.begin(), frames.end(), is_other) - frames.begin());
    frames.front().queue->give_back(frames.first(count));
    frames = frames.subspan(count);
  }
}

Lane::Passed Lane::pass_on(const Frame& frame) {
  Port::Slot* const slot = port_->find(ethernet::lane_key_of_frame(frame.span()));
  if (slot == nullptr || slot == &slot_) return Passed::kUnknown;
  return slot->inbox.push(frame, port_->inbox_frames_max()) ? Passed::kTaken : Passed::kNoSpace;
}

// ---- Sleeping

Status Lane::add_to(base::WaitSet& waits, uint64_t name) {
  waits_ = &waits;
  name_ = name;
  bool is_added = waits.add(slot_.inbox.descriptor(), EPOLLIN, name);
  const bool is_fresh = base::try_grow([&] {
    const base::MutexLock lock(port_->mutex_);
    is_added = refresh() && is_added;
  });
  if (!is_fresh) return kNoMemory;
  return is_added ? Status() : kNoDescriptors;
}

void Lane::stop_waiting() {
  if (waits_ == nullptr) return;
  waits_->remove(slot_.inbox.descriptor());
  for (Queue* queue : own_) waits_->remove(queue->descriptor());
  waits_ = nullptr;
}

bool Lane::arm() {
  const auto has_received = [](const Queue* queue) { return queue->has_received(); };
  // The inbox is armed first: a change of the version is either seen here, or wakes the endpoint.
  if (slot_.inbox.arm() && version_ == port_->version_.load(std::memory_order_seq_cst) &&
      std::none_of(own_.begin(), own_.end(), has_received)) {
    return true;
  }
  disarm();
  return false;
}

}  // namespace tern::transport::xdp
