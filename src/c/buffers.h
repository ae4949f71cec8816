// A tern_msgbuf is a buffer of an arena. While the program owns a buffer, the buffer's link has a mark. A buffer
// without the mark was freed, or is owned by a call or an answer. C layer. One thread at a time may use a buffer.
#pragma once

#include <tern/detail/buffer.h>
#include <tern/msgbuf.h>
#include <tern/tern.h>

#include <cstdint>

namespace tern::c {

/// The mark: the link of the program's buffers points to it.
inline constinit detail::Buffer program_mark{};

inline detail::Buffer* buffer_of(tern_msgbuf* msgbuf) { return reinterpret_cast<detail::Buffer*>(msgbuf); }
inline const detail::Buffer* buffer_of(const tern_msgbuf* msgbuf) {
  return reinterpret_cast<const detail::Buffer*>(msgbuf);
}

/// True if the program owns the buffer.
inline bool is_programs(const tern_msgbuf* msgbuf) {
  return msgbuf != nullptr && reinterpret_cast<uintptr_t>(msgbuf) % alignof(detail::Buffer) == 0 &&
         buffer_of(msgbuf)->next == &program_mark;
}

/// Gives the buffer to the program. Null if `msgbuf` is empty.
inline tern_msgbuf* give(MsgBuf& msgbuf) {
  detail::Buffer* const buffer = msgbuf.take();
  if (buffer != nullptr) buffer->next = &program_mark;
  return reinterpret_cast<tern_msgbuf*>(buffer);
}

/// Gives the buffer to the library. The program must own it.
inline MsgBuf take(tern_msgbuf* msgbuf) {
  buffer_of(msgbuf)->next = nullptr;
  return MsgBuf(buffer_of(msgbuf));
}

inline constexpr const char* kNoBuffer =
    "the program does not own the buffer: it is NULL, it was freed or sent as an answer, or a call has it until its "
    "continuation runs";

}  // namespace tern::c
