// The replicated state machine: keys with their values, and the table of clients (commands.h). The same commands in the
// same order produce the same state on each replica. Therefore it uses no clock, no randomness, and no limit of this
// machine. The replica's thread owns it. It does not depend on messages or libraft.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "commands.h"

namespace replicated {

class Machine {
 public:
  /// Executes the command at `index` of the log, and returns the encoded answer, which is valid until the next call.
  std::string_view apply(uint64_t index, Bytes command);
  /// Prefetches the data that a command will need, so that it executes faster later. Changes nothing.
  void prepare(Bytes command) const;
  /// The encoded answer that a kGet would have now, without an entry in the log. Valid until the next call.
  std::string_view read(std::string_view key);
  /// The outcome of the client's last command, if that command has this number and is not a kGet.
  std::optional<Outcome> last_outcome(uint64_t client, uint64_t sequence) const;

  /// The size of a snapshot of the whole state, which restore() can read.
  size_t snapshot_bytes() const;
  void write_snapshot(std::span<std::byte> to) const;
  /// Replaces the whole state. Returns false if these bytes are not a snapshot; the machine is then empty.
  [[nodiscard]] bool restore(Bytes snapshot);

  uint64_t highest_replica() const { return highest_replica_; }
  size_t keys() const { return values_.size(); }
  size_t clients() const { return clients_.size(); }

 private:
  struct Client {
    uint64_t sequence = 0;              ///< number of its last command
    uint64_t last_index = 0;            ///< index of that command in the log
    Outcome outcome = Outcome::kStale;  ///< outcome of that command; it is the whole answer, except for a kGet
    bool is_read = false;               ///< that command was a kGet, which is executed again if it is repeated
  };
  std::string_view execute(uint64_t index, const Command& command);
  Outcome change(const Command& command);
  std::string_view add_client(uint64_t index);
  std::string_view answer(Outcome outcome, std::string_view value = {});
  /// Accounts for `added` bytes that replace `removed` bytes. Returns false, and changes nothing, if the sum would
  /// exceed the limit.
  bool make_room(size_t added, size_t removed);

  struct Hash {
    using is_transparent = void;  ///< the lookup uses the key's bytes in the command, without a copy
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
  };
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> values_;
  std::unordered_map<uint64_t, Client> clients_;
  uint64_t highest_replica_ = 0;  ///< highest id that a kReserve has taken
  size_t used_bytes_ = 0;         ///< keys and values, and kRecordBytes for each of them
  std::string answer_;
};

}  // namespace replicated
