// A coroutine whose owner may destroy it at any time, which Detached does not allow.
#pragma once

#include <coroutine>
#include <exception>

namespace tern::rpc_test {

struct Owned {
  struct promise_type {
    Owned get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> frame;
};

}  // namespace tern::rpc_test
