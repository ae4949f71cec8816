// CHECK: our own bugs, always on. Never for bytes from outside and never for the caller's mistakes.
#pragma once

#include <sstream>
#include <string>

#include <tern/detail/export.h>

namespace tern::base {

/// Prints and aborts.
[[noreturn]] TERN_API void check_failed(const char* file, int line, const char* expression, const std::string& values);

template <class A, class B>
[[noreturn, gnu::noinline, gnu::cold]] void check_failed_values(const char* file, int line, const char* expression,
                                                                const A& a, const B& b) {
  std::ostringstream values;
  values << +a << " against " << +b;
  check_failed(file, line, expression, values.str());
}

}  // namespace tern::base

/// CHECK(a, ==, b): aborts with both values unless the comparison holds. Operands are evaluated once.
#define CHECK(a, op, b)                                                                             \
  do {                                                                                              \
    const auto& check_a_ = (a);                                                                     \
    const auto& check_b_ = (b);                                                                     \
    if (!(check_a_ op check_b_)) [[unlikely]]                                                       \
      ::tern::base::check_failed_values(__FILE__, __LINE__, #a " " #op " " #b, check_a_, check_b_); \
  } while (false)

namespace tern::base {
/// Debug builds, which those with sanitizers and fuzzers are, check what is too dear for each packet.
#ifdef TERN_CHECKS_INVARIANTS
inline constexpr bool kChecksInvariants = true;
#else
inline constexpr bool kChecksInvariants = false;
#endif
}  // namespace tern::base
