// CHECK reports a bug in tern itself, in every build. It must not be used for bytes from outside or a caller's
// mistakes.
//
//   CHECK(a, op, b)   prints both values and aborts unless `a op b` holds
//   CHECK(condition)  aborts unless `condition` is true; for conditions that do not compare two printable values
//
// Each operand is evaluated once. An operand that has a comma outside of parentheses must be put in parentheses.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>

#include <tern/detail/export.h>

namespace tern::base {

/// Prints "FILE:LINE: CHECK failed: EXPRESSION (VALUES)" and aborts.
[[noreturn]] TERN_API void check_failed(const char* file, int line, const char* expression, const std::string& values);

/// The first CHECK that fails calls the hook. The hook writes a file that helps to find the bug, and writes the file's
/// name to `path`, a buffer of `size` bytes. It writes "" to `path` if there is no file. It must not allocate.
using CheckHook = void (*)(char* path, size_t size);
/// Sets the process's only hook; the last call counts. Any thread.
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
/// True in debug builds, and in builds with sanitizers and for fuzzers. They also run checks that cost too much for
/// each packet.
#ifdef TERN_CHECKS_INVARIANTS
inline constexpr bool kChecksInvariants = true;
#else
inline constexpr bool kChecksInvariants = false;
#endif
}  // namespace tern::base
