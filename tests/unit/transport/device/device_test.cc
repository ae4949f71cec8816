// Endpoints over a Device: its limits, packets that it does not accept at once, bytes that are no packets.
#include "transport/device/device.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tern::transport {
namespace {

/// A device whose behaviour the test sets.
struct Script final : Device {
  Properties properties() const override { return its_properties; }
  std::span<const std::byte> address() const override { return its_address; }
  Result<Peer> connect(std::span<const std::byte> address, std::string_view) override {
    connects++;
    if (!connect_status.ok()) return connect_status;
    if (counts_peers) return static_cast<Peer>(connects);
    return 1000 + std::to_integer<Peer>(address[0]);
  }
  void disconnect(Peer peer) override { gone.insert(peer); }
  PeerState peer_state(Peer) override { return state; }
  size_t transmit(std::span<const Outgoing> packets) override {
    transmits++;
    const size_t taken = std::min(packets.size(), space);
    space -= taken;
    for (const Outgoing& packet : packets.first(taken)) {
      EXPECT_FALSE(gone.contains(packet.peer)) << "a packet to a peer after disconnect()";
      EXPECT_EQ(packet.header.size(), wire::kHeaderBytes);
      const wire::Header header = wire::load_header(packet.header.data());
      EXPECT_EQ(header.length(), packet.header.size() + packet.payload.size());
      sent.emplace_back(header.number(),
                        std::string(reinterpret_cast<const char*>(packet.payload.data()), packet.payload.size()));
    }
    return taken;
  }
  size_t receive(std::span<Incoming> places) override {
    receives++;
    handed_out.clear();
    while (!incoming.empty() && handed_out.size() < places.size()) {
      handed_out.push_back(std::move(incoming.front()));
      incoming.pop_front();
    }
    for (size_t i = 0; i < handed_out.size(); i++) places[i].packet = handed_out[i];
    return handed_out.size();
  }
  int descriptor() const override { return -1; }

  Properties its_properties = {.name = "script", .packet_bytes_max = 1000, .receive_queue_packets = 8};
  std::vector<std::byte> its_address = std::vector<std::byte>(4, std::byte{1});
  Status connect_status;
  bool counts_peers = false;  ///< its peers have the numbers of the calls
  PeerState state = PeerState::kReady;
  size_t space = SIZE_MAX;  ///< number of packets that it still accepts
  int connects = 0, transmits = 0, receives = 0;
  std::set<Peer> gone;
  std::vector<std::pair<uint32_t, std::string>> sent;
  std::deque<std::vector<std::byte>> incoming;
  std::vector<std::vector<std::byte>> handed_out;
};

wire::Header numbered(uint32_t number) {
  return wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, number, 64, wire::kNoDeadline, 5, 32);
}

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    ASSERT_TRUE(made.ok());
    arena_ = *made;
    auto transport = make();
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    transport_ = std::move(*transport);
    script_ = made_;
    peer_ = *transport_->connect(address_of(1), "");
  }
  void TearDown() override {
    transport_.reset();
    arena_->orphan();
  }
  Result<std::unique_ptr<DeviceImpl>> make(const std::function<void(Script&)>& change = nullptr) {
    auto script = std::make_unique<Script>();
    if (change) change(*script);
    made_ = script.get();
    Device::Options options;
    options.device = std::move(script);
    return DeviceImpl::create(std::move(options), *arena_);
  }
  Code refusal(const std::function<void(Script&)>& change) { return make(change).status().code(); }
  /// Returns the address of a similar peer whose device address begins with `first`.
  std::vector<std::byte> address_of(int first) {
    std::vector<std::byte> address(transport_->address().begin(), transport_->address().end());
    address[3 + 6] = static_cast<std::byte>(first);
    return address;
  }
  bool send(PeerId peer, uint32_t number, std::string_view bytes = {}) {
    return transport_->send(peer, numbered(number), reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(),
                            nullptr);
  }
  std::vector<uint32_t> numbers_sent() const {
    std::vector<uint32_t> numbers;
    for (const auto& [number, bytes] : script_->sent) numbers.push_back(number);
    return numbers;
  }

  memory::Arena* arena_ = nullptr;
  std::unique_ptr<DeviceImpl> transport_;
  Script* script_ = nullptr;  ///< the device of transport_
  Script* made_ = nullptr;    ///< the device of the last make()
  PeerId peer_ = 0;
};

TEST_F(DeviceTest, properties_out_of_range_are_refused) {
  for (const uint32_t bytes : {0u, 535u, 65001u}) {
    EXPECT_EQ(refusal([&](Script& script) { script.its_properties.packet_bytes_max = bytes; }), Code::kMisuse);
  }
  EXPECT_EQ(refusal([](Script& script) { script.its_properties.name = ""; }), Code::kMisuse);
  EXPECT_EQ(refusal([](Script& script) { script.its_properties.name = "seventeen letters"; }), Code::kMisuse);
  EXPECT_EQ(refusal([](Script& script) { script.its_properties.receive_queue_packets = 0; }), Code::kMisuse);
  EXPECT_EQ(refusal([](Script& script) { script.its_properties.link_bytes_per_sec = 0; }), Code::kMisuse);
  EXPECT_EQ(refusal([](Script& script) { script.its_address.clear(); }), Code::kMisuse);
  EXPECT_EQ(refusal([](Script& script) { script.its_address.resize(41); }), Code::kMisuse);
  EXPECT_EQ(DeviceImpl::create({}, *arena_).status().code(), Code::kMisuse);
  EXPECT_EQ(refusal([](Script& script) { script.its_address.resize(40); }), Code::kOk);
}

TEST_F(DeviceTest, devices_of_another_name_are_no_peers) {
  auto other = make([](Script& script) { script.its_properties.name = "scripT"; });
  auto longer = make([](Script& script) { script.its_properties.name = "script2"; });
  const int connects = script_->connects;
  EXPECT_EQ(transport_->connect((*other)->address(), "").status().code(), Code::kMisuse);
  EXPECT_EQ(transport_->connect((*longer)->address(), "").status().code(), Code::kMisuse);
  EXPECT_EQ(script_->connects, connects) << "the device is not asked";
  EXPECT_EQ(transport_->counters().peers_refused, 2u);
}

TEST_F(DeviceTest, peers_use_the_smaller_packet_size) {
  auto small = make([](Script& script) { script.its_properties.packet_bytes_max = 600; });
  auto large = make([](Script& script) { script.its_properties.packet_bytes_max = 9000; });
  EXPECT_EQ(transport_->payload_bytes_max(*transport_->connect((*small)->address(), "")), 600 - wire::kHeaderBytes);
  EXPECT_EQ(transport_->payload_bytes_max(*transport_->connect((*large)->address(), "")), 1000 - wire::kHeaderBytes);
}

TEST_F(DeviceTest, device_is_asked_once_per_peer_and_its_error_is_returned) {
  EXPECT_EQ(*transport_->connect(address_of(1), ""), peer_);
  EXPECT_EQ(script_->connects, 1);
  script_->connect_status = {Code::kPeerUnreachable, "no cable"};
  EXPECT_EQ(transport_->connect(address_of(2), "").status().message(), "no cable");
  script_->connect_status = {};
  EXPECT_NE(*transport_->connect(address_of(2), ""), peer_);
  transport_->disconnect(peer_);
  EXPECT_TRUE(script_->gone.empty());
  transport_->disconnect(peer_);
  EXPECT_EQ(script_->gone, std::set<Device::Peer>{1001});
}

TEST_F(DeviceTest, address_and_host_of_one_peer_are_not_those_of_another) {
  std::vector<std::byte> longer = address_of(1);
  longer.push_back(std::byte{'1'});
  const PeerId one = *transport_->connect(address_of(1), "10.0.0.7");
  EXPECT_NE(*transport_->connect(longer, "0.0.0.7"), one);
}

/// As tern/transport/device.h says. The device gives each connection another number.
TEST_F(DeviceTest, peer_of_two_hosts_is_connected_and_disconnected_for_each) {
  script_->counts_peers = true;
  const PeerId one = *transport_->connect(address_of(2), "10.0.0.7");
  const PeerId other = *transport_->connect(address_of(2), "10.0.1.7");
  EXPECT_NE(one, other);
  EXPECT_EQ(script_->connects, 3);
  transport_->disconnect(other);
  EXPECT_EQ(script_->gone, std::set<Device::Peer>{3});
  ASSERT_TRUE(send(one, 1, "payload"));
  transport_->flush();
  EXPECT_EQ(script_->sent.size(), 1u);
}

TEST_F(DeviceTest, burst_is_one_call) {
  for (uint32_t i = 0; i < 100; i++) ASSERT_TRUE(send(peer_, i, "payload"));
  EXPECT_EQ(script_->transmits, 0);
  transport_->flush();
  EXPECT_EQ(script_->transmits, 1);
  EXPECT_EQ(script_->sent.size(), 100u);
  EXPECT_EQ(script_->sent[99], std::pair(99u, std::string("payload")));
  transport_->flush();
  EXPECT_EQ(script_->transmits, 1) << "nothing is queued";
}

TEST_F(DeviceTest, packets_that_the_device_does_not_take_stay_in_order_and_hold_their_tickets) {
  script_->space = 3;
  detail::Buffer* buffer = arena_->alloc(8);
  uint64_t tickets[5];
  for (uint32_t i = 0; i < 5; i++) {
    ASSERT_TRUE(transport_->send(peer_, numbered(i), buffer->data(), 8, buffer));
    tickets[i] = transport_->ticket();
    if (i == 1) transport_->flush();
  }
  EXPECT_GE(transport_->released(), tickets[1]);
  transport_->flush();
  EXPECT_EQ(numbers_sent(), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_LT(transport_->released(), tickets[3]);
  EXPECT_FALSE(transport_->prepare_wait()) << "nobody tells when the device has space";
  transport_->end_wait();
  script_->space = 1;
  transport_->flush();
  EXPECT_LT(transport_->released(), tickets[4]);
  script_->space = SIZE_MAX;
  ASSERT_TRUE(send(peer_, 5));
  transport_->flush();
  EXPECT_EQ(numbers_sent(), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_GE(transport_->released(), tickets[4]);
  EXPECT_EQ(transport_->counters().packets_sent, 6u);
  memory::Arena::release(buffer);
}

TEST_F(DeviceTest, full_queue_refuses_until_it_is_empty) {
  script_->space = 0;
  uint32_t queued = 0;
  while (send(peer_, queued)) ASSERT_LE(++queued, DeviceImpl::kQueuePackets);
  EXPECT_EQ(queued, DeviceImpl::kQueuePackets);
  transport_->flush();
  EXPECT_FALSE(send(peer_, 1000));
  script_->space = SIZE_MAX;
  transport_->flush();
  EXPECT_TRUE(send(peer_, queued));
  transport_->flush();
  EXPECT_EQ(script_->sent.size(), queued + 1);
}

TEST_F(DeviceTest, the_time_of_a_packet_does_not_begin_with_that_of_a_disconnected_peers_packet) {
  const PeerId gone = *transport_->connect(address_of(2), "");
  script_->space = 0;
  ASSERT_TRUE(send(gone, 1));
  transport_->flush();
  transport_->disconnect(gone);
  EXPECT_EQ(transport_->counters().send_errors, 1u);
  const uint64_t begin_ns = transport_->now();
  while (transport_->now() - begin_ns < DeviceImpl::kKeptNsMax) std::this_thread::yield();
  ASSERT_TRUE(send(peer_, 2));
  transport_->flush();
  script_->space = SIZE_MAX;
  transport_->flush();
  EXPECT_EQ(numbers_sent(), std::vector<uint32_t>{2});
  EXPECT_EQ(transport_->counters().send_errors, 1u);
}

TEST_F(DeviceTest, packets_that_the_device_never_takes_are_lost_in_bounded_time) {
  script_->space = 0;
  ASSERT_TRUE(send(peer_, 1));
  ASSERT_TRUE(send(peer_, 2));
  const uint64_t ticket = transport_->ticket(), begin_ns = transport_->now();
  while (transport_->released() < ticket) {
    transport_->flush();
    ASSERT_LT(transport_->now() - begin_ns, 200 * DeviceImpl::kKeptNsMax);
  }
  EXPECT_GE(transport_->now() - begin_ns, DeviceImpl::kKeptNsMax);
  EXPECT_EQ(transport_->counters().send_errors, 2u);
  script_->space = SIZE_MAX;
  ASSERT_TRUE(send(peer_, 3));
  transport_->flush();
  EXPECT_EQ(numbers_sent(), std::vector<uint32_t>{3});
}

TEST_F(DeviceTest, last_disconnect_loses_only_packets_to_that_peer) {
  const PeerId other = *transport_->connect(address_of(2), "");
  script_->space = 0;
  for (uint32_t i = 0; i < 6; i++) ASSERT_TRUE(send(i % 2 == 0 ? peer_ : other, i));
  transport_->disconnect(peer_);
  EXPECT_EQ(transport_->counters().send_errors, 3u);
  EXPECT_FALSE(send(peer_, 6));
  script_->space = SIZE_MAX;
  transport_->flush();
  EXPECT_EQ(numbers_sent(), (std::vector<uint32_t>{1, 3, 5}));
}

TEST_F(DeviceTest, peer_that_is_not_ready_takes_no_packet) {
  script_->state = Device::PeerState::kConnecting;
  const PeerId late = *transport_->connect(address_of(2), "");
  EXPECT_EQ(transport_->peer_state(late), PeerState::kConnecting);
  EXPECT_FALSE(send(late, 1));
  script_->state = Device::PeerState::kReady;
  EXPECT_EQ(transport_->peer_state(late), PeerState::kReady);
  EXPECT_TRUE(send(late, 1));
  script_->state = Device::PeerState::kDead;
  EXPECT_EQ(transport_->peer_state(late), PeerState::kDead);
  EXPECT_FALSE(send(late, 2));
}

TEST_F(DeviceTest, bytes_that_are_no_packet_are_counted_by_reason) {
  const auto packet = [](uint32_t number, size_t payload, size_t padding, uint8_t flags = 0) {
    wire::Header header = numbered(number);
    header.set_length_and_flags(wire::kHeaderBytes + payload, flags);
    std::vector<std::byte> bytes(wire::kHeaderBytes + payload + padding);
    wire::store_header(bytes.data(), header);
    return bytes;
  };
  script_->incoming.push_back({});
  script_->incoming.push_back(std::vector<std::byte>(23));
  script_->incoming.push_back(std::vector<std::byte>(100));
  auto cut = packet(1, 50, 0);
  cut.resize(60);
  script_->incoming.push_back(cut);
  script_->incoming.push_back(packet(2, 977, 0));  // one byte more than a packet may have
  script_->incoming.push_back(packet(3, 16, 0, wire::kByReference));
  script_->incoming.push_back(packet(4, 976, 0));
  script_->incoming.push_back(packet(5, 0, 36));  // padded, as Ethernet does
  std::vector<std::pair<uint32_t, uint32_t>> seen;
  const size_t packets = transport_->receive(
      [&](const wire::Header& header, const Payload& payload) { seen.emplace_back(header.number(), payload.bytes); });
  EXPECT_EQ(packets, 2u);
  EXPECT_EQ(seen, (std::vector<std::pair<uint32_t, uint32_t>>{{4, 976}, {5, 0}}));
  EXPECT_EQ(transport_->counters().dropped_unparsable, 4u);
  EXPECT_EQ(transport_->counters().dropped_oversize, 1u);
  EXPECT_EQ(transport_->counters().dropped_bad_reference, 1u);
  EXPECT_EQ(transport_->counters().packets_received, 2u);
  EXPECT_EQ(script_->receives, 1);
}

TEST_F(DeviceTest, device_without_a_descriptor_is_polled) {
  EXPECT_FALSE(transport_->prepare_wait());
  transport_->end_wait();
}

}  // namespace
}  // namespace tern::transport
