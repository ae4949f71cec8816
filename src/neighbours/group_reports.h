// When a host says which group it listens to, so that switches which snoop pass that group's frames to it: RFC 3810 6,
// of a host that listens to one group as long as it is there. Neighbours layer: a pure state machine, which is given
// what was received, and the time. One thread.
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

  /// Of nobody: a host without such a group.
  GroupReports() = default;
  /// `salt`: of times.
  GroupReports(const base::SocketAddress& group, uint64_t salt, uint64_t now_ns)
      : group_(group), salt_(salt), unasked_(kUnasked), unasked_ns_(now_ns) {}

  struct Report {
    frames::MldVersion version;
    bool is_change;
  };
  /// What is to be sent now; call it until it is nothing.
  std::optional<Report> next(uint64_t now_ns);
  /// When next() has something to do; UINT64_MAX: never.
  uint64_t next_ns() const { return unasked_ns_ < asked_ns_ ? unasked_ns_ : asked_ns_; }

  /// The answer is due after a random time, so that the hosts of a link do not answer at once.
  void on_query(const frames::MldQuery& query, uint64_t now_ns);
  /// The link's other end may be another one.
  void on_link_up(uint64_t now_ns);

 private:
  base::SocketAddress group_;
  uint64_t salt_ = 0;
  uint32_t unasked_ = 0;  ///< reports to be sent without a question
  uint64_t unasked_ns_ = UINT64_MAX;
  uint64_t asked_ns_ = UINT64_MAX;
  frames::MldVersion version_ = frames::MldVersion::k2;  ///< of the last query
};

}  // namespace tern::neighbours
