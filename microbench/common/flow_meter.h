// Measures flows towards one host with a tap in the simulated network: round trips of packets as the clients' sessions
// see them, new bytes per flow and time, and values derived from these. One thread. It depends on packet headers, but
// not on endpoints.
//
// A flow is a client endpoint that sends requests of one type to the victim, one at a time. Flows are numbered in the
// order of their first packets.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <tern/duration.h>
#include <tern/sim.h>

#include "../percentiles.h"
#include "wire/header.h"

namespace programs {

/// Jain's index: 1 if all shares are equal, 1/n if one flow has everything, 0 for an empty span.
inline double jain_fairness(std::span<const double> shares) {
  double sum = 0, squares = 0;
  for (const double share : shares) {
    sum += share;
    squares += share * share;
  }
  return squares > 0 ? sum * sum / (static_cast<double>(shares.size()) * squares) : 0;
}

/// The maximum of request payload in a frame, which also contains the headers of Ethernet, IP, UDP and tern.
inline size_t payload_bytes(size_t frame_bytes) {
  constexpr size_t kFrameHeaders = 42;
  return frame_bytes - kFrameHeaders - tern::wire::kHeaderBytes;
}
/// The maximum rate of request payload on a cable of this rate. Preamble, checksum and gap come on top of a frame.
inline double payload_gbps(double cable_gbps, size_t frame_bytes) {
  constexpr size_t kBetweenFrames = 24;
  return cable_gbps * static_cast<double>(payload_bytes(frame_bytes)) /
         static_cast<double>(frame_bytes + kBetweenFrames);
}

class FlowMeter {
 public:
  static constexpr tern::Duration kSlot = std::chrono::microseconds(50);  ///< the time resolution of the functions
                                                                          ///< below

  FlowMeter(uint32_t victim_host, uint16_t request_type, uint32_t hosts)
      : victim_(victim_host), type_(request_type), newest_of_host_(hosts) {}

  /// For Simulation::set_tap(). `now` has the same origin as the times of bytes().
  void on_packet(tern::Duration now, const tern::sim::TappedPacket& packet) {
    constexpr uint32_t kFirstEndpointPort = 65536;
    if (packet.from_port < kFirstEndpointPort || packet.bytes.size() < tern::wire::kHeaderBytes) return;
    if (packet.to_host == victim_) {
      const tern::wire::Header header = tern::wire::load_header(packet.bytes.data());
      if (header.kind() != tern::wire::Kind::kRequest || header.request_type() != type_) return;
      const uint32_t flow = flow_of(packet.from_host, packet.from_port);
      if (packet.has_arrived) {
        on_data(now, flow, header);
      } else {
        flows_[flow].departures[header.number() % kDeparturesMax] = {header.number(), low_ns(now)};
      }
    } else if (packet.from_host == victim_ && packet.has_arrived) {
      on_answer(now, packet);
    }
  }

  /// Round trips count from now on if `on`; otherwise they no longer count.
  void set_recording(bool on) { is_recording_ = on; }
  /// Times from the departure of a request packet from its client's interface to the arrival of the answer that names
  /// the packet, ns.
  const tern::microbench::Percentiles& rtt_ns() const { return rtt_ns_; }

  size_t flows() const { return flows_.size(); }
  /// Bytes of requests that arrived for the first time in a flow's packets between two times. Both times are multiples
  /// of kSlot.
  uint64_t bytes(size_t flow, tern::Duration from, tern::Duration to) const {
    const auto end = std::min(bytes_by_slot_.size(), static_cast<size_t>(to / kSlot));
    uint64_t sum = 0;
    for (auto slot = static_cast<size_t>(from / kSlot); slot < end; ++slot) {
      const std::vector<uint32_t>& bytes_by_flow = bytes_by_slot_[slot];
      if (flow < bytes_by_flow.size()) sum += bytes_by_flow[flow];
    }
    return sum;
  }
  uint64_t bytes(tern::Duration from, tern::Duration to) const {
    uint64_t sum = 0;
    for (size_t flow = 0; flow < flows_.size(); ++flow) sum += bytes(flow, from, to);
    return sum;
  }
  /// Of the first `flows` flows between two times. A flow that has sent nothing has a share of 0.
  double fairness(size_t flows, tern::Duration from, tern::Duration to) const {
    std::vector<double> shares;
    for (size_t flow = 0; flow < flows; ++flow) shares.push_back(static_cast<double>(bytes(flow, from, to)));
    return jain_fairness(shares);
  }
  /// The flow with the most bytes between these times.
  size_t busiest(tern::Duration from, tern::Duration to) const {
    size_t best = 0;
    for (size_t flow = 1; flow < flows_.size(); ++flow) {
      if (bytes(flow, from, to) > bytes(best, from, to)) best = flow;
    }
    return best;
  }
  /// Windows of length `window` begin at `from` and at every slot after it. Returns the time from `from` to the end of
  /// the first window for which `is_reached(window_from, window_to)`; nullopt if there is no such window before `to`.
  template <class IsReached>
  static std::optional<tern::Duration> time_until(tern::Duration from, tern::Duration to, tern::Duration window,
                                                  const IsReached& is_reached) {
    for (tern::Duration at = from; at + window <= to; at += kSlot) {
      if (is_reached(at, at + window)) return at + window - from;
    }
    return std::nullopt;
  }

 private:
  static constexpr size_t kDeparturesMax = 1024;  ///< more than any session has in flight
  static constexpr uint32_t kNone = UINT32_MAX;
  /// Where a flow is found without a look at the flow itself.
  struct Place {
    uint32_t port = 0;
    uint32_t flow = kNone;  ///< index of the flow; kNone: there is none
  };
  struct Departure {
    uint32_t number = UINT32_MAX;  ///< a number that no packet has
    uint32_t at_ns = 0;            ///< low bits: no round trip takes 4 s
  };
  /// What each packet needs is small and together, because a hundred flows are in no cache when they are needed.
  struct alignas(64) Flow {
    Place older_of_host;
    uint32_t request_number = 0;
    uint32_t arrived_to = 0;  ///< all packets of this request before this one have arrived
    bool has_request = false;
    std::vector<bool> has_arrived;  ///< by packet of this request, for those from `arrived_to` on
    std::array<Departure, kDeparturesMax> departures;
  };
  static uint32_t low_ns(tern::Duration time) { return static_cast<uint32_t>(time.count()); }

  /// The index of a flow. kNone: there is none.
  uint32_t find(uint32_t host, uint32_t port) const {
    Place place = newest_of_host_[host];
    while (place.flow != kNone && place.port != port) place = flows_[place.flow].older_of_host;
    return place.flow;
  }
  uint32_t flow_of(uint32_t host, uint32_t port) {
    if (const uint32_t known = find(host, port); known != kNone) return known;
    const auto flow = static_cast<uint32_t>(flows_.size());
    flows_.emplace_back().older_of_host = std::exchange(newest_of_host_[host], Place{port, flow});
    return flow;
  }

  void on_data(tern::Duration now, uint32_t index, const tern::wire::Header& header) {
    Flow& flow = flows_[index];
    if (!flow.has_request || header.request_number() != flow.request_number) {
      // A late duplicate from the previous request: an unnecessary retransmission.
      if (flow.has_request && static_cast<int32_t>(header.request_number() - flow.request_number) < 0) return;
      flow.has_request = true;
      flow.request_number = header.request_number();
      flow.arrived_to = 0;
      flow.has_arrived.clear();
    }
    if (!mark_arrived(flow, header.index())) return;
    const auto slot = static_cast<size_t>(now / kSlot);
    if (slot >= bytes_by_slot_.size()) bytes_by_slot_.resize(slot + 1);
    std::vector<uint32_t>& bytes_by_flow = bytes_by_slot_[slot];
    if (index >= bytes_by_flow.size()) bytes_by_flow.resize(flows_.size());
    bytes_by_flow[index] += header.length() - static_cast<uint32_t>(tern::wire::kHeaderBytes);
  }
  /// False: the packet has arrived before.
  static bool mark_arrived(Flow& flow, uint32_t index) {
    std::vector<bool>& later = flow.has_arrived;
    if (index == flow.arrived_to) {
      do {
        flow.arrived_to++;
      } while (flow.arrived_to < later.size() && later[flow.arrived_to]);
      return true;
    }
    if (index < flow.arrived_to) return false;
    if (index >= later.size()) later.resize(index + 1);
    if (later[index]) return false;
    later[index] = true;
    return true;
  }

  void on_answer(tern::Duration now, const tern::sim::TappedPacket& packet) {
    const tern::wire::Header header = tern::wire::load_header(packet.bytes.data());
    if (tern::wire::is_from_client(header.kind()) || (header.flags() & tern::wire::kNoEcho) != 0) return;
    const uint32_t flow = find(packet.to_host, packet.to_port);
    if (flow == kNone) return;
    Departure& departure = flows_[flow].departures[header.echo() % kDeparturesMax];
    if (departure.number != header.echo()) return;
    departure.number = UINT32_MAX;  // at most one sample for each packet
    if (is_recording_) rtt_ns_.add(low_ns(now) - departure.at_ns);
  }

  const uint32_t victim_;
  const uint16_t type_;
  std::vector<Flow> flows_;
  std::vector<Place> newest_of_host_;  ///< by host: its newest flow
  /// By slot and flow: new bytes. The flows of a slot are together, because all of them are written in it.
  std::vector<std::vector<uint32_t>> bytes_by_slot_;
  bool is_recording_ = false;
  tern::microbench::Percentiles rtt_ns_;
};

}  // namespace programs
