// The results of calls that can fail. Standard library only; never allocates, never throws. Any thread.
#pragma once

#include <cstdint>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tern/detail/export.h>

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
  kNoMemory,         ///< the system has no memory for the operation
  kWrongThread,      ///< called from a thread that does not own the endpoint
  kNoResponse,       ///< the handler dropped the request without an answer
  kMisuse,           ///< an API rule was broken; the message names it
  kUnavailable,      ///< this machine lacks something that is needed; the message names it
};

/// The code in words, such as "queue full". With static storage duration, and zero-terminated. "unknown code": no
/// enumerator has this value.
constexpr std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kPeerUnreachable:
      return "peer unreachable";
    case Code::kSessionReset:
      return "session reset";
    case Code::kDeadline:
      return "deadline passed";
    case Code::kCancelled:
      return "cancelled";
    case Code::kRefused:
      return "refused";
    case Code::kTooLarge:
      return "too large";
    case Code::kQueueFull:
      return "queue full";
    case Code::kNoMemory:
      return "no memory";
    case Code::kWrongThread:
      return "wrong thread";
    case Code::kNoResponse:
      return "no response";
    case Code::kMisuse:
      return "misuse";
    case Code::kUnavailable:
      return "unavailable";
  }
  return "unknown code";
}
/// Prints to_string(code). A template, so that this header needs no <ostream>.
template <class Stream>
auto operator<<(Stream& out, Code code) -> decltype(out << to_string(code)) {
  return out << to_string(code);
}

class Status;
namespace detail {
/// Prints the status to standard error and aborts.
[[noreturn]] TERN_API void stop_without_value(const Status& status) noexcept;
}  // namespace detail

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

  /// On an error it prints the status on standard error and calls abort(). Use it for steps without which the program
  /// cannot continue, such as on_request() and run_event_loop().
  void must() const {
    if (!ok()) [[unlikely]]
      detail::stop_without_value(*this);
  }

  /// The same code and the same text.
  friend constexpr bool operator==(const Status& a, const Status& b) {
    return a.code_ == b.code_ && a.message() == b.message();
  }
  /// The same code; the text does not matter.
  friend constexpr bool operator==(const Status& status, Code code) { return status.code_ == code; }

 private:
  const char* message_ = nullptr;
  Code code_ = Code::kOk;
};

/// Prints the code, and the text if it says more: "deadline passed: the call's deadline ...".
template <class Stream>
auto operator<<(Stream& out, const Status& status) -> decltype(out << to_string(status.code())) {
  if (status.message() == to_string(status.code())) return out << status.message();
  return out << to_string(status.code()) << ": " << status.message();
}

/// A T, or a Status with the reason why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  /// Holds `value`.
  Result(T value) : ok_(true) { new (&value_) T(std::move(value)); }  // NOLINT(google-explicit-constructor)
  /// `status` must not be ok.
  Result(Status status) : status_(status), ok_(false) {}  // NOLINT(google-explicit-constructor)
  /// Moves the T of `other`, which stays there in its moved-from state.
  Result(Result&& other) noexcept : ok_(other.ok_) {
    if (ok_) {
      new (&value_) T(std::move(other.value_));
    } else {
      status_ = other.status_;
    }
  }
  /// Moves the T of `other`, which stays there in its moved-from state.
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

  bool ok() const { return ok_; }                 ///< there is a T
  explicit operator bool() const { return ok_; }  ///< ok()
  /// The reason why there is no T; ok() if there is one.
  Status status() const { return ok_ ? Status() : status_; }
  Code code() const { return ok_ ? Code::kOk : status_.code(); }  ///< of status()
  /// The T. Without a T it prints the status on standard error and calls abort(). Use it for objects without which the
  /// program cannot continue.
  T& value() & {
    require_value();
    return value_;
  }
  /// The same for a const Result.
  const T& value() const& {
    require_value();
    return value_;
  }
  /// Moves the T out; without one, the process ends.
  T value() && {
    require_value();
    return std::move(value_);
  }
  T& operator*() { return value_; }                ///< only when ok()
  const T& operator*() const { return value_; }    ///< only when ok()
  T* operator->() { return &value_; }              ///< only when ok()
  const T* operator->() const { return &value_; }  ///< only when ok()

 private:
  void require_value() const {
    if (!ok_) [[unlikely]]
      detail::stop_without_value(status_);
  }
  union {
    T value_;
    Status status_;
  };
  bool ok_;
};

}  // namespace tern
