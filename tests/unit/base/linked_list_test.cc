#include "base/linked_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tern::base {
namespace {

struct Item {
  size_t size = 0;
  ListLinks<Item> list;
  HeapLinks<Item> heap;
};
struct InList {
  static ListLinks<Item>& of(Item& item) { return item.list; }
  static const ListLinks<Item>& of(const Item& item) { return item.list; }
};
struct InHeap {
  static HeapLinks<Item>& of(Item& item) { return item.heap; }
  static size_t size(const Item& item) { return item.size; }
};

TEST(LinkedList, agrees_with_a_vector) {
  std::mt19937 random(1);
  std::vector<Item> items(20);
  LinkedList<Item, InList> list;
  std::vector<Item*> model;
  for (int step = 0; step < 20'000; step++) {
    Item* item = &items[random() % items.size()];
    const auto at = std::find(model.begin(), model.end(), item);
    if (at == model.end()) {
      list.add_last(item);
      model.push_back(item);
    } else {
      model.erase(at);
      if (random() % 2 == 0) {
        list.remove(item);
      } else {
        list.move_last(item);
        model.push_back(item);
      }
    }
    std::vector<Item*> seen;
    for (Item* i = list.first(); i != nullptr; i = list.after(i)) seen.push_back(i);
    ASSERT_EQ(seen, model);
    ASSERT_EQ(list.empty(), model.empty());
  }
}

TEST(MaxHeap, top_is_the_largest_whatever_is_removed) {
  std::mt19937 random(2);
  std::vector<Item> items(50);
  MaxHeap<Item, InHeap> heap;
  std::vector<Item*> model;
  for (int step = 0; step < 50'000; step++) {
    Item* item = &items[random() % items.size()];
    const auto at = std::find(model.begin(), model.end(), item);
    if (at == model.end()) {
      item->size = random() % 100;
      heap.add(item);
      model.push_back(item);
    } else {
      if (random() % 4 == 0) item = heap.top();
      heap.remove(item);
      std::erase(model, item);
    }
    if (model.empty()) {
      ASSERT_EQ(heap.top(), nullptr);
      continue;
    }
    size_t largest = 0;
    for (const Item* i : model) largest = std::max(largest, i->size);
    ASSERT_NE(std::find(model.begin(), model.end(), heap.top()), model.end());
    ASSERT_EQ(heap.top()->size, largest);
  }
}

}  // namespace
}  // namespace tern::base
