// The reasons for the ends of an endpoint's sessions, kept for the newest ends. Owner thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <tern/session.h>

namespace tern::rpc {

class EndedSessions {
 public:
  /// The entries take 6 KiB. A program that asks for a reason asks soon after the end.
  static constexpr size_t kKept = 256;

  /// Notes a reason. If there is no memory, the reason is lost.
  void note(uint64_t name, Status status) {
    if (entries_ == nullptr) entries_.reset(new (std::nothrow) std::array<Entry, kKept>);
    if (entries_ != nullptr) (*entries_)[count_++ % kKept] = {name, status};
  }
  SessionInfo info(Session session) const {
    SessionInfo info;
    info.status = {Code::kMisuse, "this session ended long ago, or there never was a session of that name"};
    visit_newest(kKept, [&](uint64_t name, Status status) {
      if (name == session.name) info.status = status;
    });
    return info;
  }
  uint64_t count() const { return count_; }  ///< reasons noted since the endpoint's beginning
  /// Calls `f(name, status)` for at most `max` of the kept reasons, the newest first.
  template <class F>
  void visit_newest(size_t max, F&& f) const {
    for (uint64_t i = 0; i < count_ && i < kKept && i < max; i++) {
      const Entry& entry = (*entries_)[(count_ - 1 - i) % kKept];
      f(entry.name, entry.status);
    }
  }

 private:
  struct Entry {
    uint64_t name = UINT64_MAX;
    Status status;
  };
  std::unique_ptr<std::array<Entry, kKept>> entries_;
  uint64_t count_ = 0;
};

}  // namespace tern::rpc
