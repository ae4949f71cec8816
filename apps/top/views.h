// The output of tern-top: one reading of pages, in three forms.
#pragma once

#include <tern/page.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace top {

/// A file that is not a page.
struct Unreadable {
  std::string file;
  std::string reason;
};

struct Reading {
  std::vector<tern::Page> pages;
  std::vector<Unreadable> unreadable;
};

/// The whole reading, as one JSON object on one line.
std::string as_json(const Reading& reading);
/// The text format of Prometheus, version 0.0.4: the counters of all live endpoints, and their `sessions` busiest
/// sessions.
std::string as_prometheus(const Reading& reading, size_t sessions);
/// A table for people. Shows rates since `before` for endpoints that `before` contains, and totals for other endpoints.
/// Shows `sessions` sessions of each endpoint; "-" in place of the rates of a session that `before` may have left out.
std::string as_table(const Reading& reading, const Reading& before, size_t sessions);

/// "alive", "closed", "dead" or "unknown".
const char* life_of(const tern::Page& page);
/// "open" or "connecting".
const char* state_of(const tern::PageSession& session);
/// Seconds since the endpoint last wrote; negative if it has not written since this machine's start.
double age_s(const tern::PageEndpoint& endpoint);
/// Returns 0 if the page has no such counter.
uint64_t counter_of(const tern::Page& page, const tern::PageEndpoint& endpoint, const char* name);
/// The length in bytes of the character that `text` begins with: a printable one of ASCII, or any further one in UTF-8
/// (RFC 3629). 0: it begins with none of these.
size_t character_length(std::string_view text);
/// Makes a file name, or a text that contains one, safe for terminals: every control character, and every byte that
/// belongs to no character, becomes a question mark. Texts of pages are printable ASCII already.
std::string printable(std::string_view text);
/// Appends text, formatted as by printf: at most 1023 bytes, so that it is not for names of files.
[[gnu::format(printf, 2, 3)]] void add(std::string& to, const char* format, ...);

}  // namespace top
