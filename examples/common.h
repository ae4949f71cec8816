// What the examples share, and any other program would do its own way: to end when it cannot go on, and text as
// messages. Any thread, but what takes an Endpoint: its owner.
#pragma once

#include <tern/rpc.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

/// Ends the program unless all is well. The message says what to do about it. A server that must stay up would look at
/// the status instead.
inline void must(tern::Status status) {
  if (status.ok()) return;
  std::fflush(stdout);
  std::fprintf(stderr, "cannot go on: %s\n", status.message().data());
  std::_Exit(1);
}
/// The same for what gives a value.
template <class T>
T must(tern::Result<T> result) {
  must(result.status());
  return std::move(*result);
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A message of this text. Without memory it is empty, and the call that it is for is refused.
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

/// One call from beginning to end, for a thread that has nothing else to do meanwhile.
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
