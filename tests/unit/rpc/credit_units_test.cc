// The unit of credits in the handshake: bytes between peers that support them, packets with earlier peers (clause
// 7.2.2a).
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "virtual_world.h"
#include "wire/credits.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kTake = 1;
const char* const kServer = "10.0.0.1:31850";
const char* const kClient = "10.0.0.2:31850";

class CreditUnits : public VirtualWorld {
 protected:
  CreditUnits() {
    payload_bytes_ = 4000;
    credit_bytes_ = 1024;
    server_options_.credit_limit = 3;
  }
  /// Opens a session and makes a call with a request of 100 kB.
  void run_call() {
    VirtualHost& server = add(kServer, server_options_);
    EXPECT_TRUE(server.rpc->on_request(kTake, [](Request request) { request.respond(); }).ok());
    payload_bytes_ = client_payload_bytes_;
    VirtualHost& client = add(kClient);
    // Notes the terms in the reply.
    environment_.lose(kClient, [this](const wire::ManagementMessage& message) {
      if (message.kind == wire::ManagementKind::kConnectReply) terms_ = message.terms;
      return false;
    });
    const Session session = open(client);
    std::optional<Status> status;
    const auto call =
        client.rpc->enqueue_request(session, kTake, client.rpc->alloc_msgbuf(100'000), client.rpc->alloc_msgbuf(8),
                                    [&](Completion& done) { status = done.status; });
    ASSERT_TRUE(call.ok());
    run_until([&] {
      client.core().for_each_client_session([&](const session::ClientSession& its) {
        credits_max_ = std::max(credits_max_, its.credits_in_flight());
        packets_max_ = std::max(packets_max_, its.packets_in_flight());
      });
      return status.has_value();
    });
    EXPECT_TRUE(status->ok()) << status->message();
  }

  RpcOptions server_options_;
  uint32_t client_payload_bytes_ = 4000;
  wire::ManagementTerms terms_;
  uint32_t credits_max_ = 0, packets_max_ = 0;
};

TEST_F(CreditUnits, both_ends_count_bytes) {
  run_call();
  EXPECT_EQ(terms_.credit_unit, 10);
  EXPECT_EQ(terms_.credits, 12) << "three packets of four credits";
  EXPECT_EQ(terms_.payload_bytes_max, 4000u);
  EXPECT_EQ(credits_max_, 12u);
  EXPECT_EQ(packets_max_, 3u);
}

TEST_F(CreditUnits, a_client_that_counts_packets_gets_packets_of_one_credit) {
  environment_.change(kServer, [](wire::ManagementMessage& message) {
    if (message.kind == wire::ManagementKind::kConnectRequest) message.terms.credits = 0;
  });
  run_call();
  EXPECT_EQ(terms_.credit_unit, wire::kPacketCredits);
  EXPECT_EQ(terms_.credits, 12);
  EXPECT_EQ(terms_.payload_bytes_max, 1000u);
  EXPECT_EQ(packets_max_, 12u);
}

TEST_F(CreditUnits, a_client_that_counts_packets_is_told_no_limit_that_it_does_not_know) {
  server_options_.credit_limit = 500;
  environment_.change(kServer, [](wire::ManagementMessage& message) {
    if (message.kind == wire::ManagementKind::kConnectRequest) message.terms.credits = 0;
  });
  run_call();
  EXPECT_EQ(terms_.credits, 128);
  EXPECT_LE(packets_max_, 128u);
}

// An earlier server answers in packets, whatever unit the client offers.
TEST_F(CreditUnits, a_server_that_counts_packets_is_taken_at_its_word) {
  environment_.change(kClient, [](wire::ManagementMessage& message) {
    if (message.kind == wire::ManagementKind::kConnectReply) message.terms.credit_unit = wire::kPacketCredits;
  });
  run_call();
  EXPECT_EQ(credits_max_, 12u);
  EXPECT_EQ(packets_max_, 12u);
}

// A long message is limited in bytes, which are not those of the client's own packets.
TEST_F(CreditUnits, a_client_of_larger_packets_fills_the_window_of_a_session_of_smaller_ones) {
  payload_bytes_ = 1000;
  client_payload_bytes_ = 60'000;
  server_options_.credit_limit = 64;
  run_call();
  EXPECT_EQ(terms_.payload_bytes_max, 1000u);
  EXPECT_EQ(packets_max_, 64u);
}

}  // namespace
}  // namespace tern::rpc_test
