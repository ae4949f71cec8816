// Open frames over a send queue in memory: the packets that share a frame, and the order of frames.
#include "ethernet/open_frames.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "frames/parse.h"
#include "unit/ethernet/fake_resolver.h"

namespace tern::ethernet {
namespace {

constexpr size_t kHeader = wire::kHeaderBytes;
const frames::MacAddress kOwnMac({2, 0, 0, 0, 0, 1}), kMac({2, 0, 0, 0, 0, 2});

class FakeQueue {
 public:
  static constexpr uint32_t kSlots = 8;
  struct Slot {
    std::vector<std::byte> frame = std::vector<std::byte>(kFrameBytes);
    bool is_complete = false;
  };

  Slot* next() { return queued.size() + taken == kSlots ? nullptr : (fresh = std::make_unique<Slot>()).get(); }
  size_t copied_bytes_max() const { return 200; }
  uint32_t frame_bytes_max() const { return kFrameBytes; }
  std::byte* open(Slot& slot) {
    EXPECT_EQ(&slot, fresh.get());
    queued.push_back(std::move(fresh));
    return slot.frame.data();
  }
  void close(Slot& slot, const frames::FrameTemplate& headers, size_t bytes) {
    EXPECT_FALSE(slot.is_complete);
    slot.is_complete = true;
    headers.write(slot.frame.data(), bytes);
    headers.complete_udp_checksum(slot.frame.data(), std::span(slot.frame).subspan(headers.header_bytes(), bytes));
    slot.frame.resize(headers.header_bytes() + bytes);
  }
  void add(Slot& slot, const frames::FrameTemplate& headers, const wire::Header& header, const std::byte* data,
           size_t bytes, const detail::Buffer*) {
    open(slot);
    slot.frame.resize(headers.header_bytes() + kHeader + bytes);
    put_header(slot.frame.data() + headers.header_bytes(), header, kHeader + bytes);
    std::copy_n(data, bytes, slot.frame.data() + headers.header_bytes() + kHeader);
    close(slot, headers, kHeader + bytes);
  }

  static constexpr uint32_t kFrameBytes = 500;
  std::vector<std::unique_ptr<Slot>> queued;
  std::unique_ptr<Slot> fresh;
  size_t taken = 0;  ///< slots that cannot be used now
};

class OpenFramesTest : public ::testing::Test {
 protected:
  OpenFramesTest() {
    auto made = std::make_unique<ethernet_test::FakeResolver>();
    resolver = made.get();
    peers.start(std::move(made), {*base::SocketAddress::parse("10.0.0.1:4000"), kOwnMac, 1472, 0, 0});
    resolver->set("10.0.0.2", neighbours::State::kKnown, kMac);
    a = *peers.connect({*base::SocketAddress::parse("10.0.0.2:1"), 1472}, 1);
    b = *peers.connect({*base::SocketAddress::parse("10.0.0.2:2"), 600}, 1);
  }

  bool send(uint32_t peer, uint32_t number, size_t bytes) {
    return OpenFrames<FakeQueue>::Sender(frames, peer).send(header(number), data.data(), bytes, nullptr);
  }
  static wire::Header header(uint32_t number) {
    return wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, number, 64, wire::kNoDeadline, 5, 0);
  }
  struct Packet {
    uint16_t port;
    uint32_t number;
    size_t bytes;  ///< bytes of data
    bool operator==(const Packet&) const = default;
  };
  /// Takes the queued frames and returns the packets of each one. All packets must be valid.
  std::vector<std::vector<Packet>> take() {
    std::vector<std::vector<Packet>> all;
    for (const auto& slot : std::exchange(queue.queued, {})) {
      EXPECT_TRUE(slot->is_complete);
      all.emplace_back();
      for (const uint16_t port : {uint16_t{1}, uint16_t{2}}) {
        base::SocketAddress to = *base::SocketAddress::parse_ip("10.0.0.2");
        to.set_port(port);
        const auto datagram = frames::FrameParser({kMac, to, 0}).parse(slot->frame, {});
        if (datagram.payload == nullptr) continue;
        const std::byte* at = datagram.payload;
        for (size_t left = datagram.payload_bytes; left > 0;) {
          const wire::Header read = wire::load_header(at);
          EXPECT_TRUE(wire::is_plausible(read, left));
          if (!wire::is_plausible(read, left)) break;
          EXPECT_TRUE(std::equal(at + kHeader, at + read.length(), data.begin()));
          all.back().push_back({port, read.number(), read.length() - kHeader});
          at += read.length();
          left -= read.length();
        }
      }
    }
    return all;
  }
  using Frames = std::vector<std::vector<Packet>>;

  ethernet_test::FakeResolver* resolver = nullptr;
  Peers peers{{"wire", "Wire"}};
  FakeQueue queue;
  uint64_t sent = 0, errors = 0;
  OpenFrames<FakeQueue> frames{peers, queue, sent, errors};
  uint32_t a = 0, b = 0;
  std::vector<std::byte> data = std::vector<std::byte>(2000, std::byte{0xa5});
};

TEST_F(OpenFramesTest, small_packets_to_a_peer__share_a_frame) {
  for (uint32_t i = 0; i < 6; i++) EXPECT_TRUE(send(i % 2 == 0 ? a : b, i, 30));
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{1, 0, 30}, {1, 2, 30}, {1, 4, 30}}, {{2, 1, 30}, {2, 3, 30}, {2, 5, 30}}}));
  EXPECT_EQ(sent, 6u);
}

TEST_F(OpenFramesTest, full_frame__is_followed_by_another) {
  constexpr size_t kSpace = FakeQueue::kFrameBytes - 42;
  EXPECT_TRUE(send(a, 0, 100));
  EXPECT_TRUE(send(a, 1, kSpace - 2 * kHeader - 100)) << "fits exactly";
  EXPECT_TRUE(send(a, 2, 0));
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{1, 0, 100}, {1, 1, kSpace - 2 * kHeader - 100}}, {{1, 2, 0}}}));
  EXPECT_TRUE(send(a, 3, 100));
  EXPECT_TRUE(send(a, 4, 200));
  EXPECT_TRUE(send(a, 5, 150));
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{1, 3, 100}, {1, 4, 200}}, {{1, 5, 150}}}));
}

TEST_F(OpenFramesTest, long_packet__has_a_frame_of_its_own__in_order) {
  EXPECT_TRUE(send(a, 0, 10));
  EXPECT_TRUE(send(a, 1, 700));
  EXPECT_TRUE(send(a, 2, 10));
  EXPECT_TRUE(send(b, 3, 201));
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{1, 0, 10}}, {{1, 1, 700}}, {{1, 2, 10}}, {{2, 3, 201}}}));
}

TEST_F(OpenFramesTest, frame__is_no_longer_than_the_peers_datagrams) {
  EXPECT_TRUE(send(b, 0, 600 - kHeader));
  EXPECT_EQ(errors, 0u);
  EXPECT_TRUE(send(b, 1, 601 - kHeader)) << "a counted loss";
  EXPECT_EQ(errors, 1u);
  EXPECT_EQ(sent, 1u);
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{2, 0, 600 - kHeader}}}));
}

TEST_F(OpenFramesTest, full_queue__refuses__and_open_frames_take_packets_that_fit) {
  EXPECT_TRUE(send(a, 0, 10));
  queue.taken = FakeQueue::kSlots - 1;
  EXPECT_FALSE(send(b, 1, 10));
  EXPECT_FALSE(send(a, 2, 700));
  EXPECT_TRUE(send(a, 3, 10));
  EXPECT_EQ(sent, 2u);
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{1, 0, 10}, {1, 3, 10}}}));
}

TEST_F(OpenFramesTest, peer_that_is_not_ready__is_refused) {
  const uint32_t asking = *peers.connect({*base::SocketAddress::parse("10.0.0.3:1"), 1472}, 1);
  EXPECT_FALSE(send(asking, 0, 10));
  EXPECT_EQ(errors, 0u);
  peers.fail();
  EXPECT_FALSE(send(a, 0, 10));
  EXPECT_TRUE(queue.queued.empty());
}

TEST_F(OpenFramesTest, forgotten_frames__take_no_packet) {
  EXPECT_TRUE(send(a, 0, 10));
  EXPECT_TRUE(peers.route(a).has_frame());
  queue.queued.clear();
  frames.forget();
  EXPECT_FALSE(peers.route(a).has_frame());
  EXPECT_TRUE(send(a, 1, 10));
  frames.flush();
  EXPECT_EQ(take(), (Frames{{{1, 1, 10}}}));
}

TEST_F(OpenFramesTest, headers_that_change__are_those_of_the_open_frame) {
  EXPECT_TRUE(send(a, 0, 10));
  const frames::MacAddress other({2, 0, 0, 0, 0, 3});
  resolver->set("10.0.0.2", neighbours::State::kKnown, other);
  peers.update(2);
  EXPECT_TRUE(send(a, 1, 10));
  frames.flush();
  ASSERT_EQ(queue.queued.size(), 1u);
  EXPECT_EQ(frames::MacAddress::from_bytes(queue.queued[0]->frame), other);
  EXPECT_EQ(queue.queued[0]->frame.size(), 42 + 2 * (kHeader + 10));
}

}  // namespace
}  // namespace tern::ethernet
