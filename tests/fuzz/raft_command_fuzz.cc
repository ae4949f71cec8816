// Requests of clients and administrators, the answers, and the content of snapshots. Input: a sequence of steps, each
//   op 8 | length 16 | bytes;  op % 6: 0 any bytes as a command in the log, 1 a command with a valid head (the bytes
//   begin with operation, client, sequence and the length of the key), 2 as an answer, 3 as a change, 4 as a snapshot,
//   5 the second machine is restored from a snapshot of the first one.
// Two machines execute the same commands and must give the same answers, also after one was restored from a snapshot.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "../apps/raft/admin.h"
#include "../apps/raft/commands.h"
#include "../apps/raft/machine.h"

namespace {

using namespace replicated;

void require(bool is_true) {
  if (!is_true) std::abort();
}

std::string snapshot_of(const Machine& machine) {
  std::string bytes(machine.snapshot_bytes(), '\0');
  machine.write_snapshot(std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

class Target {
 public:
  void execute(Bytes bytes) {
    const auto command = parse_command(bytes);
    if (command) {
      std::string again(encoded_bytes(*command), '\0');
      encode(*command, std::as_writable_bytes(std::span(again)));
      require(again == as_text(bytes));
      first_.prepare(bytes);
    }
    index_++;
    const std::string said(first_.apply(index_, bytes));
    require(said == second_.apply(index_, bytes));
    const auto answer = parse_answer(as_bytes(said));
    require(answer && (command || answer->outcome == Outcome::kMalformed));
    if (!command) return;
    // The leader answers a repeated command without the log, and its answer must be the log's.
    const auto last = first_.last_outcome(command->client, command->sequence);
    if (last && command->operation != Operation::kRegister && command->operation != Operation::kReserve) {
      require(*last == answer->outcome);
    }
    require(first_.keys() == second_.keys() && first_.clients() == second_.clients());
    require(first_.highest_replica() == second_.highest_replica());
  }
  /// Draws from few clients, keys and numbers, so that commands conflict with each other.
  void execute_valid(Bytes bytes) {
    if (bytes.size() < 4) return;
    const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    const std::string_view text = as_text(bytes.subspan(4));
    Command command;
    command.operation = static_cast<Operation>(1 + at(0) % 6);
    command.client = at(1) % 8;
    command.sequence = at(2) % 16;
    command.key = text.substr(0, at(3) % 4);
    command.value = text.substr(std::min<size_t>(text.size(), 3));
    if (at(3) >= 128) command.expected = command.value;
    std::string encoded(encoded_bytes(command), '\0');
    encode(command, std::as_writable_bytes(std::span(encoded)));
    execute(as_bytes(encoded));
  }
  static void read_answer(Bytes bytes) {
    const auto answer = parse_answer(bytes);
    if (!answer) return;
    require(answer->outcome >= Outcome::kDone && answer->outcome <= Outcome::kWrongCluster);
    const size_t replicas = (bytes[0] & std::byte{kHasReplicas}) != std::byte{0} ? 8 + 2 + answer->replicas.size() : 0;
    require(1 + replicas + answer->value.size() == bytes.size());
  }
  static void read_change(Bytes bytes) {
    const auto change = parse_change(bytes);
    if (!change) return;
    require(change->id != 0 && change->address.size() <= kAddressBytesMax);
    require(kChangeHeadBytes + change->address.size() == bytes.size());
  }
  static void restore(Bytes bytes) {
    Machine machine, again;
    if (!machine.restore(bytes)) return require(machine.keys() == 0 && machine.clients() == 0);
    // All of it was taken, and nothing twice.
    require(machine.snapshot_bytes() == bytes.size());
    require(again.restore(as_bytes(snapshot_of(machine))));
    require(again.keys() == machine.keys() && again.clients() == machine.clients());
  }
  void replace() {
    require(second_.restore(as_bytes(snapshot_of(first_))));
    restore(as_bytes(snapshot_of(second_)));
  }

 private:
  Machine first_, second_;
  uint64_t index_ = 0;
};

}  // namespace

uint64_t fuzz_packets = 0;  ///< steps; the runner of the target prints it

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  Target target;
  while (input.size() >= 3) {
    const auto op = static_cast<uint8_t>(input[0]);
    const size_t wanted = static_cast<size_t>(input[1]) | static_cast<size_t>(input[2]) << 8;
    const size_t length = std::min(wanted, input.size() - 3);
    const std::vector<std::byte> own(input.begin() + 3, input.begin() + 3 + static_cast<ptrdiff_t>(length));
    const Bytes bytes(own);  // in memory of exactly its size
    input = input.subspan(3 + length);
    fuzz_packets++;
    switch (op % 6) {
      case 0:
        target.execute(bytes);
        break;
      case 1:
        target.execute_valid(bytes);
        break;
      case 2:
        Target::read_answer(bytes);
        break;
      case 3:
        Target::read_change(bytes);
        break;
      case 4:
        Target::restore(bytes);
        break;
      default:
        target.replace();
    }
  }
  return 0;
}
