// Intrusive lists and heaps. They allocate nothing. An element leaves a list in constant time.
#pragma once

#include <utility>

namespace tern::base {

template <class T>
struct ListLinks {
  T* next = nullptr;
  T* previous = nullptr;
};

/// `Member::of(item)` is the ListLinks<T>& of this list. An item is in at most one list of a Member.
template <class T, class Member>
class LinkedList {
 public:
  bool empty() const { return first_ == nullptr; }
  T* first() const { return first_; }
  T* last() const { return last_; }
  static T* after(const T* item) { return Member::of(*item).next; }
  void add_last(T* item) {
    Member::of(*item) = {nullptr, last_};
    (last_ != nullptr ? Member::of(*last_).next : first_) = item;
    last_ = item;
  }
  void remove(T* item) {
    ListLinks<T>& links = Member::of(*item);
    (links.previous != nullptr ? Member::of(*links.previous).next : first_) = links.next;
    (links.next != nullptr ? Member::of(*links.next).previous : last_) = links.previous;
    links = {};
  }
  void move_last(T* item) {
    if (item == last_) return;
    remove(item);
    add_last(item);
  }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

template <class T>
struct HeapLinks {
  T* child = nullptr;
  T* next = nullptr;      ///< the next sibling
  T* previous = nullptr;  ///< the previous sibling; for a first child, its parent
};

/// A pairing heap: the largest item is at the top. `Member::of(item)` is its HeapLinks<T>&, `Member::size(item)` its
/// size, which does not change while it is in the heap.
template <class T, class Member>
class MaxHeap {
 public:
  T* top() const { return top_; }
  void add(T* item) {
    Member::of(*item) = {};
    top_ = meld(top_, item);
  }
  void remove(T* item) {
    T* rest = meld_all(Member::of(*item).child);
    if (item == top_) {
      top_ = rest;
    } else {
      const HeapLinks<T> links = Member::of(*item);
      HeapLinks<T>& before = Member::of(*links.previous);
      (before.child == item ? before.child : before.next) = links.next;
      if (links.next != nullptr) Member::of(*links.next).previous = links.previous;
      top_ = meld(top_, rest);
    }
    Member::of(*item) = {};
  }

 private:
  /// Melds two heaps whose tops have no siblings.
  static T* meld(T* a, T* b) {
    if (a == nullptr || b == nullptr) return a != nullptr ? a : b;
    if (Member::size(*a) < Member::size(*b)) std::swap(a, b);
    HeapLinks<T>& parent = Member::of(*a);
    HeapLinks<T>& child = Member::of(*b);
    child.previous = a;
    child.next = parent.child;
    if (parent.child != nullptr) Member::of(*parent.child).previous = b;
    parent.child = b;
    return a;
  }
  /// Melds siblings in two passes: first in pairs from the first sibling on, then the pairs from the last pair on.
  static T* meld_all(T* first) {
    T* pairs = nullptr;  // the newest pair first, linked by `next`
    while (first != nullptr) {
      T* a = first;
      T* b = Member::of(*a).next;
      first = b != nullptr ? Member::of(*b).next : nullptr;
      T* pair = meld(alone(a), alone(b));
      Member::of(*pair).next = pairs;
      pairs = pair;
    }
    T* all = nullptr;
    while (pairs != nullptr) {
      T* next = Member::of(*pairs).next;
      all = meld(all, alone(pairs));
      pairs = next;
    }
    return all;
  }
  static T* alone(T* item) {
    if (item != nullptr) Member::of(*item).next = Member::of(*item).previous = nullptr;
    return item;
  }

  T* top_ = nullptr;
};

}  // namespace tern::base
