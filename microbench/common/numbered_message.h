// Messages that go one way: each has its number at both ends, and its answer is that number. So a server can check that
// a message is complete. Any thread.
#pragma once

#include <tern/endpoint.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

namespace programs {

/// Answers with the number in the message. Returns false if the message is not complete.
[[nodiscard]] inline bool take_message(tern::Request request, uint64_t size_bytes) {
  constexpr uint16_t kTornMessage = 1;  // app_code
  const std::span<const std::byte> message = request.bytes();
  uint64_t first = 0, last = 0;
  if (message.size() == size_bytes) {
    std::memcpy(&first, message.data(), sizeof(first));
    std::memcpy(&last, message.data() + message.size() - sizeof(last), sizeof(last));
  }
  if (first == 0 || first != last) {
    request.fail(kTornMessage);
    return false;
  }
  auto out = request.response(sizeof(first));
  if (!out.ok()) return false;  // dropped: the client gets kNoResponse
  std::memcpy(out->data(), &first, sizeof(first));
  request.respond();
  return true;
}
/// Writes a message's number at both ends of it.
inline void number_message(std::span<std::byte> message, uint64_t number) {
  std::memcpy(message.data(), &number, sizeof(number));
  std::memcpy(message.data() + message.size() - sizeof(number), &number, sizeof(number));
}

}  // namespace programs
