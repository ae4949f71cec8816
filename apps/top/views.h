// What tern-top prints: one reading of pages, in three forms.
#pragma once

#include <tern/page.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace top {

/// A file that is no page.
struct Unreadable {
  std::string file;
  std::string reason;
};

struct Reading {
  std::vector<tern::Page> pages;
  std::vector<Unreadable> unreadable;
};

/// All of it, as one JSON object in one line.
std::string as_json(const Reading& reading);
/// The text format of Prometheus, version 0.0.4: the counters of all endpoints that live, and their `sessions` busiest
/// sessions.
std::string as_prometheus(const Reading& reading, size_t sessions);
/// For people. Rates are those since `before`, of pages that it has; totals for all others. `sessions` of each
/// endpoint.
std::string as_table(const Reading& reading, const Reading& before, size_t sessions);

/// "alive", "closed", "dead" or "unknown".
const char* life_of(const tern::Page& page);
/// "open" or "connecting".
const char* state_of(const tern::PageSession& session);
/// Seconds since the endpoint wrote; negative: never, or not since this machine's start.
double age_s(const tern::PageEndpoint& endpoint);
/// 0: the page has no such counter.
uint64_t counter_of(const tern::Page& page, const tern::PageEndpoint& endpoint, const char* name);
/// Appends as printf does.
[[gnu::format(printf, 2, 3)]] void add(std::string& to, const char* format, ...);

}  // namespace top
