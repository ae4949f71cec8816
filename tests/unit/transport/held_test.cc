// Late transmission: the times of packets, their content then, and the release of their tickets.
#include "held.h"

#include <gtest/gtest.h>
#include <tern/transport.h>

#include <vector>

#include "fake_transport.h"

namespace tern::transport {
namespace {

using HeldFake = Held<Fake>::Impl;
static_assert(Transport<Held<Fake>>);
static_assert(TransportImpl<HeldFake>);
static_assert(Held<Fake>::kName == "fake");

/// A held sender and a plain receiver.
class HeldTest : public testing::Test {
 protected:
  void SetUp() override {
    memory::ArenaOptions arena_options;
    arena_options.chunk_bytes = 4u << 20;
    auto arena = memory::Arena::create(arena_options);
    ASSERT_TRUE(arena.ok());
    arena_ = *arena;
    options_.inner.network = &network_;
    options_.inner.receive_queue_packets = 10'000;
    options_.inner.send_queue_packets = 10'000;
    options_.inner.receive_burst = 10'000;
    receiver_ = make_receiver();
  }
  void TearDown() override {
    sender_.reset();
    receiver_.reset();
    arena_->orphan();
  }

  std::unique_ptr<FakeImpl> make_receiver() {
    auto receiver = FakeImpl::create(options_.inner, *arena_);
    EXPECT_TRUE(receiver.ok());
    return std::move(*receiver);
  }
  void start(uint32_t hold_flushes, std::chrono::nanoseconds hold_time = {}) {
    options_.hold_flushes = hold_flushes;
    options_.hold_time = hold_time;
    auto sender = HeldFake::create(options_, *arena_);
    ASSERT_TRUE(sender.ok()) << sender.status().message();
    sender_ = std::move(*sender);
    peer_ = *sender_->connect(receiver_->address(), "127.0.0.1");
  }
  static wire::Header header_of(uint32_t request_number) {
    return wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, request_number, request_number, 0, 3, 100);
  }
  bool send(uint32_t number, detail::Buffer* buffer) {
    return sender_->send(peer_, header_of(number), buffer->data(), buffer->length_bytes, buffer);
  }
  /// Returns the first byte of each packet that has arrived.
  std::vector<int> receive() {
    std::vector<int> first_bytes;
    receiver_->receive([&](const wire::Header& header, const Payload& payload) {
      EXPECT_EQ(header.length(), wire::kHeaderBytes + payload.bytes);
      first_bytes.push_back(payload.bytes != 0 ? static_cast<int>(payload.data[0]) : -1);
    });
    return first_bytes;
  }

  FakeNetwork network_;
  Held<Fake>::Options options_;
  memory::Arena* arena_ = nullptr;
  std::unique_ptr<HeldFake> sender_;
  std::unique_ptr<FakeImpl> receiver_;
  PeerId peer_ = 0;
};

TEST_F(HeldTest, message_memory_is_read_when_the_packet_leaves) {
  start(3);
  detail::Buffer* buffer = arena_->alloc(10);
  buffer->data()[0] = std::byte{1};
  ASSERT_TRUE(send(1, buffer));
  const uint64_t ticket = sender_->ticket();
  for (int i = 0; i < 3; ++i) {
    sender_->flush();
    EXPECT_TRUE(receive().empty());
    EXPECT_LT(sender_->released(), ticket);
  }
  buffer->data()[0] = std::byte{2};  // forbidden over a real transport; here it shows the time of each read
  sender_->flush();
  EXPECT_EQ(receive(), std::vector<int>{2});
  EXPECT_GE(sender_->released(), ticket);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, a_batch_leaves_in_bulk_and_in_order) {
  start(3);
  detail::Buffer* buffers[4];
  uint64_t tickets[4];
  for (int i = 0; i < 4; ++i) {
    buffers[i] = arena_->alloc(1);
    buffers[i]->data()[0] = static_cast<std::byte>(i);
    ASSERT_TRUE(send(static_cast<uint32_t>(i), buffers[i]));
    tickets[i] = sender_->ticket();
    EXPECT_EQ(sender_->packets_held(), static_cast<size_t>(i) + 1);
    EXPECT_LT(sender_->released(), tickets[0]);
    EXPECT_TRUE(receive().empty());
    sender_->flush();
  }
  EXPECT_LT(tickets[0], tickets[1]);
  EXPECT_EQ(receive(), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_GE(sender_->released(), tickets[3]);
  EXPECT_EQ(sender_->packets_held(), 0u);
  for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
}

TEST_F(HeldTest, packets_leave_after_the_time_limit) {
  start(0, std::chrono::microseconds(50));
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  for (int i = 0; i < 100; ++i) sender_->flush();
  network_.now_ns += 49'999;
  sender_->flush();
  EXPECT_TRUE(receive().empty());
  network_.now_ns += 1;
  sender_->flush();
  EXPECT_EQ(receive().size(), 1u);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, with_both_limits_the_first_one_counts) {
  start(2, std::chrono::microseconds(50));
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  network_.now_ns += 50'000;
  sender_->flush();
  EXPECT_EQ(receive().size(), 1u);
  ASSERT_TRUE(send(2, buffer));
  sender_->flush();
  sender_->flush();
  EXPECT_TRUE(receive().empty());
  sender_->flush();
  EXPECT_EQ(receive().size(), 1u);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, packets_leave_with_the_next_flush_without_limits) {
  start(0);
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  EXPECT_TRUE(receive().empty());
  sender_->flush();
  EXPECT_EQ(receive().size(), 1u);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, small_payloads_outside_of_buffers_are_copied_at_once) {
  start(1);
  std::vector<std::byte> data(512, std::byte{1});
  ASSERT_TRUE(sender_->send(peer_, header_of(1), data.data(), data.size(), nullptr));
  ASSERT_TRUE(sender_->send(peer_, header_of(2), nullptr, 0, nullptr));
  std::fill(data.begin(), data.end(), std::byte{2});
  sender_->flush();
  sender_->flush();
  EXPECT_EQ(receive(), (std::vector<int>{1, -1}));
}

TEST_F(HeldTest, tickets_wait_for_the_inner_transport_as_well) {
  start(0);
  sender_->inner().hold_tickets = true;
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  const uint64_t ticket = sender_->ticket();
  for (int i = 0; i < 10; ++i) sender_->flush();
  EXPECT_EQ(receive().size(), 1u);
  EXPECT_LT(sender_->released(), ticket);
  sender_->inner().hold_tickets = false;
  EXPECT_GE(sender_->released(), ticket);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, tickets_go_on_when_nothing_is_sent) {
  start(3);
  for (int i = 0; i < 10; ++i) {
    const uint64_t before = sender_->ticket();
    sender_->flush();
    EXPECT_EQ(sender_->ticket(), before + 1);
    EXPECT_GE(sender_->released(), before);
  }
}

TEST_F(HeldTest, refused_packets_are_tried_again) {
  start(0);
  detail::Buffer* buffer = arena_->alloc(1);
  sender_->inner().refuse_sends = true;
  ASSERT_TRUE(send(1, buffer));
  const uint64_t ticket = sender_->ticket();
  for (int i = 0; i < 10; ++i) sender_->flush();
  EXPECT_LT(sender_->released(), ticket);
  sender_->inner().refuse_sends = false;
  sender_->flush();
  EXPECT_EQ(receive().size(), 1u);
  EXPECT_GE(sender_->released(), ticket);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, packets_refused_for_ever_are_lost_in_bounded_time) {
  start(0);
  detail::Buffer* buffer = arena_->alloc(1);
  sender_->inner().refuse_sends = true;
  ASSERT_TRUE(send(1, buffer));
  const uint64_t ticket = sender_->ticket();
  int flushes = 0;
  while (sender_->released() < ticket && flushes < 1000) {
    sender_->flush();
    ++flushes;
  }
  EXPECT_LE(flushes, 66);
  EXPECT_EQ(sender_->packets_given_up(), 1u);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, packets_to_a_dead_peer_are_released) {
  start(1);
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  const uint64_t ticket = sender_->ticket();
  receiver_.reset();
  EXPECT_FALSE(send(2, buffer));
  for (int i = 0; i < 3; ++i) sender_->flush();
  EXPECT_GE(sender_->released(), ticket);
  EXPECT_EQ(sender_->packets_given_up(), 1u);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, last_disconnect_drops_the_peers_held_packets) {
  start(2);
  auto other = make_receiver();
  const PeerId again = *sender_->connect(receiver_->address(), "127.0.0.1");
  ASSERT_EQ(again, peer_);
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  const uint64_t ticket = sender_->ticket();
  sender_->disconnect(peer_);
  EXPECT_EQ(sender_->packets_held(), 1u);
  sender_->disconnect(peer_);
  EXPECT_EQ(sender_->packets_held(), 0u);
  // The id passes to another peer, which must not get the packet.
  ASSERT_EQ(*sender_->connect(other->address(), "127.0.0.1"), peer_);
  for (int i = 0; i < 5; ++i) sender_->flush();
  EXPECT_GE(sender_->released(), ticket);
  EXPECT_EQ(other->packets_waiting(), 0u);
  EXPECT_TRUE(receive().empty());
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, endpoint_does_not_block_while_packets_are_held) {
  start(1);
  EXPECT_TRUE(sender_->prepare_wait());
  sender_->end_wait();
  detail::Buffer* buffer = arena_->alloc(1);
  ASSERT_TRUE(send(1, buffer));
  EXPECT_FALSE(sender_->prepare_wait());
  sender_->end_wait();
  sender_->flush();
  sender_->flush();
  EXPECT_TRUE(sender_->prepare_wait());
  sender_->end_wait();
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, a_full_queue_refuses) {
  start(100);
  detail::Buffer* buffer = arena_->alloc(1);
  size_t accepted = 0;
  while (accepted < 100'000 && send(1, buffer)) ++accepted;
  EXPECT_EQ(accepted, 4096u);
  memory::Arena::release(buffer);
}

TEST_F(HeldTest, refuses_a_negative_time) {
  options_.hold_time = std::chrono::nanoseconds(-1);
  EXPECT_EQ(HeldFake::create(options_, *arena_).status().code(), Code::kMisuse);
}

#ifdef TERN_ASAN
TEST(HeldDeathTest, a_buffer_given_back_too_early_is_seen) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        FakeNetwork network;
        auto arena = memory::Arena::create({});
        Held<Fake>::Options options;
        options.inner.network = &network;
        auto sender = HeldFake::create(options, **arena);
        auto receiver = FakeImpl::create(options.inner, **arena);
        auto peer = (*sender)->connect((*receiver)->address(), "127.0.0.1");
        detail::Buffer* buffer = (*arena)->alloc(10);
        (*sender)->send(*peer, wire::client_header(wire::Kind::kRequest, 1, 7, 1, 1, 0, 3, 10), buffer->data(), 10,
                        buffer);
        memory::Arena::release(buffer);
        for (int i = 0; i < 20; ++i) (*sender)->flush();
      },
      "use-after-poison");
}
#endif

}  // namespace
}  // namespace tern::transport
