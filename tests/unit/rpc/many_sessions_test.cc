// Thousands of sessions between two endpoints, which are begun at once, used, destroyed and begun again. Their memory:
// session_memory_test.cc.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "rpc/endpoint_core.h"
#include "unit/rpc/many_sessions.h"

namespace tern::rpc_test {
namespace {

#ifdef TERN_IS_SANITIZED
constexpr size_t kSessions = 1300;
#else
constexpr size_t kSessions = 2000;
#endif

template <class T>
class ManySessionsTest : public ManySessions<T> {
 protected:
  std::vector<Session> open_and_use() { return ManySessions<T>::open_and_use(kSessions); }
};
TYPED_TEST_SUITE(ManySessionsTest, Transports, TransportNames);

TYPED_TEST(ManySessionsTest, are_all_usable_and_make_room_for_others) {
  for (int round = 0; round < 3; round++) {
    const std::vector<Session> sessions = this->open_and_use();
    ASSERT_EQ(sessions.size(), kSessions);
    for (const Session session : sessions) ASSERT_TRUE(this->world_.client->destroy_session(session).ok());
    for (const Session session : sessions) {
      ASSERT_EQ(this->world_.client->destroy_session(session).code(), Code::kSessionReset);
    }
    this->world_.turn();
    for (const Session session : sessions) ASSERT_FALSE(this->world_.client->is_open(session));
  }
}

/// More calls wait at the same time than one iteration examines.
TYPED_TEST(ManySessionsTest, deadlines_of_all_pass_though_no_answer_comes) {
  constexpr uint16_t kKept = 7;
  constexpr size_t kWaiting = kSessions / 2;
  std::vector<Request> kept;  // destroyed before the server's endpoint
  ASSERT_TRUE(
      this->world_.server->on_request(kKept, [&kept](Request request) { kept.push_back(std::move(request)); }).ok());
  const std::vector<Session> sessions = this->open_and_use();
  ASSERT_EQ(sessions.size(), kSessions);
  size_t late = 0;
  for (size_t i = 0; i < kWaiting; i++) {
    const auto count = [&late](Completion& done) { late += done.status.code() == Code::kDeadline; };
    auto call = this->world_.client->enqueue_request(sessions[i], kKept, message(*this->world_.client, "x"),
                                                     this->world_.client->alloc_msgbuf(1), count,
                                                     {.deadline = milliseconds(500)});
    ASSERT_TRUE(call.ok()) << call.status().message();
  }
  // Some calls end in the middle of a pass over all of them.
  for (size_t i = 0; i < kWaiting; i += 10) ASSERT_TRUE(this->world_.client->destroy_session(sessions[i]).ok());
  const size_t expected = kWaiting - (kWaiting + 9) / 10;
  EXPECT_TRUE(this->world_.run_until([&] { return late == expected; })) << late << " of " << expected;
  EXPECT_EQ(this->world_.client->counters().sessions_failed, 0u);
}

/// More busy sessions than stay under ticks; the further ones rest at their last answer
/// (resting_sessions_test.cc), unless that answer was overtaken or came late.
TYPED_TEST(ManySessionsTest, more_busy_sessions_than_stay_under_ticks_have_all_their_answers) {
  const std::vector<Session> sessions = this->open_and_use();
  ASSERT_EQ(sessions.size(), kSessions);
  this->rest();
  const auto& core = rpc::EndpointCore::of(*this->world_.client);
  constexpr size_t kBusy = rpc::ClientSessions::kRestAtOnceFrom + 200;
  for (int round = 0; round < 3; round++) {
    size_t answered = 0;
    for (size_t i = 0; i < kBusy; i++) {
      const Session session = sessions[i];
      auto call =
          this->world_.client->enqueue_request(session, kEcho, message(*this->world_.client, "x"),
                                               this->world_.client->alloc_msgbuf(1), [&answered](Completion& done) {
                                                 EXPECT_TRUE(done.status.ok()) << done.status.message();
                                                 answered++;
                                               });
      ASSERT_TRUE(call.ok()) << call.status().message();
    }
    core.check_invariants();
    ASSERT_TRUE(this->world_.run_until([&] { return answered == kBusy; }));
    core.check_invariants();
  }
  EXPECT_EQ(this->world_.client->counters().sessions_failed, 0u);
}

/// A session whose calls follow each other without a pause reports the responses of its idle slots.
TYPED_TEST(ManySessionsTest, a_session_with_one_call_after_the_other_reports_its_other_slots) {
  constexpr uint16_t kKept = 7;
  constexpr size_t kBusy = rpc::ClientSessions::kRestAtOnceFrom + 20;
  static_assert(kBusy < kSessions);
  std::vector<Request> kept;  // destroyed before the server's endpoint
  ASSERT_TRUE(
      this->world_.server->on_request(kKept, [&kept](Request request) { kept.push_back(std::move(request)); }).ok());
  const std::vector<Session> sessions = this->open_and_use();
  ASSERT_EQ(sessions.size(), kSessions);
  this->rest();
  std::vector<Outcome> waiting(kBusy);
  for (size_t i = 0; i < kBusy; i++) {
    ASSERT_TRUE(this->world_.call(sessions[i], kKept, "x", waiting[i]).ok());
  }
  ASSERT_TRUE(this->world_.run_until([&] { return kept.size() == kBusy; }));

  const auto& server = rpc::EndpointCore::of(*this->world_.server);
  std::vector<Outcome> burst(8);
  for (Outcome& outcome : burst) {
    ASSERT_TRUE(this->world_.call(sessions[kBusy], kEcho, std::string(5000, 'x'), outcome, 5000).ok());
  }
  const auto has_all = [&] { return std::all_of(burst.begin(), burst.end(), [](auto& o) { return o.runs == 1; }); };
  ASSERT_TRUE(this->world_.run_until(has_all));
  EXPECT_GE(server.census().response_bytes, 8 * 5000u);
  bool is_over = false, has_ended = false;
  size_t calls = 0;
  std::function<void()> call_again = [&] {
    calls++;
    auto call = this->world_.client->enqueue_request(sessions[kBusy], kEcho, message(*this->world_.client, "x"),
                                                     this->world_.client->alloc_msgbuf(1), [&](Completion& done) {
                                                       EXPECT_TRUE(done.status.ok()) << done.status.message();
                                                       has_ended = is_over;
                                                       if (!is_over) call_again();
                                                     });
    ASSERT_TRUE(call.ok()) << call.status().message();
  };
  call_again();
  // Without a report the server keeps the responses for 20 s.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  this->world_.run_until(
      [&] { return server.census().response_bytes < 2 * 5000u || std::chrono::steady_clock::now() > until; });
  is_over = true;
  EXPECT_LT(server.census().response_bytes, 2 * 5000u) << "after " << calls << " calls";
  kept.clear();
  EXPECT_TRUE(this->world_.run_until(
      [&] { return has_ended && std::all_of(waiting.begin(), waiting.end(), [](auto& o) { return o.runs == 1; }); }));
}

TYPED_TEST(ManySessionsTest, words_of_strangers_are_looked_at_without_harm) {
  auto& client = rpc::EndpointCore::of(*this->world_.client);
  auto& server = rpc::EndpointCore::of(*this->world_.server);
  EXPECT_EQ(server.context().receiving, rpc::Receiving::kPlain);
  const std::vector<Session> sessions = this->open_and_use();
  ASSERT_EQ(sessions.size(), kSessions);
  EXPECT_EQ(client.context().receiving, rpc::Receiving::kAhead);
  EXPECT_EQ(server.context().receiving, rpc::Receiving::kAhead);
  std::vector<uint64_t> words;
  for (uint64_t i = 0; i < 3 * transport::kAheadMax; i++) words.push_back(i * 0x9e3779b97f4a7c15u);
  for (const auto* core : {&client, &server}) {
    core->look_ahead(words);
    core->look_ahead({});
    core->check_invariants();
  }
  for (const Session session : sessions) ASSERT_TRUE(this->world_.client->destroy_session(session).ok());
  EXPECT_TRUE(this->world_.run_until([&] { return server.context().sessions == 0 && client.context().sessions == 0; }));
  EXPECT_EQ(client.context().receiving, rpc::Receiving::kPlain);
}

}  // namespace
}  // namespace tern::rpc_test
