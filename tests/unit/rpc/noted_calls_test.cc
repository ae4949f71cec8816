// Calls that a continuation begins on sessions at rest, at an endpoint with many sessions, in virtual time. They are
// noted, and begin together at the end of the burst (ClientSessions::note_call()).
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "unit/rpc/virtual_world.h"

namespace tern::rpc_test {
namespace {

constexpr uint16_t kEcho = 1;
constexpr size_t kSessions = rpc::EndpointContext::kCachedSessions + 100;

class NotedCalls : public VirtualWorld {
 protected:
  ~NotedCalls() override { hosts_.clear(); }  // ends calls

  void SetUp() override {
    ASSERT_TRUE(add("10.0.0.1:1")
                    .rpc
                    ->on_request(kEcho,
                                 [this](Request request) {
                                   served_.emplace_back(request.text());
                                   request.respond(request.take_message().value());
                                 })
                    .ok());
    client_ = &add("10.0.0.2:1");
    for (size_t i = 0; i < kSessions; i++) sessions_.push_back(begin_session(*client_, {.window = 2}));
    ASSERT_TRUE(run_until([&] {
      return std::all_of(sessions_.begin(), sessions_.end(), [&](Session s) { return client_->rpc->is_open(s); });
    }));
    // Each session rests after a call.
    for (size_t i = 0; i < kSessions; i++) ASSERT_TRUE(call(i, "before " + std::to_string(i)).ok());
    expect_answers(kSessions);
    run_for(1'000'000'000, 10'000'000);
    outcomes_.clear();
  }
  bool is_awake(size_t session) const { return client_->core().client_session(sessions_[session])->is_awake(); }

  static MsgBuf message(Endpoint& endpoint, const std::string& text) {
    MsgBuf buffer = endpoint.alloc_msgbuf(text.size());
    if (!text.empty()) std::memcpy(buffer.bytes().data(), text.data(), text.size());
    return buffer;
  }

  struct Outcome {
    int runs = 0;
    Status status;
    std::string answer;
  };
  /// Calls session `i` with `text`, and keeps the outcome under that name.
  Result<CallId> call(size_t i, const std::string& text, CallOptions options = {}) {
    MsgBuf response = client_->rpc->alloc_msgbuf(std::max<size_t>(text.size(), 1));
    return client_->rpc->enqueue_request(
        sessions_[i], kEcho, message(*client_->rpc, text), std::move(response),
        [&outcome = outcomes_[text]](Completion& done) {
          outcome.runs++;
          outcome.status = done.status;
          outcome.answer = done.status.ok() ? done.response.text() : "";
        },
        options);
  }
  /// Runs `body` in the continuation of a call on the last session.
  void in_continuation(std::function<void()> body) {
    bool has_run = false;
    auto first = client_->rpc->enqueue_request(sessions_.back(), kEcho, message(*client_->rpc, "first"),
                                               client_->rpc->alloc_msgbuf(5), [&](Completion& done) {
                                                 EXPECT_TRUE(done.status.ok()) << done.status.message();
                                                 body();
                                                 has_run = true;
                                               });
    ASSERT_TRUE(first.ok()) << first.status().message();
    ASSERT_TRUE(run_until([&] { return has_run; }));
  }
  void expect_answers(size_t count) {
    ASSERT_EQ(outcomes_.size(), count);
    const auto are_over = [&] {
      return std::all_of(outcomes_.begin(), outcomes_.end(), [](auto& each) { return each.second.runs != 0; });
    };
    ASSERT_TRUE(run_until(are_over));
    run_for(2'000'000);
    for (const auto& [text, outcome] : outcomes_) {
      EXPECT_EQ(outcome.runs, 1) << text;
      EXPECT_TRUE(outcome.status.ok()) << text << ": " << outcome.status.message();
      EXPECT_EQ(outcome.answer, text);
      EXPECT_EQ(std::count(served_.begin(), served_.end(), text), 1) << text;
    }
  }
  size_t place_of(const std::string& text) const {
    return static_cast<size_t>(std::find(served_.begin(), served_.end(), text) - served_.begin());
  }

  VirtualHost* client_ = nullptr;
  std::vector<Session> sessions_;
  std::vector<std::string> served_;
  std::map<std::string, Outcome> outcomes_;
};

TEST_F(NotedCalls, are_all_answered_once) {
  constexpr size_t kCalls = 150;  // more than are noted at a time
  for (int round = 0; round < 2; round++) {
    outcomes_.clear();
    served_.clear();
    in_continuation([&] {
      for (size_t i = 0; i < kCalls; i++) {
        ASSERT_TRUE(call(i, "call " + std::to_string(i)).ok());
        EXPECT_FALSE(is_awake(i)) << "the session was touched";
      }
    });
    expect_answers(kCalls);
    run_for(1'000'000'000, 10'000'000);  // reports, and rests
  }
}

TEST_F(NotedCalls, keep_their_order_and_their_window) {
  in_continuation([&] {
    for (const char* text : {"a", "b", "c", "d"}) ASSERT_TRUE(call(0, text).ok());  // the last two wait for a slot
    ASSERT_TRUE(call(1, "late", {.deadline = std::chrono::seconds(1)}).ok());
    ASSERT_TRUE(call(2, "e").ok());
    ASSERT_TRUE(call(2, "f", {.deadline = std::chrono::seconds(1)}).ok());
  });
  expect_answers(7);
  EXPECT_LT(place_of("a"), place_of("b"));
  EXPECT_LT(place_of("b"), place_of("c"));
  EXPECT_LT(place_of("c"), place_of("d"));
  EXPECT_LT(place_of("e"), place_of("f"));
}

TEST_F(NotedCalls, of_several_packets_or_no_bytes_are_calls_like_others) {
  in_continuation([&] {
    ASSERT_TRUE(call(0, std::string(5000, 'x')).ok());
    ASSERT_TRUE(call(1, "").ok());
    ASSERT_TRUE(call(2, std::string(wire::kPayloadBytesMin, 'y')).ok());
    ASSERT_TRUE(call(3, std::string(wire::kPayloadBytesMin + 1, 'z')).ok());
  });
  expect_answers(4);
}

TEST_F(NotedCalls, can_be_cancelled_at_once) {
  in_continuation([&] {
    auto id = call(0, "cancelled");
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(call(1, "other").ok());
    EXPECT_TRUE(client_->rpc->cancel(*id).ok());
    EXPECT_EQ(client_->rpc->cancel(*id).code(), Code::kMisuse);
  });
  ASSERT_TRUE(run_until([&] { return outcomes_["cancelled"].runs != 0 && outcomes_["other"].runs != 0; }));
  EXPECT_EQ(outcomes_["cancelled"].status.code(), Code::kCancelled);
  EXPECT_TRUE(outcomes_["other"].status.ok());
  run_for(1'000'000'000, 10'000'000);
  EXPECT_EQ(outcomes_["cancelled"].runs, 1);
}

TEST_F(NotedCalls, end_with_their_session) {
  in_continuation([&] {
    ASSERT_TRUE(call(0, "destroyed").ok());
    ASSERT_TRUE(client_->rpc->destroy_session(sessions_[0]).ok());
    EXPECT_EQ(client_->rpc->destroy_session(sessions_[0]).code(), Code::kSessionReset);
  });
  ASSERT_TRUE(run_until([&] { return outcomes_["destroyed"].runs != 0; }));
  EXPECT_EQ(outcomes_["destroyed"].status.code(), Code::kCancelled);
  run_for(1'000'000'000, 10'000'000);
  EXPECT_EQ(outcomes_["destroyed"].runs, 1);
  in_continuation([&] { EXPECT_EQ(call(0, "after").status().code(), Code::kSessionReset); });
}

TEST_F(NotedCalls, are_refused_at_once_if_they_are_wrong) {
  in_continuation([&] {
    const auto nothing = [](Completion&) {};
    auto& rpc = *client_->rpc;
    EXPECT_EQ(rpc.enqueue_request(sessions_[0], kEcho, MsgBuf(), rpc.alloc_msgbuf(1), nothing).status().code(),
              Code::kMisuse);
    EXPECT_EQ(
        rpc.enqueue_request(sessions_[0], 4096, rpc.alloc_msgbuf(1), rpc.alloc_msgbuf(1), nothing).status().code(),
        Code::kMisuse);
    EXPECT_EQ(rpc.enqueue_request(sessions_[0], kEcho, server().rpc->alloc_msgbuf(1), rpc.alloc_msgbuf(1), nothing)
                  .status()
                  .code(),
              Code::kMisuse);
    ASSERT_TRUE(call(0, "right").ok());
  });
  expect_answers(1);
}

/// The endpoint closes in the middle of the calls.
TEST_F(NotedCalls, end_with_their_endpoint) {
  in_continuation([&] {
    for (size_t i = 0; i < 10; i++) ASSERT_TRUE(call(i, std::to_string(i)).ok());
  });
  client_->rpc.reset();
  for (const auto& [text, outcome] : outcomes_) {
    EXPECT_EQ(outcome.runs, 1) << text;
    EXPECT_FALSE(outcome.status.ok()) << text;
  }
}

/// The server keeps two responses of the session, and no report has named them yet.
TEST_F(NotedCalls, may_be_of_sessions_with_several_responses_to_report) {
  ASSERT_TRUE(call(0, "a").ok());
  ASSERT_TRUE(call(0, "b").ok());
  expect_answers(2);
  ASSERT_TRUE(run_until([&] { return !is_awake(0); }, 50'000'000)) << "before a report is due";
  in_continuation([&] {
    ASSERT_TRUE(call(0, "c").ok());
    EXPECT_FALSE(is_awake(0));
    ASSERT_TRUE(call(0, "d").ok());
  });
  expect_answers(4);
}

TEST_F(NotedCalls, may_be_of_prefetched_sessions) {
  in_continuation([&] {
    for (size_t i = 0; i < 10; i++) client_->rpc->prefetch(sessions_[i]);
    client_->rpc->prefetch(Session{});
    ASSERT_TRUE(call(0, "a").ok());
    EXPECT_FALSE(is_awake(0));
    ASSERT_TRUE(client_->rpc->destroy_session(sessions_[9]).ok());
  });
  expect_answers(1);
  ASSERT_FALSE(client_->rpc->is_open(sessions_[9])) << "it has ended before its second step";
  in_continuation([&] {
    for (size_t i = 10; i < 20; i++) client_->rpc->prefetch(sessions_[i]);
    ASSERT_TRUE(call(1, "b").ok());
  });
  expect_answers(2);
}

/// Between iterations no call is noted, because the loop might sleep.
TEST_F(NotedCalls, do_not_exist_outside_of_the_loop) {
  ASSERT_TRUE(call(0, "outside").ok());
  EXPECT_TRUE(is_awake(0));
  expect_answers(1);
}

}  // namespace
}  // namespace tern::rpc_test
