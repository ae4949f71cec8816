// An output of the simulated network: a host's interface or a switch's port, with its queue of frames and its cable in
// this direction. Sim layer, network part. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "sim/network/cable_faults.h"
#include "sim/network/network.h"

namespace tern::sim {

/// A frame leaves the queue when its transmission begins. The struct is one cache line.
struct alignas(64) SimOutput {
  static constexpr uint16_t kHost = UINT16_MAX;

  Network::Impl* network = nullptr;
  Picoseconds free_at = 0;  ///< end of the latest transmission
  SimPacket* first = nullptr;
  SimPacket* last = nullptr;      ///< valid if `first` is not null
  Picoseconds hop = 0;            ///< delay of the cable plus latency of the switch at its end
  CableFaults* faults = nullptr;  ///< null: there are no faults
  uint32_t ps_per_byte = 0;       ///< 0: the rate of the cable does not give a whole number
  uint32_t queue_bytes = 0;       ///< bytes in the queue; counted for a switch's output only
  uint16_t from = kHost;          ///< switch that the output belongs to, or kHost
  uint16_t to = kHost;            ///< switch at the cable's end, or kHost
  uint16_t epoch = 0;             ///< how often the cable went down; frames of an older epoch are lost
  bool is_open = true;            ///< the cable is up, and the output's host (if it is a host's) is up
  bool has_start = false;         ///< an event is scheduled that transmits the queue's first frame

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

/// Bytes that a frame occupies on the wire: it is padded to 60 bytes, and preamble, checksum and gap add 24 bytes.
inline uint64_t wire_bytes(uint32_t frame_bytes) { return std::max<uint64_t>(frame_bytes, 60) + 24; }

}  // namespace tern::sim
