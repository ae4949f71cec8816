#include <algorithm>
#include <cinttypes>
#include <string_view>

#include "views.h"

namespace top {

namespace {

/// Texts of pages are printable ASCII, but file names may contain any byte. A byte that belongs to no character becomes
/// an escape.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (text[0] == '"' || text[0] == '\\') out += '\\';
    if (length == 0) {
      add(out, "\\u%04x", static_cast<unsigned char>(text[0]));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max(length, size_t{1}));
  }
  return out + '"';
}

/// Appends an array; `print` appends each element of `items`.
template <class Items, class Print>
void add_list(std::string& out, const Items& items, Print print) {
  out += '[';
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) out += ',';
    is_first = false;
    print(item);
  }
  out += ']';
}

double us_of(tern::Duration duration) { return static_cast<double>(duration.count()) / 1000; }

void add_session(std::string& out, const tern::PageSession& session) {
  const tern::SessionInfo& info = session.info;
  add(out, "{\"name\":\"%016" PRIx64 "\",\"side\":\"%s\",\"state\":\"%s\",\"peer\":", session.name,
      info.is_client ? "client" : "server", state_of(session));
  out += quoted(session.peer);
  add(out, ",\"window\":%d,\"credits\":%u,\"congestion_window\":%u,\"packets_in_flight\":%u", int{info.window},
      info.credits, info.congestion_window, info.packets_in_flight);
  add(out, ",\"retransmissions\":%" PRIu64, info.retransmissions);
  add(out, ",\"round_trip_us\":%.3f,\"round_trip_us_min\":%.3f,\"round_trip_us_last\":%.3f", us_of(info.round_trip),
      us_of(info.round_trip_min), us_of(info.round_trip_last));
  add(out, ",\"packets_sent\":%" PRIu64 ",\"packets_received\":%" PRIu64, info.packets_sent, info.packets_received);
  add(out, ",\"long_bytes_sent\":%" PRIu64 ",\"long_bytes_received\":%" PRIu64, info.long_bytes_sent,
      info.long_bytes_received);
  if (info.rate_bytes_per_sec == UINT64_MAX) {
    out += ",\"rate_bytes_per_sec\":null}";
  } else {
    add(out, ",\"rate_bytes_per_sec\":%" PRIu64 "}", info.rate_bytes_per_sec);
  }
}

void add_endpoint(std::string& out, const tern::Page& page, const tern::PageEndpoint& endpoint) {
  add(out, "{\"id\":%d,\"transport\":", int{endpoint.id});
  out += quoted(endpoint.transport);
  add(out, ",\"closed\":%s,\"consistent\":%s,\"published_ns\":%" PRId64, endpoint.is_closed ? "true" : "false",
      endpoint.is_consistent ? "true" : "false", endpoint.published.count());
  const double age = age_s(endpoint);
  if (age < 0) {
    out += ",\"age_s\":null";
  } else {
    add(out, ",\"age_s\":%.3f", age);
  }
  add(out, ",\"client_sessions\":%" PRIu64 ",\"server_sessions\":%" PRIu64 ",\"counters\":{", endpoint.client_sessions,
      endpoint.server_sessions);
  for (size_t i = 0; i < page.counter_names.size() && i < endpoint.counters.size(); i++) {
    if (i != 0) out += ',';
    out += quoted(page.counter_names[i]);
    add(out, ":%" PRIu64, endpoint.counters[i]);
  }
  out += "},\"sessions\":";
  add_list(out, endpoint.sessions, [&out](const tern::PageSession& session) { add_session(out, session); });
  out += ",\"ended\":";
  add_list(out, endpoint.ends, [&out](const tern::PageEnd& end) {
    add(out, "{\"name\":\"%016" PRIx64 "\",\"code\":%d,\"reason\":", end.name, static_cast<int>(end.code));
    out += quoted(end.reason) + '}';
  });
  out += '}';
}

}  // namespace

std::string as_json(const Reading& reading) {
  std::string out = "{\"pages\":";
  add_list(out, reading.pages, [&out](const tern::Page& page) {
    out += "{\"file\":" + quoted(page.file);
    add(out, ",\"pid\":%" PRIu64 ",\"life\":\"%s\",\"created_unix_s\":%" PRId64, page.pid, life_of(page),
        page.created_unix_s);
    out += ",\"program\":" + quoted(page.program) + ",\"uri\":" + quoted(page.uri) + ",\"endpoints\":";
    add_list(out, page.endpoints, [&](const tern::PageEndpoint& endpoint) { add_endpoint(out, page, endpoint); });
    out += '}';
  });
  out += ",\"unreadable\":";
  add_list(out, reading.unreadable, [&out](const Unreadable& file) {
    out += "{\"file\":" + quoted(file.file) + ",\"reason\":" + quoted(file.reason) + '}';
  });
  return out + "}\n";
}

}  // namespace top
