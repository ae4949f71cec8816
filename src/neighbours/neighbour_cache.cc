#include "neighbours/neighbour_cache.h"

#include <linux/neighbour.h>

#include <algorithm>

#include "base/check.h"
#include "base/try.h"

namespace tern::neighbours {

namespace {

constexpr int kExpiredMax = 64;  ///< entries that one call changes because of time: about 10 us

}  // namespace

NeighbourCache::~NeighbourCache() {
  for (const auto& [key, entry] : entries_) pool_.give(entry);
}

NeighbourCache::Entry* NeighbourCache::entry_of(const base::SocketAddress& ip) const {
  const auto found = entries_.find(IpKey(ip));
  return found != entries_.end() ? found->second : nullptr;
}

std::optional<NeighbourMessage> NeighbourCache::find(const base::SocketAddress& ip) const {
  const Entry* const entry = entry_of(ip);
  if (entry == nullptr) return std::nullopt;
  constexpr std::array<uint16_t, 5> kStates = {NUD_INCOMPLETE, NUD_REACHABLE, NUD_STALE, NUD_PROBE, NUD_FAILED};
  NeighbourMessage message;
  message.ip = entry->ip;
  message.state = kStates[static_cast<size_t>(entry->state)];
  if (!entry->mac.is_zero()) message.mac = entry->mac;
  return message;
}

bool NeighbourCache::ask(const base::SocketAddress& ip, uint64_t now_ns) {
  Entry* entry = entry_of(ip);
  if (entry != nullptr && (is_asked(entry->state) || entry->state == State::kReachable)) return true;
  if (asked_count_ == kAskedMax) return false;
  if (entry == nullptr) entry = add(ip);
  if (entry == nullptr) return false;
  set_state(entry, entry->state == State::kStale ? State::kProbing : State::kAsking, now_ns);
  return true;
}

/// Returns null if there is no memory.
NeighbourCache::Entry* NeighbourCache::add(const base::SocketAddress& ip) {
  if (entries_.size() == kEntriesMax) {
    if (idle_.empty()) return nullptr;
    remove(idle_.first());
  }
  Entry* const entry = pool_.take();
  if (entry == nullptr) return nullptr;
  if (!base::try_grow([&] { entries_.emplace(IpKey(ip), entry); })) {
    pool_.give(entry);
    return nullptr;
  }
  entry->ip = ip;
  entry->state = State::kFailed;
  return entry;
}

void NeighbourCache::remove(Entry* entry) {
  wait(entry, nullptr, 0);
  if (entry->is_changed) changes_.remove(entry);
  entries_.erase(IpKey(entry->ip));
  pool_.give(entry);
}

void NeighbourCache::wait(Entry* entry, Waiting* list, uint64_t due_ns) {
  if (entry->list != nullptr) entry->list->remove(entry);
  entry->list = list;
  entry->due_ns = due_ns;
  if (list != nullptr) list->add_last(entry);
}

void NeighbourCache::set_state(Entry* entry, State state, uint64_t now_ns) {
  asked_count_ = asked_count_ - (is_asked(entry->state) ? 1 : 0) + (is_asked(state) ? 1 : 0);
  entry->state = state;
  entry->asked = 0;
  switch (state) {
    case State::kAsking:
    case State::kProbing:
      return wait(entry, &due_, 0);
    case State::kReachable:
      return wait(entry, &reachable_, now_ns + kReachableNs);
    case State::kFailed:
      entry->mac = {};
      [[fallthrough]];
    case State::kStale:
      return wait(entry, &idle_, now_ns + kIdleNs);
  }
}

void NeighbourCache::note_change(Entry* entry) {
  if (entry->is_changed) return;
  entry->is_changed = true;
  changes_.add_last(entry);
}

std::optional<base::SocketAddress> NeighbourCache::take_change() {
  Entry* const entry = changes_.first();
  if (entry == nullptr) return std::nullopt;
  changes_.remove(entry);
  entry->is_changed = false;
  return entry->ip;
}

std::optional<NeighbourCache::Question> NeighbourCache::next_question(uint64_t now_ns) {
  for (int i = 0; i < kExpiredMax; i++) {
    if (Entry* const entry = first_due(idle_, now_ns); entry != nullptr) {
      remove(entry);
    } else if (Entry* const reached = first_due(reachable_, now_ns); reached != nullptr) {
      set_state(reached, State::kStale, now_ns);
      note_change(reached);
    } else if (Entry* const silent = first_due(asked_, now_ns); silent != nullptr && silent->asked == kSolicitations) {
      set_state(silent, State::kFailed, now_ns);
      note_change(silent);
    } else {
      break;
    }
  }
  Entry* entry = due_.first();
  if (entry == nullptr) entry = first_due(asked_, now_ns);
  if (entry == nullptr || entry->asked == kSolicitations) return std::nullopt;
  entry->asked++;
  wait(entry, &asked_, now_ns + kAskAgainNs);
  Question question{entry->ip, std::nullopt};
  if (entry->state == State::kProbing) question.mac = entry->mac;
  return question;
}

/// Returns null if nothing is due.
NeighbourCache::Entry* NeighbourCache::first_due(const Waiting& list, uint64_t now_ns) {
  Entry* const entry = list.first();
  return entry != nullptr && entry->due_ns <= now_ns ? entry : nullptr;
}

uint64_t NeighbourCache::next_question_ns() const {
  uint64_t due_ns = UINT64_MAX;
  for (const Waiting* list : {&due_, &asked_, &reachable_, &idle_}) {
    if (!list->empty()) due_ns = std::min(due_ns, list->first()->due_ns);
  }
  return due_ns;
}

void NeighbourCache::on_news(const base::SocketAddress& ip, const News& news, uint64_t now_ns) {
  Entry* const entry = entry_of(ip);
  if (entry == nullptr) return;
  const bool has_mac = !entry->mac.is_zero();
  if (!has_mac && !news.mac) return;
  const bool is_other = news.mac && *news.mac != entry->mac;
  if (has_mac && is_other && !news.is_override) {
    if (entry->state != State::kReachable) return;
    set_state(entry, State::kStale, now_ns);
  } else if (is_other) {
    entry->mac = *news.mac;
    set_state(entry, news.is_answer ? State::kReachable : State::kStale, now_ns);
  } else {
    if (news.is_answer) set_state(entry, State::kReachable, now_ns);
    return;
  }
  note_change(entry);
}

void NeighbourCache::check_invariants() const {
  size_t listed = 0;
  size_t asked = 0;
  for (const Waiting* list : {&due_, &asked_, &reachable_, &idle_}) {
    uint64_t last_ns = 0;
    for (const Entry* entry = list->first(); entry != nullptr; entry = Waiting::after(entry)) {
      CHECK(entry->list == list);
      CHECK(entry->due_ns, >=, last_ns);
      last_ns = entry->due_ns;
      CHECK(entry->mac.is_zero() == (entry->state == State::kAsking || entry->state == State::kFailed));
      CHECK(is_asked(entry->state) == (list == &due_ || list == &asked_));
      CHECK((entry->state == State::kReachable) == (list == &reachable_));
      if (is_asked(entry->state)) asked++;
      listed++;
    }
  }
  CHECK(listed, ==, entries_.size());
  CHECK(asked, ==, asked_count_);
  CHECK(asked, <=, kAskedMax);
  CHECK(listed, <=, kEntriesMax);
}

}  // namespace tern::neighbours
