// A move-only callable stored in place: no allocation, one indirect call.
#pragma once

#include <cstddef>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace tern {

/// A function that fits into a continuation, timer or posted function. A larger capture does not compile: keep the
/// state elsewhere and capture a pointer to it.
template <class F>
concept Small = sizeof(std::decay_t<F>) <= 48 && alignof(std::decay_t<F>) <= 16;

namespace detail {

/// True for a null pointer to a function and for an empty std::function. It costs lambdas nothing.
template <class F>
constexpr bool is_null(const F& function) {
  if constexpr (!std::is_empty_v<F> && std::is_constructible_v<bool, const F&> && requires { function == nullptr; }) {
    return static_cast<bool>(function == nullptr);
  } else {
    return false;
  }
}

/// Callable exactly once: `run` invokes the function and destroys it; `drop` only destroys it.
template <class... Args>
class InlineFunction {
 public:
  InlineFunction() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, InlineFunction> && Small<F>)
      InlineFunction(F&& function)  // NOLINT(google-explicit-constructor)
      : ops_(&kOps<std::decay_t<F>>) {
    new (storage_) std::decay_t<F>(std::forward<F>(function));
  }
  InlineFunction(InlineFunction&& other) noexcept { take(other); }
  InlineFunction& operator=(InlineFunction&& other) noexcept {
    if (this != &other) {
      drop();
      take(other);
    }
    return *this;
  }
  ~InlineFunction() { drop(); }

  explicit operator bool() const { return ops_ != nullptr; }
  void run(Args... args) {
    const Ops* ops = std::exchange(ops_, nullptr);
    ops->run(storage_, std::forward<Args>(args)...);
  }
  void drop() {
    if (ops_ == nullptr) return;
    const Ops* ops = std::exchange(ops_, nullptr);
    if (ops->destroy != nullptr) ops->destroy(storage_);
  }

 private:
  struct Ops {
    void (*run)(void* function, Args... args) noexcept;  ///< an exception ends the process
    void (*relocate)(void* to, void* from);              ///< null: copy the bytes
    void (*destroy)(void* function);                     ///< null: nothing to do
  };
  template <class F>
  static constexpr bool kTrivial = std::is_trivially_copyable_v<F>&& std::is_trivially_destructible_v<F>;
  template <class F>
  static void run_and_destroy(void* storage, Args... args) noexcept {
    static_assert(std::is_void_v<std::invoke_result_t<F&, Args...>>,
                  "a continuation, timer or posted function returns nothing: a Status would be lost, and a coroutine "
                  "would outlive its lambda's captures (call it from a plain lambda instead)");
    F* function = std::launder(reinterpret_cast<F*>(storage));
    F local(std::move(*function));  // the storage may be reused while the function runs
    function->~F();
    local(std::forward<Args>(args)...);
  }
  template <class F>
  static void relocate_one(void* to, void* from) {
    F* function = std::launder(reinterpret_cast<F*>(from));
    new (to) F(std::move(*function));
    function->~F();
  }
  template <class F>
  static void destroy_one(void* storage) {
    std::launder(reinterpret_cast<F*>(storage))->~F();
  }
  template <class F>
  static constexpr Ops kOps = {&run_and_destroy<F>, kTrivial<F> ? nullptr : &relocate_one<F>,
                               kTrivial<F> ? nullptr : &destroy_one<F>};

  void take(InlineFunction& other) {
    ops_ = std::exchange(other.ops_, nullptr);
    if (ops_ == nullptr) return;
    if (ops_->relocate == nullptr) {
      std::memcpy(storage_, other.storage_, sizeof(storage_));
    } else {
      ops_->relocate(storage_, other.storage_);
    }
  }

  alignas(16) unsigned char storage_[48];
  const Ops* ops_ = nullptr;
};

}  // namespace detail
}  // namespace tern
