// Functions that the examples share: ending the program on an error, and messages of text. A real program would have
// its own. Any thread; functions that take an Endpoint: only its owner thread.
#pragma once

#include <tern/rpc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

/// Ends the program unless the status is ok. The status's message names the remedy. A server that must stay up would
/// examine the status instead.
inline void must(tern::Status status) {
  if (status.ok()) return;
  std::fflush(stdout);
  std::fprintf(stderr, "cannot go on: %s\n", status.message().data());
  std::_Exit(1);
}
/// Like must(Status), and returns the value.
template <class T>
T must(tern::Result<T> result) {
  must(result.status());
  return std::move(*result);
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Returns a message of this text. Without memory the message is empty, and a call with it is refused.
inline tern::MsgBuf message(tern::Endpoint& endpoint, std::string_view text) {
  tern::MsgBuf buffer = endpoint.alloc_msgbuf(text.size());
  if (buffer && !text.empty()) std::memcpy(buffer.bytes().data(), text.data(), text.size());
  return buffer;
}

/// Answers with this text. Without memory the request is dropped, and its client gets kNoResponse.
inline void reply(tern::Request request, std::string_view text) {
  auto room = request.response(text.size());
  if (!room.ok()) return;
  if (!text.empty()) std::memcpy(room->data(), text.data(), text.size());
  request.respond();
}

/// Makes one call and runs the loop until its end. For a thread that has no other work meanwhile.
template <class T>
tern::Completion ask(tern::Rpc<T>& rpc, tern::Session session, uint16_t type, std::string_view text,
                     tern::CallOptions options = {}) {
  tern::Completion result;
  auto then = [&](tern::Completion& done) {
    result = std::move(done);
    rpc.stop();
  };
  must(rpc.enqueue_request(session, type, message(rpc, text), rpc.alloc_msgbuf(64), then, options));
  must(rpc.run_event_loop());
  return result;
}
