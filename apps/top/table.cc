#include <algorithm>
#include <cinttypes>

#include "views.h"

namespace top {

namespace {

/// A rate or a total in a short form, such as "12.3k".
std::string short_number(double value) {
  const char* const units[] = {"", "k", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; value >= 9999.5 && unit + 1 < std::size(units); unit++) value /= 1000;
  std::string text;
  add(text, unit == 0 && value == static_cast<double>(static_cast<int64_t>(value)) ? "%.0f%s" : "%.1f%s", value,
      units[unit]);
  return text;
}

std::string us(tern::Duration duration) {
  if (duration.count() == 0) return "-";
  std::string text;
  add(text, "%.1f", static_cast<double>(duration.count()) / 1000);
  return text;
}

/// The same endpoint in an older reading; null if it was not there, or has written nothing since then.
const tern::PageEndpoint* find_before(const Reading& before, const tern::Page& page,
                                      const tern::PageEndpoint& endpoint) {
  for (const tern::Page& old : before.pages) {
    if (old.file != page.file || old.pid != page.pid || old.counter_names != page.counter_names) continue;
    for (const tern::PageEndpoint& candidate : old.endpoints) {
      if (candidate.id == endpoint.id && !candidate.is_closed && candidate.published < endpoint.published) {
        return &candidate;
      }
    }
  }
  return nullptr;
}

/// The change per second since an older reading; without an older reading, the total.
struct Change {
  const tern::PageEndpoint* before;
  double seconds;

  Change(const tern::PageEndpoint* older, const tern::PageEndpoint& endpoint)
      : before(older),
        seconds(older != nullptr ? std::chrono::duration<double>(endpoint.published - older->published).count() : 1) {}
  std::string of(uint64_t now, uint64_t then) const {
    return short_number(static_cast<double>(now - std::min(now, then)) / seconds);
  }
};

void add_endpoint(std::string& out, const tern::Page& page, const tern::PageEndpoint& endpoint, const Change& change) {
  const auto of = [&](const char* name) {
    const uint64_t then = change.before != nullptr ? counter_of(page, *change.before, name) : 0;
    return change.of(counter_of(page, endpoint, name), then);
  };
  uint64_t dropped = 0, dropped_before = 0;
  for (size_t i = 0; i < page.counter_names.size() && i < endpoint.counters.size(); i++) {
    if (page.counter_names[i].find(".dropped_") == std::string::npos) continue;
    dropped += endpoint.counters[i];
    if (change.before != nullptr && i < change.before->counters.size()) dropped_before += change.before->counters[i];
  }
  add(out, "  endpoint %-5d %-7s%s%s  sessions %" PRIu64 " out, %" PRIu64 " in", int{endpoint.id},
      endpoint.transport.c_str(), endpoint.is_closed ? " closed" : "", endpoint.is_consistent ? "" : " half-written",
      endpoint.client_sessions, endpoint.server_sessions);
  if (const double age = age_s(endpoint); age >= 1) add(out, "  quiet for %.0f s", age);
  add(out, "\n    %-7s calls %s  failed %s  requests %s  packets %s in, %s out", change.before ? "a second" : "total",
      of("endpoint.calls_completed").c_str(), of("endpoint.calls_failed").c_str(),
      of("endpoint.requests_handled").c_str(), of("endpoint.packets_received").c_str(),
      of("endpoint.packets_sent").c_str());
  add(out, "  sent again %s  timeouts %s  dropped %s\n", of("endpoint.retransmissions").c_str(),
      of("endpoint.timeouts").c_str(), change.of(dropped, dropped_before).c_str());
}

/// Whether the endpoint has more sessions than its page lists.
bool leaves_out_sessions(const tern::PageEndpoint& endpoint) {
  return endpoint.sessions.size() < endpoint.client_sessions + endpoint.server_sessions;
}

void add_session(std::string& out, const tern::PageSession& session, const Change& change) {
  const tern::SessionInfo& info = session.info;
  tern::SessionInfo then;
  // Of a session that the older reading left out, the change since then is unknown.
  bool is_known = change.before == nullptr || !leaves_out_sessions(*change.before);
  if (change.before != nullptr) {
    for (const tern::PageSession& old : change.before->sessions) {
      if (old.name != session.name) continue;
      then = old.info;
      is_known = true;
    }
  }
  const auto of = [&](uint64_t tern::SessionInfo::*number) {
    return is_known ? change.of(info.*number, then.*number) : std::string("-");
  };
  add(out, "    %-6s %-24s %-10s", info.is_client ? "to" : "from", session.peer.c_str(), state_of(session));
  add(out, " %9s %9s", of(&tern::SessionInfo::packets_sent).c_str(), of(&tern::SessionInfo::packets_received).c_str());
  if (info.is_client) {
    add(out, " %9s %9s %9s %4u/%-4u %9s", us(info.round_trip_min).c_str(), us(info.round_trip).c_str(),
        us(info.round_trip_last).c_str(), info.packets_in_flight, info.credits,
        of(&tern::SessionInfo::retransmissions).c_str());
  }
  out += '\n';
}

}  // namespace

std::string as_table(const Reading& reading, const Reading& before, size_t sessions) {
  std::string out;
  for (const tern::Page& page : reading.pages) {
    add(out, "%" PRIu64 " %s  %s  %s  ", page.pid, page.program.c_str(), life_of(page), page.uri.c_str());
    out += printable(page.file) + '\n';
    for (const tern::PageEndpoint& endpoint : page.endpoints) {
      const Change change(find_before(before, page, endpoint), endpoint);
      add_endpoint(out, page, endpoint, change);
      if (!endpoint.sessions.empty() && sessions != 0) {
        out +=
            "           peer                     state      packets: sent  received"
            "  us: min  smoothed    newest flight/cr. sent again\n";
      }
      for (size_t i = 0; i < endpoint.sessions.size() && i < sessions; i++) {
        add_session(out, endpoint.sessions[i], change);
      }
      if (endpoint.sessions.size() > sessions) {
        add(out, "    and %zu sessions more (--sessions)\n", endpoint.sessions.size() - sessions);
      }
      for (size_t i = 0; i < endpoint.ends.size() && i < 3; i++) {
        add(out, "    ended: %s\n", endpoint.ends[i].reason.c_str());
      }
    }
  }
  for (const Unreadable& file : reading.unreadable) out += printable(file.file) + ": " + printable(file.reason) + '\n';
  if (reading.pages.empty() && reading.unreadable.empty()) {
    out = "no process of this user has a page: set NexusOptions::page to \"shm\"\n";
  }
  return out;
}

}  // namespace top
