// What both ends of a session's handshake need.
#pragma once

#include <cstdint>

#include <tern/environment.h>

namespace tern::rpc {

/// 32 random bits at a time, which a stranger cannot guess.
class RandomNumbers {
 public:
  explicit RandomNumbers(Environment& environment) : environment_(environment) {}
  uint32_t operator()() {
    const uint64_t value = environment_.random();
    has_failed_ |= value == 0;
    return static_cast<uint32_t>(value);
  }
  /// The system has refused at least one number. None of the numbers that were drawn may be used.
  bool has_failed() const { return has_failed_; }

 private:
  Environment& environment_;
  bool has_failed_ = false;
};

}  // namespace tern::rpc
