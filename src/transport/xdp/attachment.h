// tern's XDP program on a network interface: attached by this process, or joined. Transport layer; control events only.
//
// By a BPF link, which every process holds that uses the interface: the kernel detaches the program with the last of
// them. Kernels before 5.9 have no links for XDP. There the program is attached by netlink, stays when its processes
// are killed, and is replaced by the next process that finds no owner alive.
#pragma once

#include <cstdint>
#include <string>

#include <tern/status.h>

#include "base/descriptor.h"
#include "neighbours/interface.h"
#include "transport/xdp/owner.h"
#include "transport/xdp/program.h"

namespace tern::transport::xdp {

/// Where the program runs: in the driver, or in the kernel's general receive path, which takes any interface and MTU
/// but costs an skb for each frame.
enum class Mode : uint8_t { kAny, kNative, kGeneric };

/// How the program is attached, if no process has attached it yet.
struct AttachOptions {
  Mode mode = Mode::kAny;  ///< kAny: native where the driver can do it with the interface's MTU, else generic
  bool has_links = true;   ///< false: by netlink, as on kernels before 5.9. For tests.
};

/// Moving and destroying it closes descriptors only. See leave().
struct Attachment {
  Program program;
  base::Descriptor link;    ///< none: by netlink
  Mode mode = Mode::kAny;   ///< kNative or kGeneric
  std::string why_generic;  ///< why kAny became kGeneric; empty: it did not, or another process chose
};

/// `interface` is in the calling thread's network namespace. The caller has the Turn, and tells of `owner` in the
/// program's maps before the turn ends. kUnavailable, kNoMemory: see Steering::open().
Result<Attachment> attach(const neighbours::Interface& interface, const AttachOptions& options, const Owner& owner);

/// False for good: the interface has gone, or the program was detached by force.
bool is_attached(const Attachment& attachment, uint32_t interface);

/// Before the attachment is destroyed, with the Turn: what netlink attached is detached by the last owner.
void leave(const Attachment& attachment, uint32_t interface, const Owner& owner);

}  // namespace tern::transport::xdp
