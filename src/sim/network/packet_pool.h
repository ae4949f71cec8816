// The pool of packets of the simulated network. The content of each packet follows it in memory.
// Sim layer, network part. One thread.
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "base/check.h"
#include "base/slab.h"
#include "sim/network/network.h"

namespace tern::sim {

/// take() returns the packet that was given back last, because it is in the CPU's caches.
class PacketPool {
 public:
  explicit PacketPool(size_t content_bytes_max)
      : packet_bytes_((sizeof(SimPacket) + content_bytes_max + 63) / 64 * 64), content_bytes_max_(content_bytes_max) {}
  PacketPool(const PacketPool&) = delete;
  PacketPool& operator=(const PacketPool&) = delete;
  ~PacketPool() {
    for (std::byte* slab : slabs_) base::unmap_slab(slab, base::kHugeSlabBytes);
  }

  SimPacket* take() {
    if (free_ == nullptr) [[unlikely]]
      grow();
    SimPacket* const packet = free_;
    free_ = packet->next;
    packet->is_marked = false;
    packet->source = nullptr;
    return packet;
  }
  void give(SimPacket* packet) {
    packet->next = free_;
    free_ = packet;
  }
  size_t content_bytes_max() const { return content_bytes_max_; }

 private:
  void grow() {
    auto* const slab = static_cast<std::byte*>(base::map_slab(base::kHugeSlabBytes));
    CHECK(slab != nullptr);  // the machine has no memory left for the simulation
    slabs_.push_back(slab);
    for (size_t at = base::kHugeSlabBytes / packet_bytes_; at-- > 0;) {
      auto* const packet = new (slab + at * packet_bytes_) SimPacket;
      packet->content = reinterpret_cast<std::byte*>(packet + 1);
      give(packet);
    }
  }

  const size_t packet_bytes_;
  const size_t content_bytes_max_;
  SimPacket* free_ = nullptr;
  std::vector<std::byte*> slabs_;
};

}  // namespace tern::sim
