// The content of the files of a storage on a disk (disk_storage.h). It parses bytes with checks into entries, and
// encodes entries. All checks are XXH3 of 64 bits. Standard library and libxxhash only; it does not access files or
// directories.
//
//   log-N        magic:u64 number:u64 first_index:u64 check:u64, then records
//   record       check:u64 index:u64 term:u64 len:u32 type:u16 0:u16, the entry's bytes and zeros up to a
//                multiple of 8, check:u64
//   state        magic:u64 term:u64 vote:u64 first_log:u64 last_log:u64 snapshot:u64 check:u64
//   snapshot-N   magic:u64 index:u64 term:u64 configuration_index:u64 configuration_len:u64 len:u64 check:u64,
//                the configuration, the snapshot, check:u64
//
// A record's first check covers its other head fields, so that the length can be trusted. Its last check covers the
// entry's bytes and the first check, and is never 0. No sector ends within a check. So a record whose last sector was
// written does not end in eight zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage.h"

namespace replicated::disk {

/// The list of the valid files, and the state that is in no log.
struct State {
  uint64_t term = 0, vote = 0;
  uint64_t first_log = 1, last_log = 0;  ///< numbers of the first and last file of the log
  uint64_t snapshot = 0;                 ///< number of the snapshot's file; 0: no snapshot

  bool operator==(const State&) const = default;
};
std::string encode(const State& state);
std::optional<State> parse_state(std::string_view bytes);

std::string encode_log_head(uint64_t number, uint64_t first_index);
inline constexpr size_t kLogHeadBytes = 32;
void encode_record(uint64_t index, const Entry& entry, std::string& to);

/// The valid part of a log file.
struct Log {
  enum class End : uint8_t {
    kWhole,    ///< the file ends after the last record
    kTorn,     ///< the next record was not written completely: it ends early, or in zeros
    kDamaged,  ///< other bytes follow the last record
  };
  uint64_t first_index = 0;
  std::vector<StoredEntry> entries;
  uint64_t len_bytes = 0;  ///< up to the end of the last entry
  End end = End::kWhole;
};
/// Returns nullopt if the head is not the head of this file. Reads only entries before index `until`.
std::optional<Log> parse_log(std::string_view bytes, uint64_t number, uint64_t until = UINT64_MAX);

/// The bytes before and after a snapshot's bytes.
std::string encode_snapshot_head(const Snapshot& snapshot);
std::string encode_snapshot_end(const Snapshot& snapshot, std::string_view head);
std::optional<Snapshot> parse_snapshot(std::string_view bytes);

}  // namespace replicated::disk
