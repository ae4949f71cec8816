// A hostile peer with a session, which obeys the handshake, sends contradictory packets and bursts about one request.
// An honest client beside it loses nothing, neither a call nor its session.
#include <future>

#include <tern/transport/udp.h>

#include "attack/honest.h"

namespace attack {
namespace {

using tern::Udp;
namespace wire = tern::wire;

class PeerAttack : public testing::Test {
 protected:
  void SetUp() override { honest_.start_calls(); }
  void TearDown() override {
    ASSERT_TRUE(honest_.reaches(honest_.ok() + 200)) << honest_.stop_calls().first.message();
    const auto losses = honest_.stop_calls();
    EXPECT_EQ(losses.failed, 0u) << losses.first.message();
  }
  Server<Udp> server_;
  Honest<Udp> honest_{server_.uri()};
  Hostile hostile_{server_.uri(), Address::parse("127.0.0.3").ip};
};

/// Packets of one datagram: the server's loop has no turn between them.
class Burst {
 public:
  Burst(Hostile& hostile, HostileSession& session) : hostile_(hostile), session_(session) {}
  void add(Kind kind, uint8_t flags, uint32_t request, uint32_t index, uint32_t size, uint16_t type = 0,
           size_t payload_bytes = 0) {
    Header header =
        wire::client_header(kind, flags, session_.server_key(), session_.client_number++, request, index, type, size);
    header.set_length_and_flags(wire::kHeaderBytes + payload_bytes, 0);
    const size_t at = bytes_.size();
    bytes_.resize(at + wire::kHeaderBytes + payload_bytes);
    wire::store_header(bytes_.data() + at, header);
    for (size_t i = 0; i + 4 <= payload_bytes; i += 4)
      std::memcpy(bytes_.data() + at + wire::kHeaderBytes + i, &request, 4);
  }
  void add_proved(Kind kind, uint32_t request, uint32_t index) {
    const size_t payload_bytes = kind == Kind::kReport ? 4 : 0;
    const auto plain_size = static_cast<uint32_t>(payload_bytes);
    add(kind, 0, request, index, wire::kVersion >= 2 ? session_.token : plain_size, 0, payload_bytes);
  }
  void send() { hostile_.data.send(session_.server_data, bytes_); }

 private:
  Hostile& hostile_;
  HostileSession& session_;
  std::vector<std::byte> bytes_;
};

/// A call with a response of several packets, of which the first has arrived.
uint32_t begin_long_response(Hostile& hostile, HostileSession& session) {
  constexpr uint32_t kResponseBytes = 20'000;
  const uint32_t request = session.first_request;
  Header header = wire::client_header(Kind::kRequest, wire::kFirst, session.server_key(), session.client_number++,
                                      request, wire::kNoDeadline, kReply, sizeof(kResponseBytes));
  std::vector<std::byte> bytes(wire::kHeaderBytes + sizeof(kResponseBytes));
  header.set_length_and_flags(bytes.size(), 0);
  wire::store_header(bytes.data(), header);
  std::memcpy(bytes.data() + wire::kHeaderBytes, &kResponseBytes, sizeof(kResponseBytes));
  hostile.data.send(session.server_data, bytes);
  bool is_answered = false;
  const auto until = Clock::now() + kPatience;
  while (!is_answered && Clock::now() < until) {
    hostile.receive(milliseconds(10), [&](const Header& answer, std::span<const std::byte>) {
      is_answered |= answer.kind() == Kind::kResponse && answer.request_number() == request;
    });
  }
  EXPECT_TRUE(is_answered);
  return request;
}

TEST_F(PeerAttack, range_then_cancel_then_late_probe_about_one_request) {
  HostileSession session = hostile_.open();
  const uint32_t request = begin_long_response(hostile_, session);
  Burst burst(hostile_, session);
  burst.add(Kind::kRfr, 0, request, 1, 8);
  burst.add_proved(Kind::kCancel, request, 0);
  burst.add_proved(Kind::kProbe, request, 1);
  burst.send();
}

TEST_F(PeerAttack, range_then_report_then_late_probe_about_one_request) {
  HostileSession session = hostile_.open();
  const uint32_t request = begin_long_response(hostile_, session);
  Burst burst(hostile_, session);
  burst.add(Kind::kRfr, 0, request, 1, 8);
  burst.add_proved(Kind::kReport, request, 0);
  burst.add_proved(Kind::kProbe, request, 1);
  burst.send();
}

TEST_F(PeerAttack, client_that_offers_more_payload_than_its_datagrams_take) {
  auto session = hostile_.connect([&](ManagementMessage& request) {
    request.terms.payload_bytes_max = 65'536;
    set_address(request.terms, hostile_.data.address(), 576);
  });
  if (!session.has_value()) return;  // a refusal is as good
  for (int i = 0; i < 20; i++) {
    hostile_.send_path_probe(*session, i % 2 == 0);
    hostile_.receive(milliseconds(10), [&](const Header& header, std::span<const std::byte> payload) {
      EXPECT_LE(payload.size(), 576 - wire::kHeaderBytes);
      session->first_request = header.request_number();
      if (payload.empty()) session->token = header.size_or_index();
    });
  }
}

TEST_F(PeerAttack, server_that_offers_more_payload_than_its_datagrams_take) {
  Socket management, data;
  Honest<Udp> client("tern://127.0.0.1:" + std::to_string(management.address().port), "tern://127.0.0.4:0");
  bool has_answered = false;
  Random random(7);
  const uint64_t run = random.next() | 1;
  const auto until = Clock::now() + std::chrono::seconds(2);
  while (Clock::now() < until) {
    Address from;
    const auto bytes = management.receive(milliseconds(10), &from);
    ManagementMessage request;
    if (bytes.empty() || wire::parse_management(bytes, request) != wire::ManagementDrop::kNone) continue;
    if (request.kind != ManagementKind::kConnectRequest) continue;
    ManagementMessage reply;
    reply.kind = ManagementKind::kConnectReply;
    reply.sender_run = run;
    reply.receiver_run = request.sender_run;
    reply.token = request.token;
    reply.to_endpoint = request.terms.endpoint_id;
    reply.to_key = request.terms.session_key;
    reply.version_min = request.version_max;
    reply.terms = request.terms;
    set_address(reply.terms, data.address(), 576);
    reply.terms.payload_bytes_max = 1208;
    reply.terms.path_token = 5;
    reply.terms.credits = 8;
    management.send(from, encoded(reply));
    has_answered = true;
    for (auto probe = data.receive(milliseconds(100)); !probe.empty(); probe = data.receive()) {
      EXPECT_LE(probe.size(), 576u);
      const Header header = wire::load_header(probe.data());
      Header answer = wire::server_header(Kind::kPathReply, 0, request.terms.session_key, reply.terms.first_number + 1,
                                          64, header.number(), 0, 8, 77);
      std::vector<std::byte> out(probe.size());
      answer.set_length_and_flags(out.size(), 0);
      wire::store_header(out.data(), answer);
      const Address to = address_in(request.terms);
      data.send(to, out);
    }
  }
  EXPECT_TRUE(has_answered);
}

}  // namespace
}  // namespace attack
