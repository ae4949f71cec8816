// The functions for interfaces over tern's own (include/tern/compat): calls whose buffers stay with the program, and
// handlers that answer in the front of a request's record.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "unit/rpc/rpc_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kFront = 2;

template <class T>
class PlainCalls : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world.make());
    ASSERT_TRUE(world.server->on_request(kFront, [this](detail::RequestFront* front) { handle(front); }).ok());
    own_request = world.client->alloc_msgbuf(100);
    own_response = world.client->alloc_msgbuf(100);
    ASSERT_TRUE(own_request && own_response);
  }
  /// Answers in the front if possible, and keeps requests that begin with a k.
  void handle(detail::RequestFront* front) {
    const std::string text(reinterpret_cast<const char*>(front->data), front->bytes);
    if (text.starts_with("k")) return kept.push_back(Request(front));
    if (front->space == nullptr || front->space->writable_end <= text.size()) {
      Request whole(front);
      auto room = whole.response(text.size());
      ASSERT_TRUE(room.ok());
      std::memcpy(room->data(), text.data(), text.size());
      return whole.respond();
    }
    in_front++;
    front->space->revoke_lease();
    std::memcpy(front->space->data(), text.data(), text.size());
    front->space->length_bytes = static_cast<uint32_t>(text.size());
    front->progress = detail::RequestFront::Progress::kAnswered;
  }
  [[nodiscard]] bool start(Session session, detail::Buffer* out, detail::Buffer* in, std::string_view text) {
    if (out != nullptr) std::memcpy(out->data(), text.data(), text.size());
    return world.client->enqueue_plain_request(session, kFront, out, in, static_cast<uint32_t>(text.size()),
                                               [this, out, in](Completion& done) {
                                                 EXPECT_EQ(done.request.take(), out);
                                                 EXPECT_EQ(done.response.take(), in);
                                                 codes.push_back(done.status.code());
                                               });
  }
  std::string answer() const { return std::string(text_of(own_response.bytes())); }

  World<T> world;
  MsgBuf own_request, own_response;  // always the program's
  std::vector<Request> kept;
  std::vector<Code> codes;
  int in_front = 0;
};
TYPED_TEST_SUITE(PlainCalls, Transports, TransportNames);

TYPED_TEST(PlainCalls, enqueue_plain_request__sends_the_given_length) {
  const Session session = this->world.open();
  for (const std::string text : {"", "a", "some more of it", "b"}) {
    ASSERT_TRUE(this->start(session, this->own_request.buffer(), this->own_response.buffer(), text));
    this->world.run_until([&] { return !this->codes.empty(); });
    EXPECT_EQ(this->codes, std::vector<Code>{Code::kOk});
    EXPECT_EQ(this->answer(), text);
    this->codes.clear();
  }
  EXPECT_GT(this->in_front, 0);
}

TYPED_TEST(PlainCalls, enqueue_plain_request__waits_for_a_slot_and_for_the_session) {
  auto session = this->world.client->create_session(this->world.server_nexus->uri(), {.window = 1});
  ASSERT_TRUE(session.ok());
  std::vector<MsgBuf> buffers;
  for (int i = 0; i < 5; i++) {
    buffers.push_back(this->world.client->alloc_msgbuf(10));
    buffers.push_back(this->world.client->alloc_msgbuf(10));
    const size_t last = buffers.size() - 1;
    ASSERT_TRUE(
        this->start(*session, buffers[last - 1].buffer(), buffers[last].buffer(), "number" + std::to_string(i)));
  }
  this->world.run_until([&] { return this->codes.size() == 5; });
  for (size_t i = 0; i < 5; i++) EXPECT_EQ(text_of(buffers[2 * i + 1].bytes()), "number" + std::to_string(i));
}

TYPED_TEST(PlainCalls, enqueue_plain_request__wrong_arguments_are_refused) {
  const Session session = this->world.open();
  detail::Buffer* const out = this->own_request.buffer();
  detail::Buffer* const in = this->own_response.buffer();
  auto& client = *this->world.client;
  const auto expect_refused = [&](Session of, detail::Buffer* request, detail::Buffer* response, Code code) {
    EXPECT_FALSE(this->start(of, request, response, "x"));
    EXPECT_EQ(client.refusal().code(), code);
  };
  expect_refused(session, nullptr, in, Code::kMisuse);
  expect_refused(session, out, nullptr, Code::kMisuse);
  expect_refused(session, out, out, Code::kMisuse);
  MsgBuf of_server = this->world.server->alloc_msgbuf(10);
  expect_refused(session, out, of_server.buffer(), Code::kMisuse);
  expect_refused({}, out, in, Code::kSessionReset);
  std::thread([&] { expect_refused(session, out, in, Code::kWrongThread); }).join();
  EXPECT_TRUE(this->codes.empty());
  ASSERT_TRUE(this->start(session, out, in, "still"));
  this->world.run_until([&] { return this->codes.size() == 1; });
  EXPECT_EQ(this->answer(), "still");
}

TYPED_TEST(PlainCalls, on_request__kept_front_is_answered_later) {
  const Session session = this->world.open();
  for (const std::string text : {"kept", "k"}) {
    ASSERT_TRUE(this->start(session, this->own_request.buffer(), this->own_response.buffer(), text));
    this->world.run_until([&] { return !this->kept.empty(); });
    this->world.turns(5);
    EXPECT_TRUE(this->codes.empty());
    EXPECT_EQ(text_of(this->kept.back().bytes()), text);
    reply(std::move(this->kept.back()), "later");
    this->kept.clear();
    this->world.run_until([&] { return !this->codes.empty(); });
    EXPECT_EQ(this->answer(), "later");
    this->codes.clear();
  }
}

TYPED_TEST(PlainCalls, stable_bytes__keep_their_place_until_the_answer) {
  const std::byte* place = nullptr;
  ASSERT_TRUE(this->world.server
                  ->on_request(3,
                               [&](Request request) {
                                 const std::string text(text_of(request.bytes()));
                                 place = request.stable_bytes().data();
                                 EXPECT_EQ(text_of(request.stable_bytes()), text);
                                 EXPECT_EQ(request.stable_bytes().data(), place) << "one copy";
                                 this->kept.push_back(std::move(request));
                               })
                  .ok());
  const Session session = this->world.open();
  for (const size_t bytes : {size_t{1}, size_t{32}, size_t{1000}, size_t{50'000}}) {
    const std::string text(bytes, static_cast<char>('a' + bytes % 26));
    Outcome outcome;
    ASSERT_TRUE(this->world.call(session, 3, text, outcome, 256, {}).ok());
    this->world.run_until([&] { return !this->kept.empty(); });
    for (int i = 0; i < 5; i++) EXPECT_EQ(this->world.ask(session, kEcho, "other").response, "other");
    EXPECT_EQ(this->kept.back().bytes().data(), place);
    EXPECT_TRUE(text_of(this->kept.back().stable_bytes()) == text);
    std::thread([&] { EXPECT_EQ(this->kept.back().stable_bytes().data(), place); }).join();
    Request answered = std::move(this->kept.back());
    this->kept.clear();
    reply(std::move(answered), "ok");
    EXPECT_TRUE(answered.stable_bytes().empty());
    this->world.run_until([&] { return outcome.runs > 0; });
    EXPECT_EQ(outcome.response, "ok");
  }
}

}  // namespace
}  // namespace tern::rpc_test
