// Which frames of a network interface this process gets: the XDP program of tern on it, and its maps. Transport layer;
// control events only. Calls of one object must not overlap.
//
// All processes that use an interface share one program (program.h). The first process attaches it by a BPF link; the
// others find that link and hold it, too. The kernel detaches the program when no process holds the link any more,
// whether the processes ended or were killed. What a dead process left in the maps has no effect, and the next process
// that opens the interface removes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "neighbours/interface.h"
#include "transport/xdp/flow_rules.h"
#include "transport/xdp/owner.h"
#include "transport/xdp/program.h"

namespace tern::transport::xdp {

/// Where the program runs: in the driver, or in the kernel's general receive path, which takes any interface and MTU
/// but costs an skb for each frame.
enum class Mode : uint8_t { kAny, kNative, kGeneric };

class Steering {
 public:
  /// How the program is attached, if no process has attached it yet.
  struct Options {
    Mode mode = Mode::kAny;  ///< kAny: native where the driver can do it with the interface's MTU, else generic
    bool has_links = true;   ///< false: by netlink, as on kernels before 5.9, which have no links for XDP. For tests.
  };

  /// `interface` is in the calling thread's network namespace. kUnavailable: no such interface, no permission, another
  /// program's XDP on the interface, native mode is wanted and the driver refuses it (the MTU is too large, or other
  /// reasons), or tern's program is attached in the other mode. kNoMemory: too little (locked) memory. The text is a
  /// sentence that says what to do.
  static Result<std::unique_ptr<Steering>> open(const neighbours::Interface& interface, const Options& options);
  /// Removes the ports and queues of this object, and lets go of the link.
  ~Steering();
  Steering(const Steering&) = delete;
  Steering& operator=(const Steering&) = delete;

  /// kNative or kGeneric.
  Mode mode() const { return mode_; }
  /// Why kAny became kGeneric; empty: it did not, or another process chose.
  const std::string& why_generic() const { return why_generic_; }
  /// False for good: the interface has gone.
  bool is_attached() const;

  /// Frames to ports of this process that arrive at `queue` go to the AF_XDP socket from now on. The socket has a
  /// receive ring, and is bound to this queue by the caller; it stays the caller's. kUnavailable: a socket of another
  /// process has the queue.
  Status add_socket(uint32_t queue, int socket);
  /// Before the socket is closed. A socket that the kernel closes leaves by itself.
  void remove_socket(uint32_t queue);

  /// UDP datagrams to this IP and port are this process's. They go to the socket of the queue where they arrive, if
  /// this process has that queue, else to the kernel. The device is asked to bring them to `queue`. The caller holds a
  /// kernel UDP socket with this address. kUnavailable: another process has the port, or the map is full.
  Status add_port(const base::SocketAddress& address, uint32_t queue);
  void remove_port(const base::SocketAddress& address);
  /// Ports of this process that the device brings to their queue by a rule.
  size_t ruled_ports() const;

  /// Frames of all processes at this interface since the program was attached.
  Counts counts() const;

 private:
  struct Port {
    base::SocketAddress address;
    uint32_t rule;  ///< kNoRule: none
  };

  Steering(const neighbours::Interface& interface, Owner owner, Program program);
  Status attach(const Options& options);
  Status join(uint32_t program_id, const Options& options, bool* again);
  void sweep();

  const std::string name_;  ///< of the interface
  const uint32_t index_;    ///< of the interface
  Owner owner_;
  Program program_;
  base::Descriptor link_;
  Mode mode_ = Mode::kAny;
  std::string why_generic_;
  FlowRules rules_;
  std::vector<Port> ports_;
  std::vector<uint32_t> queues_;
};

}  // namespace tern::transport::xdp
