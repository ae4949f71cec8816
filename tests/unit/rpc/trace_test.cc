// The records of a traced endpoint about calls (RpcOptions::trace_records).
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tern/log.h>
#include <tern/transport/faulty.h>

#include "own_folder.h"
#include "rpc/endpoint_core.h"
#include "unit/rpc/rpc_world.h"
#include "unit/trace/dump_reader.h"

namespace tern::rpc_test {
namespace {

using trace::Kind;
using trace::Record;

struct Folder : test::OwnFolder {
  Folder() : OwnFolder(::testing::TempDir() + "tern-trace-test") {}
};

template <class T>
class Trace : public ::testing::Test {
 protected:
  void make(typename T::Options transport = patient<typename T::Options>(), RpcOptions options = {}) {
    options.trace_records = 1 << 16;
    NexusOptions nexus;
    nexus.worker_threads = 2;
    ASSERT_NO_FATAL_FAILURE(world_.make(nexus, options, options, transport, transport));
  }
  static std::vector<Record> records_of(const Endpoint& endpoint) {
    const Folder folder;
    const Status status = endpoint.dump_trace(folder.file("trace"));
    EXPECT_TRUE(status.ok()) << status.message();
    const trace::Dump dump = trace::read_dump(folder.file("trace"));
    EXPECT_TRUE(dump.is_whole);
    return dump.rings.empty() ? std::vector<Record>() : dump.rings[0].records;
  }
  static std::vector<Kind> kinds_of(const std::vector<Record>& records, uint32_t request) {
    std::vector<Kind> kinds;
    for (const Record& record : records) {
      if (record.request == request) kinds.push_back(record.kind);
    }
    return kinds;
  }
  static std::vector<Record> of_kind(const std::vector<Record>& records, Kind kind) {
    std::vector<Record> found;
    std::copy_if(records.begin(), records.end(), std::back_inserter(found), [&](auto& r) { return r.kind == kind; });
    return found;
  }
  World<T> world_;
};
using ShmAndUdp = ::testing::Types<Shm, Udp>;
TYPED_TEST_SUITE(Trace, ShmAndUdp, TransportNames);

TYPED_TEST(Trace, call_is_recorded_at_both_ends_in_order) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world_.open();
  EXPECT_EQ(this->world_.ask(session, kEcho, "hello").response, "hello");
  const auto client = this->records_of(*this->world_.client), server = this->records_of(*this->world_.server);
  const auto started = std::find_if(client.begin(), client.end(), [](auto& r) { return r.kind == Kind::kStarted; });
  ASSERT_NE(started, client.end());
  EXPECT_EQ(started->value, 5u);
  EXPECT_EQ(started->type, kEcho);
  ASSERT_GT(started - client.begin(), 0);
  EXPECT_EQ((started - 1)->kind, Kind::kEnqueued);
  EXPECT_EQ((started - 1)->packet, started->packet);
  const std::vector<Kind> at_client = {
      Kind::kStarted, Kind::kSent, Kind::kReceived, Kind::kCompleted, Kind::kContinuationBegin, Kind::kContinuationEnd};
  EXPECT_EQ(this->kinds_of(client, started->request), at_client);
  // The first answer of a slot has its own memory, and is taken within the handler.
  const std::vector<Kind> at_server = {Kind::kReceived, Kind::kHandlerBegin, Kind::kAnswered, Kind::kHandlerEnd,
                                       Kind::kSent};
  EXPECT_EQ(this->kinds_of(server, started->request), at_server);
  // Both ends use the same names for the session and the packets, and one clock orders them.
  const auto of = [&](const std::vector<Record>& records, Kind kind) {
    return *std::find_if(records.begin(), records.end(),
                         [&](const Record& r) { return r.kind == kind && r.request == started->request; });
  };
  EXPECT_EQ(of(client, Kind::kSent).session, of(server, Kind::kReceived).session);
  EXPECT_EQ(of(client, Kind::kSent).packet, of(server, Kind::kReceived).packet);
  EXPECT_EQ(of(server, Kind::kSent).packet, of(client, Kind::kReceived).packet);
  EXPECT_EQ(of(server, Kind::kHandlerBegin).session, of(client, Kind::kCompleted).session);
  EXPECT_LE(of(client, Kind::kStarted).time_ns, of(server, Kind::kHandlerBegin).time_ns);
  EXPECT_LE(of(server, Kind::kHandlerEnd).time_ns, of(client, Kind::kContinuationBegin).time_ns);
  for (const auto* records : {&client, &server}) {
    EXPECT_TRUE(std::is_sorted(records->begin(), records->end(),
                               [](const Record& a, const Record& b) { return a.time_ns < b.time_ns; }));
  }
}

TYPED_TEST(Trace, many_calls_of_all_sizes_go_through) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world_.open();
  for (size_t bytes : {0, 1, 1000, 100'000, 3'000'000}) {
    const std::string text(bytes, 'x');
    EXPECT_EQ(this->world_.ask(session, kEcho, text, bytes + 1).response, text);
  }
  std::vector<Outcome> outcomes(100);  // 8 of them have a slot at a time
  for (Outcome& outcome : outcomes) ASSERT_TRUE(this->world_.call(session, kEcho, "again", outcome).ok());
  ASSERT_TRUE(this->world_.run_until(
      [&] { return std::all_of(outcomes.begin(), outcomes.end(), [](auto& one) { return one.runs == 1; }); }));
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.response, "again");
  rpc::EndpointCore::of(*this->world_.client).check_invariants();
  rpc::EndpointCore::of(*this->world_.server).check_invariants();
  size_t enqueued = 0, started = 0, handled = 0;
  for (const Record& record : this->records_of(*this->world_.client)) {
    enqueued += record.kind == Kind::kEnqueued;
    started += record.kind == Kind::kStarted;
  }
  for (const Record& record : this->records_of(*this->world_.server)) handled += record.kind == Kind::kHandlerBegin;
  EXPECT_EQ(enqueued, 105u);
  EXPECT_EQ(started, 105u);
  EXPECT_EQ(handled, 105u);
}

TYPED_TEST(Trace, handlers_on_workers_have_records) {
  constexpr uint16_t kOnWorker = 2;
  ASSERT_NO_FATAL_FAILURE(this->make());
  std::atomic<std::thread::id> ran_in;
  const auto handler = [&](Request request) {
    ran_in = std::this_thread::get_id();
    reply(std::move(request), "done");
  };
  ASSERT_TRUE(this->world_.server->on_request(kOnWorker, handler, {.worker = true}).ok());
  const Session session = this->world_.open();
  for (const Duration deadline : {Duration::max(), Duration(kPatience)}) {  // the two paths to a worker
    EXPECT_EQ(this->world_.ask(session, kOnWorker, "hello", 256, {.deadline = deadline}).response, "done");
  }
  EXPECT_NE(ran_in.load(), std::this_thread::get_id());
  ASSERT_TRUE(this->world_.server->close(kPatience).ok());  // all handlers have returned afterwards
  const auto server = this->records_of(*this->world_.server);
  const auto begun = this->of_kind(server, Kind::kHandlerBegin), ended = this->of_kind(server, Kind::kHandlerEnd);
  ASSERT_EQ(begun.size(), 2u);
  ASSERT_EQ(ended.size(), 2u);
  const auto started = this->of_kind(this->records_of(*this->world_.client), Kind::kStarted);
  ASSERT_EQ(started.size(), 2u);
  for (size_t i = 0; i < 2; i++) {
    EXPECT_EQ(begun[i].request, started[i].request);
    EXPECT_EQ(begun[i].type, kOnWorker);
    EXPECT_EQ(begun[i].value, 5u);
    EXPECT_NE(begun[i].session, 0u);
    EXPECT_EQ(begun[i].session, ended[i].session);
    EXPECT_LE(begun[i].time_ns, ended[i].time_ns);
    const auto kinds = this->kinds_of(server, begun[i].request);
    EXPECT_EQ(std::count(kinds.begin(), kinds.end(), Kind::kAnswered), 1);
  }
}

TYPED_TEST(Trace, kept_request_is_answered_after_its_handler) {
  constexpr uint16_t kKeep = 2;
  ASSERT_NO_FATAL_FAILURE(this->make());
  std::optional<Request> kept;
  const auto keep = [&](Request request) { kept.emplace(std::move(request)); };
  ASSERT_TRUE(this->world_.server->on_request(kKeep, keep).ok());
  const Session session = this->world_.open();
  Outcome outcome;
  ASSERT_TRUE(this->world_.call(session, kKeep, "hello", outcome).ok());
  ASSERT_TRUE(this->world_.run_until([&] { return kept.has_value(); }));
  reply(std::move(*kept), "later");
  ASSERT_TRUE(this->world_.run_until([&] { return outcome.runs == 1; }));
  const auto server = this->records_of(*this->world_.server);
  const auto ended = this->of_kind(server, Kind::kHandlerEnd), answered = this->of_kind(server, Kind::kAnswered);
  ASSERT_EQ(ended.size(), 1u);
  ASSERT_EQ(answered.size(), 1u);
  EXPECT_EQ(answered[0].value, 5u);
  EXPECT_EQ(answered[0].request, ended[0].request);
  EXPECT_LE(ended[0].time_ns, answered[0].time_ns);
}

TYPED_TEST(Trace, refused_request_is_answered_and_has_no_handler) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world_.open();
  EXPECT_FALSE(this->world_.ask(session, 77, "hello").status.ok());
  const auto server = this->records_of(*this->world_.server);
  EXPECT_TRUE(this->of_kind(server, Kind::kHandlerBegin).empty());
  const auto answered = this->of_kind(server, Kind::kAnswered);
  ASSERT_EQ(answered.size(), 1u);
  EXPECT_EQ(answered[0].value, 0u);
  EXPECT_EQ(answered[0].type, 77u);
  const auto completed = this->of_kind(this->records_of(*this->world_.client), Kind::kCompleted);
  ASSERT_EQ(completed.size(), 1u);
  EXPECT_EQ(completed[0].value, 0u);
}

TYPED_TEST(Trace, session_without_credit_is_recorded_as_stalled) {
  RpcOptions options;
  options.credit_limit = 2;
  ASSERT_NO_FATAL_FAILURE(this->make(patient<typename TypeParam::Options>(), options));
  const Session session = this->world_.open();
  EXPECT_EQ(this->world_.ask(session, kEcho, "short").response, "short");
  EXPECT_TRUE(this->of_kind(this->records_of(*this->world_.client), Kind::kCreditStall).empty());
  const std::string text(1'000'000, 'x');
  EXPECT_EQ(this->world_.ask(session, kEcho, text, text.size()).response, text);
  const auto stalls = this->of_kind(this->records_of(*this->world_.client), Kind::kCreditStall);
  ASSERT_FALSE(stalls.empty());
  for (const Record& stall : stalls) {
    EXPECT_TRUE(stall.value == 1 || stall.value == 2) << stall.value;
    EXPECT_NE(stall.session, 0u);
    EXPECT_EQ(stall.request, 0u);
  }
}

TYPED_TEST(Trace, session_at_its_rate_limit_is_recorded_as_paced) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world_.open({.rate_bytes_per_sec = 20'000'000});
  const std::string text(500'000, 'x');
  EXPECT_EQ(this->world_.ask(session, kEcho, text, text.size()).response, text);
  const auto waits = this->of_kind(this->records_of(*this->world_.client), Kind::kPaced);
  ASSERT_FALSE(waits.empty());
  for (const Record& wait : waits) {
    EXPECT_GT(wait.value, 0u);
    EXPECT_NE(wait.session, 0u);
  }
}

TYPED_TEST(Trace, calls_that_end_early_have_the_reason_recorded) {
  constexpr uint16_t kKeep = 2;
  ASSERT_NO_FATAL_FAILURE(this->make());
  std::vector<Request> kept;
  const auto keep = [&](Request request) { kept.push_back(std::move(request)); };
  ASSERT_TRUE(this->world_.server->on_request(kKeep, keep).ok());
  const Session session = this->world_.open();
  std::vector<Outcome> outcomes(10);  // 8 of them have a slot
  std::vector<CallId> ids;
  for (Outcome& outcome : outcomes) ids.push_back(this->world_.call(session, kKeep, "x", outcome).value());
  ASSERT_TRUE(this->world_.run_until([&] { return kept.size() == 8; }));
  ASSERT_TRUE(this->world_.client->cancel(ids[0]).ok());
  ASSERT_TRUE(this->world_.client->cancel(ids[9]).ok());
  ASSERT_TRUE(this->world_.run_until([&] { return outcomes[0].runs + outcomes[9].runs == 2; }));
  ASSERT_TRUE(this->world_.client->destroy_session(session).ok());
  ASSERT_TRUE(this->world_.run_until(
      [&] { return std::all_of(outcomes.begin(), outcomes.end(), [](auto& one) { return one.runs == 1; }); }));
  const auto client = this->records_of(*this->world_.client);
  const auto started = this->of_kind(client, Kind::kStarted), ended = this->of_kind(client, Kind::kEndedEarly);
  ASSERT_EQ(ended.size(), 10u);
  EXPECT_EQ(ended[0].request, started[0].request);
  EXPECT_EQ(ended[0].packet, started[0].packet);
  EXPECT_EQ(ended[1].request, 0u);  // this call never had a slot
  for (size_t i : {0, 1}) EXPECT_EQ(ended[i].value, static_cast<uint32_t>(Code::kCancelled));
  for (size_t i = 2; i < 10; i++) EXPECT_EQ(ended[i].value, static_cast<uint32_t>(outcomes[5].code()));
  kept.clear();
}

TYPED_TEST(Trace, folder_gets_a_file_of_each_endpoint_that_closes) {
  const Folder folder;
  RpcOptions options;
  options.trace_folder = folder.path();
  ASSERT_NO_FATAL_FAILURE(this->make(patient<typename TypeParam::Options>(), options));
  const Session session = this->world_.open();
  EXPECT_EQ(this->world_.ask(session, kEcho, "hello").response, "hello");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ASSERT_TRUE(this->world_.client->close(kPatience).ok());
  this->world_.server.reset();
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const trace::Dump dump = trace::read_dump(entry.path().string());
    ASSERT_TRUE(dump.is_whole);
    ASSERT_EQ(dump.rings.size(), 1u);
    EXPECT_FALSE(dump.rings[0].records.empty());
    files++;
  }
  EXPECT_EQ(files, 2u);
}

TEST(TraceOption, missing_folder_is_logged) {
  std::vector<std::string> told;
  NexusOptions with_log;
  with_log.log = log_to([&](const LogEvent& event) {
    if (event.kind == LogKind::kTraceMissing) told.emplace_back(event.status.message());
  });
  auto nexus = Nexus::create("tern://127.0.0.1:0", with_log).value();
  RpcOptions options;
  options.trace_records = 64;
  options.trace_folder = "/nowhere/at/all";
  Rpc<Udp>::create(*nexus, {}, small_memory(options)).value().reset();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].find("/nowhere/at/all"), std::string::npos) << told[0];
}

// No call of one endpoint is lost or doubled if its peer has no trace.
TYPED_TEST(Trace, endpoint_without_a_trace_is_served_alike) {
  RpcOptions traced;
  traced.trace_records = 1 << 16;
  ASSERT_NO_FATAL_FAILURE(this->world_.make({}, traced, {}));
  const Session session = this->world_.open();
  for (size_t bytes : {0, 32, 100'000}) {
    const std::string text(bytes, 'x');
    EXPECT_EQ(this->world_.ask(session, kEcho, text, bytes + 1).response, text);
  }
  EXPECT_EQ(this->of_kind(this->records_of(*this->world_.server), Kind::kHandlerBegin).size(), 3u);
  EXPECT_EQ(this->world_.client->dump_trace("/tmp/never").code(), Code::kMisuse);
}

// Also under TSan: the reads that detect a wrong thread must not race with the loop.
TYPED_TEST(Trace, other_threads_may_dump_and_own_nothing) {
  ASSERT_NO_FATAL_FAILURE(this->make());
  const Session session = this->world_.open();
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    for (int i = 0; i < 20; i++) (void)this->records_of(*this->world_.client);
    EXPECT_EQ(this->world_.client->create_session("tern://127.0.0.1:1").code(), Code::kWrongThread);
    for (int i = 0; i < 20; i++) {
      EXPECT_EQ(this->world_.client->run_event_loop_once().code(), Code::kWrongThread);
      EXPECT_EQ(this->world_.client->run_event_loop(Duration(0)).code(), Code::kWrongThread);
    }
    is_over = true;
  });
  while (!is_over) EXPECT_EQ(this->world_.ask(session, kEcho, "hello").response, "hello");
  other.join();
}

TEST(TraceOption, off_is_misuse_to_dump_and_too_many_are_refused) {
  auto nexus = Nexus::create("tern://127.0.0.1:0").value();
  {
    auto rpc = Rpc<Udp>::create(*nexus, {}, small_memory()).value();
    EXPECT_EQ(rpc->dump_trace("/tmp/never").code(), Code::kMisuse);
  }
  RpcOptions many;
  many.trace_records = (size_t{1} << 26) + 1;
  EXPECT_EQ(Rpc<Udp>::create(*nexus, {}, small_memory(many)).code(), Code::kMisuse);
}

using LossyUdp = Faulty<Udp>;
class TraceOfLoss : public Trace<LossyUdp> {};

TEST_F(TraceOfLoss, retransmissions_have_records) {
  LossyUdp::Options transport;
  transport.drop = 0.2;
  transport.seed = 1;
  ASSERT_NO_FATAL_FAILURE(make(transport));
  const Session session = world_.open();
  for (int i = 0; i < 10; i++)
    EXPECT_EQ(world_.ask(session, kEcho, std::string(20'000, 'x'), 20'000).response.size(), 20'000u);
  size_t again = 0;
  for (const Record& record : records_of(*world_.client)) again += record.kind == Kind::kRetransmitted;
  EXPECT_EQ(again, world_.client->counters().retransmissions);
  EXPECT_GT(again, 0u);
}

}  // namespace
}  // namespace tern::rpc_test
