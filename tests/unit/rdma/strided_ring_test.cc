// The ring of strides against a NIC that fills descriptors in order.
#include "rdma/strided_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace tern::rdma {
namespace {

constexpr uint32_t kStrideBytes = 64;
constexpr uint32_t kKey = 0x1234;
constexpr uint32_t kPerDescriptor = StridedRing::kStridesPerDescriptor;
constexpr uint32_t kDescriptorBytes = kPerDescriptor * kStrideBytes;

/// A NIC that reads the posted descriptors, oldest first.
class Nic {
 public:
  explicit Nic(uint32_t descriptors) : memory_(descriptors) {}
  mlx5dv_rwq queue() {
    mlx5dv_rwq queue{};
    queue.buf = memory_.data();
    queue.dbrec = records_.data();
    queue.wqe_cnt = static_cast<uint32_t>(memory_.size());
    queue.stride = sizeof(mlx5_mprq_wqe);
    return queue;
  }
  /// Returns the number of posted descriptors. The NIC's record counts them modulo 2^16.
  size_t posted() const { return static_cast<uint16_t>(be32toh(records_[MLX5_RCV_DBR]) - done_); }
  const std::byte* oldest() const {
    const mlx5_mprq_wqe& descriptor = memory_[done_ % memory_.size()];
    EXPECT_EQ(be32toh(descriptor.dseg.byte_count), kDescriptorBytes);
    EXPECT_EQ(be32toh(descriptor.dseg.lkey), kKey);
    EXPECT_EQ(descriptor.nseg.next_wqe_index, 0);
    return reinterpret_cast<const std::byte*>(be64toh(descriptor.dseg.addr));
  }
  void finish() { done_++; }

 private:
  std::vector<mlx5_mprq_wqe> memory_;
  std::array<__be32, 2> records_{};
  uint32_t done_ = 0;
};

class World {
 public:
  explicit World(uint32_t strides) : nic(strides / kPerDescriptor), memory_(size_t{strides} * kStrideBytes) {
    ring.create(strides, memory_.data(), kStrideBytes, kKey);
    ring.attach(nic.queue());
    EXPECT_EQ(nic.posted(), 0u);
    ring.post();
  }
  const std::byte* memory() const { return memory_.data(); }
  /// The NIC fills the next stride of its oldest descriptor, and then the endpoint visits it.
  void receive() {
    ASSERT_GT(nic.posted(), 0u);
    ASSERT_EQ(ring.stride(), nic.oldest() + size_t{filled_} * kStrideBytes) << ring.position();
    if (++filled_ == kPerDescriptor) {
      filled_ = 0;
      nic.finish();
    }
    ring.advance();
  }

  StridedRing ring;
  Nic nic;

 private:
  std::vector<std::byte> memory_;
  uint32_t filled_ = 0;  ///< filled strides of the oldest descriptor
};

TEST(StridedRing, posts_all_descriptors_in_the_beginning) {
  for (const uint32_t strides : {1024u, 4096u, 65536u}) {
    World world(strides);
    EXPECT_EQ(world.ring.descriptors(), strides / kPerDescriptor);
    ASSERT_EQ(world.nic.posted(), strides / kPerDescriptor);
    EXPECT_FALSE(world.ring.wants_post());
    world.ring.post();
    EXPECT_EQ(world.nic.posted(), strides / kPerDescriptor) << "nothing has been visited since";
  }
}

TEST(StridedRing, descriptor__is_posted_again_when_all_its_strides_were_visited) {
  World world(2048);
  for (uint32_t round = 0; round < 20; round++) {
    for (uint32_t i = 0; i < kPerDescriptor; i++) {
      ASSERT_FALSE(world.ring.wants_post()) << round << " " << i;
      ASSERT_NO_FATAL_FAILURE(world.receive());
    }
    ASSERT_TRUE(world.ring.wants_post());
    EXPECT_EQ(world.nic.posted(), 3u);
    world.ring.post();
    EXPECT_EQ(world.nic.posted(), 4u);
  }
}

TEST(StridedRing, several_descriptors__are_posted_in_order) {
  World world(4096);
  for (const uint32_t packets : {100u, 4096u - 100, 1500u, 4000u, 511u, 1u, 4096u}) {
    for (uint32_t i = 0; i < packets && world.nic.posted() > 0; i++) ASSERT_NO_FATAL_FAILURE(world.receive());
    const size_t before = world.nic.posted();
    const bool wanted = world.ring.wants_post();
    world.ring.post();
    EXPECT_EQ(world.nic.posted() > before, wanted);
    EXPECT_FALSE(world.ring.wants_post());
  }
}

TEST(StridedRing, positions__wrap) {
  World world(1024);
  for (uint32_t descriptor = 0; descriptor < OverflowedQueue::kCycle / kPerDescriptor + 5; descriptor++) {
    ASSERT_EQ(world.ring.position(), descriptor * kPerDescriptor % OverflowedQueue::kCycle);
    ASSERT_EQ(world.ring.stride(), world.nic.oldest());
    for (uint32_t i = 0; i < kPerDescriptor; i++) world.ring.advance();
    world.nic.finish();
    ASSERT_TRUE(world.ring.wants_post());
    world.ring.post();
    ASSERT_EQ(world.nic.posted(), 2u);
  }
}

TEST(StridedRing, attach__begins_anew_with_another_queue) {
  World world(1024);
  for (uint32_t i = 0; i < kPerDescriptor + 3; i++) ASSERT_NO_FATAL_FAILURE(world.receive());
  Nic other(2);
  world.ring.attach(other.queue());
  EXPECT_EQ(world.ring.position(), 0u);
  EXPECT_EQ(other.posted(), 0u);
  world.ring.post();
  EXPECT_EQ(other.posted(), 2u);
  EXPECT_EQ(other.oldest(), world.memory());
}

}  // namespace
}  // namespace tern::rdma
