// What a call that can fail returns. Standard library only; never allocates, never throws.
#pragma once

#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tern {

/// Why something did not work. A continuation's status uses the same codes as a refused call.
enum class Code : uint8_t {
  kOk,
  kPeerUnreachable,  ///< the peer does not answer within the liveness timeout
  kSessionReset,     ///< the peer restarted, closed the session, or the session was never open
  kDeadline,         ///< the call's deadline passed before its response was complete
  kCancelled,        ///< cancelled by its owner: cancel(), destroy_session(), close()
  kRefused,          ///< the other side said no; `app_code` has the application's reason, if it gave one
  kTooLarge,         ///< larger than a protocol or option limit
  kQueueFull,        ///< a limit on waiting work or on sessions is reached, here or at the server: try again later
  kNoMemory,         ///< the system has no memory left for it
  kWrongThread,      ///< called from a thread that does not own the endpoint
  kNoResponse,       ///< the handler dropped the request without an answer
  kMisuse,           ///< an API rule was broken; the message names it
  kUnavailable,      ///< this machine lacks something that is needed; the message names it
};

/// A code and a text that names the rule and the remedy, where it helps with address, port or size.
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  /// `message` must stay for ever.
  constexpr Status(Code code, const char* message) : message_(message), code_(code) {}

  constexpr bool ok() const { return code_ == Code::kOk; }  ///< it worked
  constexpr Code code() const { return code_; }             ///< for programs
  /// For people: one sentence, zero-terminated, alive for ever.
  constexpr std::string_view message() const { return message_ != nullptr ? message_ : "ok"; }

 private:
  const char* message_ = nullptr;
  Code code_ = Code::kOk;
};

/// A T, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  /// There is one.
  Result(T value) : ok_(true) { new (&value_) T(std::move(value)); }  // NOLINT(google-explicit-constructor)
  /// `status` must not be ok.
  Result(Status status) : status_(status), ok_(false) {}  // NOLINT(google-explicit-constructor)
  /// `other` keeps what a moved-from T is.
  Result(Result&& other) noexcept : ok_(other.ok_) {
    if (ok_) {
      new (&value_) T(std::move(other.value_));
    } else {
      status_ = other.status_;
    }
  }
  /// `other` keeps what a moved-from T is.
  Result& operator=(Result&& other) noexcept {
    if (this != &other) {
      this->~Result();
      new (this) Result(std::move(other));
    }
    return *this;
  }
  ~Result() {
    if constexpr (!std::is_trivially_destructible_v<T>) {
      if (ok_) value_.~T();
    }
  }

  bool ok() const { return ok_; }  ///< there is a T
  /// Why there is none; an ok Status if there is one.
  Status status() const { return ok_ ? Status() : status_; }
  T& operator*() { return value_; }              ///< only when ok()
  const T& operator*() const { return value_; }  ///< only when ok()
  T* operator->() { return &value_; }            ///< only when ok()

 private:
  union {
    T value_;
    Status status_;
  };
  bool ok_;
};

}  // namespace tern
