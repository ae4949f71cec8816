// Programs written for eRPC: message buffers and request handles. See docs/erpc-migration.md.
#pragma once

#include <optional>
#include <type_traits>

#include <tern/detail/buffer.h>
#include <tern/request.h>

#include "common.h"

namespace erpc {

template <class T>
class Rpc;

/// A view of message memory. Copies show the same memory and have a size each, as in eRPC.
class MsgBuffer {
 public:
  /// Of the message in it, in bytes.
  size_t get_data_size() const { return data_size_; }

  uint8_t* buf_ = nullptr;  ///< the message; null: there is no memory

 private:
  template <class T>
  friend class Rpc;
  friend class ReqHandle;

  MsgBuffer(std::byte* data, size_t bytes, tern::detail::Buffer* buffer)
      : buf_(reinterpret_cast<uint8_t*>(data)), buffer_(buffer), max_data_size_(bytes), data_size_(bytes) {}

 public:
  MsgBuffer() = default;

 private:
  tern::detail::Buffer* buffer_ = nullptr;  ///< of alloc_msg_buffer(); null: memory of a request
  size_t max_data_size_ = 0;
  size_t data_size_ = 0;
};

/// A request that waits for its response. The program has it from its handler's call to enqueue_response().
class ReqHandle {
 public:
  ReqHandle(const ReqHandle&) = delete;
  ReqHandle& operator=(const ReqHandle&) = delete;

  /// The request message. If the handler has returned, a short one may lie elsewhere than before: ask again.
  const MsgBuffer* get_req_msgbuf() const {
    const std::span<const std::byte> bytes = request_->bytes();
    req_msgbuf_.buf_ = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(bytes.data()));
    req_msgbuf_.max_data_size_ = req_msgbuf_.data_size_ = bytes.size();
    return &req_msgbuf_;
  }
  uint8_t get_server_rpc_id() const { return rpc_id_; }
  // What only eRPC has: to use it does not compile.
  template <class Nothing = void>
  uint16_t get_server_session_num() const {
    static_assert(!std::is_void_v<Nothing>, "tern's servers do not number sessions: see docs/erpc-migration.md");
    return 0;
  }

  MsgBuffer pre_resp_msgbuf_;  ///< memory for a response of up to one packet; see set_pre_resp_msgbuf_size()
  MsgBuffer dyn_resp_msgbuf_;  ///< for a buffer of alloc_msg_buffer()

 private:
  template <class T>
  friend class Rpc;
  explicit ReqHandle(uint8_t rpc_id) : rpc_id_(rpc_id) {}

  tern::Request* request_ = nullptr;   ///< the handler's argument, or `kept_`; null: answered
  std::optional<tern::Request> kept_;  ///< once the handler has returned without a response
  mutable MsgBuffer req_msgbuf_;
  const uint8_t rpc_id_;
};

/// Runs in the thread of the event loop (kForeground) or in one of the Nexus's threads (kBackground). `context` is the
/// Rpc's.
using erpc_req_func_t = void (*)(ReqHandle* handle, void* context);
/// Runs in the event loop. Both buffers of the request are the program's again. The response has a size of 0 if there
/// is none: its session has ended, or the response was longer than the buffer.
using erpc_cont_func_t = void (*)(void* context, void* tag);

enum class ReqFuncType : uint8_t { kForeground, kBackground };

}  // namespace erpc
