#include "session/sent_packets.h"

#include <new>

namespace tern::session {

namespace {

constexpr uint64_t kAllocatedMin = 16;

}  // namespace

bool SentPackets::grow() {
  if (size_ == kSizeMax) return false;
  const uint64_t size = std::max<uint64_t>(kAllocatedMin, 2 * size_);
  auto* entries = new (std::nothrow) SentPacket[size]();
  if (entries == nullptr) return false;
  for (uint64_t n = oldest_; n < next_number_; n++) entries[n & (size - 1)] = entries_[n & mask_];
  release();
  entries_ = entries;
  size_ = static_cast<uint32_t>(size);
  mask_ = size_ - 1;
  return true;
}

}  // namespace tern::session
