// The sentences for what keeps an interface from being used over AF_XDP. Transport layer: pure but for facts_here().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tern/status.h>

namespace tern::transport::xdp {

/// What was tried.
enum class Step : uint8_t { kLoad, kLook, kAttachNative, kAttachGeneric };

/// What the sentence depends on, besides the error number.
struct Facts {
  std::string interface;
  uint32_t mtu_bytes = 0;
  bool may_lack_locked_memory = false;  ///< the kernel counts BPF maps as locked memory, and that has a limit
  std::string kernel_words;             ///< why the driver refuses; may be empty
};

/// kNoMemory: memory is short, locked or not. Else kUnavailable.
Status refusal(Step step, int error, const Facts& facts);
/// A program that is not tern's, or that of another version of tern, is attached.
Status refusal_by_program(std::string_view interface, std::string_view program, uint32_t id, bool is_native);
Status refusal_by_version(std::string_view interface);
/// tern's program is attached in the other mode.
Status refusal_by_mode(std::string_view interface, bool is_native);

/// may_lack_locked_memory of this process: kernels before 5.11 count, and have a limit that libbpf could not raise.
bool may_lack_locked_memory();

}  // namespace tern::transport::xdp
