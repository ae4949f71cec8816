// The clients' commands and their answers, for the checker. Times are the order in which the simulation ran the calls
// and returns. It is a valid order because no cause comes after its effect. Test code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "linearizability/key_value.h"

namespace raft_test {

using linearizability::Register;

class History {
 public:
  /// Notes a call, and returns the index for end().
  size_t begin(Register::Operation operation) {
    operation.called = ++time_;
    operation.returned = linearizability::kNever;
    operations_.push_back(std::move(operation));
    return operations_.size() - 1;
  }
  void end(size_t call, Register::Answer answer, Register::State found) {
    Register::Operation& operation = operations_[call];
    operation.returned = ++time_;
    operation.answer = answer;
    operation.found = std::move(found);
    ended_++;
  }
  const std::vector<Register::Operation>& operations() const { return operations_; }
  uint64_t ended() const { return ended_; }

 private:
  std::vector<Register::Operation> operations_;
  uint64_t time_ = 0, ended_ = 0;
};

}  // namespace raft_test
