// The allowed answers of a key-value store, for the checker: a register for each key. A history is linearizable if the
// history of each key is (Herlihy and Wing, "Linearizability", 1990, theorem 1), so keys are checked one by one. Test
// code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "linearizability/checker.h"

namespace linearizability {

/// One key's value; nothing: the key does not exist.
struct Register {
  enum class Kind : uint8_t {
    kGet,
    kPut,
    kErase,
    kSwap,  ///< puts `value` if the key has the value `expected`
  };
  enum class Answer : uint8_t { kDone, kNotFound, kDifferent };
  using State = std::optional<std::string>;

  struct Operation {
    Kind kind = Kind::kGet;
    uint64_t key = 0;
    uint64_t client = 0;  ///< only for texts
    std::string value{};
    std::string expected{};
    uint64_t called = 0, returned = kNever;
    Answer answer = Answer::kDone;  ///< the answer to every operation but kGet
    State found{};                  ///< the answer of kGet
  };

  static size_t hash(const State& state) { return state ? std::hash<std::string>()(*state) : 1; }

  static bool step(const Operation& operation, State& state) {
    if (operation.kind == Kind::kGet) return operation.returned == kNever || operation.found == state;
    const Answer answer = change(operation, state);
    return operation.returned == kNever || operation.answer == answer;
  }

  /// Alike operations without a return may take effect in any order.
  static bool are_alike(const Operation& a, const Operation& b) {
    return a.kind == b.kind && a.value == b.value && a.expected == b.expected;
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

/// Describes the verdict in a text: the end of the longest order, and the operations that have no place in it.
inline std::string explain(uint64_t key, const std::vector<Register::Operation>& history, const Result& result) {
  constexpr size_t kLines = 12;
  std::string text = "the history of key " + std::to_string(key);
  text += result.verdict == Verdict::kUnknown
              ? " was not decided in " + std::to_string(result.steps) + " steps\n"
              : " is not linearizable: no order of its operations explains all answers\n";
  text += "the longest order that was found, of " + std::to_string(result.longest.size()) + " out of " +
          std::to_string(history.size()) + " operations, ends with\n";
  std::vector<bool> is_done(history.size());
  for (size_t i = 0; i < result.longest.size(); i++) {
    is_done[result.longest[i]] = true;
    if (i + kLines >= result.longest.size()) text += "  " + Register::text(history[result.longest[i]]) + "\n";
  }
  if (result.stuck == SIZE_MAX) return text;
  const Register::Operation& stuck = history[result.stuck];
  text += "then there is no place for\n  " + Register::text(stuck) + "\nand these overlap it\n";
  size_t lines = 0;
  for (size_t i = 0; i < history.size(); i++) {
    if (is_done[i] || i == result.stuck || history[i].called > stuck.returned || lines++ == kLines) continue;
    text += "  " + Register::text(history[i]) + "\n";
  }
  return text;
}

/// Returns an equivalent history with fewer states. Values that no answer and no swap distinguishes become equal.
inline std::vector<Register::Operation> with_equal_values(std::vector<Register::Operation> history) {
  using Kind = Register::Kind;
  std::set<std::string> told;
  for (const auto& operation : history) {
    if (operation.kind == Kind::kGet && operation.found) told.insert(*operation.found);
    if (operation.kind == Kind::kSwap) told.insert(operation.expected);
  }
  std::string other = "?";
  while (told.contains(other)) other += '?';
  for (auto& operation : history) {
    const bool puts = operation.kind == Kind::kPut || operation.kind == Kind::kSwap;
    if (puts && !told.contains(operation.value)) operation.value = other;
  }
  return history;
}

/// Checks every key. Empty: every key's history is linearizable. Otherwise a text about the first key whose history is
/// not.
inline std::string check_keys(const std::vector<Register::Operation>& history, Limits limits = {}) {
  std::map<uint64_t, std::vector<Register::Operation>> keys;
  for (const auto& operation : history) {
    // A read without an answer can be omitted, because it has no result and no effect.
    if (operation.kind == Register::Kind::kGet && operation.returned == kNever) continue;
    keys[operation.key].push_back(operation);
  }
  for (const auto& [key, operations] : keys) {
    const Result result = check<Register>(with_equal_values(operations), limits);
    if (result.verdict != Verdict::kLinearizable) return explain(key, operations, result);
  }
  return "";
}

}  // namespace linearizability
