#include "rpc/publisher.h"

#include <algorithm>
#include <new>
#include <utility>

#include "page/process.h"
#include "page/session_record.h"

namespace tern::rpc {

std::unique_ptr<Publisher> Publisher::create(EndpointContext& context, const ClientSessions& clients,
                                             const ServerSessions& servers, std::unique_ptr<page::SegmentWriter> to) {
  if (to == nullptr) return nullptr;
  std::unique_ptr<Publisher> publisher(new (std::nothrow) Publisher(context, clients, servers, std::move(to)));
  if (publisher != nullptr) publisher->candidates_.reset(new (std::nothrow) Candidates);
  return publisher != nullptr && publisher->candidates_ != nullptr ? std::move(publisher) : nullptr;
}

/// A number that changes with everything that a page shows. An end counts twice, because it also takes a session from a
/// table.
uint64_t Publisher::news() const {
  const EndpointCounters& counters = context_.counters;
  return counters.packets_sent + counters.packets_received + counters.calls_failed + counters.timeouts +
         counters.sessions_refused + 2 * context_.ended.count() + clients_.count() + servers_.count();
}

void Publisher::look_for_news() {
  if (news() == shown_) return;
  next_ns_ = std::max(began_ns_ + kPeriodNs, context_.now_ns);
  context_.agenda.at_latest(next_ns_);
}

void Publisher::run(const EndpointCounters& counters) {
  const uint64_t now_ns = context_.now_ns;
  switch (phase_) {
    case Phase::kCounters:
      began_ns_ = now_ns;
      count_ = 0;
      to_->begin();
      write_counters(counters);
      to_->end();
      phase_ = Phase::kClients;
      [[fallthrough]];
    case Phase::kClients:
      next_ns_ = now_ns + kStepNs;
      if (!look(clients_)) return;
      phase_ = Phase::kServers;
      [[fallthrough]];
    case Phase::kServers:
      next_ns_ = now_ns + kStepNs;
      if (!look(servers_)) return;
      to_->begin();
      write_sessions();
      to_->end();
      phase_ = Phase::kCounters;
  }
  // The loop may sleep from now on. One more look finds what has happened since the counters were written.
  const uint64_t before = std::exchange(shown_, news());
  const bool has_news = before != shown_;
  next_ns_ = has_news ? std::max(began_ns_ + kPeriodNs, now_ns) : UINT64_MAX;
}

void Publisher::finish(const EndpointCounters& counters) {
  to_->begin();
  write_counters(counters);
  count_ = 0;
  write_sessions();
  to_->end();
}

void Publisher::write_counters(const EndpointCounters& counters) {
  to_->write_counters(counters);
  to_->segment().client_sessions = clients_.size();
  to_->segment().server_sessions = servers_.size();
}

void Publisher::write_sessions() {
  std::sort(heap_.begin(), heap_.begin() + static_cast<ptrdiff_t>(count_),
            [this](uint16_t a, uint16_t b) { return (*candidates_)[a].packets > (*candidates_)[b].packets; });
  for (size_t i = 0; i < count_; i++) to_->sessions()[i] = (*candidates_)[heap_[i]].record;
  to_->segment().sessions = static_cast<uint32_t>(count_);
  uint32_t ends = 0;
  context_.ended.visit_newest(page::kEndsMax, [&](uint64_t name, Status status) {
    page::EndRecord& end = to_->ends()[ends++];
    end.name = name;
    end.code = static_cast<uint32_t>(status.code());
    page::set_text(end.reason, status.message());
  });
  to_->segment().ends = ends;
}

/// Looks at the next sessions. True: it has seen all of them.
template <class Sessions>
bool Publisher::look(const Sessions& sessions) {
  size_t left = kSessionsPerStep;
  place_ = sessions.visit(place_, kPlacesPerStep, [&](uint64_t name, auto* session) {
    const auto packets = static_cast<uint32_t>(session->session.packets_sent() + session->session.packets_received());
    // A session that begins its handshake anew counts its packets from 0 again, as it does after 2^32 packets.
    const uint32_t before = std::exchange(session->packets_shown, packets);
    const uint32_t recent = packets - std::min(packets, before);
    if (count_ < page::kSessionsMax || recent > (*candidates_)[heap_[0]].packets) {
      offer(name, recent, Sessions::info(session));
    }
    return --left != 0;
  });
  return place_ == 0;
}

/// Makes the session a candidate, in place of the one with the fewest packets.
void Publisher::offer(uint64_t name, uint64_t packets, const SessionInfo& info) {
  const auto is_busier = [this](uint16_t a, uint16_t b) {
    return (*candidates_)[a].packets > (*candidates_)[b].packets;
  };
  const auto end = [this] { return heap_.begin() + static_cast<ptrdiff_t>(count_); };
  auto index = static_cast<uint16_t>(count_);
  if (count_ == page::kSessionsMax) {
    std::pop_heap(heap_.begin(), end(), is_busier);
    index = heap_[--count_];
  }
  (*candidates_)[index] = {packets, page::record_of(name, info)};
  heap_[count_++] = index;
  std::push_heap(heap_.begin(), end(), is_busier);
}

}  // namespace tern::rpc
