// The part of a request's record that a handler's own Request uses without a call into the library.
// Rpc layer; rpc/mailbox.h has the whole record.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>

namespace tern::detail {

struct RequestFront {
  enum class Progress : uint8_t {
    kNone,      ///< no request, or it has been answered
    kOpen,      ///< with the application
    kAnswered,  ///< its handler has written the answer to `space`, which the loop has not seen yet
  };

  const std::byte* data = nullptr;  ///< the request message
  uint32_t bytes = 0;
  Progress progress = Progress::kNone;
  /// While the handler runs: the preallocated buffer for the answer. Null: the library has to find one.
  Buffer* space = nullptr;
};

}  // namespace tern::detail
