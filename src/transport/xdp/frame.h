// A received frame in the memory of a queue. Transport layer: a plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tern::transport::xdp {

class Queue;

struct Frame {
  Queue* queue;
  const std::byte* data;
  uint32_t bytes;

  std::span<const std::byte> span() const { return {data, bytes}; }
};

}  // namespace tern::transport::xdp
