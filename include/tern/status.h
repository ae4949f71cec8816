// The results of calls that can fail. Standard library only; never allocates, never throws.
#pragma once

#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tern {

/// The reason of a failure. The status of a continuation has the same codes as that of a refused call.
enum class Code : uint8_t {
  kOk,
  kPeerUnreachable,  ///< the peer does not answer within the liveness timeout
  kSessionReset,     ///< the peer restarted, closed the session, or the session was never open
  kDeadline,         ///< the call's deadline passed before its response was complete
  kCancelled,        ///< cancelled by its owner: cancel(), destroy_session(), close()
  kRefused,          ///< refused by the other side; `app_code` has the application's reason, if there is one
  kTooLarge,         ///< larger than a protocol or option limit
  kQueueFull,        ///< a limit on waiting work or on sessions is reached, here or at the server: try again later
  kNoMemory,         ///< the system has no memory left for it
  kWrongThread,      ///< called from a thread that does not own the endpoint
  kNoResponse,       ///< the handler dropped the request without an answer
  kMisuse,           ///< an API rule was broken; the message names it
  kUnavailable,      ///< this machine lacks something that is needed; the message names it
};

/// A code, and a text that names the rule and the remedy, with an address, port or size if that helps.
class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  /// `message` must have static storage duration.
  constexpr Status(Code code, const char* message) : message_(message), code_(code) {}

  constexpr bool ok() const { return code_ == Code::kOk; }  ///< success
  constexpr Code code() const { return code_; }             ///< for programs
  /// For people: one sentence, zero-terminated, with static storage duration.
  constexpr std::string_view message() const { return message_ != nullptr ? message_ : "ok"; }

 private:
  const char* message_ = nullptr;
  Code code_ = Code::kOk;
};

/// A T, or a Status with the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  /// Holds `value`.
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
  /// The reason why there is no T; ok() if there is one.
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
