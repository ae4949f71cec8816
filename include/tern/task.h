// Coroutines that wait for each other: Task, when_all() and quorum(). They need no Endpoint; <tern/coroutine.h> has the
// awaitables of an Endpoint, and includes this. All tasks that wait for each other belong to one thread, usually an
// endpoint's owner. Standard library only.
#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <tern/detail/export.h>
#include <tern/status.h>

namespace tern {

template <class T = void>
class Task;

namespace detail {

/// Names the rule on standard error and aborts.
[[noreturn]] TERN_API void task_has_a_waiter() noexcept;

/// A coroutine that waits for tasks. Part of its frame.
struct TaskGate {
  std::coroutine_handle<> waiting;
  size_t wanted = 0;  ///< number of ends that count and have not come yet
  size_t left = 0;    ///< number of tasks that have not ended
  /// Whether the end of a task counts, by the address of its T. Null: every end counts.
  bool (*counts)(const TaskGate* gate, const void* value) = nullptr;
  /// Whether the waiting coroutine takes the results from the tasks' coroutines, so that it needs no Tasks.
  bool owns_results = false;

  bool is_over() const { return wanted == 0 || wanted > left; }
  void note_end(const void* value) {
    left--;
    if (wanted != 0 && (counts == nullptr || counts(this, value))) wanted--;
  }
  /// The coroutine that runs next.
  std::coroutine_handle<> on_end(const void* value) {
    note_end(value);
    if (!is_over() || !waiting) return std::noop_coroutine();
    return std::exchange(waiting, nullptr);
  }
};

template <class T>
struct TaskPromiseBase;

/// At its end, a task that has neither an owner nor a waiting coroutine frees its frame. Otherwise the frame stays, and
/// the waiting coroutine continues.
template <class Promise>
struct TaskEnd {
  const bool is_alone;
  bool await_ready() const noexcept { return is_alone; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> task) const noexcept {
    Promise& promise = task.promise();
    TaskGate* const gate = promise.gate;
    if (gate == nullptr) return std::noop_coroutine();
    if (!gate->owns_results) promise.gate = nullptr;
    return gate->on_end(promise.value_address());
  }
  void await_resume() const noexcept {}
};

template <class T>
struct TaskPromise {
  TaskGate* gate = nullptr;  ///< null: no coroutine waits, or will take the result
  bool is_detached = false;
  std::optional<T> value;

  Task<T> get_return_object() noexcept;
  static Task<T> get_return_object_on_allocation_failure() noexcept;
  std::suspend_never initial_suspend() noexcept { return {}; }
  TaskEnd<TaskPromise> final_suspend() noexcept { return {is_detached && gate == nullptr}; }
  template <class U>
  requires std::is_constructible_v<T, U&&>
  void return_value(U&& result) { value.emplace(std::forward<U>(result)); }
  [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
  const void* value_address() const noexcept { return &*value; }
};

template <>
struct TaskPromise<void> {
  TaskGate* gate = nullptr;
  bool is_detached = false;

  inline Task<void> get_return_object() noexcept;
  static inline Task<void> get_return_object_on_allocation_failure() noexcept;
  std::suspend_never initial_suspend() noexcept { return {}; }
  TaskEnd<TaskPromise> final_suspend() noexcept { return {is_detached && gate == nullptr}; }
  void return_void() noexcept {}
  [[noreturn]] void unhandled_exception() noexcept { std::terminate(); }
  const void* value_address() const noexcept { return nullptr; }
};

template <class T>
struct TaskResultOf {
  using type = std::conditional_t<std::is_convertible_v<Status, T>, T, Result<T>>;
};
template <>
struct TaskResultOf<void> {
  using type = Status;
};

}  // namespace detail

/// The result of co_await on a Task<T>: Result<T>; T itself if a Status converts to it (Status, Result<U>); Status for
/// void. kNoMemory: there was no memory for the task's frame, and it has not begun.
template <class T>
using TaskResult = typename detail::TaskResultOf<T>::type;

namespace detail {

/// A task's coroutine, or none.
template <class T>
struct TaskRef {
  std::coroutine_handle<TaskPromise<T>> coroutine = nullptr;

  bool is_done() const { return !coroutine || coroutine.done(); }
  const void* value_address() const { return coroutine ? coroutine.promise().value_address() : nullptr; }
  TaskGate*& gate() const { return coroutine.promise().gate; }  ///< only with a coroutine
  /// Task::take().
  TaskResult<T> take() const {
    if (!coroutine) return Status(Code::kNoMemory, "no memory for the frame of a task");
    if constexpr (std::is_void_v<T>) {
      return Status();
    } else {
      return std::move(*coroutine.promise().value);
    }
  }
  /// The same for a gate that owns the results. Frees the frame of a task whose Task was destroyed meanwhile.
  TaskResult<T> take_last() const {
    TaskResult<T> result = take();
    if (coroutine) {
      gate() = nullptr;
      if (coroutine.promise().is_detached) coroutine.destroy();
    }
    return result;
  }
  /// Task::~Task().
  void detach() const {
    if (!coroutine) return;
    const bool is_awaited = gate() != nullptr && gate()->owns_results;
    if (coroutine.done() && !is_awaited) return coroutine.destroy();
    coroutine.promise().is_detached = true;
    if (!is_awaited) gate() = nullptr;
  }
};

}  // namespace detail

/// A coroutine for which another coroutine may wait: `co_await task`, when_all(), quorum(). Like Detached it runs at
/// once up to its first co_await that suspends it. It allocates only its frame. One coroutine at a time may wait for
/// it.
///
/// A Task may be moved and destroyed at any time, except while a coroutine waits for its container: a coroutine that
/// has not ended continues, and frees its frame at its end, or when the coroutine that waits for it has the result.
/// Code outside of coroutines may call is_done(). An exception that leaves the coroutine ends the process.
template <class T>
class [[nodiscard]] Task {
 public:
  /// The coroutine's promise, as the language requires.
  using promise_type = detail::TaskPromise<T>;  // NOLINT(readability-identifier-naming): the language's name

  Task() = default;  ///< no coroutine: is_done(), with kNoMemory
  /// `other` has no coroutine afterwards.
  Task(Task&& other) noexcept : ref_(std::exchange(other.ref_, {})) {}
  /// Releases its own coroutine, as the destructor does. `other` has no coroutine afterwards.
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      ref_.detach();
      ref_ = std::exchange(other.ref_, {});
    }
    return *this;
  }
  ~Task() { ref_.detach(); }

  /// True if the coroutine has ended, or never began.
  bool is_done() const { return ref_.is_done(); }
  /// Moves the result out. Only when is_done(), and once.
  TaskResult<T> take() { return ref_.take(); }
  /// Waits for the end. Gives take().
  auto operator co_await();

  detail::TaskRef<T> ref() const { return ref_; }  ///< for the library

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> coroutine) : ref_{coroutine} {}

  detail::TaskRef<T> ref_;
};

namespace detail {

template <class T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}
template <class T>
Task<T> TaskPromise<T>::get_return_object_on_allocation_failure() noexcept {
  return {};
}
inline Task<void> TaskPromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}
inline Task<void> TaskPromise<void>::get_return_object_on_allocation_failure() noexcept { return {}; }

/// Ends the process if another coroutine waits for the task.
template <class T>
void expect_no_waiter(const TaskRef<T>& task) noexcept {
  if (task.coroutine && task.gate() != nullptr) [[unlikely]]
    task_has_a_waiter();
}
/// Reports the task's end to the gate.
template <class T>
void watch(TaskGate& gate, const TaskRef<T>& task) {
  expect_no_waiter(task);
  if (task.coroutine && (gate.owns_results || !task.is_done())) task.gate() = &gate;
  if (task.is_done()) gate.note_end(task.value_address());
}
template <class T>
void forget(const TaskRef<T>& task) {
  if (!task.is_done()) task.gate() = nullptr;
}

/// Waits for one task.
template <class T>
struct TaskAwaitable {
  TaskRef<T> task;
  TaskGate gate = {};

  bool await_ready() const noexcept {
    expect_no_waiter(task);
    return task.is_done();
  }
  void await_suspend(std::coroutine_handle<> coroutine) noexcept {
    gate.waiting = coroutine;
    gate.wanted = gate.left = 1;
    gate.owns_results = true;
    watch(gate, task);
  }
  TaskResult<T> await_resume() { return task.take_last(); }
};

/// Waits for all tasks.
template <class... Ts>
class AllOf {
 public:
  explicit AllOf(Task<Ts>&... tasks) : tasks_(tasks.ref()...) {}
  AllOf(const AllOf&) = delete;
  AllOf& operator=(const AllOf&) = delete;
  bool await_ready() noexcept {
    gate_.owns_results = true;
    gate_.wanted = gate_.left = sizeof...(Ts);
    std::apply([this](auto&... task) { (watch(gate_, task), ...); }, tasks_);
    return gate_.is_over();
  }
  void await_suspend(std::coroutine_handle<> coroutine) noexcept { gate_.waiting = coroutine; }
  std::tuple<TaskResult<Ts>...> await_resume() {
    return std::apply([](auto&... task) { return std::tuple<TaskResult<Ts>...>(task.take_last()...); }, tasks_);
  }

 private:
  std::tuple<TaskRef<Ts>...> tasks_;
  TaskGate gate_;
};

template <class Tasks>
concept TaskRange = requires(Tasks& tasks) {
  { tasks.begin()->is_done() } -> std::same_as<bool>;
  tasks.begin()->ref();
  tasks.end();
  tasks.size();
};

/// Waits until a number of tasks of a range have ended well, or until that is impossible.
template <class Tasks, class Counts>
class QuorumOf : TaskGate {
 public:
  QuorumOf(Tasks& tasks, size_t count, Counts its_counts) : tasks_(tasks), counts_(std::move(its_counts)) {
    wanted = count;
  }
  QuorumOf(const QuorumOf&) = delete;
  QuorumOf& operator=(const QuorumOf&) = delete;
  bool await_ready() {
    left = tasks_.size();
    if constexpr (!std::is_same_v<Counts, std::nullptr_t>) counts = &ends_well;
    for (auto& task : tasks_) watch(*this, task.ref());
    if (!is_over()) return false;
    forget_all();
    return true;
  }
  void await_suspend(std::coroutine_handle<> coroutine) noexcept { waiting = coroutine; }
  /// True: enough tasks have ended well.
  bool await_resume() {
    forget_all();
    return wanted == 0;
  }

 private:
  using Value = typename std::remove_reference_t<decltype(*std::declval<Tasks&>().begin())>::promise_type;
  static bool ends_well(const TaskGate* gate, const void* value) {
    static_assert(
        requires(Value & promise) { promise.value; }, "quorum() needs tasks that return something");
    using T = std::remove_reference_t<decltype(*std::declval<Value&>().value)>;
    return value != nullptr && static_cast<const QuorumOf*>(gate)->counts_(*static_cast<const T*>(value));
  }
  /// The tasks that have not ended go on without a gate.
  void forget_all() {
    for (auto& task : tasks_) forget(task.ref());
  }

  Tasks& tasks_;
  Counts counts_;
};

/// True if a task's result has no error: its ok() or status.ok() is true, or it has neither.
struct EndsWell {
  template <class T>
  bool operator()(const T& value) const {
    if constexpr (requires { value.ok(); }) {
      return value.ok();
    } else if constexpr (requires { value.status.ok(); }) {
      return value.status.ok();
    } else {
      return true;
    }
  }
};

}  // namespace detail

template <class T>
auto Task<T>::operator co_await() {
  return detail::TaskAwaitable<T>{ref_};
}

/// Waits until all of these have ended: `auto [a, b] = co_await when_all(first, second)`. The result is a std::tuple of
/// the results of each Task::take(). The tasks must not be moved or destroyed before co_await has begun.
template <class... Ts>
[[nodiscard]] detail::AllOf<Ts...> when_all(Task<Ts>&... tasks) {
  return detail::AllOf<Ts...>(tasks...);
}
/// Waits until all tasks of a container, such as std::vector<Task<T>>, have ended; then each Task::take() returns its
/// result. The container must exist until then, and must not change.
template <detail::TaskRange Tasks>
[[nodiscard]] auto when_all(Tasks& tasks) {
  return detail::QuorumOf<Tasks, std::nullptr_t>(tasks, tasks.size(), nullptr);
}

/// Waits until `count` tasks of a container have ended well, or so many have failed that `count` cannot be reached:
/// `bool has_majority = co_await quorum(tasks, 2)`. The other tasks continue; is_done() shows which have ended.
/// `ends_well(const T&)` decides whether a result counts; without it a T counts if its ok(), or its status.ok(), is
/// true, or if it has neither. A task that had no memory to begin does not count. The container must exist until
/// co_await returns, and must not change.
template <detail::TaskRange Tasks, class Counts = detail::EndsWell>
[[nodiscard]] auto quorum(Tasks& tasks, size_t count, Counts ends_well = {}) {
  return detail::QuorumOf<Tasks, Counts>(tasks, count, std::move(ends_well));
}

}  // namespace tern
