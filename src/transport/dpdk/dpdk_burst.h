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

  /// `lane` must outlive the use of the object.
  void start(DpdkLane& lane) { lane_ = &lane; }
  /// Receives the frames that have arrived, and returns their number. If it is not 0, free() must be called.
  uint32_t receive();
  const Frame& operator[](uint32_t i) const { return frames_[i]; }
  /// Passes a frame to the endpoint or host that it is for. False: there is none.
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
