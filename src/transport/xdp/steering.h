// The selection of a network interface's frames for this process: its ports and queues in the maps of tern's XDP
// program. Transport layer; control events only. Calls of one object must not overlap.
//
// All processes that use an interface share one program (program.h). The first process attaches it, the others join it
// (attachment.h). The entries of a dead process in the maps have no effect, because no queue with a socket has the same
// owner; the next process that opens the interface removes them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "neighbours/interface.h"
#include "transport/xdp/attachment.h"
#include "transport/xdp/flow_rules.h"
#include "transport/xdp/owner.h"
#include "transport/xdp/program.h"

namespace tern::transport::xdp {

class Steering {
 public:
  /// `interface` is in the calling thread's network namespace. kUnavailable: no such interface, no permission, another
  /// XDP program on the interface, native mode is required and the driver refuses it (the MTU is too large, or other
  /// reasons), or tern's program is attached in the other mode. kNoMemory: too little memory, or locked memory. The
  /// text is a sentence with the remedy. May wait up to 2 s for a process that is ending.
  static Result<std::unique_ptr<Steering>> open(const neighbours::Interface& interface, const AttachOptions& options);
  /// Removes the ports and queues of this object, and closes the program.
  ~Steering();
  /// In a forked child, in which the object is not destroyed: closes the program, and changes nothing of the parent's.
  /// No other member may be called after it.
  void close_in_child();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  /// kNative or kGeneric.
  Mode mode() const { return attachment_.mode; }
  /// For the log: the reason why Mode::kAny became kGeneric. Empty: it did not, or another process has chosen.
  const std::string& why_generic() const { return attachment_.why_generic; }
  /// False for good: the interface has gone, or the program was detached by force.
  bool is_attached() const { return xdp::is_attached(attachment_, interface_.index); }

  // add_socket() and add_port() are called in the network namespace of the interface, as open() is.

  /// Frames to ports of this process that arrive at `queue` go to the AF_XDP socket from now on. The socket has a
  /// receive ring, and the caller has bound it to this queue. The caller keeps owning it. kUnavailable: a socket of
  /// another process has the queue, or its number is above kQueuesMax - 1.
  Status add_socket(uint32_t queue, int socket);
  /// Call it before the socket is closed, so that its frames go to the kernel. The kernel removes a socket that it
  /// closes itself.
  void remove_socket(uint32_t queue);

  /// UDP datagrams to this IP and port belong to this process from now on. They go to the socket of the queue at which
  /// they arrive if this process has that queue, else to the kernel. The device is asked to bring them to `queue`. The
  /// caller has bound a kernel UDP socket to the address, which reserves the port and receives the datagrams that go to
  /// the kernel. kUnavailable: a living process has the port, or the map is full.
  Status add_port(const base::SocketAddress& address, uint32_t queue);
  void remove_port(const base::SocketAddress& address);
  /// The number of ports of this process whose datagrams the device brings to their queue by a rule. 0: it accepts no
  /// rules.
  size_t ruled_ports() const;

  /// The counts for all processes at this interface since the program was attached.
  Counts counts() const { return attachment_.program.counts(); }

 private:
  struct Port {
    PortKey key;
    uint32_t rule;  ///< kNoRule: none
  };

  Steering(const neighbours::Interface& interface, Owner owner, Attachment attachment);
  const Program& program() const { return attachment_.program; }
  void sweep();
  void remove(const PortKey& key, uint32_t rule);

  const neighbours::Interface interface_;
  Owner owner_;
  Attachment attachment_;
  FlowRules rules_;
  std::vector<Port> ports_;
  std::vector<uint32_t> queues_;
};

}  // namespace tern::transport::xdp
