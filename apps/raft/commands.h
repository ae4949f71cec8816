// The requests of clients to the replicated store, and its answers. A command is part of a request and of the log, and
// each replica's state machine executes it (machine.h). Standard library only; no state.
//
//   client's request      cluster:u64 configuration:u64 flags:u8 command
//   command               operation:u8 client:u64 sequence:u64 key:u16+text expected:u32+text value (the rest)
//   answer                outcome:u8 value (the rest); or, if the client knows another configuration than the replica:
//                         outcome:u8 (with kHasReplicas) configuration:u64 replicas:u16+text value (the rest)
//   replicas              their URIs, one a line
//   value of kRegister    client:u64
//   value of kNotLeader   leader:u64 URI of the leader (the rest); 0 and no URI: the leader is unknown
//
// A client first registers, and gets its number. It then numbers its commands, one after the other. The state machine
// keeps the last outcome of each client, so it executes a repeated command once, and answers it twice (Raft thesis,
// 6.3). A kGet changes nothing, and may be executed twice. The table of clients is bounded: at kClientsMax, a new
// client replaces the client whose last command is the oldest. A replaced client gets kExpired. It then does not know
// whether its last command was executed; that command is not executed later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "bytes.h"

namespace replicated {

enum class Operation : uint8_t {
  kRegister = 1,  ///< a new client; key, expected and value are empty
  kGet,
  kPut,
  kErase,
  kSwap,     ///< stores `value` if the stored value is `expected`
  kReserve,  ///< `sequence` is a new replica's id; only replicas send it
};

enum class Outcome : uint8_t {
  kDone = 1,   ///< kGet: the value; kSwap: it was `expected`
  kNotFound,   ///< no such key; nothing was changed
  kDifferent,  ///< kSwap: another value is stored; nothing was changed. kReserve: the id was used before
  kExpired,    ///< the client has lost its place in the table, or never had one
  kStale,      ///< a later command of this client was executed
  kMalformed,  ///< not a command, or longer than the limits below
  kFull,       ///< nothing was changed: a snapshot would be larger than a message can be
  kNotLeader,  ///< nothing is known about the command; ask the leader
  kBusy,       ///< nothing was changed: too many commands wait at this replica
  kWrongCluster,
};

constexpr size_t kKeyBytesMax = 1024;
constexpr size_t kValueBytesMax = 1u << 20;
constexpr size_t kClientsMax = 65536;
/// Keys and values together, with kRecordBytes for each key and each client. A snapshot is one message of at most 1
/// GiB.
constexpr size_t kStateBytesMax = 960u << 20;
constexpr size_t kRecordBytes = 16;

constexpr uint8_t kLeaseRead = 1;  ///< flag: a kGet may be answered by the leader's lease, without the log

struct Command {
  Operation operation = Operation::kGet;
  uint64_t client = 0;
  uint64_t sequence = 0;
  std::string_view key;
  std::string_view expected;
  std::string_view value;
};

struct Answer {
  Outcome outcome = Outcome::kMalformed;
  std::string_view value;
  uint64_t configuration = 0;  ///< index in the log of the configuration in `replicas`; 0: the client already has it
  std::string_view replicas;
};
/// Bit in the outcome of an answer.
constexpr uint8_t kHasReplicas = 0x80;

constexpr size_t kCommandHeadBytes = 1 + 8 + 8 + 2 + 4;
constexpr size_t kRequestHeadBytes = 8 + 8 + 1;
constexpr size_t kReplicasBytesMax = 4096;
constexpr size_t kRequestBytesMax = kRequestHeadBytes + kCommandHeadBytes + kKeyBytesMax + 2 * kValueBytesMax;
constexpr size_t kAnswerBytesMax = 1 + 8 + 2 + kReplicasBytesMax + kValueBytesMax;

inline size_t encoded_bytes(const Command& command) {
  return kCommandHeadBytes + command.key.size() + command.expected.size() + command.value.size();
}
inline void encode(const Command& command, std::span<std::byte> to) {
  Writer(to)
      .write(command.operation)
      .write(command.client)
      .write(command.sequence)
      .write_text<uint16_t>(command.key)
      .write_text<uint32_t>(command.expected)
      .write(command.value.data(), command.value.size());
}

/// The command points into `bytes`. nullopt if it is malformed.
inline std::optional<Command> parse_command(Bytes bytes) {
  Command command;
  Reader reader(bytes);
  if (!reader.read(command.operation) || !reader.read(command.client) || !reader.read(command.sequence) ||
      !reader.read_text<uint16_t>(command.key) || !reader.read_text<uint32_t>(command.expected)) {
    return std::nullopt;
  }
  command.value = as_text(reader.rest());
  if (command.operation < Operation::kRegister || command.operation > Operation::kReserve) return std::nullopt;
  if (command.key.size() > kKeyBytesMax || command.expected.size() > kValueBytesMax ||
      command.value.size() > kValueBytesMax) {
    return std::nullopt;
  }
  return command;
}

/// The answer points into `bytes`. nullopt if it is malformed.
inline std::optional<Answer> parse_answer(Bytes bytes) {
  Answer answer;
  Reader reader(bytes);
  uint8_t outcome;
  if (!reader.read(outcome)) return std::nullopt;
  if ((outcome & kHasReplicas) != 0 &&
      (!reader.read(answer.configuration) || !reader.read_text<uint16_t>(answer.replicas))) {
    return std::nullopt;
  }
  answer.outcome = static_cast<Outcome>(outcome & ~kHasReplicas);
  answer.value = as_text(reader.rest());
  if (answer.outcome < Outcome::kDone || answer.outcome > Outcome::kWrongCluster) return std::nullopt;
  return answer;
}

}  // namespace replicated
