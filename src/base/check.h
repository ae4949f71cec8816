// CHECK reports a bug of tern's own, in every build. It is not for bytes from outside nor for a caller's mistakes.
//
//   CHECK(a, op, b)   prints both values and aborts unless `a op b` holds
//   CHECK(condition)  aborts unless `condition` is true; for conditions that are no comparison of two printable values
//
// Each operand is evaluated once. An operand with a comma outside of parentheses needs parentheses of its own.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>

#include <tern/detail/export.h>

namespace tern::base {

/// Prints "FILE:LINE: CHECK failed: EXPRESSION (VALUES)" and aborts.
[[noreturn]] TERN_API void check_failed(const char* file, int line, const char* expression, const std::string& values);

/// Called by the first CHECK that fails: writes what helps to find the bug to a file, and the file's name to `path`, of
/// `size` bytes; "" if there is none. Must not allocate.
using CheckHook = void (*)(char* path, size_t size);
/// One hook a process; the last one counts. Any thread.
TERN_API void set_check_hook(CheckHook hook);

template <class A, class B>
[[noreturn, gnu::noinline, gnu::cold]] void check_failed_values(const char* file, int line, const char* expression,
                                                                const A& a, const B& b) {
  std::ostringstream values;
  values << +a << " against " << +b;
  check_failed(file, line, expression, values.str());
}

[[noreturn, gnu::noinline, gnu::cold]] inline void check_failed_condition(const char* file, int line,
                                                                          const char* expression) {
  check_failed(file, line, expression, "false");
}

}  // namespace tern::base

#define CHECK(...) \
  TERN_CHECK_FORM(__VA_ARGS__, TERN_CHECK_COMPARISON, TERN_CHECK_TAKES_1_OR_3, TERN_CHECK_CONDITION)(__VA_ARGS__)
#define TERN_CHECK_FORM(first, second, third, form, ...) form

#define TERN_CHECK_COMPARISON(a, op, b)                                                             \
  do {                                                                                              \
    const auto& check_a_ = (a);                                                                     \
    const auto& check_b_ = (b);                                                                     \
    if (!(check_a_ op check_b_)) [[unlikely]]                                                       \
      ::tern::base::check_failed_values(__FILE__, __LINE__, #a " " #op " " #b, check_a_, check_b_); \
  } while (false)

#define TERN_CHECK_CONDITION(condition)                                     \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      ::tern::base::check_failed_condition(__FILE__, __LINE__, #condition); \
  } while (false)

namespace tern::base {
/// Debug builds, and with them those of sanitizers and fuzzers, run checks that cost too much for each packet.
#ifdef TERN_CHECKS_INVARIANTS
inline constexpr bool kChecksInvariants = true;
#else
inline constexpr bool kChecksInvariants = false;
#endif
}  // namespace tern::base
