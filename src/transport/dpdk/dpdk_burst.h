// The frames of one burst that an endpoint has received. Transport layer; owned by the endpoint's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tern/detail/export.h>

#include "frames/parse.h"
#include "transport/dpdk/dpdk_port.h"

namespace tern::transport {

class TERN_API DpdkBurst {
 public:
  struct Frame {
    const std::byte* data;  ///< null: the frame is longer than any that this port sends
    uint32_t bytes;
    frames::DeviceChecks checks;

    std::span<const std::byte> span() const { return {data, bytes}; }
  };

  DpdkBurst() = default;
  DpdkBurst(const DpdkBurst&) = delete;
  DpdkBurst& operator=(const DpdkBurst&) = delete;

  /// `lane` outlives the object's use.
  void start(DpdkLane& lane) { lane_ = &lane; }
  /// Takes what has arrived, and returns how many frames there are; then free() must be called unless there are none.
  uint32_t receive();
  const Frame& operator[](uint32_t i) const { return frames_[i]; }
  /// Gives a frame to whom it is for. False: nobody wants it.
  bool pass_on(uint32_t i);
  /// Frees all frames that were not passed on.
  void free();

 private:
  DpdkLane* lane_ = nullptr;
  uint32_t count_ = 0;
  std::array<Frame, DpdkLane::kBurstMax> frames_;
  std::array<rte_mbuf*, DpdkLane::kBurstMax> mbufs_;
};

}  // namespace tern::transport
