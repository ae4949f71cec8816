// Whether a host may use an IP address on its link, or another host has it: RFC 5227 for IPv4; RFC 4862 5.4 for IPv6,
// with the probes of RFC 5227. Neighbours layer: a pure state machine, which is given what was received, and the time.
// One thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "frames/mac_address.h"

namespace tern::neighbours {

class AddressClaim {
 public:
  static constexpr uint32_t kProbes = 3;         ///< PROBE_NUM of RFC 5227
  static constexpr uint32_t kAnnouncements = 2;  ///< ANNOUNCE_NUM
  static constexpr uint64_t kAnnounceIntervalNs = 2'000'000'000;
  static constexpr uint64_t kDefendIntervalNs = 10'000'000'000;

  ///   kProbing ──> kClaimed ──> kLost
  ///    ^  └────────────│───────────^
  ///    └───────────────┘ the link was down
  enum class State : uint8_t { kProbing, kClaimed, kLost };

  AddressClaim(uint64_t probe_interval_ns, uint64_t now_ns) : probe_interval_ns_(probe_interval_ns), due_ns_(now_ns) {}

  State state() const { return state_; }
  /// The host that has the address, of a lost one.
  const frames::MacAddress& other_mac() const { return other_mac_; }

  enum class Message : uint8_t { kNone, kProbe, kAnnouncement };
  /// What is to be sent now; call it until it is kNone. The state may change.
  Message next_message(uint64_t now_ns);
  /// When next_message() has something to do; UINT64_MAX: never.
  uint64_t next_message_ns() const { return due_ns_; }

  /// Another host uses the address. The first time in kDefendIntervalNs it is told that the address is taken, and then
  /// the address is lost, lest two hosts quarrel for ever (RFC 5227 2.4 b).
  void on_conflict(const frames::MacAddress& other, uint64_t now_ns);
  /// Another host probes whether the address is free. Of two hosts that probe neither gets it (RFC 5227 2.1.1).
  void on_probe(const frames::MacAddress& other);
  /// Others may have come to the link, or have taken the address, while it was down.
  void on_link_up(uint64_t now_ns);

 private:
  void lose(const frames::MacAddress& other);

  const uint64_t probe_interval_ns_;
  State state_ = State::kProbing;
  uint32_t sent_ = 0;  ///< probes while kProbing, announcements while kClaimed
  uint64_t due_ns_;
  bool is_defended_ = false;  ///< at defended_ns_
  uint64_t defended_ns_ = 0;
  frames::MacAddress other_mac_;
};

}  // namespace tern::neighbours
