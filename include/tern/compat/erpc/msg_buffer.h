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

/// A view of message memory. Copies refer to the same memory, and each has its own size, as in eRPC.
class MsgBuffer {
 public:
  /// The size of the message in it, in bytes.
  size_t get_data_size() const { return data_size_; }

  union {
    uint8_t* buf_ = nullptr;  ///< the message; null: there is no memory
    uint8_t* buf;             ///< the name in older programs
  };

 private:
  template <class T>
  friend class Rpc;
  friend class ReqHandle;

  MsgBuffer(tern::detail::Buffer* buffer, size_t bytes)
      : buf_(reinterpret_cast<uint8_t*>(buffer->data())), data_size_(bytes), buffer_(buffer) {}
  /// A view of a request's memory.
  void show(std::span<const std::byte> bytes) { show(bytes.data(), bytes.size()); }
  void show(const std::byte* data, size_t bytes) {
    buf_ = reinterpret_cast<uint8_t*>(const_cast<std::byte*>(data));
    data_size_ = bytes;
  }

 public:
  MsgBuffer() = default;

 private:
  size_t data_size_ = 0;
  tern::detail::Buffer* buffer_ = nullptr;  ///< the buffer of buf_; null: no memory, or a request's memory
};

/// A request that waits for its response. The program owns it from the handler's call until enqueue_response().
class ReqHandle {
 public:
  ReqHandle(const ReqHandle&) = delete;
  ReqHandle& operator=(const ReqHandle&) = delete;

  /// The request message. After the handler has returned, a short message may be at another address: call this again.
  const MsgBuffer* get_req_msgbuf() const { return &req_msgbuf_; }
  uint8_t get_server_rpc_id() const { return rpc_id_; }
  // Members that only eRPC has. Their use does not compile.
  template <class Nothing = void>
  uint16_t get_server_session_num() const {
    static_assert(!std::is_void_v<Nothing>, "tern's servers do not number sessions: see docs/erpc-migration.md");
    return 0;
  }

  union {
    MsgBuffer pre_resp_msgbuf_ = {};  ///< memory for a response of up to one packet; see set_pre_resp_msgbuf_size()
    MsgBuffer pre_resp_msgbuf;        ///< the name in older programs
  };
  union {
    MsgBuffer dyn_resp_msgbuf_ = {};  ///< for a buffer of alloc_msg_buffer()
    MsgBuffer dyn_resp_msgbuf;        ///< the name in older programs
  };

 private:
  template <class T>
  friend class Rpc;
  ReqHandle(void* rpc, uint8_t rpc_id) : rpc_(rpc), rpc_id_(rpc_id) {}

  // A request that has not been answered is in one of these.
  tern::detail::RequestFront* front_ = nullptr;  ///< the handler runs, and pre_resp_msgbuf_ is the front's `space`
  tern::Request* request_ = nullptr;             ///< with `front_` null: the handler's argument, or `kept_`
  std::optional<tern::Request> kept_;            ///< the handler may have returned without a response
  MsgBuffer req_msgbuf_;
  void* const rpc_;  ///< the Rpc<CTransport> that has the request
  const uint8_t rpc_id_;
};

/// Runs in the thread of the event loop (kForeground) or in one of the Nexus's threads (kBackground). `context` is the
/// Rpc's.
using erpc_req_func_t = void (*)(ReqHandle* handle, void* context);
/// Runs in the event loop. The program owns both buffers of the request again. The size of the response is 0 if there
/// is no response: the session has ended, or the response was longer than the buffer.
using erpc_cont_func_t = void (*)(void* context, void* tag);

enum class ReqFuncType : uint8_t { kForeground, kBackground };

}  // namespace erpc
