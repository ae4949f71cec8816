// tern's XDP program on a network interface: attached by this process, or joined. Transport layer; control events only.
//
// The program is attached by a BPF link, which every process that uses the interface holds. The kernel detaches the
// program when the last of them has closed the link. Kernels before 5.9 have no links for XDP. There the program is
// attached by netlink, stays when its processes are killed, and is replaced by the next process that finds no owner
// alive.
#pragma once

#include <cstdint>
#include <string>

#include <tern/status.h>

#include "base/descriptor.h"
#include "neighbours/interface.h"
#include "transport/xdp/owner.h"
#include "transport/xdp/program.h"

namespace tern::transport::xdp {

/// The place where the program runs: in the driver, or in the kernel's general receive path, which works with every
/// interface and MTU but costs an skb for each frame.
enum class Mode : uint8_t { kAny, kNative, kGeneric };

/// How the program is attached, if no process has attached it yet.
struct AttachOptions {
  Mode mode = Mode::kAny;  ///< kAny: native where the driver can do it with the interface's MTU, else generic
  bool has_links = true;   ///< false: by netlink, as on kernels before 5.9. For tests.
};

/// Its move and its destructor only close descriptors. See leave().
struct Attachment {
  Program program;
  base::Descriptor link;    ///< no descriptor: attached by netlink
  Mode mode = Mode::kAny;   ///< kNative or kGeneric
  std::string why_generic;  ///< the reason why kAny became kGeneric; empty: it did not, or another process has chosen
};

/// `interface` is in the calling thread's network namespace. The caller has the Turn, and writes `owner` to the
/// program's maps before the turn ends. kUnavailable, kNoMemory: see Steering::open().
Result<Attachment> attach(const neighbours::Interface& interface, const AttachOptions& options, const Owner& owner);

/// False for good: the interface has gone, or the program was detached by force.
bool is_attached(const Attachment& attachment, uint32_t interface);

/// Call it before the attachment is destroyed, with the Turn. The last owner detaches a program that was attached by
/// netlink.
void leave(const Attachment& attachment, uint32_t interface, const Owner& owner);

}  // namespace tern::transport::xdp
