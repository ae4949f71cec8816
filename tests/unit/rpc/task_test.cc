// Tasks that wait for each other, without an endpoint. The tests resume the waiting tasks.
#include <tern/task.h>

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include <tern/coroutine.h>

namespace tern {
namespace {

/// An event that a coroutine can wait for.
class Event {
 public:
  bool await_ready() const { return is_set_; }
  void await_suspend(std::coroutine_handle<> coroutine) { waiting_.push_back(coroutine); }
  void await_resume() const {}
  void set() {
    is_set_ = true;
    for (const auto coroutine : std::exchange(waiting_, {})) coroutine.resume();
  }

 private:
  bool is_set_ = false;
  std::vector<std::coroutine_handle<>> waiting_;
};

Task<int> number_after(Event& event, int number) {
  co_await event;
  co_return number;
}
Task<Status> status_after(Event& event, Status status) {
  co_await event;
  co_return status;
}
Task<std::unique_ptr<int>> owner_after(Event& event, std::shared_ptr<int> guard) {
  co_await event;
  co_return std::make_unique<int>(*guard);
}

TEST(Task, runs_at_once_and_gives_its_result) {
  Event event;
  event.set();
  Task<int> task = number_after(event, 3);
  ASSERT_TRUE(task.is_done());
  EXPECT_EQ(task.take().value(), 3);
}

TEST(Task, waiting_coroutine_goes_on_when_the_task_ends) {
  Event event;
  int sum = 0;
  bool has_ended = false;
  [](Event& on, int& out, bool& ended) -> Detached {
    Task<int> first = number_after(on, 1);
    out += (co_await first).value();
    out += (co_await number_after(on, 2)).value();  // this task is done at once
    ended = true;
  }(event, sum, has_ended);
  EXPECT_EQ(sum, 0);
  event.set();
  EXPECT_EQ(sum, 3);
  EXPECT_TRUE(has_ended);
}

TEST(Task, task_of_void_gives_a_status) {
  Event event;
  Status outcome(Code::kMisuse, "not yet");
  [](Event& on, Status& out) -> Detached {
    const auto wait = [](Event& waited) -> Task<> { co_await waited; };
    out = co_await wait(on);
  }(event, outcome);
  event.set();
  EXPECT_TRUE(outcome.ok());
  static_assert(std::is_same_v<TaskResult<Status>, Status>);
  static_assert(std::is_same_v<TaskResult<Result<int>>, Result<int>>);
  static_assert(std::is_same_v<TaskResult<int>, Result<int>>);
}

TEST(Task, moves_its_value_out) {
  Event event;
  auto guard = std::make_shared<int>(9);
  auto task = owner_after(event, guard);
  EXPECT_EQ(guard.use_count(), 2);
  event.set();
  EXPECT_EQ(*task.take().value(), 9);
  task = {};
  EXPECT_EQ(guard.use_count(), 1) << "its frame is gone";
}

TEST(Task, destroyed_before_its_end_goes_on_and_frees_its_frame) {
  Event event;
  auto guard = std::make_shared<int>(9);
  {
    auto task = owner_after(event, guard);
    EXPECT_FALSE(task.is_done());
  }
  EXPECT_EQ(guard.use_count(), 2);
  event.set();
  EXPECT_EQ(guard.use_count(), 1);
}

TEST(Task, task_without_a_coroutine_is_done_with_the_reason) {
  Task<int> none;
  EXPECT_TRUE(none.is_done());
  EXPECT_EQ(none.take().code(), Code::kNoMemory);
  EXPECT_EQ(Task<>().take().code(), Code::kNoMemory);
  Code code = Code::kOk;
  [](Code& out) -> Detached { out = (co_await Task<int>()).code(); }(code);
  EXPECT_EQ(code, Code::kNoMemory);
}

TEST(Task, chain_of_tasks_ends_from_the_inside) {
  Event event;
  struct Chain {
    static Task<int> depth(Event& on, int n) {
      if (n == 0) co_return (co_await number_after(on, 1)).value();
      Task<int> inner = depth(on, n - 1);
      co_return (co_await inner).value() + 1;
    }
  };
  auto task = Chain::depth(event, 100);
  EXPECT_FALSE(task.is_done());
  event.set();
  EXPECT_EQ(task.take().value(), 101);
}

TEST(WhenAll, waits_for_the_last_and_gives_all_results) {
  Event first, second;
  int sum = 0;
  [](Event& one, Event& two, int& out) -> Detached {
    auto a = number_after(one, 1);
    auto b = status_after(two, {});
    auto c = number_after(one, 10);
    auto [number, status, other] = co_await when_all(a, b, c);
    EXPECT_TRUE(status.ok());
    out = number.value() + other.value();
  }(first, second, sum);
  first.set();
  EXPECT_EQ(sum, 0);
  second.set();
  EXPECT_EQ(sum, 11);
}

TEST(WhenAll, of_tasks_that_are_done_does_not_wait) {
  Event event;
  event.set();
  int sum = 0;
  [](Event& on, int& out) -> Detached {
    auto a = number_after(on, 1);
    Task<int> none;
    auto [number, missing] = co_await when_all(a, none);
    EXPECT_EQ(missing.code(), Code::kNoMemory);
    std::vector<Task<int>> empty;
    co_await when_all(empty);
    out = number.value();
  }(event, sum);
  EXPECT_EQ(sum, 1);
}

TEST(WhenAll, of_a_container) {
  std::vector<Event> events(5);
  int sum = 0;
  [](std::vector<Event>& all, int& out) -> Detached {
    std::vector<Task<int>> tasks;
    for (Event& event : all) tasks.push_back(number_after(event, 7));
    co_await when_all(tasks);
    for (auto& task : tasks) out += task.take().value();
  }(events, sum);
  for (const size_t i : {3u, 0u, 4u, 1u, 2u}) {
    EXPECT_EQ(sum, 0);
    events[i].set();
  }
  EXPECT_EQ(sum, 35);
}

/// Waits for two of three statuses.
struct Vote {
  Event events[3];
  int has_quorum = -1;
  size_t done = 0;

  Detached begin(Status a, Status b, Status c) {
    std::vector<Task<Status>> tasks;
    tasks.push_back(status_after(events[0], a));
    tasks.push_back(status_after(events[1], b));
    tasks.push_back(status_after(events[2], c));
    has_quorum = co_await quorum(tasks, 2);
    for (const auto& task : tasks) done += task.is_done();
  }
};
constexpr Status kFailed(Code::kPeerUnreachable, "gone");

TEST(Quorum, is_reached_before_the_last_task_ends) {
  Vote vote;
  vote.begin({}, {}, {});
  vote.events[2].set();
  EXPECT_EQ(vote.has_quorum, -1);
  vote.events[0].set();
  EXPECT_EQ(vote.has_quorum, 1);
  EXPECT_EQ(vote.done, 2u);
  vote.events[1].set();  // the last task continues alone
}

TEST(Quorum, failures_do_not_count) {
  Vote vote;
  vote.begin(kFailed, {}, {});
  vote.events[0].set();
  vote.events[1].set();
  EXPECT_EQ(vote.has_quorum, -1);
  vote.events[2].set();
  EXPECT_EQ(vote.has_quorum, 1);
}

TEST(Quorum, ends_as_soon_as_it_cannot_be_reached) {
  Vote vote;
  vote.begin(kFailed, {}, kFailed);
  vote.events[0].set();
  EXPECT_EQ(vote.has_quorum, -1);
  vote.events[2].set();
  EXPECT_EQ(vote.has_quorum, 0);
  EXPECT_EQ(vote.done, 2u);
  vote.events[1].set();
}

TEST(Quorum, of_ended_and_empty_tasks_does_not_wait) {
  Event event, later;
  event.set();
  int rounds = 0;
  [](Event& now, Event& on, int& out) -> Detached {
    std::vector<Task<int>> tasks;
    tasks.push_back(number_after(now, 1));
    tasks.push_back(number_after(on, 2));
    tasks.push_back({});
    EXPECT_TRUE(co_await quorum(tasks, 0));
    EXPECT_TRUE(co_await quorum(tasks, 1));
    EXPECT_FALSE(co_await quorum(tasks, 3)) << "one never began";
    EXPECT_FALSE(co_await quorum(tasks, 1, [](int number) { return number > 2; })) << "of those that may end";
    out++;
  }(event, later, rounds);
  EXPECT_EQ(rounds, 0) << "the last quorum waits for the second task";
  later.set();
  EXPECT_EQ(rounds, 1);
}

TEST(Quorum, the_same_tasks_can_be_waited_for_again) {
  Vote vote;
  int all = 0;
  [](Vote& of, int& out) -> Detached {
    std::vector<Task<Status>> tasks;
    for (Event& event : of.events) tasks.push_back(status_after(event, {}));
    EXPECT_TRUE(co_await quorum(tasks, 1));
    out = 1;
    co_await when_all(tasks);
    out = 3;
  }(vote, all);
  vote.events[1].set();
  EXPECT_EQ(all, 1);
  vote.events[0].set();
  EXPECT_EQ(all, 1);
  vote.events[2].set();
  EXPECT_EQ(all, 3);
}

TEST(TaskDeathTest, two_coroutines_wait_for_one_task) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Event event;
        auto task = number_after(event, 1);
        const auto wait = [](Task<int>& on) -> Detached { (void)co_await on; };
        wait(task);
        wait(task);
      },
      "two coroutines wait for one task");
}

/// One of the tasks has ended, and its result is for the first coroutine.
TEST(TaskDeathTest, a_second_coroutine_wants_the_result_of_one_that_waits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Event first;
        Event second;
        auto a = number_after(first, 1);
        auto b = number_after(second, 2);
        [](Task<int>& x, Task<int>& y) -> Detached { (void)co_await when_all(x, y); }(a, b);
        first.set();
        [](Task<int>& on) -> Detached { (void)co_await on; }(a);
      },
      "two coroutines wait for one task");
}

Task<> end_after(Event& event) { co_await event; }

TEST(Task, destroyed_while_a_coroutine_waits_still_gives_its_result) {
  Event event;
  auto task = std::make_unique<Task<std::unique_ptr<int>>>(owner_after(event, std::make_shared<int>(5)));
  int result = 0;
  [](Task<std::unique_ptr<int>>& waited_for, int& out) -> Detached { out = **co_await waited_for; }(*task, result);
  task.reset();
  event.set();
  EXPECT_EQ(result, 5);
}

TEST(Task, moved_while_a_coroutine_waits_still_gives_its_result) {
  Event event;
  Task<int> task = number_after(event, 5);
  int result = 0;
  [](Task<int>& waited_for, int& out) -> Detached { out = (co_await waited_for).value(); }(task, result);
  const Task<int> moved = std::move(task);
  event.set();
  EXPECT_EQ(result, 5);
  EXPECT_TRUE(moved.is_done());
}

/// One of the tasks is destroyed before its end, one after it, and one had ended before the wait.
TEST(Task, when_all_gives_the_results_of_destroyed_tasks) {
  Event first;
  Event second;
  Event third;
  second.set();
  auto early = std::make_unique<Task<int>>(number_after(first, 1));
  auto done = std::make_unique<Task<int>>(number_after(second, 2));
  auto late = std::make_unique<Task<>>(end_after(third));
  int sum = 0;
  [](Task<int>& a, Task<int>& b, Task<>& c, int& out) -> Detached {
    const auto [x, y, z] = co_await when_all(a, b, c);
    out = z.ok() ? *x + *y : 0;
  }(*early, *done, *late, sum);
  done.reset();
  first.set();
  early.reset();
  late.reset();
  EXPECT_EQ(sum, 0);
  third.set();
  EXPECT_EQ(sum, 3);
}

/// The container must not change while a coroutine waits. If it does, nothing that is gone is touched.
TEST(Task, task_that_leaves_the_container_of_a_quorum_frees_itself) {
  Event first;
  Event second;
  std::vector<Task<int>> tasks;
  tasks.push_back(number_after(first, 1));
  tasks.push_back(number_after(second, 2));
  bool has_quorum = false;
  [](std::vector<Task<int>>& of, bool& out) -> Detached { out = co_await quorum(of, 1); }(tasks, has_quorum);
  tasks.pop_back();
  first.set();
  EXPECT_TRUE(has_quorum);
  second.set();
}

}  // namespace
}  // namespace tern
