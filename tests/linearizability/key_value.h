// What a key-value store may answer, for the checker: a register for each key. A history is linearizable if that of
// each of its keys is (Herlihy and Wing, "Linearizability", 1990, theorem 1), so keys are checked one by one. Test
// code.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "linearizability/checker.h"

namespace linearizability {

/// One key's value, or none.
struct Register {
  enum class Kind : uint8_t {
    kGet,
    kPut,
    kErase,
    kSwap,  ///< puts `value` if `expected` is there
  };
  enum class Answer : uint8_t { kDone, kNotFound, kDifferent };
  using State = std::optional<std::string>;

  struct Operation {
    Kind kind = Kind::kGet;
    uint64_t key = 0;
    uint64_t client = 0;  ///< for people
    std::string value{};
    std::string expected{};
    uint64_t called = 0, returned = kNever;
    Answer answer = Answer::kDone;  ///< of all but kGet
    State found{};                  ///< the answer of kGet
  };

  static size_t hash(const State& state) { return state ? std::hash<std::string>()(*state) : 1; }

  static bool step(const Operation& operation, State& state) {
    if (operation.kind == Kind::kGet) return operation.returned == kNever || operation.found == state;
    const Answer answer = change(operation, state);
    return operation.returned == kNever || operation.answer == answer;
  }

  static std::string text(const Operation& operation) {
    std::string line = "client " + std::to_string(operation.client) + ": ";
    const bool has_returned = operation.returned != kNever;
    switch (operation.kind) {
      case Kind::kGet:
        line += "get";
        break;
      case Kind::kPut:
        line += "put '" + operation.value + "'";
        break;
      case Kind::kErase:
        line += "erase";
        break;
      case Kind::kSwap:
        line += "swap '" + operation.expected + "' for '" + operation.value + "'";
        break;
    }
    static constexpr const char* kAnswers[] = {"done", "not found", "another value"};
    if (has_returned) {
      line += " -> ";
      if (operation.kind != Kind::kGet) {
        line += kAnswers[static_cast<size_t>(operation.answer)];
      } else {
        line += operation.found ? "'" + *operation.found + "'" : "not found";
      }
    }
    return line + " [" + std::to_string(operation.called) + ", " +
           (has_returned ? std::to_string(operation.returned) : "?") + "]";
  }

 private:
  static Answer change(const Operation& operation, State& state) {
    if (operation.kind != Kind::kPut && !state) return Answer::kNotFound;
    if (operation.kind == Kind::kSwap && *state != operation.expected) return Answer::kDifferent;
    if (operation.kind == Kind::kErase) {
      state.reset();
    } else {
      state = operation.value;
    }
    return Answer::kDone;
  }
};

/// Empty: every key's history is linearizable. Otherwise a text for people: the verdict, and the operations of the
/// first key for which it is another one, with the longest order that was found.
inline std::string check_keys(const std::vector<Register::Operation>& history, Limits limits = {}) {
  std::map<uint64_t, std::vector<Register::Operation>> keys;
  for (const auto& operation : history) {
    // A read without an answer can be left out: it tells nothing and changes nothing.
    if (operation.kind == Register::Kind::kGet && operation.returned == kNever) continue;
    keys[operation.key].push_back(operation);
  }
  for (const auto& [key, operations] : keys) {
    const Result result = check<Register>(operations, limits);
    if (result.verdict == Verdict::kLinearizable) continue;
    std::string text = "the history of key " + std::to_string(key);
    text += result.verdict == Verdict::kUnknown
                ? " was not decided in " + std::to_string(result.steps) + " steps\n"
                : " is not linearizable: no order of its operations explains all answers\n";
    for (const auto& operation : operations) text += "  " + Register::text(operation) + "\n";
    text += "the longest order that was found:\n";
    for (const size_t index : result.longest) text += "  " + Register::text(operations[index]) + "\n";
    if (result.stuck != SIZE_MAX)
      text += "then there is no place for\n  " + Register::text(operations[result.stuck]) + "\n";
    return text;
  }
  return "";
}

}  // namespace linearizability
