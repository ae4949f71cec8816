#include "rpc/tracer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "rpc/client.h"
#include "rpc/server.h"
#include "trace/dump.h"

namespace tern::rpc {

using trace::Kind;
using trace::Record;

namespace {

Record record_of(Kind kind, const Client* client) {
  Record record;
  record.session = client->session.remote_key();
  record.own_key = client->session.local_key();
  record.kind = kind;
  return record;
}

Record record_of(Kind kind, const Server* server) {
  Record record;
  record.session = record.own_key = server->session.local_key();
  record.kind = kind;
  return record;
}

Record packet_of(Record record, const wire::Header& header, uint32_t bytes) {
  // A packet about the path has the number of the first call, which has not begun.
  const bool is_of_path = header.kind() == wire::Kind::kPathProbe || header.kind() == wire::Kind::kPathReply;
  record.request = is_of_path ? 0 : header.request_number();
  record.packet = header.number();
  record.value = bytes;
  record.packet_kind = static_cast<uint8_t>(header.kind());
  if (header.kind() == wire::Kind::kRequest) record.type = static_cast<uint16_t>(header.request_type());
  return record;
}

}  // namespace

TracedRequest TracedRequest::of(const Server* server, const session::ServerSlot& slot, Tracer* tracer) {
  return {tracer, server->session.local_key(), slot.request_number, slot.type};
}

std::unique_ptr<Tracer> Tracer::create(size_t records, std::string_view nexus, std::string_view transport,
                                       uint16_t endpoint, Environment& environment) {
  auto ring = trace::Ring::create(records, nexus, transport, endpoint);
  if (ring == nullptr) return nullptr;
  return std::unique_ptr<Tracer>(new (std::nothrow) Tracer(std::move(ring), environment));
}

Status Tracer::dump(const std::string& path) const { return trace::dump(*ring_, path); }
Status Tracer::dump_into(const std::string& folder) const { return trace::dump_into(*ring_, folder); }

void Tracer::put(const Record& record) {
  const base::MutexLock lock(mutex_);
  put_now(record);
}

/// Reads the time under the mutex, so that the records are in the order of their times.
void Tracer::put_now(Record record) {
  record.time_ns = static_cast<uint64_t>(environment_.now().count());
  ring_->put(record);
}

// ---- Clients ----

void Tracer::enqueued(const Client* client, uint32_t sequence, uint16_t type, uint32_t request_bytes) {
  Record record = record_of(Kind::kEnqueued, client);
  record.packet = sequence;
  record.type = type;
  record.value = request_bytes;
  put(record);
}

void Tracer::started(const Client* client, const session::ClientSlot& slot) {
  Record record = record_of(Kind::kStarted, client);
  record.request = slot.request_number;
  record.packet = slot.call_sequence;
  record.type = slot.type;
  record.value = slot.request->length_bytes;
  put(record);
}

void Tracer::call(Kind kind, const Client* client, uint32_t request, uint32_t value) {
  Record record = record_of(kind, client);
  record.request = request;
  record.value = value;
  put(record);
}

void Tracer::ended_early(const Client* client, uint32_t request, uint32_t sequence, Code code) {
  Record record = record_of(Kind::kEndedEarly, client);
  record.request = request;
  record.packet = sequence;
  record.value = static_cast<uint32_t>(code);
  put(record);
}

void Tracer::sent(const Client* client, const wire::Header& header, uint32_t bytes) {
  last_sent_ = packet_of(record_of(Kind::kSent, client), header, bytes);
  put(last_sent_);
}

void Tracer::received(const Client* client, const wire::Header& header, uint32_t bytes) {
  put(packet_of(record_of(Kind::kReceived, client), header, bytes));
}

void Tracer::turned(const Client* client, session::ClientSession::Turn turn, uint64_t now_ns) {
  using Turn = session::ClientSession::Turn;
  if (turn == Turn::kSentAgain) {  // last_sent_ is the retransmitted packet
    Record record = last_sent_;
    record.kind = Kind::kRetransmitted;
    put(record);
  } else if (turn == Turn::kNothing && client->session.waits_for_credit()) {
    call(Kind::kCreditStall, client, 0, client->session.packets_in_flight());
  } else if (turn == Turn::kLater) {
    const uint64_t wait_ns = client->session.departure_ns() - now_ns;
    call(Kind::kPaced, client, 0, static_cast<uint32_t>(std::min<uint64_t>(wait_ns, UINT32_MAX)));
  }
}

// ---- Servers ----

void Tracer::sent(const Server* server, const wire::Header& header, uint32_t bytes) {
  put(packet_of(record_of(Kind::kSent, server), header, bytes));
}

void Tracer::received(const Server* server, const wire::Header& header, uint32_t bytes) {
  put(packet_of(record_of(Kind::kReceived, server), header, bytes));
}

void Tracer::request(Kind kind, const TracedRequest& request, uint32_t value) {
  Record record;
  record.session = record.own_key = request.session_key;
  record.request = request.number;
  record.type = request.type;
  record.value = value;
  record.kind = kind;
  put(record);
}

}  // namespace tern::rpc
