// The send queue against a NIC that is a list. A packet that the NIC may still read is never released. All packets are
// released once the NIC has completed the signalled requests.
#include "rdma/send_queue.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace tern::rdma {
namespace {

/// A NIC that takes lists of requests, and completes the signalled ones in order.
class Nic : public ibv_context, public ibv_qp {
 public:
  struct Sent {
    uint64_t id;
    bool is_inline, is_signalled;
  };

  Nic() : ibv_context{}, ibv_qp{} {
    ibv_qp::context = this;
    ibv_context::ops.post_send = [](ibv_qp* pair, ibv_send_wr* request, ibv_send_wr** bad) {
      return static_cast<Nic*>(pair)->take(request, bad);
    };
  }
  /// The next call takes `count` requests and refuses the rest.
  void fail_after(size_t count) { taken_before_error_ = count; }
  /// Completes requests up to the next signalled one, and returns its id; nothing: there is none.
  std::optional<uint64_t> complete() {
    while (!sent_.empty()) {
      const Sent first = sent_.front();
      sent_.pop_front();
      if (first.is_signalled) return first.id;
    }
    return std::nullopt;
  }
  bool has_signalled() const {
    return std::any_of(sent_.begin(), sent_.end(), [](const Sent& one) { return one.is_signalled; });
  }
  void reset() { sent_.clear(); }

  std::vector<Sent> last_list;
  size_t lists = 0;

 private:
  int take(ibv_send_wr* request, ibv_send_wr** bad) {
    lists++;
    last_list.clear();
    for (; request != nullptr; request = request->next) {
      if (taken_before_error_ && (*taken_before_error_)-- == 0) {
        taken_before_error_.reset();
        *bad = request;
        return ENOMEM;
      }
      const Sent sent{request->wr_id, (request->send_flags & IBV_SEND_INLINE) != 0,
                      (request->send_flags & IBV_SEND_SIGNALED) != 0};
      last_list.push_back(sent);
      sent_.push_back(sent);
    }
    return 0;
  }

  std::deque<Sent> sent_;
  std::optional<size_t> taken_before_error_;
};

constexpr uint32_t kSlots = 8;

/// A queue that owns its memory.
template <uint32_t kCount>
class Queue : public SendQueue<kCount, 24> {
 public:
  Queue() { this->create(memory_.data(), 7); }
  size_t index_of(const typename SendQueue<kCount, 24>::Slot& slot) const {
    return static_cast<size_t>(reinterpret_cast<const std::byte*>(&slot) - memory_.data()) / sizeof(slot);
  }
  void add(Reading reading) { SendQueue<kCount, 24>::add(this->next(), reading); }

 private:
  alignas(64) std::array<std::byte, SendQueue<kCount, 24>::kMemoryBytes> memory_;
};

/// The queue, its NIC, and the expected state of every packet.
class Model {
 public:
  enum Step : uint8_t { kInline, kGathered, kPost, kComplete, kCompleteAll, kReset, kPostFails, kSteps };

  void run(Step step) {
    switch (step) {
      case kInline:
      case kGathered:
        if (queue.is_full()) return;
        EXPECT_EQ(queue.index_of(queue.next()), packets.size() % kSlots);
        packets.push_back({step == kInline});
        queue.add(step == kInline ? Reading::kInline : Reading::kGathered);
        break;
      case kPost:
        if (queue.has_queued()) post();
        break;
      case kComplete:
        complete();
        break;
      case kCompleteAll:
        while (nic.has_signalled()) complete();
        break;
      case kReset:
        reset();
        break;
      case kPostFails:
        if (!queue.has_queued()) return;
        nic.fail_after(queue.queued() / 2);
        EXPECT_EQ(queue.post(&nic), ENOMEM);
        for (Packet& packet : packets) packet.is_posted = true;
        reset();
        break;
      case kSteps:
        break;
    }
    check();
  }
  /// Completes all of the NIC's work. Every packet must then be released.
  void finish() {
    run(kPost);
    run(kCompleteAll);
    EXPECT_EQ(queue.released(), queue.ticket());
    EXPECT_FALSE(queue.is_full());
  }

  Queue<kSlots> queue;
  Nic nic;

 private:
  struct Packet {
    bool is_inline;
    bool is_posted = false;
    bool is_done = false;  ///< completed, or discarded in a reset
  };

  void post() {
    const size_t count = queue.queued();
    EXPECT_EQ(queue.post(&nic), 0);
    EXPECT_EQ(nic.last_list.size(), count);
    for (size_t i = 0; i < nic.last_list.size(); i++) EXPECT_EQ(nic.last_list[i].id, packets.size() - count + i);
    for (Packet& packet : packets) packet.is_posted = true;
  }
  void complete() {
    const auto id = nic.complete();
    if (!id) return;
    stale.insert(*id);
    EXPECT_TRUE(queue.is_outstanding(*id));
    queue.complete(*id);
    for (size_t i = 0; i <= *id; i++) packets[i].is_done = true;
  }
  void reset() {
    for (uint64_t id = 0; id < packets.size(); id++) stale.insert(id);
    nic.reset();
    queue.reset();
    for (Packet& packet : packets) packet.is_posted = packet.is_done = true;
    EXPECT_EQ(queue.released(), queue.ticket());
    EXPECT_FALSE(queue.has_outstanding());
  }
  void check() {
    for (const uint64_t id : stale) {  // completions from before a reset have no effect
      EXPECT_FALSE(queue.is_outstanding(id));
      queue.complete(id);
    }
    EXPECT_EQ(queue.ticket(), packets.size());
    const uint64_t released = queue.released();
    EXPECT_GE(released, last_released) << "never falls";
    EXPECT_LE(released, queue.ticket());
    last_released = released;
    for (uint64_t i = 0; i < std::min<uint64_t>(released, packets.size()); i++) {
      EXPECT_TRUE(packets[i].is_done || (packets[i].is_inline && packets[i].is_posted)) << "packet " << i;
    }
    size_t outstanding = 0;
    for (const Packet& packet : packets) outstanding += packet.is_done ? 0 : 1;
    EXPECT_EQ(queue.is_full(), outstanding == kSlots);
    EXPECT_EQ(queue.has_outstanding(), outstanding != 0);
    if (queue.is_full() && !queue.has_queued()) {
      EXPECT_TRUE(queue.wants_completions());
      EXPECT_TRUE(nic.has_signalled()) << "or the queue stays full for ever";
    }
    const bool reads = std::any_of(packets.begin(), packets.end(), [](const Packet& packet) {
      return packet.is_posted && !packet.is_done && !packet.is_inline;
    });
    if (reads) {
      EXPECT_TRUE(queue.wants_completions());
      EXPECT_TRUE(nic.has_signalled());
    }
  }

  std::vector<Packet> packets;
  std::set<uint64_t> stale;
  uint64_t last_released = 0;
};

TEST(SendQueue, agrees_with_a_model__all_short_sequences) {
  constexpr uint32_t kLength = 5;
  uint32_t sequences = 1;
  for (uint32_t i = 0; i < kLength; i++) sequences *= Model::kSteps;
  for (const uint32_t first : {0u, 5u, 7u}) {  // earlier packets, so that the ring's end comes at different steps
    for (uint32_t sequence = 0; sequence < sequences; sequence++) {
      Model model;
      for (uint32_t i = 0; i < first; i++) model.run(i % 3 == 0 ? Model::kGathered : Model::kInline);
      std::string steps;
      for (uint32_t i = 0, rest = sequence; i < kLength; i++, rest /= Model::kSteps) {
        model.run(static_cast<Model::Step>(rest % Model::kSteps));
        steps += std::to_string(rest % Model::kSteps);
      }
      model.finish();
      ASSERT_FALSE(HasFailure()) << first << " packets, steps " << steps;
    }
  }
}

TEST(SendQueue, agrees_with_a_model__long_random_sequences) {
  for (uint32_t seed = 0; seed < 200; seed++) {
    std::mt19937 random(seed);
    Model model;
    for (int i = 0; i < 150; i++) {
      const uint32_t number = random() % 16;  // resets and errors are rare, so that the queue fills
      model.run(number < 5     ? Model::kInline
                : number < 9   ? Model::kGathered
                : number < 12  ? Model::kPost
                : number < 14  ? Model::kComplete
                : number == 14 ? Model::kCompleteAll
                               : (random() % 4 == 0 ? Model::kReset : Model::kPost));
    }
    model.finish();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

TEST(SendQueue, post__is_one_list_in_order__and_signals_the_last_gathered_packet) {
  Queue<64> queue;
  Nic nic;
  for (const Reading reading :
       {Reading::kInline, Reading::kGathered, Reading::kCopied, Reading::kGathered, Reading::kCopied}) {
    queue.add(reading);
  }
  ASSERT_EQ(queue.post(&nic), 0);
  EXPECT_EQ(nic.lists, 1u);
  ASSERT_EQ(nic.last_list.size(), 5u);
  for (size_t i = 0; i < 5; i++) {
    EXPECT_EQ(nic.last_list[i].id, i);
    EXPECT_EQ(nic.last_list[i].is_signalled, i == 3) << i;
  }
}

TEST(SendQueue, inline_packets__one_in_many_is_signalled) {
  Queue<256> queue;
  Nic nic;
  size_t signalled = 0;
  for (int i = 0; i < 256; i++) {
    queue.add(Reading::kInline);
    ASSERT_EQ(queue.post(&nic), 0);
    signalled += nic.last_list.front().is_signalled ? 1 : 0;
    EXPECT_EQ(queue.released(), queue.ticket()) << "the NIC has copied it";
  }
  EXPECT_EQ(signalled, 4u);
  EXPECT_TRUE(queue.is_full());
}

TEST(SendQueue, copied_packets__are_released_at_once__and_keep_their_slots) {
  Queue<kSlots> queue;
  Nic nic;
  for (uint32_t i = 0; i < kSlots; i++) queue.add(Reading::kCopied);
  ASSERT_EQ(queue.post(&nic), 0);
  EXPECT_EQ(queue.released(), queue.ticket());
  EXPECT_TRUE(queue.is_full());
  EXPECT_TRUE(queue.wants_completions());
  for (const auto& sent : nic.last_list) EXPECT_FALSE(sent.is_inline);
  queue.complete(nic.last_list.back().id);
  EXPECT_FALSE(queue.is_full());
}

TEST(SendQueue, copied_packet__may_become_inline_until_it_is_posted) {
  Queue<kSlots> queue;
  Nic nic;
  auto& slot = queue.next();
  queue.add(Reading::kCopied);
  slot.request.send_flags |= IBV_SEND_INLINE;
  ASSERT_EQ(queue.post(&nic), 0);
  EXPECT_TRUE(nic.last_list.front().is_inline);
}

TEST(SendQueue, flags__are_those_of_all_requests) {
  alignas(64) std::array<std::byte, SendQueue<kSlots, 24>::kMemoryBytes> memory;
  SendQueue<kSlots, 24> queue;
  queue.create(memory.data(), 7, IBV_SEND_IP_CSUM);
  for (const Reading reading : {Reading::kInline, Reading::kCopied, Reading::kGathered}) {
    auto& slot = queue.next();
    queue.add(slot, reading);
    EXPECT_NE(slot.request.send_flags & IBV_SEND_IP_CSUM, 0u);
  }
}

}  // namespace
}  // namespace tern::rdma
