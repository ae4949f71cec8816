// Finds out whether a host may use an IP address on its link, or another host has it: RFC 5227 for IPv4; RFC 4862 5.4
// for IPv6, with the probes of RFC 5227. Neighbours layer: a pure state machine, whose input is received messages and
// the time. One thread.
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
  /// The host that has a lost address.
  const frames::MacAddress& other_mac() const { return other_mac_; }

  enum class Message : uint8_t { kNone, kProbe, kAnnouncement };
  /// Returns the message to send now. Call it until it returns kNone. The state may change.
  Message next_message(uint64_t now_ns);
  /// The time at which next_message() has work; UINT64_MAX: never.
  uint64_t next_message_ns() const { return due_ns_; }

  /// Another host uses the address. At the first conflict in kDefendIntervalNs, this host tells the other one that the
  /// address is taken. At the next conflict the address is lost, because otherwise two hosts would go on for ever (RFC
  /// 5227 2.4 b). While kProbing, the address is lost at once.
  void on_conflict(const frames::MacAddress& other, uint64_t now_ns);
  /// Another host probes whether the address is free. If two hosts probe, neither gets the address (RFC 5227 2.1.1).
  void on_probe(const frames::MacAddress& other);
  /// The link has come up. While it was down, other hosts may have come to the link, or have taken the address.
  void on_link_up(uint64_t now_ns);

 private:
  void lose(const frames::MacAddress& other);

  const uint64_t probe_interval_ns_;
  State state_ = State::kProbing;
  uint32_t sent_ = 0;  ///< probes while kProbing, announcements while kClaimed
  uint64_t due_ns_;
  bool is_defended_ = false;  ///< the last defence was at defended_ns_
  uint64_t defended_ns_ = 0;
  frames::MacAddress other_mac_;
};

}  // namespace tern::neighbours
