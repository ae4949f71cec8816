#include "machine.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace replicated {

namespace {

constexpr uint32_t kSnapshotMagic = 0x31535254;  // "TRS1"

}  // namespace

std::string_view Machine::answer(Outcome outcome, std::string_view value) {
  answer_.assign(1, static_cast<char>(outcome));
  answer_.append(value);
  return answer_;
}

bool Machine::make_room(size_t added, size_t removed) {
  if (used_bytes_ - removed + added > kStateBytesMax) return false;
  used_bytes_ = used_bytes_ - removed + added;
  return true;
}

std::string_view Machine::apply(uint64_t index, Bytes bytes) {
  const auto command = parse_command(bytes);
  if (!command) return answer(Outcome::kMalformed);
  return execute(index, *command);
}

void Machine::prepare(Bytes bytes) const {
  const auto command = parse_command(bytes);
  if (!command) return;
  const auto found = values_.find(command->key);
  if (found != values_.end()) __builtin_prefetch(found->second.data(), 1);
}

std::string_view Machine::read(std::string_view key) {
  const auto found = values_.find(key);
  return found != values_.end() ? answer(Outcome::kDone, found->second) : answer(Outcome::kNotFound);
}

std::optional<Outcome> Machine::last_outcome(uint64_t client, uint64_t sequence) const {
  const auto found = clients_.find(client);
  if (found == clients_.end() || found->second.sequence != sequence || found->second.is_read) return std::nullopt;
  return found->second.outcome;
}

std::string_view Machine::execute(uint64_t index, const Command& command) {
  if (command.operation == Operation::kRegister) return add_client(index);
  if (command.operation == Operation::kReserve) {
    if (command.sequence <= highest_replica_) return answer(Outcome::kDifferent);
    highest_replica_ = command.sequence;
    return answer(Outcome::kDone);
  }
  const auto found = clients_.find(command.client);
  if (found == clients_.end()) return answer(Outcome::kExpired);
  Client& client = found->second;
  const bool is_read = command.operation == Operation::kGet;
  if (command.sequence < client.sequence) return answer(Outcome::kStale);
  if (command.sequence == client.sequence && !is_read) return answer(client.outcome);
  client = {command.sequence, index, Outcome::kDone, is_read};
  if (is_read) return read(command.key);
  client.outcome = change(command);
  return answer(client.outcome);
}

Outcome Machine::change(const Command& command) {
  const std::string_view key = command.key;
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  if (command.operation == Operation::kErase) {
    if (!is_there) return Outcome::kNotFound;
    used_bytes_ -= key.size() + found->second.size() + kRecordBytes;
    values_.erase(found);
    return Outcome::kDone;
  }
  if (command.operation == Operation::kSwap) {
    if (!is_there) return Outcome::kNotFound;
    if (found->second != command.expected) return Outcome::kDifferent;
  }
  if (is_there) {
    if (!make_room(command.value.size(), found->second.size())) return Outcome::kFull;
    found->second = command.value;
  } else {
    if (!make_room(key.size() + command.value.size() + kRecordBytes, 0)) return Outcome::kFull;
    values_.emplace(key, command.value);
  }
  return Outcome::kDone;
}

std::string_view Machine::add_client(uint64_t index) {
  if (clients_.size() >= kClientsMax) {
    const auto oldest = std::min_element(clients_.begin(), clients_.end(), [](const auto& a, const auto& b) {
      return a.second.last_index < b.second.last_index;  // last_index values are unique
    });
    used_bytes_ -= kRecordBytes;
    clients_.erase(oldest);
  }
  if (!make_room(kRecordBytes, 0)) return answer(Outcome::kFull);
  clients_[index].last_index = index;
  char name[sizeof(index)];
  std::memcpy(name, &index, sizeof(index));
  return answer(Outcome::kDone, {name, sizeof(name)});
}

//   snapshot   magic:u32 highest_replica:u64
//              clients:u64, for each: client:u64 sequence:u64 last_index:u64 outcome:u8 is_read:u8
//              keys:u64, for each: key:u16+text value:u32+text

size_t Machine::snapshot_bytes() const {
  size_t bytes = 4 + 8 + 8 + 8 + clients_.size() * (8 + 8 + 8 + 1 + 1);
  for (const auto& [key, value] : values_) bytes += 2 + key.size() + 4 + value.size();
  return bytes;
}

void Machine::write_snapshot(std::span<std::byte> to) const {
  Writer writer(to);
  writer.write(kSnapshotMagic).write(highest_replica_).write(uint64_t{clients_.size()});
  for (const auto& [name, client] : clients_) {
    writer.write(name).write(client.sequence).write(client.last_index).write(client.outcome);
    writer.write(static_cast<uint8_t>(client.is_read));
  }
  writer.write(uint64_t{values_.size()});
  for (const auto& [key, value] : values_) writer.write_text<uint16_t>(key).write_text<uint32_t>(value);
}

bool Machine::restore(Bytes snapshot) {
  *this = Machine();
  Reader reader(snapshot);
  uint32_t magic = 0;
  uint64_t clients = 0, keys = 0;
  const auto read_all = [&] {
    if (!reader.read(magic) || magic != kSnapshotMagic || !reader.read(highest_replica_) || !reader.read(clients)) {
      return false;
    }
    if (clients > kClientsMax) return false;
    for (uint64_t i = 0; i < clients; i++) {
      uint64_t name;
      Client client;
      uint8_t is_read;
      if (!reader.read(name) || !reader.read(client.sequence) || !reader.read(client.last_index) ||
          !reader.read(client.outcome) || !reader.read(is_read) || !make_room(kRecordBytes, 0)) {
        return false;
      }
      client.is_read = is_read != 0;
      if (client.outcome < Outcome::kDone || client.outcome > Outcome::kWrongCluster || is_read > 1) return false;
      if (!clients_.emplace(name, client).second) return false;
    }
    if (!reader.read(keys) || keys > reader.rest().size() / (2 + 4)) return false;
    values_.reserve(keys);
    for (uint64_t i = 0; i < keys; i++) {
      std::string_view key, value;
      if (!reader.read_text<uint16_t>(key) || !reader.read_text<uint32_t>(value) || key.size() > kKeyBytesMax ||
          value.size() > kValueBytesMax || !make_room(key.size() + value.size() + kRecordBytes, 0)) {
        return false;
      }
      if (!values_.emplace(key, value).second) return false;
    }
    return reader.rest().empty();
  };
  if (read_all()) return true;
  *this = Machine();
  return false;
}

}  // namespace replicated
