#include "transport/xdp/sends.h"

#include "base/clock.h"
#include "ethernet/open_frames.h"

namespace tern::transport::xdp {

static_assert(ethernet::FrameQueue<Sends>);

namespace {

/// How long the end of an endpoint waits for the kernel.
constexpr uint64_t kStopNs = 20'000'000;

}  // namespace

void Sends::start(Queue& queue, uint32_t place, KernelSocket& kernel, uint32_t frame_bytes_max) {
  queue_ = &queue;
  kernel_ = &kernel;
  first_ = place * kSlots;
  frame_bytes_max_ = frame_bytes_max;
}

void Sends::close(Slot& slot, const frames::FrameTemplate& headers, size_t bytes) {
  std::byte* const frame = frame_of(slot);
  header_bytes_ = static_cast<uint32_t>(headers.header_bytes());
  headers.write(frame, bytes);
  slot.bytes = static_cast<uint32_t>(header_bytes_ + bytes);
  slot.is_local = headers.destination_mac() == own_mac_;
  if (!slot.is_local) headers.complete_udp_checksum(frame, {frame + header_bytes_, bytes});
}

uint32_t Sends::submit() {
  std::array<Queue::Send, kSlots> frames;
  uint32_t count = 0, lost = 0;
  for (; sent_ != queued_; ++sent_) {
    const Slot& slot = slots_[sent_ % kSlots];
    if (slot.is_local) [[unlikely]] {
      lost += kernel_->send({frame_of(slot), slot.bytes}, header_bytes_) ? 0 : 1;
    } else {
      frames[count++] = {index_of(sent_), slot.bytes};
    }
  }
  if (count != 0) queue_->submit({frames.data(), count});
  return lost;
}

void Sends::find_done() {
  while (done_ != sent_ && queue_->is_done(index_of(done_))) ++done_;
}

bool Sends::make_space() {
  find_done();
  if (queued_ - done_ >= kSlots) {
    queue_->reap();
    find_done();
  }
  is_refused_ = queued_ - done_ >= kSlots;
  return !is_refused_;
}

uint64_t Sends::drop_queued() {
  const uint64_t count = queued_ - sent_;
  queued_ = sent_;
  return count;
}

bool Sends::stop() {
  if (queue_ == nullptr) return true;
  (void)drop_queued();
  uint64_t calls = 0;
  const uint64_t until_ns = base::monotonic_ns() + kStopNs;
  do {
    queue_->reap();
    find_done();
    if (done_ == sent_) return true;
  } while (queue_->kick(calls) != Queue::Kicked::kDown && base::monotonic_ns() < until_ns);
  return false;
}

}  // namespace tern::transport::xdp
