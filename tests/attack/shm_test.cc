// Hostile processes of this machine attack a server over shared memory. Each damages only its own connection.
// An honest client beside them loses nothing, neither a call nor its session.
#include <tern/transport/shm.h>

#include "attack/honest.h"
#include "attack/raw_peer.h"
#include "rpc/rpc_core.h"
#include "transport/shm/shm.h"

namespace attack {
namespace {

using tern::Shm;
namespace wire = tern::wire;

class ShmAttack : public testing::Test {
 protected:
  void SetUp() override {
    const auto address = server_.rpc().core().transport().address();
    ASSERT_EQ(address.size(), identity_.size());
    std::copy(address.begin(), address.end(), identity_.begin());
    ASSERT_TRUE(honest_.ask(kEcho, 32).status.ok());
    honest_.start_calls();
  }
  void TearDown() override {
    ASSERT_TRUE(honest_.reaches(honest_.ok() + 200));
    const auto losses = honest_.stop_calls();
    EXPECT_EQ(losses.failed, 0u) << losses.first.message();
    Honest<Shm> newcomer(server_.uri(), "tern://127.0.0.4:0");
    EXPECT_TRUE(newcomer.ask(kEcho, 32).status.ok());
  }
  Server<Shm> server_;
  Honest<Shm> honest_{server_.uri()};
  shm::Identity identity_;
  Random random_{1};
};

TEST_F(ShmAttack, connections_that_never_say_hello) {
  std::vector<shm::Descriptor> connections;
  for (int i = 0; i < 200; i++) connections.push_back(std::move(*RawPeer::connected(identity_)));
  Honest<Shm> newcomer(server_.uri(), "tern://127.0.0.4:0");
  EXPECT_TRUE(newcomer.ask(kEcho, 32).status.ok());
}

TEST_F(ShmAttack, connections_over_and_over) {
  for (int i = 0; i < 5000; i++) (void)RawPeer::connected(identity_);
}

TEST_F(ShmAttack, garbage_in_the_ring) {
  RawPeer peer(identity_);
  ASSERT_NO_FATAL_FAILURE(peer.join());
  for (int i = 0; i < 20'000 && peer.wait_for_room(); i++) {
    const std::array<uint64_t, 4> words = {random_.next(), random_.next(), random_.next(), random_.next()};
    Header header{words[0], words[1], words[2]};
    if (i % 2 == 0) {  // one cell, of this version
      header.w0 =
          (header.w0 & ~uint64_t{0xffff00f0}) | uint64_t{wire::kVersion} << 4 | uint64_t{24 + words[3] % 33} << 16;
    }
    peer.put(header, {reinterpret_cast<const char*>(words.data()), sizeof(words)});
  }
}

TEST_F(ShmAttack, references_to_memory_that_is_not_there) {
  RawPeer peer(identity_);
  ASSERT_NO_FATAL_FAILURE(peer.join());
  for (int i = 0; i < 20'000 && peer.wait_for_room(); i++) {
    const shm::Reference reference = {random_.below(4), random_.below(4), random_.next() >> random_.below(64),
                                      random_.below(4096), static_cast<uint32_t>(random_.next() >> random_.below(64))};
    Header header = wire::client_header(Kind::kRequest, wire::kFirst, random_.below(8), static_cast<uint32_t>(i), 0,
                                        wire::kNoDeadline, kEcho, reference.bytes);
    header.set_length_and_flags(wire::kHeaderBytes + shm::kReferenceBytes, wire::kByReference);
    alignas(8) std::byte cell[shm::kCellBytes] = {};
    shm::put_reference(cell, reference);
    peer.put(header, {reinterpret_cast<const char*>(cell) + shm::kPayloadOffset, shm::kReferenceBytes});
  }
}

/// The peer rewrites the control words of its rings again and again while the server reads them.
TEST_F(ShmAttack, control_words_that_move_backwards_and_forwards) {
  RawPeer peer(identity_);
  ASSERT_NO_FATAL_FAILURE(peer.join());
  auto* control = reinterpret_cast<shm::RingControl*>(peer.ring());
  bool is_read = true;
  for (int i = 0; i < 50'000; i++) {
    control->consumed.store(random_.next() >> random_.below(64), std::memory_order_relaxed);
    if (i % 64 == 0 && (is_read = is_read && peer.wait_for_room())) {
      peer.put(wire::client_header(Kind::kProbe, 0, static_cast<uint32_t>(random_.next()), 1, 2, 0, 0, 0), "");
    }
  }
}

/// Peers connect, and then keep their connections open for ever without a message.
TEST_F(ShmAttack, peers_that_stay_silent) {
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 100; i++) {
    peers.push_back(std::make_unique<RawPeer>(identity_));
    ASSERT_NO_FATAL_FAILURE(peers.back()->join());
  }
}

TEST_F(ShmAttack, hello_in_the_name_of_another) {
  RawPeer owner(identity_), thief(identity_);
  ASSERT_EQ(shm::send_hello(thief.socket().get(), {owner.identity, RawPeer::kStart, RawPeer::kCells, true}, 0, 0),
            shm::SendResult::kSent);
  ASSERT_NO_FATAL_FAILURE(owner.join());
}

/// Each request names an endpoint that does not exist: the server must not make a ring before it has checked that.
TEST_F(ShmAttack, connect_requests_of_peers_that_do_not_exist) {
  Socket stranger({Address::parse("127.0.0.3").ip, 0});
  const Address management = Address::parse(server_.uri());
  constexpr uint32_t kAtOnce = 64;
  const auto next_request = [&] {
    ManagementMessage request = connect_request(random_, stranger.address(), "shm");
    request.terms.payload_bytes_max = wire::kPayloadBytesMax;
    request.terms.address_bytes = sizeof(shm::Identity);
    const shm::Identity nobody = *shm::make_identity();
    std::copy(nobody.begin(), nobody.end(), request.terms.address.begin());
    return request;
  };
  std::vector<ManagementMessage> requests;
  for (uint32_t i = 0; i < kAtOnce; i++) requests.push_back(next_request());
  at_rate(20'000, 10'000, [&](uint64_t round) {
    for (auto bytes = stranger.receive(); !bytes.empty(); bytes = stranger.receive()) {
      ManagementMessage answer;
      if (wire::parse_management(bytes, answer) != wire::ManagementDrop::kNone) continue;
      for (ManagementMessage& request : requests) {
        if (request.token != answer.token) continue;
        if (answer.kind == ManagementKind::kConnectReply) request = next_request();
        if (answer.kind == static_cast<ManagementKind>(10)) request.cookie = answer.cookie;
      }
    }
    stranger.send(management, encoded(requests[round % kAtOnce]));
  });
}

/// A client sends requests on its session and never reads its ring.
TEST_F(ShmAttack, client_that_never_reads_its_ring) {
  RawPeer peer(identity_);
  ASSERT_NO_FATAL_FAILURE(peer.join());
  Hostile hostile(server_.uri(), Address::parse("127.0.0.3").ip);
  auto session = hostile.connect([&](ManagementMessage& request) {
    peer.fill(request.terms, wire::kPayloadBytesMax);
    request.terms.window = wire::kSlotsMax;
  });
  ASSERT_TRUE(session.has_value());
  for (uint32_t i = 0; i < 10'000; i++) {
    if (!peer.wait_for_room()) break;
    const bool is_probe = i % 2 == 0;
    Header header = wire::client_header(is_probe ? Kind::kPathProbe : Kind::kRequest, is_probe ? 0 : wire::kFirst,
                                        session->server_key(), session->client_number++, i % wire::kSlotsMax,
                                        wire::kNoDeadline, kEcho, is_probe ? session->token : 16);
    header.set_length_and_flags(wire::kHeaderBytes + (is_probe ? 0 : 16), 0);
    peer.put(header, "0123456789abcdef");
    if (i % 1000 == 0) hostile.serve_management();
  }
}

}  // namespace
}  // namespace attack
