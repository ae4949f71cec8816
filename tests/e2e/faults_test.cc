// Traffic through the fault layer over every transport. Loss, duplicates, reordering and delay on both sides change
// only the time that calls take. Corruption leads to a completion or an error and nothing else.

#include <tuple>

#include "e2e/caller.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"

using namespace e2e;
using tern::Code;

namespace {

struct Fault {
  const char* name;
  Settings settings;
};

const Fault kFaults[] = {
    {"drop", {{"drop", "0.01"}}},
    {"heavy_drop", {{"drop", "0.2"}}},  // 0.03 on shm, where the probability is per 4 KiB and a full packet has 64 KiB
    {"dup", {{"dup", "0.1"}}},
    {"reorder", {{"reorder", "0.1"}}},
    {"delay", {{"delay", "0.1"}, {"delay_us_max", "3000"}}},
    {"all", {{"drop", "0.02"}, {"dup", "0.05"}, {"reorder", "0.05"}, {"delay", "0.05"}}},
};

uint64_t faults_of(const tern::EndpointCounters& counters) {
  uint64_t sum = 0;
  tern::for_each_counter(counters, [&](std::string_view part, const char*, const char*, uint64_t value) {
    if (part == "faults") sum += value;
  });
  return sum;
}

Settings merge(Settings settings, const Settings& more) {
  for (const auto& [key, value] : more.values()) settings.set(key, value);
  return settings.set("faults", 1);
}

class Faults : public testing::TestWithParam<std::tuple<const char*, size_t>> {
 protected:
  Settings settings(uint64_t seed) const {
    const std::string transport = std::get<0>(GetParam());
    const Fault& fault = kFaults[std::get<1>(GetParam())];
    Settings merged = merge({{"transport", transport}}, fault.settings).set("seed", seed);
    if (transport == "shm" && fault.settings.probability("drop") > 0.1) merged.set("drop", "0.03");
    return merged;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, Faults,
                         testing::Combine(testing::ValuesIn(transports()),
                                          testing::Range(size_t{0}, std::size(kFaults))),
                         [](const auto& with) {
                           return std::string(std::get<0>(with.param)) + "_" + kFaults[std::get<1>(with.param)].name;
                         });

}  // namespace

TEST_P(Faults, everything_completes_and_every_handler_runs_once) {
  Peer server(settings(1));
  Caller caller(settings(2));
  const tern::Session sessions[] = {caller.open(server.uri()), caller.open(server.uri(), {.window = 3})};
  constexpr uint64_t kCalls = 1500;
  for (uint64_t id = 0; id < kCalls; id++) {
    const uint64_t random = pattern_word(5, id);
    const size_t size_max = random % 50 == 0 ? 300'000 : random % 5 == 0 ? 15'000 : 300;
    const auto reply_bytes = static_cast<uint32_t>((random >> 32) % size_max);
    caller.send_order(sessions[id % 2], id % 9 == 0 ? kWorker : kWork, {id, reply_bytes, random % 6 == 0 ? 500u : 0u},
                      sizeof(Order) + (random >> 8) % size_max);
  }
  ASSERT_TRUE(caller.finish()) << caller.ended() << " of " << kCalls << " have ended";
  for (const auto& call : caller.calls()) {
    ASSERT_TRUE(Caller::is_right(*call)) << call->order_id << ": " << call->status.message();
    ASSERT_TRUE(is_filled(call->request.bytes().subspan(sizeof(Order)), call->order_id));
  }
  for (uint64_t id = 0; id < kCalls; id++) ASSERT_EQ(server.board().handled_by_id[id], 1) << id;
  EXPECT_EQ(server.board().damaged, 0u);
  EXPECT_GT(faults_of(caller.counters()), 0u);
}

TEST_P(Faults, large_messages_arrive_whole) {
  Peer server(settings(3));
  Caller caller(settings(4));
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 6; id++)
    caller.send_order(session, kWork, {id, id % 2 == 0 ? 3'000'000u : 8u, 0}, 2'000'000);
  ASSERT_TRUE(caller.finish()) << caller.ended() << " have ended";
  for (const auto& call : caller.calls()) ASSERT_TRUE(Caller::is_right(*call)) << call->status.message();
  for (uint64_t id = 0; id < 6; id++) ASSERT_EQ(server.board().handled_by_id[id], 1) << id;
  EXPECT_EQ(server.board().damaged, 0u);
}

TEST_P(Faults, calls_that_end_early_run_at_most_once) {
  Peer server(settings(5));
  Caller caller(settings(6));
  const tern::Session session = caller.open(server.uri());
  for (uint64_t id = 0; id < 300; id++) {
    tern::CallOptions options;
    if (id % 3 == 0) options.deadline = std::chrono::microseconds(100 + id * 20);
    Call* call = caller.send_order(session, kWork, {id, static_cast<uint32_t>(id * 50), id % 4 == 0 ? 5000u : 0u},
                                   sizeof(Order) + id * 40, options);
    if (id % 5 == 0) {
      caller.run_for(std::chrono::microseconds(id));
      caller.cancel(call);
    }
  }
  ASSERT_TRUE(caller.finish()) << caller.ended() << " of 300 have ended";
  for (const auto& call : caller.calls()) {
    const bool is_expected =
        Caller::is_right(*call) || call->code() == Code::kDeadline || call->code() == Code::kCancelled;
    EXPECT_TRUE(is_expected) << call->order_id << ": " << call->status.message();
    fill(call->request.bytes(), 99);
  }
  for (uint64_t id = 0; id < 300; id++) {
    EXPECT_LE(server.board().handled_by_id[id], 1) << id;
    if (caller.calls()[id]->status.ok()) {
      EXPECT_EQ(server.board().handled_by_id[id], 1) << id;
    }
  }
  EXPECT_EQ(server.board().damaged, 0u);
  // All slots are free again.
  const size_t before = caller.calls().size();
  for (uint64_t id = 400; id < 450; id++) caller.send_order(session, kWork, {id, 100, 0});
  ASSERT_TRUE(caller.finish());
  for (size_t i = before; i < caller.calls().size(); i++) EXPECT_TRUE(Caller::is_right(*caller.calls()[i]));
}

class Corruption : public OverTransports {};
E2E_OVER_TRANSPORTS(Corruption);

/// Bits flip above every checksum, so contents and counts have no meaning. No process crashes, every call ends, and a
/// client with a sound link can still use the server.
TEST_P(Corruption, ends_every_call_and_harms_no_sound_session) {
  // A damaged request may ask for an answer in an hour, or name a handler that keeps it. The setting prevents both.
  const Settings prompt = settings().with("answer_at_once", 1);
  const Settings corrupt = merge(prompt, {{"corrupt", "0.02"}});
  Peer server(corrupt.with("seed", 7));
  Peer sound_server(prompt);
  uint64_t faults = 0, calls = 0;
  for (uint64_t seed = 8; seed < 11; seed++) {
    Caller caller(corrupt.with("seed", seed));
    for (Peer* peer : {&server, &sound_server}) {
      const tern::Session session = caller.connect(peer->uri(), {.connect_timeout = std::chrono::seconds(2)});
      for (uint64_t id = 0; id < 400; id++) {
        const size_t size_max = id % 40 == 0 ? 200'000 : id % 5 == 0 ? 15'000 : 300;
        Call* call = caller.send_order(session, kWork, {id, static_cast<uint32_t>(pattern_word(1, id) % size_max), 0},
                                       sizeof(Order) + pattern_word(2, id) % size_max);
        if (call == nullptr) break;  // the session has ended already
      }
      ASSERT_TRUE(caller.finish()) << caller.ended() << " of " << caller.calls().size() << " have ended";
    }
    faults += faults_of(caller.counters());
    calls += caller.calls().size();
  }
  EXPECT_GT(faults, 0u);
  EXPECT_GT(calls, 0u);
  Caller sound(prompt);
  const tern::Session session = sound.open(sound_server.uri());
  for (uint64_t id = 1000; id < 1050; id++) sound.send_order(session, kWork, {id, 5000, 0}, 5000);
  ASSERT_TRUE(sound.finish());
  for (const auto& call : sound.calls()) EXPECT_TRUE(Caller::is_right(*call)) << call->status.message();
}
