// The receive queue against a NIC that fills buffers in order.
#include "rdma/receive_queue.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <deque>
#include <random>
#include <set>
#include <vector>

namespace tern::rdma {
namespace {

constexpr uint32_t kBufferBytes = 128;
constexpr uint32_t kKey = 0x1234;

/// A NIC with the list of posted buffers, oldest first.
class Nic : public ibv_context, public ibv_qp {
 public:
  Nic() : ibv_context{}, ibv_qp{} {
    ibv_qp::context = this;
    ibv_context::ops.post_recv = [](ibv_qp* pair, ibv_recv_wr* request, ibv_recv_wr** bad) {
      return static_cast<Nic*>(pair)->take(request, bad);
    };
  }

  struct Posted {
    uint64_t id;
    std::byte* at;
  };
  std::deque<Posted> posted;
  int error = 0;
  size_t lists = 0;

 private:
  int take(ibv_recv_wr* request, ibv_recv_wr** bad) {
    lists++;
    *bad = request;
    if (error != 0) return error;
    for (; request != nullptr; request = request->next) {
      EXPECT_EQ(request->num_sge, 1);
      EXPECT_EQ(request->sg_list->length, kBufferBytes);
      EXPECT_EQ(request->sg_list->lkey, kKey);
      posted.push_back({request->wr_id, reinterpret_cast<std::byte*>(request->sg_list->addr)});
    }
    return 0;
  }
};

/// Checks the number of posted buffers, and that all of them are different.
void expect_distinct(const Nic& nic, size_t count) {
  std::set<const std::byte*> places;
  for (const Nic::Posted& one : nic.posted) places.insert(one.at);
  EXPECT_EQ(places.size(), nic.posted.size());
  EXPECT_EQ(nic.posted.size(), count);
}

TEST(ReceiveQueue, posts_all_in_the_beginning__and_in_batches_then) {
  for (const uint32_t count : {64u, 256u}) {
    std::vector<std::byte> memory(size_t{count} * kBufferBytes);
    ReceiveQueue queue;
    Nic nic;
    ASSERT_TRUE(queue.create(count, memory.data(), kBufferBytes, kKey));
    EXPECT_EQ(queue.count(), count);
    EXPECT_TRUE(queue.wants_post());
    ASSERT_EQ(queue.post(&nic), 0);
    expect_distinct(nic, count);
    EXPECT_FALSE(queue.wants_post());
    size_t since_post = 0;
    for (uint32_t i = 0; i < 5 * count; i++) {
      const Nic::Posted first = nic.posted.front();
      nic.posted.pop_front();
      EXPECT_EQ(queue.take(first.id), first.at);
      since_post++;
      if (!queue.wants_post()) continue;
      EXPECT_GE(since_post, 16u);
      since_post = 0;
      const size_t lists = nic.lists;
      ASSERT_EQ(queue.post(&nic), 0);
      EXPECT_EQ(nic.lists, lists + 1);
      expect_distinct(nic, count);
    }
    EXPECT_GT(nic.lists, 5u);
  }
}

TEST(ReceiveQueue, take__of_an_out_of_order_completion_gives_nothing) {
  std::vector<std::byte> memory(64 * kBufferBytes);
  ReceiveQueue queue;
  Nic nic;
  ASSERT_TRUE(queue.create(64, memory.data(), kBufferBytes, kKey));
  ASSERT_EQ(queue.post(&nic), 0);
  EXPECT_EQ(queue.take(1), nullptr);
  EXPECT_EQ(queue.take(UINT64_MAX), nullptr);
  EXPECT_EQ(queue.take(0), memory.data());
  EXPECT_EQ(queue.take(0), nullptr);
}

TEST(ReceiveQueue, reset__forgets_posted_buffers__and_ignores_stale_completions) {
  std::mt19937 random(1);
  std::vector<std::byte> memory(64 * kBufferBytes);
  ReceiveQueue queue;
  Nic nic;
  ASSERT_TRUE(queue.create(64, memory.data(), kBufferBytes, kKey));
  std::set<uint64_t> stale;
  for (int round = 0; round < 50; round++) {
    ASSERT_EQ(queue.post(&nic), 0);
    expect_distinct(nic, 64);
    for (const Nic::Posted& one : nic.posted) EXPECT_FALSE(stale.contains(one.id));
    for (uint32_t i = random() % 64; i > 0; i--) {
      stale.insert(nic.posted.front().id);
      EXPECT_EQ(queue.take(nic.posted.front().id), nic.posted.front().at);
      nic.posted.pop_front();
      if (random() % 8 == 0) {
        ASSERT_EQ(queue.post(&nic), 0);
      }
    }
    for (const Nic::Posted& one : nic.posted) stale.insert(one.id);
    nic.posted.clear();
    if (round % 5 == 4) {  // the cause of this reset is an error of ibv_post_recv(3)
      nic.error = EIO;
      (void)queue.post(&nic);
      nic.error = 0;
    }
    queue.reset();
    for (const uint64_t id : stale) EXPECT_EQ(queue.take(id), nullptr);
    EXPECT_TRUE(queue.wants_post());
  }
}

}  // namespace
}  // namespace tern::rdma
