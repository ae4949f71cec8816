#include "trace/ring.h"

#include <algorithm>
#include <utility>

#include "trace/dump.h"

namespace tern::trace {

std::unique_ptr<Ring> Ring::create(size_t records, std::string_view nexus, std::string_view transport,
                                   uint16_t endpoint) {
  const size_t capacity = std::bit_ceil(records);
  std::unique_ptr<Cell[]> cells(new (std::nothrow) Cell[capacity]());
  if (cells == nullptr) return nullptr;
  std::unique_ptr<Ring> ring(new (std::nothrow) Ring(std::move(cells), capacity));
  if (ring == nullptr) return nullptr;
  const auto set_text = [](auto& to, std::string_view text) {
    std::copy_n(text.begin(), std::min(text.size(), to.size() - 1), to.begin());
  };
  set_text(ring->header_.nexus, nexus);
  set_text(ring->header_.transport, transport);
  ring->header_.endpoint = endpoint;
  add_ring(*ring);
  return ring;
}

Ring::~Ring() { remove_ring(*this); }

size_t Ring::copy(uint64_t& from, uint64_t until, std::array<Record, 64>& to) const {
  // The record that is being written already replaces an older one, but is not in the count yet.
  const auto oldest = [this](uint64_t count) { return count < capacity() ? 0 : count - capacity() + 1; };
  from = std::max(from, oldest(count()));
  const size_t wanted = from < until ? std::min<uint64_t>(until - from, to.size()) : 0;
  for (size_t i = 0; i < wanted; i++) {
    const Cell& cell = cells_[(from + i) & mask_];
    RecordWords words;
    for (size_t k = 0; k < words.size(); k++) words[k] = cell[k].load(std::memory_order_relaxed);
    to[i] = std::bit_cast<Record>(words);
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t first = oldest(count_.load(std::memory_order_relaxed));
  const size_t lost = first > from ? std::min<uint64_t>(first - from, wanted) : 0;
  std::copy(to.begin() + static_cast<ptrdiff_t>(lost), to.begin() + static_cast<ptrdiff_t>(wanted), to.begin());
  from += lost;
  return wanted - lost;
}

}  // namespace tern::trace
