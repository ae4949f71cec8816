// The times at which a host reports the group that it listens to, so that switches that snoop pass that group's frames
// to it. RFC 3810 6, for a host that always listens to one group. Neighbours layer: a pure state machine, whose input
// is received messages and the time. One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "base/address.h"
#include "frames/mld.h"

namespace tern::neighbours {

class GroupReports {
 public:
  static constexpr uint32_t kUnasked = 2;                        ///< the robustness variable, RFC 3810 9.1
  static constexpr uint64_t kUnaskedIntervalNs = 1'000'000'000;  ///< 9.11

  /// The reports of a host without such a group: there are none.
  GroupReports() = default;
  /// `salt` makes the times of answers random.
  GroupReports(const base::SocketAddress& group, uint64_t salt, uint64_t now_ns)
      : group_(group), salt_(salt), unasked_(kUnasked), unasked_ns_(now_ns) {}

  struct Report {
    frames::MldVersion version;
    bool is_change;
  };
  /// Returns the report to send now. Call it until it returns nothing.
  std::optional<Report> next(uint64_t now_ns);
  /// The time at which next() has work; UINT64_MAX: never.
  uint64_t next_ns() const { return unasked_ns_ < asked_ns_ ? unasked_ns_ : asked_ns_; }

  /// Answers after a random time, so that the hosts of a link do not answer all at once.
  void on_query(const frames::MldQuery& query, uint64_t now_ns);
  /// The link has come up. A different switch may be at its other end.
  void on_link_up(uint64_t now_ns);

 private:
  base::SocketAddress group_;
  uint64_t salt_ = 0;
  uint32_t unasked_ = 0;  ///< reports that are still to be sent without a query
  uint64_t unasked_ns_ = UINT64_MAX;
  uint64_t asked_ns_ = UINT64_MAX;
  frames::MldVersion version_ = frames::MldVersion::k2;  ///< of the last query
};

}  // namespace tern::neighbours
