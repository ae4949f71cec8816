// Benchmarks against a server that answers with the right length and wrong bytes: they must not count its answers.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>

#include "e2e/any_rpc.h"
#include "e2e/program.h"

using namespace e2e;

namespace {

constexpr uint16_t kEcho = 1;    ///< of latency and session_scale
constexpr uint16_t kMemory = 2;  ///< of session_scale

void answer_with_wrong_bytes(tern::Request request) {
  auto out = request.response(request.bytes().size());
  if (!out.ok()) return;
  std::fill(out->begin(), out->end(), std::byte{0xee});
  request.respond();
}

void answer_about_memory(tern::Request request) {
  constexpr std::array<uint64_t, 3> kReply = {1, 1 << 20, 0};  // threads, bytes, changes of the asker
  auto out = request.response(sizeof(kReply));
  if (!out.ok()) return;
  std::memcpy(out->data(), kReply.data(), sizeof(kReply));
  request.respond();
}

}  // namespace

TEST(WrongAnswers, end_a_measurement_with_a_sentence) {
  auto nexus = tern::Nexus::create("tern://127.0.0.1:0");
  ASSERT_TRUE(nexus.ok());
  auto rpc = create_rpc(**nexus, {{"transport", "udp"}, {"wait", "block"}});
  ASSERT_TRUE(rpc.ok());
  tern::Endpoint& server = (*rpc)->endpoint();
  ASSERT_TRUE(server.on_request(kEcho, answer_with_wrong_bytes).ok());
  ASSERT_TRUE(server.on_request(kMemory, answer_about_memory).ok());
  std::thread loop([&] { EXPECT_TRUE((*rpc)->run(tern::Duration::max()).ok()); });

  const std::string address = (*nexus)->uri().substr(std::string_view("tern://").size());
  for (const std::string program : {"latency", "session_scale --sessions=20"}) {
    const Outcome done = run("../microbench/" + program +
                             " --transport=udp --wait=adaptive --seconds=0.1 --role=client --server=" + address);
    EXPECT_EQ(done.code, 1) << program;
    EXPECT_THAT(done.output, testing::HasSubstr("the answer is not the request")) << program;
  }
  server.stop();
  loop.join();
}
