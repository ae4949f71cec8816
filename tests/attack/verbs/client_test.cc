// Hostile clients attack a server over verbs, on the software verbs provider: strangers forge packets, and peers send
// contradictory ones. They know the Q_Key of each queue pair that they attack, because its address contains the key. An
// honest client beside them loses nothing, neither a call nor its session.
#include <infiniband/verbs.h>

#include <tern/transport/verbs.h>

#include "attack/honest.h"
#include "rpc/rpc_core.h"
#include "software_verbs/endpoint.h"
#include "software_verbs/provider_fixture.h"
#include "transport/verbs/verbs.h"
#include "transport/verbs/verbs_address.h"

namespace attack {
namespace {

using tern::Verbs;
using tern::transport::VerbsAddress;
namespace wire = tern::wire;

constexpr uint32_t kPacketBytes = 4096;
constexpr uint32_t kReceiveBytes = kPacketBytes + software_verbs::kGrhBytes;

VerbsAddress address_of(std::span<const std::byte> bytes) {
  VerbsAddress address;
  EXPECT_TRUE(tern::transport::decode_address(bytes, &address));
  return address;
}
VerbsAddress address_of(const wire::ManagementTerms& terms) {
  return address_of(std::span(terms.address).first(terms.address_bytes));
}
void set_verbs_address(wire::ManagementTerms& terms, const VerbsAddress& address) {
  const VerbsAddress::Bytes bytes = tern::transport::encode_address(address);
  terms.address_bytes = bytes.size();
  std::copy(bytes.begin(), bytes.end(), terms.address.begin());
}

/// Sends any bytes to any queue pair.
void send_bytes(const VerbsAddress& to, std::span<const std::byte> bytes) {
  const int device = static_cast<int>(to.queue_pair >> 16) - 1;
  (void)software_verbs::provider().inject(device, to.queue_pair, 0x1234, to.key, bytes.data(), bytes.size());
}
void send_header(const VerbsAddress& to, Header header, size_t payload_bytes = 0) {
  std::vector<std::byte> packet(wire::kHeaderBytes + payload_bytes, std::byte{'x'});
  header.set_length_and_flags(packet.size(), 0);
  wire::store_header(packet.data(), header);
  send_bytes(to, packet);
}

/// A queue pair by hand. It is the data path of the hostile client's sessions.
class HostilePair {
 public:
  explicit HostilePair(const VerbsAddress& like) : pair_({.receives = kReceives, .device = 0}), address_(like) {
    EXPECT_TRUE(pair_.is_ready());
    for (size_t i = 0; i < kReceives; i++) EXPECT_EQ(pair_.post_receive(i, i * kReceiveBytes, kReceiveBytes), 0);
    address_.queue_pair = pair_.qp->qp_num;
    address_.key = software_verbs::kQkey;
  }
  const VerbsAddress& address() const { return address_; }
  /// Calls `visit(header, payload_bytes)` for each packet that has arrived.
  template <class Visit>
  void receive(Visit&& visit) {
    ibv_wc wc{};
    while (ibv_poll_cq(pair_.recv_cq, 1, &wc) == 1) {
      if (wc.status != IBV_WC_SUCCESS) continue;
      const size_t bytes = wc.byte_len - software_verbs::kGrhBytes;
      const Header header =
          wire::load_header(pair_.memory.data() + wc.wr_id * kReceiveBytes + software_verbs::kGrhBytes);
      if (wire::is_plausible(header, bytes)) visit(header, header.length() - wire::kHeaderBytes);
      EXPECT_EQ(pair_.post_receive(wc.wr_id, wc.wr_id * kReceiveBytes, kReceiveBytes), 0);
    }
  }

 private:
  static constexpr uint32_t kReceives = 15;  // of 64 KB
  software_verbs::Endpoint pair_;
  VerbsAddress address_;
};

class VerbsAttack : public software_verbs::ProviderTest {
 protected:
  void SetUp() override {
    ProviderTest::SetUp();
    if (IsSkipped()) return;
    server_ = std::make_unique<Server<Verbs>>();
    honest_ = std::make_unique<Honest<Verbs>>(server_->uri());
    ASSERT_TRUE(honest_->ask(kEcho, 32).status.ok());
    server_data_ = address_of(server_->rpc().core().transport().address());
    client_data_ = address_of(honest_->rpc().core().transport().address());
    hostile_ = std::make_unique<Hostile>(server_->uri(), Address::parse("127.0.0.3").ip);
    pair_ = std::make_unique<HostilePair>(server_data_);
    honest_->start_calls();
  }
  void TearDown() override {
    if (honest_ != nullptr) expect_no_loss();
    pair_.reset();
    hostile_.reset();
    honest_.reset();
    server_.reset();
    ProviderTest::TearDown();
  }
  /// Checks that the honest client has lost nothing and that new clients can connect.
  void expect_no_loss() {
    ASSERT_TRUE(honest_->reaches(honest_->ok() + 200)) << honest_->stop_calls().first.message();
    const auto losses = honest_->stop_calls();
    EXPECT_EQ(losses.failed, 0u) << losses.first.message();
    EXPECT_EQ(server_->handled(), losses.ok + 1 + handled_of_hostile_) << "handlers run at most once";
    Honest<Verbs> newcomer(server_->uri(), "tern://127.0.0.4:0");
    EXPECT_TRUE(newcomer.ask(kEcho, 32).status.ok());
  }

  /// Opens a session of the hostile client without a proved path. Nothing: the server refused.
  std::optional<HostileSession> connect(const std::function<void(ManagementMessage&)>& change = nullptr) {
    return hostile_->connect([&](ManagementMessage& request) {
      request.terms.transport = {};
      request.terms.transport_bytes = static_cast<uint8_t>(Verbs::kName.size());
      std::copy(Verbs::kName.begin(), Verbs::kName.end(), request.terms.transport.begin());
      set_verbs_address(request.terms, pair_->address());
      request.terms.payload_bytes_max = kPacketBytes - wire::kHeaderBytes;
      if (change) change(request);
    });
  }
  void send(HostileSession& session, Kind kind, uint8_t flags, uint32_t request, uint32_t index, uint32_t type,
            uint32_t size, size_t payload_bytes = 0) {
    send_header(
        server_data_,
        wire::client_header(kind, flags, session.server_key(), session.client_number++, request, index, type, size),
        payload_bytes);
  }
  /// Opens a session with a proved path.
  HostileSession open() {
    auto session = connect();
    EXPECT_TRUE(session.has_value()) << "refused: " << static_cast<int>(hostile_->refusal);
    if (!session.has_value()) return {};
    EXPECT_EQ(address_of(session->reply.terms), server_data_);
    const uint32_t bytes = session->reply.terms.payload_bytes_max;
    bool is_full = false, is_open = false;
    const auto until = Clock::now() + kPatience;
    while (!is_open && Clock::now() < until) {
      send(*session, Kind::kPathProbe, 0, is_full ? session->first_request : 0, 0, 0, session->token,
           is_full ? bytes : 0);
      const auto again = Clock::now() + milliseconds(20);
      while (!is_open && Clock::now() < again) {
        pair_->receive([&](const Header& header, size_t payload_bytes) {
          if (header.kind() != Kind::kPathReply || header.session_key() != session->client_key()) return;
          session->first_request = header.request_number();
          if (payload_bytes == 0) session->token = header.size_or_index();
          is_full = true;
          is_open |= payload_bytes != 0;
        });
      }
    }
    EXPECT_TRUE(is_open);
    return *session;
  }
  Header forged_for_server(uint32_t key, uint32_t number) {
    constexpr std::array kKinds = {Kind::kRequest, Kind::kRfr,    Kind::kProbe,
                                   Kind::kCancel,  Kind::kReport, Kind::kPathProbe};
    const uint64_t bits = hostile_->random.next();
    return wire::client_header(kKinds[bits % kKinds.size()], bits & 8 ? wire::kFirst : 0, key, number,
                               static_cast<uint32_t>(bits >> 32), bits >> 5 & 1, kEcho,
                               static_cast<uint32_t>(hostile_->random.next()) & wire::kTokenMask);
  }
  Header forged_for_client(uint32_t key, uint32_t number) {
    constexpr std::array kKinds = {Kind::kResponse, Kind::kCr, Kind::kCancelled, Kind::kPathReply};
    const uint64_t bits = hostile_->random.next();
    return wire::server_header(kKinds[bits % kKinds.size()], bits & 8 ? wire::kFirst : 0, key, number,
                               static_cast<uint32_t>(bits >> 32), static_cast<uint32_t>(hostile_->random.next()), 0, 1,
                               0);
  }
  struct Keys {
    uint32_t server = 0, client = 0;
  };
  Keys honest_keys() {
    Keys keys;
    honest_->in_loop([&] {
      tern::rpc::EndpointCore::of(honest_->rpc())
          .for_each_client_session([&](const tern::session::ClientSession& session) {
            keys = {session.remote_key(), session.local_key()};
          });
    });
    return keys;
  }

  std::unique_ptr<Server<Verbs>> server_;
  std::unique_ptr<Honest<Verbs>> honest_;
  std::unique_ptr<Hostile> hostile_;
  std::unique_ptr<HostilePair> pair_;
  VerbsAddress server_data_, client_data_;
  uint64_t handled_of_hostile_ = 0;
};

TEST_F(VerbsAttack, garbage_of_any_length_to_both_sides) {
  std::vector<std::byte> bytes(kPacketBytes + 256);  // above the MTU, too
  at_rate(10'000, 40'000, [&](uint64_t round) {
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t word = hostile_->random.next();
      std::memcpy(bytes.data() + i, &word, 8);
    }
    if (round % 4 == 0) bytes[0] = static_cast<std::byte>(wire::kVersion << 4 | (round >> 2 & 15));
    const uint32_t size = hostile_->random.below(round % 2 == 0 ? 64 : static_cast<uint32_t>(bytes.size()));
    send_bytes(round & 1 ? client_data_ : server_data_, std::span(bytes).first(size));
  });
}

/// Packets of the hostile client's own session: each field in turn has wrong values, and the length is wrong.
TEST_F(VerbsAttack, garbage_in_each_field_of_good_headers) {
  HostileSession session = open();
  constexpr std::array kKinds = {Kind::kRequest, Kind::kRfr,    Kind::kProbe,
                                 Kind::kCancel,  Kind::kReport, Kind::kPathProbe};
  at_rate(20'000, 40'000, [&](uint64_t round) {
    const uint64_t bits = hostile_->random.next();
    const uint32_t number = round % 6 == 0 ? static_cast<uint32_t>(bits) : session.client_number++;
    const uint32_t request = round % 6 == 1 ? static_cast<uint32_t>(bits) : session.first_request;
    const uint32_t index = round % 6 == 2 ? static_cast<uint32_t>(bits) & 0x1fffff : 0;
    const uint32_t type = round % 6 == 3 ? static_cast<uint32_t>(bits) & 0xfff : kKeep;
    const uint32_t size = round % 6 == 4 ? static_cast<uint32_t>(bits) & wire::kTokenMask : session.token;
    Header header = wire::client_header(kKinds[(bits >> 40) % kKinds.size()], bits >> 50 & 15, session.server_key(),
                                        number & wire::kNumberMask, request, index, type, size);
    std::vector<std::byte> packet(wire::kHeaderBytes + (bits >> 33 & 127), std::byte{'x'});
    header.set_length_and_flags(round % 6 == 5 ? bits & 0xffff : packet.size(), 0);
    wire::store_header(packet.data(), header);
    send_bytes(server_data_, packet);
    if (round % 64 == 0) hostile_->serve_management();
    pair_->receive([](const Header&, size_t) {});
  });
}

/// The NIC drops packets with a wrong Q_Key.
TEST_F(VerbsAttack, wrong_queue_keys) {
  const Keys keys = honest_keys();
  at_rate(5000, 40'000, [&](uint64_t round) {
    VerbsAddress to = server_data_;
    to.key ^= 1u << (round % 31);
    send_header(to, forged_for_server(keys.server, static_cast<uint32_t>(round)), round % 64);
  });
}

TEST_F(VerbsAttack, forged_session_keys) {
  std::vector<uint32_t> own;
  for (int i = 0; i < 3; i++) own.push_back(open().server_key());
  at_rate(4096, 20'000, [&](uint64_t round) {
    const auto swept = static_cast<uint32_t>(round) / 4 << 22 | (static_cast<uint32_t>(round) & 3);
    const uint32_t near = own[round % own.size()] + static_cast<uint32_t>(round) - 2048;
    for (const uint32_t number : {60'000u, 120'000u, 180'000u}) {
      send_header(server_data_, forged_for_server(swept, number), round % 100);
      send_header(client_data_, forged_for_client(swept, number), 32);
      if (near != own[0] && near != own[1] && near != own[2]) {
        send_header(server_data_, forged_for_server(near, number));
      }
    }
  });
}

/// If a key leaks, the other proofs in a packet still protect the session.
TEST_F(VerbsAttack, right_session_keys_and_nothing_else) {
  const Keys keys = honest_keys();
  at_rate(2000, 10'000, [&](uint64_t round) {
    const auto number = static_cast<uint32_t>(round * 50'000) & wire::kNumberMask;
    send_header(server_data_, forged_for_server(keys.server, number));
    send_header(client_data_, forged_for_client(keys.client, number), 32);
  });
}

/// Forged replies go to the client, which waits for replies of its server, and to the server, which has made no calls.
TEST_F(VerbsAttack, unsolicited_replies) {
  const Keys keys = honest_keys();
  const HostileSession session = open();
  at_rate(5000, 20'000, [&](uint64_t round) {
    const auto number = static_cast<uint32_t>(hostile_->random.next()) & wire::kNumberMask;
    const uint32_t key = round % 2 == 0 ? keys.client : session.client_key();
    send_header(client_data_, forged_for_client(key, number), round % 3 == 0 ? 32 : 0);
    send_header(server_data_, forged_for_client(round % 2 == 0 ? keys.server : session.server_key(), number), 32);
  });
}

TEST_F(VerbsAttack, flood_of_data_packets) {
  at_rate(20'000, 50'000, [&](uint64_t) {
    send_header(server_data_,
                forged_for_server(static_cast<uint32_t>(hostile_->random.next()),
                                  static_cast<uint32_t>(hostile_->random.next()) & wire::kNumberMask),
                32);
  });
}

/// Each address names another queue pair; some name another fabric, partition or host.
TEST_F(VerbsAttack, flood_of_connect_requests) {
  at_rate(300, 1000, [&](uint64_t round) {
    VerbsAddress address = pair_->address();
    address.queue_pair = VerbsAddress::kQueuePairMin + hostile_->random.below(1 << 20);
    if (round % 5 == 1) address.fabric = tern::rdma::Fabric::kInfiniband;
    if (round % 5 == 1) address.lid = 7;
    if (round % 5 == 2) address.partition = 0x1234;
    if (round % 5 == 3) address.gid[15] = static_cast<std::byte>(round);
    if (round % 5 == 4) address.packet_bytes = static_cast<uint16_t>(hostile_->random.next());
    const auto session = connect([&](ManagementMessage& request) { set_verbs_address(request.terms, address); });
    if (round % 5 == 1) {
      EXPECT_EQ(hostile_->refusal, wire::Refusal::kOtherFabric);
    }
    if (round % 5 == 2) {
      EXPECT_EQ(hostile_->refusal, wire::Refusal::kOtherPartition);
    }
    EXPECT_TRUE(!session.has_value() || round % 5 == 0 || round % 5 >= 3);
  });
}

TEST_F(VerbsAttack, addresses_of_any_bytes) {
  at_rate(200, 1000, [&](uint64_t round) {
    (void)connect([&](ManagementMessage& request) {
      auto& terms = request.terms;
      if (round % 2 == 0) terms.address_bytes = static_cast<uint8_t>(hostile_->random.below(65));
      const size_t changed = hostile_->random.below(1 + terms.address_bytes);
      for (size_t i = 0; i < changed; i++) {
        terms.address[hostile_->random.below(64)] = static_cast<std::byte>(hostile_->random.next());
      }
    });
  });
}

TEST_F(VerbsAttack, client_that_offers_more_payload_than_its_packets_take) {
  VerbsAddress small = pair_->address();
  small.packet_bytes = 600;
  auto session = connect([&](ManagementMessage& request) { set_verbs_address(request.terms, small); });
  ASSERT_TRUE(session.has_value());
  EXPECT_LE(session->reply.terms.payload_bytes_max, 600 - wire::kHeaderBytes);
  for (int i = 0; i < 20; i++) {
    send(*session, Kind::kPathProbe, 0, 0, 0, 0, session->token, i % 2 == 0 ? 4072 : 0);
    std::this_thread::sleep_for(milliseconds(1));
    pair_->receive([&](const Header&, size_t payload_bytes) { EXPECT_LE(payload_bytes, 600 - wire::kHeaderBytes); });
  }
}

/// The third party is the honest client.
TEST_F(VerbsAttack, client_that_names_the_queue_pair_of_another) {
  for (int i = 0; i < 5; i++) {
    auto session = connect([&](ManagementMessage& request) { set_verbs_address(request.terms, client_data_); });
    ASSERT_TRUE(session.has_value());
    for (int probe = 0; probe < 100; probe++) {
      send(*session, Kind::kPathProbe, 0, 0, 0, 0, session->token, probe % 2 == 0 ? 4072 : 0);
    }
  }
}

TEST_F(VerbsAttack, range_cancel_and_late_probe_about_one_long_response) {
  for (int i = 0; i < 5; i++) {
    HostileSession session = open();
    const uint32_t request = session.first_request;
    constexpr uint32_t kResponseBytes = 200'000;
    Header header = wire::client_header(Kind::kRequest, wire::kFirst, session.server_key(), session.client_number++,
                                        request, wire::kNoDeadline, kReply, sizeof(kResponseBytes));
    std::vector<std::byte> packet(wire::kHeaderBytes + sizeof(kResponseBytes));
    header.set_length_and_flags(packet.size(), 0);
    wire::store_header(packet.data(), header);
    std::memcpy(packet.data() + wire::kHeaderBytes, &kResponseBytes, sizeof(kResponseBytes));
    send_bytes(server_data_, packet);
    bool is_answered = false;
    const auto until = Clock::now() + kPatience;
    while (!is_answered && Clock::now() < until) {
      pair_->receive([&](const Header& answer, size_t) { is_answered |= answer.kind() == Kind::kResponse; });
    }
    ASSERT_TRUE(is_answered);
    handled_of_hostile_++;
    for (uint32_t index = 1; index < 20; index += 6) send(session, Kind::kRfr, 0, request, index, 0, 8);
    send(session, i % 2 == 0 ? Kind::kCancel : Kind::kReport, 0, request, 0, 0, session.token, i % 2 == 0 ? 0 : 4);
    send(session, Kind::kProbe, 0, request, 1, 0, session.token);
    for (uint32_t index = 1; index < 40; index++) send(session, Kind::kRfr, 0, request, index, 0, 64);
  }
}

}  // namespace
}  // namespace attack
