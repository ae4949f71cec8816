// Faults on the receive side: their number, the affected packets, and the packets' content afterwards.
#include "transport/faulty.h"

#include <gtest/gtest.h>
#include <tern/transport.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "fake_transport.h"
#include "held.h"

namespace tern::transport {
namespace {

using FaultyFake = Faulty<Fake>::Impl;
static_assert(Transport<Faulty<Fake>>);
static_assert(TransportImpl<FaultyFake>);
static_assert(Transport<Faulty<Held<Fake>>>);
static_assert(TransportImpl<Faulty<Held<Fake>>::Impl>);
static_assert(Faulty<Fake>::kName == "fake");

/// An arrived packet: its header and its bytes.
struct Arrival {
  wire::Header header;
  std::vector<std::byte> data;
  bool by_reference;
  bool is_marked;
};

/// A plain sender and a faulty receiver.
class FaultyTest : public testing::Test {
 protected:
  void SetUp() override {
    memory::ArenaOptions arena_options;
    arena_options.shared = true;
    arena_options.chunk_bytes = 4u << 20;
    auto arena = memory::Arena::create(arena_options);
    ASSERT_TRUE(arena.ok());
    arena_ = *arena;
    fake_options_.network = &network_;
    fake_options_.receive_queue_packets = 100'000;
    fake_options_.send_queue_packets = 100'000;
    fake_options_.receive_burst = 100'000;
    fake_options_.payload_bytes_max = 65536;
    auto sender = FakeImpl::create(fake_options_, *arena_);
    ASSERT_TRUE(sender.ok());
    sender_ = std::move(*sender);
  }
  void TearDown() override {
    receiver_.reset();
    sender_.reset();
    arena_->orphan();
  }

  Faulty<Fake>::Options options() {
    Faulty<Fake>::Options options;
    options.inner = fake_options_;
    return options;
  }
  void start(const Faulty<Fake>::Options& options) {
    auto receiver = FaultyFake::create(options, *arena_);
    ASSERT_TRUE(receiver.ok()) << receiver.status().message();
    receiver_ = std::move(*receiver);
    auto peer = sender_->connect(receiver_->address(), "127.0.0.1");
    ASSERT_TRUE(peer.ok());
    peer_ = *peer;
  }
  static wire::Header header_of(uint32_t request_number) {
    return wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, request_number, request_number, 0, 3, 100);
  }
  static std::byte byte_of(uint32_t request_number, size_t at) {
    return static_cast<std::byte>(request_number * 131 + at * 7);
  }
  void send(uint32_t first, uint32_t count, size_t len = 32) {
    std::vector<std::byte> data(len);
    for (uint32_t i = first; i < first + count; ++i) {
      for (size_t at = 0; at < len; ++at) data[at] = byte_of(i, at);
      ASSERT_TRUE(sender_->send(peer_, header_of(i), data.data(), len, nullptr));
    }
    sender_->flush();
  }
  std::vector<Arrival> receive() {
    std::vector<Arrival> arrivals;
    const size_t visited = receiver_->receive([&](const wire::Header& header, const Payload& payload) {
      Arrival arrival{header, std::vector<std::byte>(payload.bytes), payload.lease != nullptr, payload.is_marked};
      if (payload.bytes != 0) {
        EXPECT_TRUE(payload.copy_to(arrival.data.data()));
      }
      arrivals.push_back(std::move(arrival));
    });
    EXPECT_EQ(visited, arrivals.size());
    return arrivals;
  }
  static std::vector<uint32_t> numbers(const std::vector<Arrival>& arrivals) {
    std::vector<uint32_t> numbers;
    for (const Arrival& arrival : arrivals) numbers.push_back(arrival.header.request_number());
    return numbers;
  }
  static void expect_intact(const Arrival& arrival) {
    for (size_t at = 0; at < arrival.data.size(); ++at) {
      ASSERT_EQ(arrival.data[at], byte_of(arrival.header.request_number(), at));
    }
  }

  FakeNetwork network_;
  Fake::Options fake_options_;
  memory::Arena* arena_ = nullptr;
  std::unique_ptr<FakeImpl> sender_;
  std::unique_ptr<FaultyFake> receiver_;
  PeerId peer_ = 0;
};

TEST_F(FaultyTest, without_faults_everything_passes_in_order) {
  start(options());
  send(0, 100);
  const auto arrivals = receive();
  ASSERT_EQ(arrivals.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(arrivals[i].header.request_number(), i);
    EXPECT_EQ(arrivals[i].data.size(), 32u);
    expect_intact(arrivals[i]);
  }
}

TEST_F(FaultyTest, values_that_are_no_probability_are_refused) {
  for (double Faulty<Fake>::Options::*field :
       {&Faulty<Fake>::Options::drop, &Faulty<Fake>::Options::duplicate, &Faulty<Fake>::Options::reorder,
        &Faulty<Fake>::Options::delay, &Faulty<Fake>::Options::corrupt}) {
    for (const double bad : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
      auto bad_options = options();
      bad_options.*field = bad;
      EXPECT_EQ(FaultyFake::create(bad_options, *arena_).status().code(), Code::kMisuse);
    }
  }
  auto bad_options = options();
  bad_options.delay_max = std::chrono::nanoseconds(-1);
  EXPECT_EQ(FaultyFake::create(bad_options, *arena_).status().code(), Code::kMisuse);
  bad_options = options();
  bad_options.inner.network = nullptr;
  EXPECT_EQ(FaultyFake::create(bad_options, *arena_).status().code(), Code::kMisuse);
}

TEST_F(FaultyTest, drops_the_given_share) {
  auto with = options();
  with.drop = 0.25;
  start(with);
  send(0, 20'000);
  const size_t arrived = receive().size();
  EXPECT_NEAR(static_cast<double>(arrived), 15'000, 400);  // six standard deviations; the seed is fixed
  EXPECT_EQ(receiver_->fault_counters()->dropped, 20'000 - arrived);
}

TEST_F(FaultyTest, drops_all_or_nothing_at_the_ends) {
  auto with = options();
  with.drop = 1;
  start(with);
  send(0, 100);
  EXPECT_TRUE(receive().empty());
}

TEST_F(FaultyTest, large_references_are_dropped_per_4_kib) {
  fake_options_.by_reference_bytes = 1024;
  auto by_reference = FakeImpl::create(fake_options_, *arena_);
  ASSERT_TRUE(by_reference.ok());
  sender_ = std::move(*by_reference);
  auto with = options();
  with.drop = 0.1;
  start(with);
  detail::Buffer* buffer = arena_->alloc(65536);
  for (uint32_t i = 0; i < 5000; ++i) ASSERT_TRUE(sender_->send(peer_, header_of(i), buffer->data(), 65536, buffer));
  sender_->flush();
  const auto arrived = static_cast<double>(receiver_->receive([](const wire::Header&, const Payload&) {}));
  EXPECT_NEAR(arrived, 5000 * 0.1853, 160);  // 0.9^16
  memory::Arena::release(buffer);
}

TEST_F(FaultyTest, equal_seeds_give_equal_faults) {
  auto with = options();
  with.drop = 0.1;
  with.duplicate = 0.1;
  with.reorder = 0.1;
  with.delay = 0.1;
  with.corrupt = 0.1;
  std::vector<std::vector<uint32_t>> runs;
  for (const uint64_t seed : {5, 5, 6}) {
    with.seed = seed;
    network_.now_ns = 1'000'000;
    start(with);
    std::vector<uint32_t> run;
    for (uint32_t i = 0; i < 100; ++i) {
      send(i * 10, 10);
      for (const uint32_t number : numbers(receive())) run.push_back(number);
      network_.now_ns += 100'000;
    }
    runs.push_back(std::move(run));
  }
  EXPECT_EQ(runs[0], runs[1]);
  EXPECT_NE(runs[0], runs[2]);
}

TEST_F(FaultyTest, duplicates_come_again_and_intact) {
  auto with = options();
  with.duplicate = 1;
  start(with);
  send(0, 50);
  auto first = receive();
  network_.now_ns += 1'000'000;
  auto second = receive();
  ASSERT_EQ(first.size() + second.size(), 100u);
  EXPECT_EQ(receiver_->fault_counters()->duplicated, 50u);
  first.insert(first.end(), second.begin(), second.end());
  auto all = numbers(first);
  std::sort(all.begin(), all.end());
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(all[i], i / 2);
  for (const Arrival& arrival : first) expect_intact(arrival);
}

TEST_F(FaultyTest, delayed_packets_come_when_their_time_has_come_though_nothing_else_does) {
  auto with = options();
  with.delay = 1;
  with.delay_max = std::chrono::microseconds(100);
  start(with);
  send(0, 200);
  size_t arrived = 0;
  size_t calls_with_some = 0;
  EXPECT_TRUE(receive().empty());
  EXPECT_EQ(receiver_->fault_counters()->delayed, 200u);
  for (int i = 0; i < 100; ++i) {
    network_.now_ns += 1'000;
    const auto some = receive();
    for (const Arrival& arrival : some) expect_intact(arrival);
    arrived += some.size();
    calls_with_some += !some.empty();
  }
  EXPECT_EQ(arrived, 200u);
  EXPECT_GT(calls_with_some, 50u);
}

TEST_F(FaultyTest, endpoint_does_not_block_while_packets_are_kept) {
  auto with = options();
  with.delay = 1;
  start(with);
  EXPECT_TRUE(receiver_->prepare_wait());
  receiver_->end_wait();
  send(0, 1);
  EXPECT_TRUE(receive().empty());
  EXPECT_FALSE(receiver_->prepare_wait());
  receiver_->end_wait();
  network_.now_ns += 1'000'000;
  EXPECT_EQ(receive().size(), 1u);
  EXPECT_TRUE(receiver_->prepare_wait());
  receiver_->end_wait();
}

TEST_F(FaultyTest, reordered_packets_are_overtaken_by_a_few) {
  auto with = options();
  with.reorder = 0.2;
  start(with);
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < 1000; ++i) {
    send(i, 1);
    for (const uint32_t number : numbers(receive())) order.push_back(number);
  }
  network_.now_ns += 1'000'000;
  for (const uint32_t number : numbers(receive())) order.push_back(number);
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NEAR(static_cast<double>(receiver_->fault_counters()->reordered), 200, 76);
  for (uint32_t at = 0; at < 1000; ++at) EXPECT_LE(order[at], at + 8);
  for (uint32_t at = 0; at + 8 < 1000; ++at) EXPECT_GE(order[at] + 8, at);
  std::sort(order.begin(), order.end());
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
}

TEST_F(FaultyTest, a_reordered_packet_without_followers_comes_by_time) {
  auto with = options();
  with.reorder = 1;
  start(with);
  send(0, 1);
  EXPECT_TRUE(receive().empty());
  network_.now_ns += 999'999;
  EXPECT_TRUE(receive().empty());
  network_.now_ns += 1;
  EXPECT_EQ(receive().size(), 1u);
}

TEST_F(FaultyTest, corrupted_packets_differ_and_stay_plausible) {
  auto with = options();
  with.corrupt = 1;
  start(with);
  send(0, 5000);
  const auto arrivals = receive();
  const FaultCounters& faults = *receiver_->fault_counters();
  EXPECT_EQ(arrivals.size(), faults.corrupted);
  EXPECT_EQ(faults.corrupted + faults.implausible, 5000u);
  EXPECT_GT(faults.corrupted, 1000u);
  EXPECT_GT(faults.implausible, 300u);
  size_t other_header = 0;
  size_t other_data = 0;
  for (const Arrival& arrival : arrivals) {
    ASSERT_EQ(arrival.data.size(), 32u);
    ASSERT_TRUE(wire::is_plausible(arrival.header, wire::kHeaderBytes + 32));
    // The sender gives the number field and the request number the same value, and both identify the data.
    wire::Header sent = header_of(arrival.header.number());
    sent.set_length_and_flags(wire::kHeaderBytes + 32, 0);
    other_header += arrival.header.w0 != sent.w0 || arrival.header.w1 != sent.w1 || arrival.header.w2 != sent.w2;
    for (size_t at = 0; at < 32; ++at) {
      if (arrival.data[at] != byte_of(arrival.header.number(), at)) {
        ++other_data;
        break;
      }
    }
  }
  EXPECT_GT(other_header, 500u);
  EXPECT_GT(other_data, 500u);
}

TEST_F(FaultyTest, packets_without_payload_meet_faults_too) {
  auto with = options();
  with.corrupt = 1;
  with.duplicate = 1;
  start(with);
  send(0, 200, 0);
  size_t arrived = receive().size();
  network_.now_ns += 1'000'000;
  arrived += receive().size();
  EXPECT_EQ(arrived, 2 * receiver_->fault_counters()->corrupted);
  EXPECT_GT(arrived, 0u);
}

TEST_F(FaultyTest, congestion_marks_stay_on_kept_and_changed_packets) {
  auto with = options();
  with.corrupt = 0.5;
  with.duplicate = 0.5;
  with.delay = 0.5;
  start(with);
  receiver_->inner().marks_arrivals = true;
  send(0, 100);
  auto arrivals = receive();
  network_.now_ns += 1'000'000;
  receiver_->inner().marks_arrivals = false;
  for (Arrival& late : receive()) arrivals.push_back(std::move(late));
  EXPECT_GT(arrivals.size(), 100u);
  for (const Arrival& arrival : arrivals) EXPECT_TRUE(arrival.is_marked);
}

TEST_F(FaultyTest, references_are_copied_under_their_lease_when_they_are_kept) {
  fake_options_.by_reference_bytes = 1024;
  auto by_reference = FakeImpl::create(fake_options_, *arena_);
  ASSERT_TRUE(by_reference.ok());
  sender_ = std::move(*by_reference);
  auto with = options();
  with.delay = 1;
  start(with);
  detail::Buffer* kept = arena_->alloc(4096);
  detail::Buffer* revoked = arena_->alloc(4096);
  for (size_t at = 0; at < 4096; ++at) kept->data()[at] = byte_of(1, at);
  ASSERT_TRUE(sender_->send(peer_, header_of(1), kept->data(), 4096, kept));
  ASSERT_TRUE(sender_->send(peer_, header_of(2), revoked->data(), 4096, revoked));
  sender_->flush();
  memory::Arena::release(revoked);
  EXPECT_TRUE(receive().empty());
  EXPECT_EQ(receiver_->fault_counters()->revoked, 1u);
  // The packet was copied on arrival, so later changes of the original do not matter.
  std::memset(kept->data(), 0, 4096);
  memory::Arena::release(kept);
  network_.now_ns += 1'000'000;
  const auto arrivals = receive();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].header.request_number(), 1u);
  EXPECT_FALSE(arrivals[0].by_reference);
  expect_intact(arrivals[0]);
}

TEST_F(FaultyTest, untouched_references_are_passed_on_without_a_copy) {
  fake_options_.by_reference_bytes = 1024;
  auto by_reference = FakeImpl::create(fake_options_, *arena_);
  ASSERT_TRUE(by_reference.ok());
  sender_ = std::move(*by_reference);
  start(options());
  detail::Buffer* buffer = arena_->alloc(4096);
  ASSERT_TRUE(sender_->send(peer_, header_of(1), buffer->data(), 4096, buffer));
  sender_->flush();
  const std::byte* seen = nullptr;
  receiver_->receive([&](const wire::Header&, const Payload& payload) { seen = payload.data; });
  EXPECT_EQ(seen, buffer->data());
  memory::Arena::release(buffer);
}

TEST_F(FaultyTest, memory_for_kept_packets_is_bounded) {
  auto with = options();
  with.delay = 1;
  start(with);
  send(0, 10'000);
  EXPECT_TRUE(receive().empty());
  EXPECT_EQ(receiver_->fault_counters()->overflowed, 10'000u - 4096u);
  network_.now_ns += 1'000'000;
  EXPECT_EQ(receive().size(), 4096u);
}

}  // namespace
}  // namespace tern::transport
