#include "neighbours/own_host.h"

#include <linux/neighbour.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/random.h"
#include "base/status_text.h"
#include "base/try.h"
#include "frames/mld.h"
#include "neighbours/own_neighbours.h"
#include "neighbours/texts.h"

namespace tern::neighbours {

namespace {

using base::MutexLock;
using base::SocketAddress;
using Kind = frames::NeighbourFrame::Kind;

constexpr int kFramesMax = 64;  ///< the most frames that one call sends

}  // namespace

Result<std::unique_ptr<OwnHost>> OwnHost::create(const Options& options, Send send, uint64_t now_ns) {
  uint64_t salt = 0;
  if (!base::fill_random(&salt, sizeof(salt))) return base::kNoRandom;
  std::unique_ptr<OwnHost> host(new (std::nothrow) OwnHost(options, std::move(send), salt, now_ns));
  if (host == nullptr) return Status(Code::kNoMemory, "no memory for a host of its own address");
  host->flush(now_ns);
  return host;
}

OwnHost::OwnHost(const Options& options, Send send, uint64_t salt, uint64_t now_ns)
    : options_(options),
      send_(std::move(send)),
      claim_(options.probe_interval_ns, now_ns),
      reports_(options.address.ip.family() == AF_INET6
                   ? GroupReports(frames::solicited_node(options.address.ip), salt, now_ns)
                   : GroupReports()),
      cache_(salt) {}

Result<std::unique_ptr<Resolver>> OwnHost::resolver(const SocketAddress&) {
  auto made = OwnNeighbours::create(this);
  if (!made.ok()) return made.status();
  return std::unique_ptr<Resolver>(std::move(*made));
}

bool OwnHost::wants(std::span<const std::byte> frame) const {
  return frames::is_neighbour_frame(frame, options_.vlan) || frames::is_mld_query(frame, options_.vlan);
}

void OwnHost::on_frame(std::span<const std::byte> bytes, uint64_t now_ns) {
  const auto frame = frames::parse_neighbour_frame(bytes, options_.vlan);
  if (!frame) return on_query(bytes, now_ns);
  if (frame->target.family() != options_.address.ip.family()) return;
  // A switch or a driver may bring this host's own frames back.
  if (frame->source_mac == options_.mac || frame->mac == options_.mac) return;
  std::optional<Frame> answer;
  {
    const MutexLock lock(mutex_);
    answer = handle(*frame, now_ns);
    report();
  }
  if (answer) send_(frames::NeighbourFrameBytes(*answer, options_.vlan).bytes());
  flush(now_ns);
}

/// Processes a query about groups, if the frame is one.
void OwnHost::on_query(std::span<const std::byte> bytes, uint64_t now_ns) {
  const auto query = frames::parse_mld_query(bytes, options_.vlan);
  if (!query) return;
  {
    const MutexLock lock(mutex_);
    if (answers_.take(now_ns)) reports_.on_query(*query, now_ns);
  }
  flush(now_ns);
}

/// Returns the answer, if there is one.
std::optional<OwnHost::Frame> OwnHost::handle(const Frame& frame, uint64_t now_ns) {
  const SocketAddress& own = options_.address.ip;
  if (claim_.state() == AddressClaim::State::kLost) return std::nullopt;
  const bool is_about_own = frame.target == own;
  const bool is_probe = frame.kind == Kind::kSolicitation && frame.source.is_wildcard();
  const frames::MacAddress& other = frame.mac ? *frame.mac : frame.source_mac;
  if (frame.source == own || (is_about_own && frame.kind == Kind::kAdvertisement)) {
    claim_.on_conflict(other, now_ns);
  } else if (is_about_own && is_probe) {
    claim_.on_probe(other);
  } else if (!is_probe) {
    learn(frame, now_ns);
  }
  if (claim_.state() == AddressClaim::State::kLost) report_own();
  if (claim_.state() != AddressClaim::State::kClaimed) return std::nullopt;
  if (!is_about_own || frame.kind != Kind::kSolicitation || frame.source == own) return std::nullopt;
  if (!answers_.take(now_ns)) return std::nullopt;
  return Frame::answer_to(frame, options_.mac);
}

void OwnHost::learn(const Frame& frame, uint64_t now_ns) {
  NeighbourCache::News news{.mac = frame.mac, .is_answer = false, .is_override = true};
  if (frame.kind == Kind::kAdvertisement) {
    news.is_answer = frame.is_solicited && frame.destination == options_.address.ip;
    news.is_override = frame.is_override;
  }
  const SocketAddress& neighbour = frame.kind == Kind::kAdvertisement ? frame.target : frame.source;
  const auto known = cache_.find(neighbour);
  if (!known) return;
  const bool is_unknown = !known->mac && (known->state & NUD_INCOMPLETE) != 0;
  const bool is_awaited = is_unknown || (news.is_answer && (known->state & NUD_PROBE) != 0);
  const bool is_other = news.mac && news.mac != known->mac;
  if (is_awaited || (is_other && news_.take(now_ns))) cache_.on_news(neighbour, news, now_ns);
}

/// Passes the changes to the listeners.
void OwnHost::report() {
  while (const auto changed = cache_.take_change()) {
    for (Listener* const listener : listeners_) {
      Listener::News& news = listener->news;
      if (news.changes < news.changed.size()) {
        news.changed[news.changes++] = *changed;
      } else {
        news.is_overrun = true;
      }
      listener->event.wake();
    }
  }
}

void OwnHost::report_own() {
  for (Listener* const listener : listeners_) {
    listener->news.is_own = true;
    listener->event.wake();
  }
}

// ---- Frames to be sent

void OwnHost::tick(uint64_t now_ns) { flush(now_ns); }

/// Sends the frames that are due, without the lock. Reports the group before it asks for an address, because the answer
/// may be sent to the group (RFC 4862 5.4.2).
void OwnHost::flush(uint64_t now_ns) {
  send_reports(now_ns);
  for (int i = 0; i < kFramesMax; i++) {
    std::optional<Frame> frame;
    {
      const MutexLock lock(mutex_);
      frame = next_frame(now_ns);
      report();
    }
    if (!frame) return;
    send_(frames::NeighbourFrameBytes(*frame, options_.vlan).bytes());
  }
}

void OwnHost::send_reports(uint64_t now_ns) {
  while (true) {
    std::optional<GroupReports::Report> report;
    {
      const MutexLock lock(mutex_);
      if (claim_.state() != AddressClaim::State::kLost) report = reports_.next(now_ns);
    }
    if (!report) return;
    const SocketAddress group = frames::solicited_node(options_.address.ip);
    send_(frames::MldReportBytes(report->version, group, report->is_change, options_.mac, options_.vlan).bytes());
  }
}

std::optional<OwnHost::Frame> OwnHost::next_frame(uint64_t now_ns) {
  switch (claim_.next_message(now_ns)) {
    case AddressClaim::Message::kProbe:
      return Frame::probe(options_.address.ip, options_.mac);
    case AddressClaim::Message::kAnnouncement:
      return Frame::announcement(options_.address.ip, options_.mac);
    case AddressClaim::Message::kNone:
      break;
  }
  if (claim_.state() != AddressClaim::State::kClaimed) return std::nullopt;
  const auto question = cache_.next_question(now_ns);
  if (!question) return std::nullopt;
  return Frame::question(question->ip, question->mac, options_.address.ip, options_.mac);
}

uint64_t OwnHost::next_tick_ns() const {
  const MutexLock lock(mutex_);
  if (claim_.state() == AddressClaim::State::kLost) return UINT64_MAX;
  const uint64_t due_ns = std::min(claim_.next_message_ns(), reports_.next_ns());
  return claim_.state() == AddressClaim::State::kClaimed ? std::min(due_ns, cache_.next_question_ns()) : due_ns;
}

// ---- State

void OwnHost::on_link(bool is_up, uint64_t now_ns) {
  {
    const MutexLock lock(mutex_);
    is_link_up_ = is_up;
    if (is_up) claim_.on_link_up(now_ns);
    if (is_up) reports_.on_link_up(now_ns);
    report_own();
  }
  flush(now_ns);
}

bool OwnHost::is_link_up() const {
  const MutexLock lock(mutex_);
  return is_link_up_;
}

std::vector<frames::MacAddress> OwnHost::groups() const {
  const SocketAddress& own = options_.address.ip;
  if (own.family() != AF_INET6) return {};
  return {frames::group_mac(frames::all_nodes()), frames::group_mac(frames::solicited_node(own))};
}

bool OwnHost::is_settled() const {
  const MutexLock lock(mutex_);
  return claim_.state() != AddressClaim::State::kProbing;
}

Status OwnHost::failure() const {
  const MutexLock lock(mutex_);
  if (claim_.state() != AddressClaim::State::kLost) return {};
  const std::string address = options_.address.ip.ip_text();
  return base::status_of(Code::kUnavailable, "another host has the IP address of the option address",
                         {"another host, ", claim_.other_mac().to_text(), ", has the address ", address,
                          " on the link of ", options_.name, ": give one of them another address"});
}

// ---- Resolvers

Status OwnHost::add(Listener* listener) {
  const MutexLock lock(mutex_);
  if (!base::try_reserve(listeners_, listeners_.size() + 1)) {
    return {Code::kNoMemory, "no memory for the neighbours of an endpoint"};
  }
  listeners_.push_back(listener);
  // The first update() reports the state, because endpoints act only on changes of it.
  listener->news.is_own = true;
  listener->event.wake();
  return {};
}

void OwnHost::remove(Listener* listener) {
  const MutexLock lock(mutex_);
  std::erase(listeners_, listener);
}

OwnHost::Listener::News OwnHost::take_news(Listener* listener) {
  const MutexLock lock(mutex_);
  listener->event.clear();
  return std::exchange(listener->news, {});
}

std::optional<NeighbourMessage> OwnHost::neighbour(const SocketAddress& ip) const {
  const MutexLock lock(mutex_);
  return cache_.find(ip);
}

bool OwnHost::ask(const SocketAddress& ip, uint64_t now_ns) {
  bool is_asked = false;
  {
    const MutexLock lock(mutex_);
    is_asked = cache_.ask(ip, now_ns);
  }
  flush(now_ns);
  return is_asked;
}

size_t OwnHost::neighbours() const {
  const MutexLock lock(mutex_);
  return cache_.size();
}

void OwnHost::check_invariants() const {
  const MutexLock lock(mutex_);
  cache_.check_invariants();
}

}  // namespace tern::neighbours
