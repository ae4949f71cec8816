// The random numbers that both ends of a session's handshake need.
#pragma once

#include <cstdint>

#include <tern/environment.h>

namespace tern::rpc {

/// A source of random numbers of 32 bits, which a stranger cannot guess.
class RandomNumbers {
 public:
  explicit RandomNumbers(Environment& environment) : environment_(environment) {}
  uint32_t operator()() {
    const uint64_t value = environment_.random();
    has_failed_ |= value == 0;
    return static_cast<uint32_t>(value);
  }
  /// True if the system has refused at least one number. Then no number that was drawn may be used.
  bool has_failed() const { return has_failed_; }

 private:
  Environment& environment_;
  bool has_failed_ = false;
};

}  // namespace tern::rpc
