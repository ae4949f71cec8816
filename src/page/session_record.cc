#include "page/session_record.h"

#include "page/process.h"

namespace tern::page {

namespace {

/// Calls `number()` and `time()` with each pair of fields that record and info have in common.
template <class Record, class Info>
void each_field(Record& record, Info& info, auto number, auto time) {
  number(record.window, info.window);
  number(record.credits, info.credits);
  number(record.congestion_window, info.congestion_window);
  number(record.packets_in_flight, info.packets_in_flight);
  number(record.retransmissions, info.retransmissions);
  time(record.round_trip_ns, info.round_trip);
  time(record.round_trip_ns_min, info.round_trip_min);
  time(record.round_trip_ns_last, info.round_trip_last);
  number(record.packets_sent, info.packets_sent);
  number(record.packets_received, info.packets_received);
  number(record.long_bytes_sent, info.long_bytes_sent);
  number(record.long_bytes_received, info.long_bytes_received);
  number(record.rate_bytes_per_sec, info.rate_bytes_per_sec);
}

}  // namespace

SessionRecord record_of(uint64_t name, const SessionInfo& info) {
  SessionRecord record;
  record.name = name;
  record.is_client = info.is_client ? 1 : 0;
  record.is_open = info.state == SessionState::kOpen ? 1 : 0;
  each_field(
      record, info, [](auto& to, const auto& from) { to = from; },
      [](uint64_t& to, Duration from) { to = static_cast<uint64_t>(from.count()); });
  set_text(record.peer, info.peer);
  return record;
}

SessionInfo info_of(const SessionRecord& record) {
  SessionInfo info;
  info.state = record.is_open != 0 ? SessionState::kOpen : SessionState::kConnecting;
  info.is_client = record.is_client != 0;
  each_field(
      record, info, [](const auto& from, auto& to) { to = from; },
      [](uint64_t from, Duration& to) { to = duration_of(from); });
  return info;
}

}  // namespace tern::page
