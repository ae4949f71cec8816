// The replicated state machine: keys with their values, and the table of clients (commands.h). The same commands in the
// same order make the same state on each replica: it knows no clock, no randomness, no limit of this machine.
// Owned by the replica's thread. Knows neither messages nor libraft.
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
  /// Reads what a command will need, and changes nothing: it is carried out sooner then.
  void prepare(Bytes command) const;
  /// What kGet would answer now, encoded, without a place in the log. Valid until the next call.
  std::string_view read(std::string_view key);
  /// The outcome of the client's last command, if that has this number and is no kGet.
  std::optional<Outcome> last_outcome(uint64_t client, uint64_t sequence) const;

  /// All of it, for restore().
  size_t snapshot_bytes() const;
  void write_snapshot(std::span<std::byte> to) const;
  /// Takes the place of all that was. False: these bytes are no snapshot; the machine is empty then.
  [[nodiscard]] bool restore(Bytes snapshot);

  uint64_t highest_replica() const { return highest_replica_; }
  size_t keys() const { return values_.size(); }
  size_t clients() const { return clients_.size(); }

 private:
  struct Client {
    uint64_t sequence = 0;              ///< of its last command
    uint64_t last_index = 0;            ///< of that command in the log
    Outcome outcome = Outcome::kStale;  ///< of that command; all but a kGet are answered by it alone
    bool is_read = false;               ///< that command was a kGet, which is executed again if it comes twice
  };
  std::string_view execute(uint64_t index, const Command& command);
  Outcome change(const Command& command);
  std::string_view add_client(uint64_t index);
  std::string_view answer(Outcome outcome, std::string_view value = {});
  /// Accounts for `added` bytes in place of `removed`. False, and nothing changes: beyond the limit.
  bool make_room(size_t added, size_t removed);

  struct Hash {
    using is_transparent = void;  ///< keys are looked up as they lie in a command
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>()(key); }
  };
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> values_;
  std::unordered_map<uint64_t, Client> clients_;
  uint64_t highest_replica_ = 0;  ///< number that a kReserve has taken
  size_t used_bytes_ = 0;         ///< keys and values, and kRecordBytes for each of them
  std::string answer_;
};

}  // namespace replicated
