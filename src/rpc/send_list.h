// The sessions of an endpoint that have something to send, and the order of their turns. Owner thread only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/slab.h"
#include "base/try.h"

namespace tern::rpc {

/// The result of a session's turn to send.
enum class SendTurn : uint8_t {
  kDone,     ///< nothing is left, or another event will list the session again
  kMore,     ///< there is more to send in a later iteration
  kRefused,  ///< there is more to send, and the transport's queue is full
};

/// A ring of the sessions that have something to send, in the order of their turns. Each session is in it at most once.
/// reserve() gets the memory when a session is made, so that add() is a store and cannot fail.
template <class T>
class SendList {
 public:
  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }
  T* operator[](size_t index) const { return items_[(head_ + index) & mask_]; }
  /// True if the transport has refused a packet of each listed session since a session was last added or last sent a
  /// packet.
  bool are_all_refused() const { return refused_in_a_row_ >= size(); }
  /// Reserves memory for `sessions` sessions in all. False: there is no memory, and nothing has changed.
  [[nodiscard]] bool reserve(size_t sessions) {
    return sessions <= capacity_ || base::try_grow([&] { grow(std::bit_ceil(sessions)); });
  }
  void add(T* item) {
    put(item);
    refused_in_a_row_ = 0;
  }
  /// Gives each session its turn, and keeps the sessions that are not done. Ends after kRefusedMax refusals, because an
  /// iteration must not check thousands of sessions while the queue is full. The other sessions then come first in the
  /// next call.
  template <class F>
  [[gnu::always_inline]] void take_turns(F&& send) {
    const size_t begin = head_;
    const size_t end = tail_;
    size_t refused = 0;
    while (head_ != end) {
      T* item = items_[head_++ & mask_];
      const SendTurn turn = send(item);
      if (turn == SendTurn::kDone) [[likely]]
        continue;
      put(item);
      if (turn == SendTurn::kRefused && ++refused == kRefusedMax) break;
    }
    if (empty()) [[likely]] {
      if (tail_ > kKept) [[unlikely]]
        base::forget_pages(items_.get(), capacity_ * sizeof(T*));
      clear();  // the next sessions use the same cells, which are in the cache
    } else {
      refused_in_a_row_ = refused == head_ - begin ? refused_in_a_row_ + refused : 0;
    }
  }
  void clear() { head_ = tail_ = 0; }

 private:
  static constexpr size_t kRefusedMax = 64;
  /// A list that has used more cells than this since it was last empty gives back their pages: a list that is not empty
  /// for long goes through all of its cells. The pages that it takes again cost a nanosecond for each of these cells.
  static constexpr size_t kKept = 8192;

  void put(T* item) { items_[tail_++ & mask_] = item; }
  void grow(size_t size) {
    auto items = std::make_unique_for_overwrite<T*[]>(size);
    base::forget_pages(items.get(), size * sizeof(T*));  // others may have used them before
    for (size_t i = 0; i < this->size(); i++) items[i] = (*this)[i];
    tail_ = this->size();
    head_ = 0;
    mask_ = size - 1;
    capacity_ = size;
    items_ = std::move(items);
  }

  std::unique_ptr<T*[]> items_;  ///< reserved memory takes no pages before it is used
  size_t mask_ = 0;              ///< `capacity_`, a power of two, minus 1
  size_t head_ = 0;              ///< number of the next turn; not wrapped while the list is not empty
  size_t tail_ = 0;
  size_t refused_in_a_row_ = 0;
  size_t capacity_ = 0;
};

}  // namespace tern::rpc
