// One session on paths with a large product of bandwidth and delay. Requests of 8 MB fill the link if the server allows
// enough bytes in flight (RpcOptions::credit_limit). Time is virtual, so the figures are the same on every machine.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "unit/sim/sim_program.h"

namespace tern::sim {
namespace {

using namespace std::chrono_literals;

constexpr uint16_t kPut = 1;
constexpr size_t kBytes = 8u << 20;
constexpr uint32_t kAtOnce = 4;

/// A server, or a client with four calls at a time.
struct Peer : SimProgram {
  Peer(Host& host, uint32_t credit_limit) : SimProgram(host, {.credit_limit = credit_limit}) {
    EXPECT_TRUE(rpc->on_request(kPut, [](Request request) { request.respond(); }, {.max_request_bytes = kBytes}).ok());
  }
  void begin(const std::string& server) {
    session = *rpc->create_session(server);
    for (uint32_t i = 0; i < kAtOnce; i++) put();
  }
  void put() {
    const auto call =
        rpc->enqueue_request(session, kPut, rpc->alloc_msgbuf(kBytes), rpc->alloc_msgbuf(8), [this](Completion& done) {
          if (done.status.code() == Code::kCancelled) return;  // the endpoint ends
          EXPECT_TRUE(done.status.ok()) << done.status.message();
          answered++;
          put();
        });
    EXPECT_TRUE(call.ok()) << call.status().message();
  }
  Session session;
  uint32_t answered = 0;
};

struct Path {
  const char* name;
  uint64_t bits_per_sec;
  Duration hop;  ///< a round trip has four hops
  size_t packet_bytes;
  uint32_t credit_limit;
  double share_min;  ///< minimum share of the link's bits; only payload counts
};

void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

class LongPath : public testing::TestWithParam<Path> {};

TEST_P(LongPath, large_requests_fill_the_link) {
  const Path& path = GetParam();
  LinkOptions link;
  link.bits_per_sec = path.bits_per_sec;
  link.delay = path.hop;
  auto simulation =
      simulate<Peer>(Topology::star(2, link), {.seed = 1, .frame_bytes = path.packet_bytes + 42}, path.credit_limit);
  Peer& client = program_of<Peer>(*simulation, 1);
  client.begin(simulation->host(0).uri());
  // Measured after the start.
  ASSERT_TRUE(simulation->run_until([&] { return client.answered >= 2 * kAtOnce; }, 10s));
  const uint32_t before = client.answered;
  const Duration since = simulation->now();
  ASSERT_TRUE(simulation->run_until([&] { return client.answered >= before + 6 * kAtOnce; }, 10s));
  const double took_s = std::chrono::duration<double>(simulation->now() - since).count();
  const double share = 8.0 * kBytes * (client.answered - before) / took_s / static_cast<double>(path.bits_per_sec);
  RecordProperty("share", std::to_string(share));
  EXPECT_GE(share, path.share_min);
  EXPECT_LE(share, 1);
  EXPECT_EQ(client.rpc->counters().retransmissions, 0u);
}

INSTANTIATE_TEST_SUITE_P(, LongPath,
                         testing::Values(Path{"10G_1ms_8900B", 10'000'000'000, 250us, 8900, 500, 0.9},
                                         Path{"10G_1ms_1232B", 10'000'000'000, 250us, 1232, 2048, 0.85},
                                         Path{"100G_100us_8900B", 100'000'000'000, 25us, 8900, 500, 0.9},
                                         Path{"100G_100us_1232B", 100'000'000'000, 25us, 1232, 2048, 0.85}),
                         [](const auto& path) { return std::string(path.param.name); });

}  // namespace
}  // namespace tern::sim
