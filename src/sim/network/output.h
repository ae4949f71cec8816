// An output of the simulated network: a host's interface or a switch's port, its queue of frames, and the cable behind
// it. Sim layer, network part. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sim/network/cable_faults.h"
#include "sim/network/network.h"

namespace tern::sim {

/// Frames are in the queue until their transmission begins. One cache line.
struct alignas(64) SimOutput {
  static constexpr uint16_t kHost = UINT16_MAX;

  Network::Impl* network = nullptr;
  Picoseconds free_at = 0;  ///< end of the last transmission
  SimPacket* first = nullptr;
  SimPacket* last = nullptr;      ///< valid if `first` is not null
  Picoseconds hop = 0;            ///< time of the cable and of the switch at its end
  CableFaults* faults = nullptr;  ///< null: there are no faults
  uint32_t ps_per_byte = 0;       ///< 0: not a whole number
  uint32_t queue_bytes = 0;       ///< of a switch's output
  uint16_t from = kHost;          ///< the switch that it belongs to, or kHost
  uint16_t to = kHost;            ///< the switch at the cable's end, or kHost
  uint16_t epoch = 0;             ///< counts how often the cable has been cut: frames of an older epoch are lost
  bool is_open = true;            ///< the cable is up, and so is the host that the output belongs to
  bool has_start = false;         ///< there is an event for the start of the queue's first frame

  void push(SimPacket* packet) {
    packet->next = nullptr;
    if (first == nullptr) {
      first = packet;
    } else {
      last->next = packet;
    }
    last = packet;
  }
  SimPacket* pop() {
    SimPacket* const packet = first;
    first = packet->next;
    return packet;
  }
};
static_assert(sizeof(SimOutput) == 64);

/// Bytes that a frame takes of the wire: with preamble, checksum and gap (24 bytes), and filled up to 60 bytes before
/// that.
inline uint64_t wire_bytes(uint32_t frame_bytes) { return std::max<uint64_t>(frame_bytes, 60) + 24; }

}  // namespace tern::sim
