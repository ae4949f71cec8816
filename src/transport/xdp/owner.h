// A process that owns ports and queues in the maps of tern's XDP program: its number there, and whether it still lives.
// Transport layer; control events only.
//
// Both are sockets with abstract names, which the kernel frees when their process ends in whatever way. Such names are
// those of a network namespace, as interfaces are.
#pragma once

#include <cstdint>
#include <utility>

#include <tern/status.h>

#include "base/descriptor.h"

namespace tern::transport::xdp {

class Owner {
 public:
  /// A new owner in the calling thread's network namespace, alive until it is destroyed. Errors: no sockets left.
  static Result<Owner> create();

  uint64_t number() const { return number_; }  ///< random; never 0
  /// Whether the owner with this number lives in the same network namespace. Any other program can make a dead owner
  /// look alive.
  bool is_alive(uint64_t number) const;
  /// The owner is the parent's alone. A child that does not call this keeps it alive.
  void close_in_child() { socket_.reset(); }

 private:
  Owner(uint64_t number, base::Descriptor socket) : number_(number), socket_(std::move(socket)) {}

  uint64_t number_;
  base::Descriptor socket_;
};

/// While it lives, no other process of this network namespace has a Turn at the same interface, so that what one reads
/// in the maps is true when it writes. Waits at most kPatience for a process that stands still, and then does without.
class Turn {
 public:
  explicit Turn(uint32_t interface);

 private:
  base::Descriptor socket_;
};

}  // namespace tern::transport::xdp
