// The DPDK transport over memif: frames, tickets, ended peers, frames from strangers, and sleep.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "unit/transport/dpdk/dpdk_fixture.h"

namespace tern::transport::dpdk_test {
namespace {

using frames::Drop;

using Frames = std::vector<std::vector<std::byte>>;

constexpr auto kA = std::byte{0xa5}, kB = std::byte{0x5a};

TEST(Dpdk, small_packets_to_one_peer__share_a_frame__in_order) {
  End end(0);
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  RawEnd one(1, 4001), other(1, 4002);
  const PeerId a = connect(end, one.where());
  const PeerId b = connect(end, other.where());
  detail::Buffer* buffer = end.filled(1400, kA);
  std::vector<std::byte> expected, expected_other;
  const auto add = [](std::vector<std::byte>& to, const std::vector<std::byte>& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  for (uint32_t i = 0; i < 30; i++) {
    ASSERT_TRUE(end.send(i % 3 == 2 ? b : a, i, buffer, 32));
    add(i % 3 == 2 ? expected_other : expected, packet_of(i, 32, kA));
  }
  end->flush();
  EXPECT_EQ(one.payloads({}, 1), Frames{expected});
  EXPECT_EQ(other.payloads({}, 1), Frames{expected_other});

  // A gathered packet closes the frame before it.
  ASSERT_TRUE(end.send(a, 20, buffer, 100));
  ASSERT_TRUE(end.send(a, 21, buffer, 1400));
  ASSERT_TRUE(end.send(a, 22, buffer, 10));
  end->flush();
  EXPECT_EQ(one.payloads({}, 3), (Frames{packet_of(20, 100, kA), packet_of(21, 1400, kA), packet_of(22, 10, kA)}));
  EXPECT_EQ(end->counters().packets_sent, 33u);
}

TEST(Dpdk, datagram_of_packets__is_received_packet_by_packet) {
  End end(0);
  RawEnd raw(1);
  std::vector<std::byte> payload;
  for (uint32_t i = 0; i < 10; i++) {
    const auto packet = packet_of(i, i * 11, kB);
    payload.insert(payload.end(), packet.begin(), packet.end());
  }
  payload.insert(payload.end(), 23, kA);  // no header
  raw.send(raw.frame_to(end, payload));
  ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 10; }));
  for (uint32_t i = 0; i < 10; i++) {
    EXPECT_EQ(end.got[i].number, i);
    EXPECT_EQ(end.got[i].payload, std::vector<std::byte>(i * 11, kB));
  }
  EXPECT_EQ(end->counters().dropped_unparsable, 1u);
}

/// Runs over IPv4 and IPv6, with and without a tag.
class DpdkFrames : public ::testing::TestWithParam<std::pair<sa_family_t, uint16_t>> {};

TEST_P(DpdkFrames, packets_of_all_lengths__cross_the_cable__both_ways) {
  const auto [family, vlan] = GetParam();
  End a(options_of(0, family, vlan)), b(options_of(1, family, vlan));
  ASSERT_TRUE(a.status.ok()) << a.status.message();
  ASSERT_TRUE(b.status.ok()) << b.status.message();
  const PeerId ab = connect(a, b), ba = connect(b, a);
  const uint32_t most = a->payload_bytes_max(ab);
  EXPECT_EQ(most, 1500u - (family == AF_INET ? 28 : 48) - 24);
  detail::Buffer* in_a = a.filled(most, kA);
  detail::Buffer* in_b = b.filled(most, kB);
  uint32_t number = 0;
  for (const uint32_t bytes : {0u, 1u, 32u, 511u, 512u, 513u, 1000u, most - 1, most}) {
    ASSERT_TRUE(a.send(ab, number, in_a, bytes));
    ASSERT_TRUE(b.send(ba, number, in_b, bytes));
    ASSERT_TRUE(run_until({&a, &b}, [&] { return a.got.size() > number && b.got.size() > number; })) << bytes;
    EXPECT_EQ(b.got[number].payload, std::vector<std::byte>(bytes, kA));
    EXPECT_EQ(a.got[number].payload, std::vector<std::byte>(bytes, kB));
    ++number;
  }
  for (size_t i = 0; i < frames::kDropReasons; ++i) {
    const auto why = static_cast<Drop>(i);
    if (why == Drop::kOtherMac) continue;  // an IPv6 host reports its group to routers
    EXPECT_EQ(a.dropped(why), 0u) << frames::name_of(why);
  }
}

INSTANTIATE_TEST_SUITE_P(All, DpdkFrames,
                         ::testing::Values(std::pair<sa_family_t, uint16_t>{AF_INET, 0},
                                           std::pair<sa_family_t, uint16_t>{AF_INET, 5},
                                           std::pair<sa_family_t, uint16_t>{AF_INET6, 0},
                                           std::pair<sa_family_t, uint16_t>{AF_INET6, 7}),
                         [](const auto& instance) {
                           return std::string(instance.param.first == AF_INET ? "ipv4" : "ipv6") +
                                  (instance.param.second == 0 ? "" : "_vlan");
                         });

TEST(Dpdk, endpoints_of_one_port__reach_each_other_and_themselves) {
  End a(0), b(0);
  const PeerId ab = connect(a, b), aa = connect(a, a), ba = connect(b, a);
  detail::Buffer* buffer = a.filled(1448, kA);
  ASSERT_TRUE(a.send(ab, 1, buffer, 32));
  ASSERT_TRUE(a.send(aa, 2, buffer, 1448));
  ASSERT_TRUE(a.send(ab, 3, buffer, 1448));
  ASSERT_TRUE(b.send(ba, 4));
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.got.size() == 2 && b.got.size() == 2; }));
  EXPECT_EQ(b.got[0].number, 1u);
  EXPECT_EQ(b.got[1].number, 3u);
  EXPECT_EQ(b.got[1].payload, std::vector<std::byte>(1448, kA));
  EXPECT_GE(a->released(), a->ticket());
}

TEST(Dpdk, endpoint_that_does_not_run__loses_frames_of_its_own_port__and_blocks_nobody) {
  End a(0), silent(0), b(1);
  const PeerId to_silent = connect(a, silent), ab = connect(a, b);
  detail::Buffer* buffer = a.filled(1400, kA);
  for (uint32_t i = 0; i < 3000; i++) {
    ASSERT_TRUE(a.send(to_silent, i, buffer, 1400));
    a->flush();
  }
  ASSERT_TRUE(a.send(ab, 1, buffer, 1400));
  a->flush();
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1 && a->released() >= a->ticket(); }));
}

// ---- Tickets ----

/// True if the numbers are those of two readers of one queue, each of which keeps its order.
bool is_merged_of_two(std::span<const uint32_t> numbers) {
  uint32_t newest = 0, newest_of_other = 0;
  for (const uint32_t number : numbers) {
    uint32_t& last = number >= newest ? newest : newest_of_other;
    if (number < last) return false;
    last = number;
  }
  return true;
}

TEST(Dpdk, frames_that_the_driver_does_not_take__stay_queued__and_leave_later) {
  End a(0);
  RawEnd raw(1);  // its queue becomes full
  const PeerId peer = connect(a, raw.where());
  detail::Buffer* buffer = a.filled(1400, kA);
  // Frames of which the driver takes none for 10 ms are lost, and so they are when the test has no CPU for this time.
  // The test then begins again, with higher numbers.
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::vector<uint32_t> numbers;
  uint32_t next = 0;
  uint64_t lost = 0;
  do {
    lost = a->counters().send_errors;
    const uint32_t first = next;
    while (next - first < 100'000 && a.send(peer, next, buffer, 1400)) {
      ++next;
      a->flush();
    }
    ASSERT_LT(next - first, 100'000u) << "memory for queued frames is bounded";
    EXPECT_LT(a->released(), a->ticket());
    // The port's thread reads frames in place of `raw`, which may have no CPU: `raw` gets them later than those that it
    // reads itself, or never. The last packet is therefore sent again.
    const uint32_t last = next++;
    numbers.clear();
    ASSERT_TRUE(run_until({&a}, [&] {
      for (const auto& frame : raw.receive()) {
        const uint32_t number = wire::load_header(frame.data() + 42).number();
        if (number >= first) numbers.push_back(number);
      }
      if (a->released() >= a->ticket()) (void)a.send(peer, last, buffer, 1400);
      return !numbers.empty() && numbers.back() == last;
    })) << numbers.size();
    ASSERT_TRUE(run_until({&a}, [&] { return a->released() >= a->ticket(); }));
    EXPECT_TRUE(is_merged_of_two(numbers));
    std::erase(numbers, last);
  } while (a->counters().send_errors != lost && std::chrono::steady_clock::now() < until);
  EXPECT_EQ(a->counters().send_errors, lost);
  EXPECT_GE(numbers.size(), DpdkSends::kSlots);
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end()) << "a frame has left twice";
}

TEST(Dpdk, peer_that_takes_nothing__costs_its_frames_after_a_time__and_memory_comes_back) {
  End a(0);
  auto b = std::make_unique<End>(1);
  ASSERT_TRUE(b->status.ok()) << b->status.message();
  const PeerId peer = connect(a, *b);
  ASSERT_TRUE(a.send(peer, 1));
  ASSERT_TRUE(run_until({&a, b.get()}, [&] { return b->got.size() == 1; }));
  b.reset();  // also closes its port, so that the cable is cut
  detail::Buffer* buffer = a.filled(1400, kA);
  uint32_t sent = 0;
  while (sent < 100'000 && a.send(peer, sent, buffer, 1400)) {
    ++sent;
    a->flush();
  }
  ASSERT_LT(sent, 100'000u);
  EXPECT_LT(a->released(), a->ticket());
  ASSERT_TRUE(run_until({&a}, [&] { return a->released() >= a->ticket(); }));
  EXPECT_GE(a->counters().send_errors, DpdkSends::kSlots) << "those that the driver had taken before count as sent";
  EXPECT_TRUE(a->failure().ok());
}

TEST(Dpdk, peer_that_is_back__is_reached_again) {
  End a(0);
  auto b = std::make_unique<End>(1);
  const PeerId peer = connect(a, *b);
  const uint16_t port = b->where().port();
  b.reset();
  ASSERT_TRUE(run_until({&a}, [&] {
    (void)a.send(peer, 1);
    return a->counters().send_errors > 0;
  }));
  Dpdk::Options same = options_of(1);
  same.bind = ":" + std::to_string(port);
  b = std::make_unique<End>(same);
  ASSERT_TRUE(b->status.ok()) << b->status.message();
  EXPECT_EQ(b->where().port(), port);
  ASSERT_TRUE(run_until({&a, b.get()}, [&] {
    (void)a.send(peer, 2);
    return !b->got.empty();
  }));
}

TEST(Dpdk, endpoint_that_ends_with_queued_frames__leaves_message_memory_alone) {
  End other(0);  // keeps the port open
  RawEnd raw(1);
  auto a = std::make_unique<End>(0);
  const PeerId peer = connect(*a, raw.where());
  detail::Buffer* buffer = a->filled(1400, kA);
  while (a->send(peer, 1, buffer, 1400)) (*a)->flush();
  a.reset();  // AddressSanitizer reports a later read
  const PeerId again = connect(other, raw.where());
  size_t got = 0;
  ASSERT_TRUE(run_until({&other}, [&] {
    got += raw.receive().size();
    (void)other.send(again, 2);
    return got > 300;
  })) << got;
}

TEST(Dpdk, packet_longer_than_the_peers_datagrams__is_a_counted_loss) {
  End a(0);
  RawEnd raw(1);
  const PeerId peer = connect(a, raw.where(), 600);
  EXPECT_EQ(a->payload_bytes_max(peer), 576u);
  detail::Buffer* buffer = a.filled(1400, kA);
  EXPECT_TRUE(a.send(peer, 1, buffer, 577));
  EXPECT_EQ(a->counters().send_errors, 1u);
  EXPECT_TRUE(a.send(peer, 2, buffer, 576));
  a->flush();
  EXPECT_EQ(raw.payloads({&a}, 1), Frames{packet_of(2, 576, kA)});
}

// ---- Strangers ----

struct Hostile {
  const char* what;
  Drop drop;
  std::function<void(std::vector<std::byte>&)> change;
};
void set(std::vector<std::byte>& frame, size_t at, std::initializer_list<int> bytes) {
  for (const int byte : bytes) frame[at++] = static_cast<std::byte>(byte);
}
/// Changes of a valid IPv4 frame. Only the first error counts, so checksums need not be right.
const Hostile kHostile[] = {
    {"nothing", Drop::kTruncated, [](auto& frame) { frame.resize(13); }},
    {"half a header", Drop::kTruncated, [](auto& frame) { frame.resize(30); }},
    {"another MAC address", Drop::kOtherMac,
     [](auto& frame) {
       set(frame, 0, {0x02, 0, 0, 0, 0, 0x77});
     }},
    {"a tag", Drop::kVlan,
     [](auto& frame) {
       set(frame, 12, {0x81, 0, 0, 5});
     }},
    {"another type", Drop::kOtherType,
     [](auto& frame) {
       set(frame, 12, {0x88, 0xb5});
     }},
    {"another IP version", Drop::kIpHeader, [](auto& frame) { set(frame, 14, {0x65}); }},
    {"IP options", Drop::kIpOptions, [](auto& frame) { set(frame, 14, {0x46}); }},
    {"an IP length beyond the frame", Drop::kIpLength,
     [](auto& frame) {
       set(frame, 16, {0x40, 0});
     }},
    {"a wrong IP checksum", Drop::kIpChecksum, [](auto& frame) { frame[24] ^= std::byte{1}; }},
    {"a wrong UDP checksum", Drop::kUdpChecksum, [](auto& frame) { frame.back() ^= std::byte{1}; }},
    {"no UDP checksum", Drop::kNoUdpChecksum,
     [](auto& frame) {
       set(frame, 40, {0, 0});
     }},
    {"a UDP length beyond the IP length", Drop::kUdpLength,
     [](auto& frame) {
       set(frame, 38, {0x40, 0});
     }},
    {"another UDP port", Drop::kOtherPort,
     [](auto& frame) {
       set(frame, 36, {0, 9});
     }},
};

TEST(Dpdk, hostile_frames__are_dropped_and_counted_by_reason) {
  End end(0);
  ASSERT_TRUE(end.status.ok()) << end.status.message();
  RawEnd raw(1);
  for (const Hostile& hostile : kHostile) {
    auto frame = raw.frame_to(end, packet_of(1, 100, kA));
    hostile.change(frame);
    const uint64_t before = end.dropped(hostile.drop);
    raw.send(frame);
    // The endpoint drops the frame, or the port's thread does if the endpoint has no CPU for a while.
    EXPECT_TRUE(run_until({&end}, [&] { return end.dropped(hostile.drop) > before; })) << hostile.what;
    EXPECT_EQ(end.dropped(hostile.drop), before + 1) << hostile.what;
  }
  EXPECT_TRUE(end.got.empty());
  raw.send(raw.frame_to(end, packet_of(7, 100, kA)));
  EXPECT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
}

/// One of the endpoints drops the frame, or the port's thread does.
TEST(Dpdk, unwanted_frame__is_counted_once__by_sleeping_endpoints) {
  End one(0), other(0);
  RawEnd raw(1);
  auto frame = raw.frame_to(one, packet_of(1, 100, kA));
  set(frame, 36, {0, 9, 0, 0, 0, 0});  // the UDP port, the length and the checksum
  const auto dropped = [&] { return one.dropped(Drop::kOtherPort) + other.dropped(Drop::kOtherPort); };
  for (uint32_t round = 1; round <= 20; ++round) {
    for (End* const end : {&one, &other}) (void)(*end)->prepare_wait();
    raw.send(frame);
    EXPECT_TRUE(run_until({}, [&] {
      for (End* const end : {&one, &other}) {
        (*end)->end_wait();
        end->turn();
        (void)(*end)->prepare_wait();
      }
      return dropped() >= round;
    }));
    EXPECT_EQ(dropped(), round);
    for (End* const end : {&one, &other}) (*end)->end_wait();
  }
}

TEST(Dpdk, datagram_longer_than_the_endpoints__is_dropped_as_oversize) {
  Dpdk::Options options = options_of(0);
  options.datagram_bytes = 600;
  End end(options);
  RawEnd raw(1);
  raw.send(raw.frame_to(end, packet_of(1, 577, kA)));
  raw.send(raw.frame_to(end, packet_of(2, 576, kA)));
  ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
  EXPECT_EQ(end.got[0].number, 2u);
  EXPECT_EQ(end->counters().dropped_oversize, 1u);
}

TEST(Dpdk, frame_of_several_segments__is_received_or_dropped_whole) {
  End end(0);
  RawEnd raw(1);
  // The frame is longer than memif's buffers of 2048 bytes and than an mbuf for an MTU of 1500.
  std::vector<std::byte> frame(9000, kA);
  raw.send(frame);
  raw.send(raw.frame_to(end, packet_of(2, 100, kA)));
  ASSERT_TRUE(run_until({&end}, [&] { return end.got.size() == 1; }));
}

TEST(Dpdk, random_frames__do_no_harm) {
  End end(0);
  RawEnd raw(1);
  uint64_t state = 1;
  const auto random = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33);
  };
  for (uint32_t round = 0; round < 3000; round++) {
    auto frame = raw.frame_to(end, packet_of(round, random() % 200, kB));
    for (uint32_t i = 0; i < 1 + random() % 4; i++) frame[random() % frame.size()] = static_cast<std::byte>(random());
    if (round % 7 == 0) frame.resize(1 + random() % frame.size());
    raw.send(frame);
    if (round % 16 == 0) end.turn();
  }
  const size_t before = end.got.size();
  raw.send(raw.frame_to(end, packet_of(123'456, 32, kA)));
  EXPECT_TRUE(run_until({&end}, [&] { return end.got.size() > before && end.got.back().number == 123'456; }));
}

// ---- Creation, and errors ----

TEST(Dpdk, peers_of_another_family_or_transport__are_refused) {
  End end(0);
  const auto other = end->connect(ethernet::encode_address({*base::SocketAddress::parse("[fd78::9]:5"), 1400}), "");
  EXPECT_EQ(other.status().code(), Code::kUnavailable);
  const auto none = end->connect({}, "");
  EXPECT_EQ(none.status().code(), Code::kMisuse);
  EXPECT_EQ(end->counters().peers_refused, 2u);
}

TEST(Dpdk, bad_options__are_refused_with_what_to_do) {
  struct Case {
    std::function<void(Dpdk::Options&)> change;
    Code code;
    const char* text;
  };
  const Case cases[] = {
      {[](Dpdk::Options& options) { options.bind = "10.78.0.9:5"; }, Code::kMisuse, "leave it out of bind"},
      {[](Dpdk::Options& options) { options.bind = "here"; }, Code::kMisuse, "Dpdk::Options::bind"},
      {[](Dpdk::Options& options) { options.datagram_bytes = 1473; }, Code::kUnavailable, "536 to 1472"},
      {[](Dpdk::Options& options) { options.device = "net_nosuch7"; }, Code::kUnavailable, "net_nosuch7"},
  };
  for (const Case& one : cases) {
    Dpdk::Options options = options_of(0);
    one.change(options);
    const End end(options);
    EXPECT_EQ(end.status.code(), one.code) << one.text << ": " << end.status.message();
    EXPECT_NE(std::string_view(end.status.message()).find(one.text), std::string_view::npos) << end.status.message();
    EXPECT_EQ(std::string_view(end.status.message()).find('\n'), std::string_view::npos) << end.status.message();
  }
}

TEST(Dpdk, udp_port_that_an_endpoint_has__is_refused_to_another) {
  Dpdk::Options options = options_of(0);
  options.bind = ":5000";
  End first(options);
  ASSERT_TRUE(first.status.ok()) << first.status.message();
  EXPECT_EQ(first.where().to_text(), "10.78.0.1:5000");
  const End second(options);
  EXPECT_EQ(second.status.code(), Code::kUnavailable);
  EXPECT_NE(std::string_view(second.status.message()).find("5000"), std::string_view::npos);
  options.bind = "10.78.0.1:5001";
  const End third(options);
  EXPECT_TRUE(third.status.ok()) << third.status.message();
}

// ---- Forks, and sleep ----

TEST(Dpdk, child_destroys_endpoints__and_the_parent_goes_on) {
  auto a = std::make_unique<End>(0), b = std::make_unique<End>(1);
  const PeerId peer = connect(*a, *b);
  ASSERT_TRUE(a->send(peer, 1));  // queued at the time of the fork
  const pid_t child = ::fork();
  if (child == 0) {
    (*a)->disconnect(peer);
    a.reset();
    b.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(a->send(peer, 2));
  ASSERT_TRUE(run_until({a.get(), b.get()}, [&] { return b->got.size() == 2; }));
  EXPECT_EQ(b->got[0].number, 1u);
  EXPECT_EQ(b->got[1].number, 2u);
}

TEST(Dpdk, packet__ends_a_sleep) {
  End a(0), b(1);
  const PeerId peer = connect(a, b);
  for (uint32_t i = 0; i < 10; i++) {
    const uint64_t until_ns = b->now() + std::chrono::nanoseconds(kPatience).count();
    const bool sleeps = b->prepare_wait();
    ASSERT_TRUE(a.send(peer, i));
    a->flush();
    while (b.got.size() == i && b->now() < until_ns) {
      if (sleeps) b->wait(until_ns);
      b->end_wait();
      b.turn();
      if (b.got.size() == i) (void)b->prepare_wait();
    }
    ASSERT_EQ(b.got.size(), i + 1);
  }
}

}  // namespace
}  // namespace tern::transport::dpdk_test
