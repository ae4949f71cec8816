// The part of a request's record that a handler's own Request uses without a call into the library.
// Rpc room (rpc/mailbox.h has the whole record).
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>

namespace tern::detail {

struct RequestFront {
  enum class Progress : uint8_t {
    kNone,      ///< no request, or it has been answered
    kOpen,      ///< with the application
    kAnswered,  ///< likewise answered: by its handler, in `room`, and the loop has still to see it
  };

  const std::byte* data = nullptr;  ///< the request message
  uint32_t bytes = 0;
  Progress progress = Progress::kNone;
  /// While the handler runs: the preallocated room for the answer. Null: the library has to find some.
  Buffer* room = nullptr;
};

}  // namespace tern::detail
