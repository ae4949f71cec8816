// The sessions of an endpoint that have something to send, and the order of their turns. Owner thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/try.h"

namespace tern::rpc {

/// What came of a session's turn to send.
enum class SendTurn : uint8_t {
  kDone,     ///< nothing is left, or another event will list the session again
  kMore,     ///< there is more to send in a later iteration
  kRefused,  ///< there is more to send, and the transport's queue is full
};

/// Sessions that have something to send, each at most once. reserve() gets the memory when a session is made, so that
/// add() is a store and cannot fail.
template <class T>
class SendList {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T* operator[](size_t index) const { return items_[index]; }
  /// The transport has refused a packet of each listed session since one was last added or sent something.
  bool are_all_refused() const { return refused_in_a_row_ >= size_; }
  /// Memory for `sessions` in all. False: there is no memory, and nothing has changed.
  [[nodiscard]] bool reserve(size_t sessions) {
    return sessions <= items_.size() || base::try_grow([&] { items_.resize(2 * sessions); });
  }
  void add(T* item) {
    items_[size_++] = item;
    refused_in_a_row_ = 0;
  }
  /// Gives each session its turn, and keeps those that are not done. After kRefusedMax refusals the other sessions come
  /// first the next time, because thousands of sessions with a full queue must not be looked at in each iteration.
  template <class F>
  [[gnu::always_inline]] void take_turns(F&& send) {
    const size_t size = std::exchange(size_, 0);
    size_t refused = 0;
    size_t i = 0;
    for (; i < size; i++) {
      const SendTurn turn = send(items_[i]);
      if (turn == SendTurn::kDone) [[likely]]
        continue;
      items_[size_++] = items_[i];
      if (turn == SendTurn::kRefused && ++refused == kRefusedMax) {
        i++;
        break;
      }
    }
    if (size_ != 0) [[unlikely]]
      put_refused_last(i, size, refused);
  }
  void clear() { size_ = 0; }

 private:
  static constexpr size_t kRefusedMax = 64;

  /// The first `tried` of `size` sessions have had their turn, and size_ of them stay.
  [[gnu::noinline]] void put_refused_last(size_t tried, size_t size, size_t refused) {
    const auto begin = items_.begin();
    const auto end = std::move(begin + static_cast<ptrdiff_t>(tried), begin + static_cast<ptrdiff_t>(size),
                               begin + static_cast<ptrdiff_t>(size_));
    std::rotate(begin, begin + static_cast<ptrdiff_t>(size_), end);
    size_ += size - tried;
    refused_in_a_row_ = refused == tried ? refused_in_a_row_ + refused : 0;
  }

  std::vector<T*> items_;
  size_t size_ = 0;
  size_t refused_in_a_row_ = 0;
};

}  // namespace tern::rpc
