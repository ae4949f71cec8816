// The overflowing completion queue against a NIC that writes entries in order, and overwrites older ones.
#include "rdma/overflowed_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace tern::rdma {
namespace {

using Seen = OverflowedQueue::Seen;
constexpr uint32_t kCycle = OverflowedQueue::kCycle;
constexpr uint32_t kReach = 4096;

uint32_t length_of(uint32_t position) { return 60 + position % 1400; }

class Nic {
 public:
  Nic(uint32_t count, uint32_t entry_bytes = 64, uint32_t start = 0)
      : next(start), count_(count), entry_bytes_(entry_bytes), memory_(size_t{count} * entry_bytes) {
    queue.create(memory_.data(), count, entry_bytes, kReach);
    if (start == 0) return;
    for (uint32_t i = 0; i < count; i++) write((start - count + i) % kCycle);
  }

  /// Returns the memory of the entry at this position, whether it is written or not.
  mlx5_cqe64& entry(uint32_t position) {
    const size_t at = size_t{position % count_} * entry_bytes_ + (entry_bytes_ - 64);
    return *reinterpret_cast<mlx5_cqe64*>(memory_.data() + at);
  }
  /// Writes all words of the entry but the last one.
  void write_body(uint32_t position) {
    mlx5_cqe64& to = entry(position);
    __atomic_store_n(&to.hds_ip_ext,
                     static_cast<uint8_t>(MLX5_CQE_L2_OK | (position % 3 == 0 ? 0 : MLX5_CQE_L3_OK) |
                                          (position % 5 == 0 ? 0 : MLX5_CQE_L4_OK)),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&to.byte_cnt, htobe32(1u << 16 | length_of(position)), __ATOMIC_RELAXED);
    __atomic_store_n(&to.wqe_id, htobe16(static_cast<uint16_t>(position / 512)), __ATOMIC_RELAXED);
  }
  void write_last(uint32_t position, uint8_t opcode = MLX5_CQE_RESP_SEND) {
    const uint32_t owner = position / count_ & 1;
    const uint32_t last = position % 512 << 16 | 0x5a00 | uint32_t{opcode} << 4 | owner;
    __atomic_store_n(reinterpret_cast<uint32_t*>(reinterpret_cast<std::byte*>(&entry(position)) + 60), htobe32(last),
                     __ATOMIC_RELEASE);
  }
  void write(uint32_t position) {
    write_body(position);
    write_last(position);
  }
  void deliver(uint32_t packets) {
    for (uint32_t i = 0; i < packets; i++) {
      write(next);
      next = (next + 1) % kCycle;
    }
  }

  OverflowedQueue queue;
  uint32_t next;  ///< position of the next entry

 private:
  uint32_t count_;
  uint32_t entry_bytes_;
  std::vector<std::byte> memory_;
};

void expect_completion(const OverflowedQueue::Completion& completion, uint32_t position) {
  ASSERT_EQ(completion.bytes, length_of(position));
  ASSERT_EQ(completion.is_ip_good, position % 3 != 0);
  ASSERT_EQ(completion.is_udp_good, position % 5 != 0);
}

/// Reads all arrived entries. Checks that the newest completions are intact, and that no entry is read before it is
/// written.
void expect_all_read(Nic& nic, uint32_t count, uint32_t* position, uint32_t arrived) {
  for (uint32_t left = arrived; left > 0; left--) {
    OverflowedQueue::Completion completion{};
    const Seen seen = nic.queue.look(*position, &completion);
    // The reader cannot exclude that the NIC is writing the oldest entry.
    ASSERT_EQ(seen, left < count ? Seen::kCompleted : Seen::kOverwritten) << *position << ", " << left << " left";
    if (seen == Seen::kCompleted) {
      ASSERT_NO_FATAL_FAILURE(expect_completion(completion, *position));
    }
    *position = (*position + 1) % kCycle;
  }
  OverflowedQueue::Completion completion{};
  ASSERT_EQ(nic.queue.look(*position, &completion), Seen::kNothing) << *position;
}

TEST(OverflowedQueue, all_interleavings_of_packets_between_polls) {
  for (const uint32_t count : {2u, 4u, 8u}) {
    const uint32_t most = 2 * count + 1;
    for (const uint32_t start : {0u, 509u, kCycle - 3}) {
      const uint32_t runs = (most + 1) * (most + 1) * (most + 1);
      for (uint32_t run = 0; run < runs; run++) {
        Nic nic(count, 64, start);
        uint32_t position = start;
        for (const uint32_t packets :
             {run % (most + 1), run / (most + 1) % (most + 1), run / (most + 1) / (most + 1)}) {
          nic.deliver(packets);
          ASSERT_NO_FATAL_FAILURE(expect_all_read(nic, count, &position, packets)) << "run " << run;
        }
      }
    }
  }
}

TEST(OverflowedQueue, packets_between_looks__count_one_by_one) {
  // The reader looks after each visit, while more packets arrive: all sequences of 0, 1 or 9 packets between two looks.
  for (uint32_t run = 0; run < 3 * 3 * 3 * 3 * 3; run++) {
    Nic nic(8);
    uint32_t position = 0, arrived = 0, rest = run;
    for (int look = 0; look < 5; look++, rest /= 3) {
      const uint32_t packets = rest % 3 == 2 ? 9 : rest % 3;
      nic.deliver(packets);
      arrived += packets;
      OverflowedQueue::Completion completion{};
      const Seen seen = nic.queue.look(position, &completion);
      const uint32_t left = arrived - position;
      ASSERT_EQ(seen, left == 0 ? Seen::kNothing : left < 8 ? Seen::kCompleted : Seen::kOverwritten) << "run " << run;
      if (seen != Seen::kNothing) position++;
    }
  }
}

TEST(OverflowedQueue, far_ahead__is_overwritten__and_beyond_the_reach_failed) {
  OverflowedQueue::Completion completion{};
  Nic nic(8);
  nic.deliver(kReach);
  for (uint32_t position = 0; position < kReach - 7; position++) {
    ASSERT_EQ(nic.queue.look(position, &completion), Seen::kOverwritten) << position;
  }
  EXPECT_EQ(nic.queue.look(kReach - 7, &completion), Seen::kCompleted);
  nic.deliver(8);
  EXPECT_EQ(nic.queue.look(0, &completion), Seen::kFailed) << "the NIC had no buffers for these";
}

TEST(OverflowedQueue, half_written_entry__is_no_packet__and_no_completion_of_the_one_before) {
  for (const uint32_t start : {8u, 500u, 512u, 513u, 519u, 1024u, kCycle - 1, kCycle - 8}) {
    Nic nic(8, 64, start);
    nic.deliver(8);
    const uint32_t writing = nic.next;
    nic.write_body(writing);
    OverflowedQueue::Completion completion{};
    EXPECT_EQ(nic.queue.look(start, &completion), Seen::kOverwritten) << start;
    const Seen after = nic.queue.look((start + 1) % kCycle, &completion);
    EXPECT_TRUE(after == Seen::kCompleted || after == Seen::kOverwritten) << start;
    for (uint32_t i = 2; i < 8; i++) {
      const uint32_t position = (start + i) % kCycle;
      ASSERT_EQ(nic.queue.look(position, &completion), Seen::kCompleted) << position;
      ASSERT_NO_FATAL_FAILURE(expect_completion(completion, position));
    }
    EXPECT_EQ(nic.queue.look(writing, &completion), Seen::kNothing) << start;
    nic.write_last(writing);
    EXPECT_EQ(nic.queue.look(writing, &completion), Seen::kCompleted) << start;
  }
}

TEST(OverflowedQueue, error_opcodes__fail) {
  for (const uint8_t opcode : {MLX5_CQE_RESP_ERR, MLX5_CQE_REQ_ERR, MLX5_CQE_INVALID, MLX5_CQE_NO_PACKET,
                               MLX5_CQE_RESP_WR_IMM, MLX5_CQE_REQ, MLX5_CQE_RESIZE_CQ, MLX5_CQE_SIG_ERR}) {
    OverflowedQueue::Completion completion{};
    Nic nic(8);
    nic.deliver(3);
    nic.write_body(3);
    nic.write_last(3, opcode);
    EXPECT_EQ(nic.queue.look(2, &completion), Seen::kCompleted);
    EXPECT_EQ(nic.queue.look(3, &completion), Seen::kFailed) << int{opcode};
  }
}

TEST(OverflowedQueue, implausible_positions__fail) {
  for (const uint32_t wrong : {4097u, kCycle / 2, kCycle - 9, kCycle - 1}) {
    OverflowedQueue::Completion completion{};
    Nic nic(8, 64, 64);
    mlx5_cqe64& entry = nic.entry(64);
    const uint32_t position = (64 + wrong) % kCycle;
    entry.wqe_id = htobe16(static_cast<uint16_t>(position / 512));
    entry.wqe_counter = htobe16(position % 512);
    EXPECT_EQ(nic.queue.look(64, &completion), Seen::kFailed) << wrong;
    entry.wqe_counter = htobe16(512 + 8);
    EXPECT_EQ(nic.queue.look(64, &completion), Seen::kFailed) << "a stride that no descriptor has";
  }
}

TEST(OverflowedQueue, frame_of_several_strides__is_too_long) {
  OverflowedQueue::Completion completion{};
  for (const uint32_t later : {1u, 7u, 9u}) {
    Nic nic(8, 64, 64);
    mlx5_cqe64& entry = nic.entry(64);
    entry.wqe_id = htobe16(static_cast<uint16_t>((64 + later) / 512));
    entry.wqe_counter = htobe16((64 + later) % 512);
    EXPECT_EQ(nic.queue.look(64, &completion), Seen::kTooLong) << "an entry has the position of another one, " << later;
  }
  Nic nic(8);
  nic.deliver(1);
  nic.entry(0).byte_cnt = htobe32(2u << 16 | 3000);
  EXPECT_EQ(nic.queue.look(0, &completion), Seen::kTooLong);
  nic.entry(0).byte_cnt = htobe32(1u << 31 | 1u << 16 | 100);
  EXPECT_EQ(nic.queue.look(0, &completion), Seen::kTooLong) << "a filler, which no stride of a whole frame needs";
}

TEST(OverflowedQueue, lost_completion_of_a_frame_of_several_strides__is_found_by_the_later_ones) {
  for (uint32_t frames = 1; frames < 40; frames++) {
    Nic nic(8);
    // The first frame takes two strides, so that the position of each later one is one more than its entry's.
    for (uint32_t i = 0; i <= frames; i++) {
      const uint32_t position = i == 0 ? 0 : i + 1;
      mlx5_cqe64& entry = nic.entry(i);
      entry.byte_cnt = htobe32((i == 0 ? 2u : 1u) << 16 | 100);
      entry.wqe_id = htobe16(static_cast<uint16_t>(position / 512));
      entry.wqe_counter = htobe16(position % 512);
    }
    OverflowedQueue::Completion completion{};
    Seen seen = Seen::kNothing;
    for (uint32_t position = 0; position < 3 && seen != Seen::kTooLong; position++) {
      seen = nic.queue.look(position, &completion);
      ASSERT_NE(seen, Seen::kFailed) << frames;
      ASSERT_NE(seen, Seen::kCompleted) << frames;
    }
    EXPECT_EQ(seen, Seen::kTooLong) << frames;
  }
}

TEST(OverflowedQueue, long_entries__have_the_completion_in_their_second_half) {
  Nic nic(8, 128);
  uint32_t position = 0;
  for (const uint32_t packets : {1u, 0u, 7u, 20u, 3u}) {
    nic.deliver(packets);
    ASSERT_NO_FATAL_FAILURE(expect_all_read(nic, 8, &position, packets));
  }
}

TEST(OverflowedQueue, golden_entry) {
  // An entry that a ConnectX writes: descriptor 0x0102, stride 3, 98 bytes in one stride, all checksums right, opcode
  // for a received send.
  std::vector<std::byte> memory(8 * 64);
  OverflowedQueue queue;
  queue.create(memory.data(), 8, 64, kReach);
  constexpr uint32_t kPosition = 0x0102 * 512 + 3;
  const auto put = [&](uint32_t index, uint16_t descriptor, uint16_t stride) {
    std::byte* const at = memory.data() + size_t{index} * 64;
    const auto byte = [&](size_t offset, unsigned value) { at[offset] = static_cast<std::byte>(value); };
    byte(2, descriptor >> 8), byte(3, descriptor & 0xff);
    byte(28, 0x07);
    byte(44, 0), byte(45, 1), byte(46, 0), byte(47, 98);
    byte(60, stride >> 8), byte(61, stride & 0xff);
    byte(63, 0x20 | 0x01);
  };
  put(2, 0x0102, 2);
  put(3, 0x0102, 3);
  OverflowedQueue::Completion completion{};
  ASSERT_EQ(queue.look(kPosition, &completion), Seen::kCompleted);
  EXPECT_EQ(completion.bytes, 98u);
  EXPECT_TRUE(completion.is_ip_good);
  EXPECT_TRUE(completion.is_udp_good);
  static_assert(sizeof(mlx5_cqe64) == 64 && offsetof(mlx5_cqe64, wqe_id) == 2 &&
                offsetof(mlx5_cqe64, hds_ip_ext) == 28 && offsetof(mlx5_cqe64, byte_cnt) == 44 &&
                offsetof(mlx5_cqe64, wqe_counter) == 60);
  static_assert(MLX5_CQE_L3_OK == 2 && MLX5_CQE_L4_OK == 4 && MLX5_CQE_RESP_SEND == 2);
}

TEST(OverflowedQueue, nic_that_writes_while_the_reader_reads) {
  Nic nic(8);
  constexpr uint32_t kPackets = 100'000;
  std::atomic<uint32_t> visited{0}, announced{0};
  std::thread writer([&] {
    for (uint32_t position = 0; position < kPackets; position++) {
      announced.store(position + 1, std::memory_order_relaxed);
      while (position - visited.load(std::memory_order_relaxed) > 64) std::this_thread::yield();
      nic.write(position);
    }
  });
  uint32_t completed = 0, failed = 0, wrong = 0;
  for (uint32_t position = 0; position < kPackets && failed == 0;) {
    OverflowedQueue::Completion completion{};
    const Seen seen = nic.queue.look(position, &completion);
    if (seen == Seen::kNothing) {
      std::this_thread::yield();
      continue;
    }
    failed += seen == Seen::kFailed ? 1 : 0;
    wrong += announced.load(std::memory_order_relaxed) <= position ? 1 : 0;
    if (seen == Seen::kCompleted) {
      completed++;
      wrong += completion.bytes != length_of(position) || completion.is_ip_good != (position % 3 != 0) ? 1 : 0;
    }
    visited.store(++position, std::memory_order_relaxed);
  }
  visited.store(kPackets, std::memory_order_relaxed);
  writer.join();
  EXPECT_EQ(failed, 0u);
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(completed, 0u);
}

}  // namespace
}  // namespace tern::rdma
