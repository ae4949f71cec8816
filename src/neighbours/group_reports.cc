#include "neighbours/group_reports.h"

#include <algorithm>

namespace tern::neighbours {

std::optional<GroupReports::Report> GroupReports::next(uint64_t now_ns) {
  if (unasked_ns_ <= now_ns) {
    unasked_--;
    unasked_ns_ = unasked_ != 0 ? now_ns + kUnaskedIntervalNs : UINT64_MAX;
    return Report{version_, true};
  }
  if (asked_ns_ <= now_ns) {
    asked_ns_ = UINT64_MAX;
    return Report{version_, false};
  }
  return std::nullopt;
}

void GroupReports::on_query(const frames::MldQuery& query, uint64_t now_ns) {
  if (group_.family() != AF_INET6 || (!query.group.is_wildcard() && query.group != group_)) return;
  version_ = query.version;
  salt_ = salt_ * 6364136223846793005u + 1442695040888963407u;  // Knuth's generator
  const uint64_t delay_ns = query.delay_ns_max == 0 ? 0 : (salt_ >> 16) % query.delay_ns_max;
  asked_ns_ = std::min(asked_ns_, now_ns + delay_ns);
}

void GroupReports::on_link_up(uint64_t now_ns) {
  if (group_.family() != AF_INET6) return;
  unasked_ = kUnasked;
  unasked_ns_ = now_ns;
}

}  // namespace tern::neighbours
