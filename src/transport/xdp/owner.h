// A process that owns ports and queues in the maps of tern's XDP program: its number there, and whether it still lives.
// Transport layer; control events only.
//
// Owner and Turn are sockets with abstract names, which the kernel frees when their process ends in any way. Such names
// belong to a network namespace, as interfaces do.
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
  /// True if the owner with this number lives in the same network namespace. Any other program can make a dead owner
  /// look alive.
  bool is_alive(uint64_t number) const;
  /// In a forked child: closes the child's copy, so that the owner ends with the parent. A child that does not call
  /// this keeps the owner alive.
  void close_in_child() { socket_.reset(); }

 private:
  Owner(uint64_t number, base::Descriptor socket) : number_(number), socket_(std::move(socket)) {}

  uint64_t number_;
  base::Descriptor socket_;
};

/// While it exists, no other process of this network namespace has a Turn at the same interface, so that the contents
/// of the maps do not change between a read and a write. The constructor waits at most kPatience for a process that
/// does not run, and then goes on without the lock.
class Turn {
 public:
  explicit Turn(uint32_t interface);

 private:
  base::Descriptor socket_;
};

}  // namespace tern::transport::xdp
