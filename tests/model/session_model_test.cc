// The two ends of a session against each other: every order of events in small worlds, and long random walks in larger
// ones. A world is explored with a growing number of surprises (a drop, a timeout, a refused send, ...) until its
// budget of states is used up. The test prints which numbers of surprises were explored exhaustively.
// TERN_MODEL_STATES=n sets the budget for each world (5 million states for each take less than an hour of CPU time for
// all). TERN_MODEL_SEED=n walks that seed and prints its steps. TERN_MODEL_WALKS=n sets the number of walks.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

#include "model/session_world.h"

namespace tern::model {
namespace {

uint64_t option(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

struct Action {
  enum class Kind : uint8_t {
    kDeliver,
    kDeliverHeld,
    kDeliverRefused,
    kDeliverTwice,
    kDeliverTorn,
    kDrop,
    kTick,
    kPause,
    kRemap,
    kReturnHeld,
    kAnswer,
    kCancel
  };
  Kind kind;
  uint32_t index;
};

const char* name_of(Action::Kind kind) {
  static constexpr const char* kNames[] = {"deliver",
                                           "deliver and hold the answer",
                                           "deliver and refuse the answer",
                                           "deliver a copy of",
                                           "deliver torn",
                                           "drop",
                                           "tick",
                                           "pause",
                                           "the NAT forgets",
                                           "end the wait of a credit return",
                                           "answer call",
                                           "cancel call"};
  return kNames[static_cast<size_t>(kind)];
}

/// The path that led to a crash, printed by the handler of SIGABRT as well.
std::vector<Action> g_path;

void print_path(const WorldOptions& options, const std::vector<Action>& path);
const WorldOptions* g_options = nullptr;

void on_abort(int) {
  std::signal(SIGABRT, SIG_DFL);
  std::vector<Action> path = g_path;
  if (!path.empty()) path.pop_back();  // the last step is the one that aborts
  if (g_options != nullptr) print_path(*g_options, path);
  if (!g_path.empty()) {
    std::fprintf(stderr, "  then, fatally: %s %u\n", name_of(g_path.back().kind), g_path.back().index);
  }
}

void apply(World& world, const Action& action) {
  switch (action.kind) {
    case Action::Kind::kDeliver:
      return world.deliver(action.index, false, World::Delivery::kWhole);
    case Action::Kind::kDeliverHeld:
      return world.deliver(action.index, false, World::Delivery::kHeld);
    case Action::Kind::kDeliverRefused:
      return world.deliver(action.index, false, World::Delivery::kRefused);
    case Action::Kind::kDeliverTwice:
      return world.deliver(action.index, true, World::Delivery::kWhole);
    case Action::Kind::kDeliverTorn:
      return world.deliver(action.index, false, World::Delivery::kTorn);
    case Action::Kind::kDrop:
      return world.drop(action.index);
    case Action::Kind::kTick:
      return world.tick();
    case Action::Kind::kPause:
      return world.pause();
    case Action::Kind::kRemap:
      return world.remap();
    case Action::Kind::kReturnHeld:
      return world.return_held();
    case Action::Kind::kAnswer:
      return world.answer(action.index);
    case Action::Kind::kCancel:
      return world.cancel(action.index);
  }
}

std::string describe(const World::Packet& packet) {
  static constexpr const char* kKinds[] = {"?",         "request", "rfr",      "probe", "cancel",    "report",
                                           "pathprobe", "?",       "response", "cr",    "cancelled", "pathreply"};
  const wire::Header& h = packet.header;
  char text[160];
  std::snprintf(text, sizeof(text), "%s #%u request %x w2 %llx, %zu B", kKinds[static_cast<size_t>(h.kind())],
                h.number(), h.request_number(), static_cast<unsigned long long>(h.w2), packet.payload.size());
  return text;
}

void print_path(const WorldOptions& options, const std::vector<Action>& path) {
  World world(options);
  for (const Action& action : path) {
    const bool is_call = action.kind == Action::Kind::kAnswer || action.kind == Action::Kind::kCancel;
    const bool is_time = action.kind >= Action::Kind::kTick && !is_call;
    std::fprintf(stderr, "  %s %s\n", name_of(action.kind),
                 is_call   ? std::to_string(action.index).c_str()
                 : is_time ? ""
                           : describe(world.in_flight()[action.index]).c_str());
    apply(world, action);
    if (is_time) {
      std::fprintf(stderr, "    now %llu us\n", static_cast<unsigned long long>(world.now_ns() / 1000));
    }
  }
  for (const World::Packet& packet : world.in_flight()) {
    std::fprintf(stderr, "  in flight: %s\n", describe(packet).c_str());
  }
}

/// Explores every order of actions, depth first, and continues only once from each state. The state of each machine is
/// a function of its inputs, so that equal histories, packets in flight and budgets are equal states.
class Explorer {
 public:
  explicit Explorer(const WorldOptions& options) : options_(options) { g_options = &options_; }
  ~Explorer() {
    g_options = nullptr;
    g_path.clear();
  }

  /// `surprises` is the number of events besides the delivery of packets in any order and answers: a drop, a duplicate,
  /// a lost lease, a delayed or refused answer, a timeout, a pause, a cancel. False: `states_max` was reached before
  /// all states were explored, or a promise was broken.
  bool run(uint32_t surprises, size_t states_max) {
    g_path.clear();
    seen_.clear();
    ends_ = 0;
    states_max_ = states_max;
    visit(std::make_unique<World>(options_), surprises);
    const bool is_exhausted = seen_.size() < states_max_;
    std::printf("             %u surprises: %zu states, %llu ends, %s\n", surprises, seen_.size(),
                static_cast<unsigned long long>(ends_), is_exhausted ? "exhausted" : "cut off");
    return is_exhausted && !has_failed_;
  }
  size_t states() const { return seen_.size(); }
  bool has_failed() const { return has_failed_; }

 private:
  static constexpr uint32_t kHealStepsMax = 2000;

  struct Choice {
    Action action;
    uint32_t left;  ///< surprises that may still happen
  };

  static std::vector<Choice> choices(const World& world, uint32_t surprises) {
    std::vector<Choice> result;
    const auto add = [&](Action::Kind kind, size_t index, uint32_t cost) {
      if (surprises >= cost) result.push_back({{kind, static_cast<uint32_t>(index)}, surprises - cost});
    };
    const auto& packets = world.in_flight();
    for (size_t i = 0; i < packets.size(); i++) {
      if (std::find(packets.begin(), packets.begin() + static_cast<ptrdiff_t>(i), packets[i]) !=
          packets.begin() + static_cast<ptrdiff_t>(i)) {
        continue;
      }
      add(Action::Kind::kDeliver, i, 0);
      add(Action::Kind::kDeliverHeld, i, 1);
      add(Action::Kind::kDeliverRefused, i, 1);
      add(Action::Kind::kDeliverTwice, i, 1);
      if (World::can_be_torn(packets[i])) add(Action::Kind::kDeliverTorn, i, 1);
      add(Action::Kind::kDrop, i, 1);
    }
    for (size_t call = 0; call < world.calls().size(); call++) {
      if (world.can_answer(call)) add(Action::Kind::kAnswer, call, 0);
      if (world.can_cancel(call)) add(Action::Kind::kCancel, call, 1);
    }
    if (world.can_return()) add(Action::Kind::kReturnHeld, 0, 0);
    if (!world.is_over()) {
      add(Action::Kind::kTick, 0, 1);
      add(Action::Kind::kPause, 0, 1);
      if (world.can_remap()) add(Action::Kind::kRemap, 0, 1);
    }
    return result;
  }

  void visit(std::unique_ptr<World> world, uint32_t surprises) {
    const std::vector<Choice> all = choices(*world, surprises);
    if (all.empty()) {
      ends_++;
      if (!world->heal(kHealStepsMax)) fail(world->error().empty() ? "not over after healing" : world->error());
      return;
    }
    for (const Choice& choice : all) {
      if (has_failed_ || seen_.size() >= states_max_) return;
      if (world == nullptr) {
        world = std::make_unique<World>(options_);
        for (const Action& action : g_path) apply(*world, action);
      }
      g_path.push_back(choice.action);
      apply(*world, choice.action);
      if (!world->error().empty()) {
        fail(world->error());
      } else if (seen_.insert(mix(world->fingerprint(), choice.left)).second) {
        visit(std::move(world), choice.left);
      }
      world = nullptr;
      g_path.pop_back();
    }
  }
  void fail(const std::string& what) {
    has_failed_ = true;
    ADD_FAILURE() << what;
    std::fprintf(stderr, "the path to: %s\n", what.c_str());
    print_path(options_, g_path);
  }

  WorldOptions options_;
  std::unordered_set<uint64_t> seen_;
  size_t states_max_ = 0;
  uint64_t ends_ = 0;
  bool has_failed_ = false;
};

struct Scenario {
  const char* name;
  WorldOptions options;
  uint32_t surprises_min;  ///< explored exhaustively whatever the budget, except under a sanitizer
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

WorldOptions world_of(uint8_t window, std::vector<uint8_t> credits, std::vector<CallPlan> calls) {
  WorldOptions options;
  options.window = window;
  options.start_credits = credits[0];
  options.credit_limits = std::move(credits);
  options.calls = std::move(calls);
  return options;
}

WorldOptions behind_a_nat(WorldOptions options) {
  options.has_nat = true;
  return options;
}

WorldOptions two_credits(WorldOptions options) {
  options.payload_bytes_max = 16;
  options.credit_unit = 5;
  return options;
}

/// Packets of 64 B may pass besides those of 40 B.
WorldOptions large_packets(WorldOptions options) {
  options.payload_bytes_max = 40;
  options.route_payload_bytes = 64;
  options.credit_unit = 5;
  return options;
}

WorldOptions at_once(WorldOptions options) {
  options.answers_at_once = true;
  return options;
}

WorldOptions holding(WorldOptions options) {
  options.holds_returns = true;
  return options;
}

WorldOptions opening(WorldOptions options) {
  options.opens_in_the_world = true;
  return options;
}

// Packets have 4 bytes: sizes of 4, 8 and 11 bytes are one, two and three packets. The worlds with the fewest states in
// their least run come first.
const Scenario kScenarios[] = {
    {"one_short_call", world_of(1, {1}, {{4, 3}}), 2},
    {"one_slow_call", world_of(1, {1}, {{4, 3, true}}), 2},
    {"opening", opening(world_of(1, {1}, {{4, 3}})), 2},
    {"opening_a_wide_window", opening(world_of(9, {1}, {{4, 3}})), 1},
    {"opening_behind_a_nat", behind_a_nat(opening(world_of(1, {1}, {{4, 3}}))), 1},
    {"behind_a_nat", behind_a_nat(world_of(1, {1}, {{4, 3, true}})), 0},
    {"no_room", world_of(1, {1}, {{8, 3, false, false, true}, {4, 3, false, false, true}}), 2},
    {"empty_messages", world_of(1, {1}, {{0, 0}, {0, 0}}), 2},
    {"a_slot_reused", world_of(1, {1}, {{4, 3}, {2, 4}}), 2},
    {"answered_at_once", at_once(world_of(1, {1}, {{4, 3}, {2, 4}})), 2},
    {"too_long_to_be_answered_at_once", at_once(world_of(1, {1}, {{4, 8}, {4, 3}})), 1},
    {"two_slots_answered_at_once", at_once(world_of(2, {2}, {{4, 3}, {2, 4, true}})), 0},
    {"a_credit_return_that_waits", holding(world_of(1, {2}, {{4, 3, true}, {2, 4, true}})), 1},
    {"two_credit_returns_that_wait", holding(world_of(2, {4}, {{4, 3, true}, {2, 8, true}, {3, 3}})), 0},
    {"a_response_of_two_packets", world_of(1, {1}, {{4, 8}}), 2},
    {"refused", world_of(1, {1}, {{4, 3, false, true}, {8, 3, true, true}}), 2},
    {"a_deadline", world_of(1, {1}, {{4, 3, true, false, false, 12'000'000}, {4, 3}}), 2},
    {"a_busy_slot_given_up", world_of(1, {1}, {{8, 8, true, false, false, 12'000'000}, {4, 8}}), 1},
    {"a_slot_reused_three_times", world_of(1, {1}, {{4, 3, true}, {2, 4, true}, {1, 1}}), 1},
    {"a_request_of_two_packets", world_of(1, {2}, {{8, 3}}), 1},
    {"a_response_of_three_packets", world_of(1, {2}, {{4, 11}}), 2},
    {"three_packets_both_ways_one_credit", world_of(1, {1}, {{11, 11}}), 2},
    {"two_slots_one_credit", world_of(2, {1}, {{4, 3, true}, {2, 4}, {3, 3}}), 0},
    {"limits_that_change", world_of(2, {3, 1, 2}, {{8, 3}, {4, 8}}), 0},
    {"packets_of_two_credits", two_credits(world_of(2, {1}, {{12, 3}, {4, 12}})), 0},
    {"packets_of_two_credits_share_them", two_credits(world_of(1, {3}, {{28, 3}})), 1},
    {"a_search_for_larger_packets", large_packets(world_of(1, {12}, {{41, 3}, {100, 3}})), 0},
    {"a_response_of_larger_packets", large_packets(world_of(1, {12}, {{4, 41}, {4, 100}})), 0},
    {"a_whole_response", large_packets(world_of(1, {12}, {{4, 41}, {4, 60}, {4, 50}})), 0},
    {"short_and_long_share_credits", world_of(2, {2}, {{8, 8}, {4, 3, true}}), 0},
    {"a_request_of_three_packets", world_of(1, {3}, {{11, 3, true}}), 0},
    {"two_slots", world_of(2, {2}, {{4, 3}, {2, 4}}), 1},
};

class SessionModel : public testing::TestWithParam<Scenario> {};

TEST_P(SessionModel, every_order_of_events) {
  std::signal(SIGABRT, on_abort);
  std::signal(SIGSEGV, on_abort);
  constexpr uint32_t kSurprisesMax = 12;
#ifdef TERN_IS_SANITIZED
  constexpr bool kExhausts = false;  // the budget reaches each line of code, and other builds explore exhaustively
#else
  constexpr bool kExhausts = true;
#endif
  const uint64_t budget = option("TERN_MODEL_STATES", kExhausts ? 20'000 : 4'000);
  Explorer explorer(GetParam().options);
  size_t states = 0;
  for (uint32_t surprises = 0; surprises <= kSurprisesMax && states < budget; surprises++) {
    const bool must = kExhausts && surprises <= GetParam().surprises_min;
    const bool is_exhausted = explorer.run(surprises, must ? SIZE_MAX : budget - states);
    states += explorer.states();
    ASSERT_FALSE(explorer.has_failed());
    if (must) {
      ASSERT_TRUE(is_exhausted);
    }
  }
  RecordProperty("states", std::to_string(states));
  EXPECT_GT(states, 80u);  // the world did not stop early
}

INSTANTIATE_TEST_SUITE_P(worlds, SessionModel, testing::ValuesIn(kScenarios),
                         [](const auto& scenario) { return std::string(scenario.param.name); });

// ---- Larger worlds, random walks ----

class Walk {
 public:
  static constexpr uint32_t kPayloadMax = 16;

  explicit Walk(uint64_t seed) : random_(seed) {}

  WorldOptions options() {
    WorldOptions options;
    options.window = static_cast<uint8_t>(1 + below(8));
    options.payload_bytes_max = kPayloadMax;
    options.credit_limits.clear();
    for (uint64_t i = 1 + below(3); i > 0; i--) options.credit_limits.push_back(static_cast<uint8_t>(1 + below(32)));
    options.start_credits = options.credit_limits[0];
    if (below(2) == 0) options.credit_unit = 5;  // a packet of more than 8 B costs two
    if (options.credit_unit != 0 && below(2) == 0) options.route_payload_bytes = static_cast<uint32_t>(64 + below(256));
    options.bulk_packets = static_cast<uint32_t>(1 + below(32));
    options.response_packets = static_cast<uint32_t>(1 + below(64));
    options.downlink_packets = static_cast<uint32_t>(below(2) * (1 + below(32)));
    options.marks_one_in = static_cast<uint32_t>(below(2) * (1 + below(8)));
    options.delivery_ns = below(2) * below(5000);
    options.opens_in_the_world = below(4) == 0;
    options.has_nat = below(4) == 0;
    options.first_request_count = below(2) != 0 ? 0x3fffff0 : static_cast<uint32_t>(below(1u << 26));
    const uint64_t all_alike = below(4) == 0 ? 17 + below(100) : 0;  // so that most responses may come whole
    for (uint64_t i = 10 + below(40); i > 0; i--) {
      const uint64_t response = all_alike != 0 && below(8) != 0 ? all_alike : size();
      options.calls.push_back({static_cast<uint32_t>(size()), static_cast<uint32_t>(response), below(3) == 0,
                               below(8) == 0, below(16) == 0, below(8) == 0 ? 1 + below(30'000'000) : 0});
    }
    options.answers_at_once = below(2) != 0;
    options.holds_returns = below(2) != 0;
    return options;
  }

  /// False: a promise was broken, or some calls had not ended after healing.
  bool run(World& world, bool is_loud) {
    const uint64_t drops = below(2) * below(200), duplicates = below(2) * below(200), torn = below(2) * below(100),
                   held = below(2) * below(400), refused = below(2) * below(200),
                   pauses = below(4) == 0 ? below(100) : 0, reorders = below(2) * below(500),
                   cancels = below(2) * below(10), remaps = below(2) * below(30), turns = below(2) * below(20);
    bool is_narrow = false;  // larger packets than those with which the session has opened are lost
    for (uint32_t step = 0; step < 4000 && world.error().empty() && !world.is_over(); step++) {
      Action action{Action::Kind::kTick, 0};
      const size_t running = pick_call(world, &World::can_answer), open = pick_call(world, &World::can_cancel);
      if (world.can_return() && below(20) == 0) {
        action = {Action::Kind::kReturnHeld, 0};
      } else if (running < world.calls().size() && below(10) == 0) {
        action = {Action::Kind::kAnswer, static_cast<uint32_t>(running)};
      } else if (open < world.calls().size() && below(1000) < cancels) {
        action = {Action::Kind::kCancel, static_cast<uint32_t>(open)};
      } else if (world.can_remap() && below(1000) < remaps) {
        action = {Action::Kind::kRemap, 0};
      } else if (!world.in_flight().empty() && below(30) != 0) {
        const uint64_t index = below(1000) < reorders ? below(world.in_flight().size()) : 0;
        const bool can_be_torn = World::can_be_torn(world.in_flight()[index]);
        if (below(1000) < turns) is_narrow = !is_narrow;
        const bool is_too_long = is_narrow && world.in_flight()[index].payload.size() > kPayloadMax &&
                                 world.in_flight()[index].header.kind() != wire::Kind::kCr;
        action = {is_too_long || below(1000) < drops  ? Action::Kind::kDrop
                  : below(1000) < duplicates          ? Action::Kind::kDeliverTwice
                  : can_be_torn && below(1000) < torn ? Action::Kind::kDeliverTorn
                  : below(1000) < held                ? Action::Kind::kDeliverHeld
                  : below(1000) < refused             ? Action::Kind::kDeliverRefused
                                                      : Action::Kind::kDeliver,
                  static_cast<uint32_t>(index)};
      }
      if (action.kind == Action::Kind::kTick && below(1000) < pauses) action.kind = Action::Kind::kPause;
      if (is_loud) {
        const bool is_of_packet = action.kind < Action::Kind::kTick;
        std::fprintf(stderr, "%5u %s %u %s\n", step, name_of(action.kind), action.index,
                     is_of_packet ? describe(world.in_flight()[action.index]).c_str() : "");
      }
      apply(world, action);
    }
    return world.heal(20'000) && world.error().empty();
  }

 private:
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  uint64_t size() {
    switch (below(4)) {
      case 0:
        return below(50 * 16 + 1);
      case 1:
        return 16 * below(5);
      default:
        return below(17);
    }
  }
  size_t pick_call(const World& world, bool (World::*is_candidate)(size_t) const) {
    std::vector<size_t> candidates;
    for (size_t i = 0; i < world.calls().size(); i++) {
      if ((world.*is_candidate)(i)) candidates.push_back(i);
    }
    return candidates.empty() ? world.calls().size() : candidates[below(candidates.size())];
  }

  std::mt19937_64 random_;
};

uint64_t g_seed = 0;
void on_walk_abort(int) {
  std::signal(SIGABRT, SIG_DFL);
  std::fprintf(stderr, "TERN_MODEL_SEED=%llu\n", static_cast<unsigned long long>(g_seed));
}

TEST(SessionModelWalk, random_faults_then_healing) {
  std::signal(SIGABRT, on_walk_abort);
  const char* one = std::getenv("TERN_MODEL_SEED");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
#ifdef TERN_IS_SANITIZED
  constexpr uint64_t kWalks = 1'000;  // enough to run all code, which shows bad accesses; other builds walk further
#else
  constexpr uint64_t kWalks = 5'000;
#endif
  const uint64_t count = one != nullptr ? 1 : option("TERN_MODEL_WALKS", kWalks);
  uint64_t packets = 0, large_requests = 0, large_responses = 0, whole_responses = 0;
  for (uint64_t seed = first; seed < first + count; seed++) {
    g_seed = seed;
    Walk walk(seed);
    World world(walk.options());
    const bool is_good = walk.run(world, one != nullptr);
    packets += world.packets_sent();
    large_requests += world.large_requests();
    large_responses += world.large_responses();
    whole_responses += world.whole_responses();
    ASSERT_TRUE(is_good) << (world.error().empty() ? "not over after healing" : world.error())
                         << "; TERN_MODEL_SEED=" << seed;
  }
  std::printf("             %llu walks, %llu packets, larger ones: %llu of requests, %llu of responses, %llu whole\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(packets),
              static_cast<unsigned long long>(large_requests), static_cast<unsigned long long>(large_responses),
              static_cast<unsigned long long>(whole_responses));
  if (count > 100) {
    EXPECT_GT(large_requests, count);
    EXPECT_GT(large_responses, count);
    EXPECT_GT(whole_responses, count / 4);
  }
}

}  // namespace
}  // namespace tern::model
