// A tern_msgbuf is a buffer of an arena. While the program owns one, its link has a mark, so that a buffer that a call
// or an answer has, or that was freed, is told from it. C layer. A buffer is used by one thread at a time.
#pragma once

#include <tern/detail/buffer.h>
#include <tern/msgbuf.h>
#include <tern/tern.h>

#include <cstdint>

namespace tern::c {

/// What the link of the program's buffers points to.
inline constinit detail::Buffer program_mark{};

inline detail::Buffer* buffer_of(tern_msgbuf* msgbuf) { return reinterpret_cast<detail::Buffer*>(msgbuf); }
inline const detail::Buffer* buffer_of(const tern_msgbuf* msgbuf) {
  return reinterpret_cast<const detail::Buffer*>(msgbuf);
}

/// The program has it.
inline bool is_programs(const tern_msgbuf* msgbuf) {
  return msgbuf != nullptr && reinterpret_cast<uintptr_t>(msgbuf) % alignof(detail::Buffer) == 0 &&
         buffer_of(msgbuf)->next == &program_mark;
}

/// Makes it the program's. Null for an empty one.
inline tern_msgbuf* give(MsgBuf& msgbuf) {
  detail::Buffer* const buffer = msgbuf.take();
  if (buffer != nullptr) buffer->next = &program_mark;
  return reinterpret_cast<tern_msgbuf*>(buffer);
}

/// Makes it the library's. It must be the program's.
inline MsgBuf take(tern_msgbuf* msgbuf) {
  buffer_of(msgbuf)->next = nullptr;
  return MsgBuf(buffer_of(msgbuf));
}

inline constexpr const char* kNoBuffer =
    "the buffer is not the program's: it is NULL, was freed, or a call or an answer has it until its continuation runs";

}  // namespace tern::c
