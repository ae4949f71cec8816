// Error sentences for the reasons why an interface cannot be used over AF_XDP. Transport layer: pure functions, except
// facts_here().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tern/status.h>

namespace tern::transport::xdp {

/// The failed step.
enum class Step : uint8_t { kLoad, kLook, kAttachNative, kAttachGeneric };

/// The facts that determine the sentence, besides the error number.
struct Facts {
  std::string interface;
  uint32_t mtu_bytes = 0;
  bool may_lack_locked_memory = false;  ///< the kernel counts BPF maps as locked memory, which has a limit
  std::string kernel_words;             ///< the driver's reason for its refusal; may be empty
};

/// kNoMemory: memory is short, locked or not. Else kUnavailable.
Status refusal(Step step, int error, const Facts& facts);
/// A program that is not tern's, or that of another version of tern, is attached.
Status refusal_by_program(std::string_view interface, std::string_view program, uint32_t id, bool is_native);
Status refusal_by_version(std::string_view interface);
/// tern's program is attached in the other mode.
Status refusal_by_mode(std::string_view interface, bool is_native);

/// Sets may_lack_locked_memory for this process: true on kernels before 5.11, if libbpf could not raise the limit.
bool may_lack_locked_memory();

}  // namespace tern::transport::xdp
