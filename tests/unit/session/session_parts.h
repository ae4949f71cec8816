// Common parts of the tests of both ends of a session: buffers from malloc, and payloads.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "session/client_session.h"
#include "session/server_session.h"

namespace tern::session {

struct BufferDeleter {
  void operator()(detail::Buffer* buffer) const { std::free(buffer); }
};
using OwnedBuffer = std::unique_ptr<detail::Buffer, BufferDeleter>;

inline OwnedBuffer make_buffer(uint32_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, alignof(detail::Buffer), sizeof(detail::Buffer) + bytes) != 0) std::abort();
  auto* buffer = new (memory) detail::Buffer{};
  buffer->length_bytes = bytes;
  buffer->capacity_bytes = bytes;
  for (uint32_t i = 0; i < bytes; i++) buffer->data()[i] = static_cast<std::byte>(i * 7 + 1);
  return OwnedBuffer(buffer);
}

/// The resources that an endpoint offers to its server sessions, from the heap.
class HeapOffers final : public ServerOffers {
 public:
  using ServerOffers::ServerOffers;
  RequestBuffer buffer_for(const wire::Header& request, bool is_long) override {
    if (request.message_bytes() > buffer_bytes_max) return {nullptr, refusal};
    arriving_bytes += is_long ? request.message_bytes() : 0;
    return {make_buffer(request.message_bytes()).release(), {}};
  }
  void take_back_buffer(detail::Buffer* buffer, uint32_t request_bytes, bool is_long) override {
    arriving_bytes -= is_long ? request_bytes : 0;
    BufferDeleter()(buffer);
  }
  void take_back_response(detail::Buffer* response, uint64_t) override {
    responses_taken_back++;
    BufferDeleter()(response);
  }
  void abandon(void* call) override { abandoned.push_back(call); }
  bool may_abandon(void*) override { return abandoned.size() < abandoned_max; }

  size_t abandoned_max = SIZE_MAX;
  size_t buffer_bytes_max = SIZE_MAX;  ///< larger requests are refused
  wire::FailureCode refusal = wire::FailureCode::kNoMemory;
  uint64_t arriving_bytes = 0;
  uint32_t responses_taken_back = 0;
  std::vector<void*> abandoned;
};

/// A packet that left, or the bytes of one that arrives.
struct TestPacket {
  wire::Header header;
  std::vector<std::byte> payload;

  transport::Payload view() const { return {payload.data(), static_cast<uint32_t>(payload.size()), nullptr, 0}; }
};

inline std::vector<std::byte> bytes_of(uint32_t count) { return std::vector<std::byte>(count, std::byte{0x5a}); }

/// Returns a payload with a revoked lease.
inline transport::Payload torn(const std::vector<std::byte>& bytes) {
  static const std::atomic<uint32_t> lease{2};
  return {bytes.data(), static_cast<uint32_t>(bytes.size()), &lease, 1};
}

}  // namespace tern::session
