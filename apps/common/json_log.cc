#include "json_log.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "report.h"

namespace programs {

namespace {

std::string line_of(const tern::LogEvent& event) {
  nlohmann::ordered_json line;
  line["log"] = to_string(event.kind);
  line["severity"] = to_string(event.severity);
  line["time_ns"] = event.time.count();
  line["nexus"] = event.nexus;
  if (event.endpoint) line["endpoint"] = *event.endpoint;
  if (!event.transport.empty()) line["transport"] = event.transport;
  if (event.session != tern::Session{}) {
    line["session"] = event.session.name;
    line["is_client"] = event.is_client;
  }
  if (!event.peer.empty()) line["peer"] = event.peer;
  if (!event.status.ok()) {
    line["code"] = to_string(event.status.code());
    line["reason"] = event.status.message();
  }
  if (event.kind == tern::LogKind::kSessionReconnecting) line["pause_ns"] = event.pause.count();
  if (event.packet_bytes != 0) line["packet_bytes"] = event.packet_bytes;
  if (event.count != 0) line["count"] = event.count;
  if (event.left_out != 0) line["left_out"] = event.left_out;
  return text_of(line) + "\n";
}

}  // namespace

std::shared_ptr<tern::LogSink> json_log() {
  return tern::log_to([](const tern::LogEvent& event) {
    const std::string line = line_of(event);
    (void)std::fwrite(line.data(), 1, line.size(), stderr);  // one write to an unbuffered stream keeps a line whole
  });
}

}  // namespace programs
