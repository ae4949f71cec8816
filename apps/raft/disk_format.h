// What the files of a storage on a disk have in them (disk_storage.h): bytes with checks in, entries out. All checks
// are XXH3 of 64 bits. Standard library and libxxhash only; knows no file and no directory.
//
//   log-N        magic:u64 number:u64 first_index:u64 check:u64, then records
//   record       check:u64 index:u64 term:u64 len:u32 type:u16 0:u16, the entry's bytes and zeros up to a
//                multiple of 8, check:u64
//   state        magic:u64 term:u64 vote:u64 first_log:u64 last_log:u64 snapshot:u64 check:u64
//   snapshot-N   magic:u64 index:u64 term:u64 configuration_index:u64 configuration_len:u64 len:u64 check:u64,
//                the configuration, the snapshot, check:u64
//
// A record's first check is that of its other fields, so that a length can be believed; its last one is that of the
// entry's bytes and of the first check, and never 0. No sector ends within it. So a record does not end in eight zeros
// if its last sector was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage.h"

namespace replicated::disk {

/// Which files there are, and what fits into no log.
struct State {
  uint64_t term = 0, vote = 0;
  uint64_t first_log = 1, last_log = 0;  ///< numbers of the files that are the log, one after the other
  uint64_t snapshot = 0;                 ///< number of its file; 0: none

  bool operator==(const State&) const = default;
};
std::string encode(const State& state);
std::optional<State> parse_state(std::string_view bytes);

std::string encode_log_head(uint64_t number, uint64_t first_index);
inline constexpr size_t kLogHeadBytes = 32;
void encode_record(uint64_t index, const Entry& entry, std::string& to);

/// A file of the log, as far as it is whole.
struct Log {
  enum class End : uint8_t {
    kWhole,    ///< after the last record
    kTorn,     ///< what follows was never written as a whole: it ends early, or in zeros
    kDamaged,  ///< what follows is something else
  };
  uint64_t first_index = 0;
  std::vector<StoredEntry> entries;
  uint64_t len_bytes = 0;  ///< up to the end of the last entry
  End end = End::kWhole;
};
/// Nothing: the head is no head of this file. It reads entries before index `until` only.
std::optional<Log> parse_log(std::string_view bytes, uint64_t number, uint64_t until = UINT64_MAX);

/// What comes before and after a snapshot's bytes.
std::string encode_snapshot_head(const Snapshot& snapshot);
std::string encode_snapshot_end(const Snapshot& snapshot, std::string_view head);
std::optional<Snapshot> parse_snapshot(std::string_view bytes);

}  // namespace replicated::disk
