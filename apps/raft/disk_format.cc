#include "disk_format.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace replicated::disk {

namespace {

constexpr uint64_t kLogMagic = 0x31676f6c74666172;       // "raftlog1"
constexpr uint64_t kStateMagic = 0x3161747374666172;     // "raftsta1"
constexpr uint64_t kSnapshotMagic = 0x31616e7374666172;  // "raftsna1"
constexpr size_t kCheckBytes = 8;
constexpr size_t kRecordHeadBytes = 32;
/// Upper bound of log indexes and file numbers, so that their sums never wrap.
constexpr uint64_t kNumberMax = UINT64_MAX / 4;

/// True for an entry's type (storage.h).
bool is_type(uint16_t type) { return type >= 1 && type <= 3; }

size_t padded(size_t len_bytes) { return (len_bytes + 7) / 8 * 8; }

uint64_t check_of(std::string_view bytes, uint64_t seed = 0) {
  return std::max<uint64_t>(XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed), 1);
}

void add(std::string& to, uint64_t value) { to.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
uint64_t number_at(std::string_view bytes, size_t offset) {
  uint64_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

/// Encodes words, the first of which is the magic, and their check.
template <size_t kWords>
std::string encode_words(const uint64_t (&words)[kWords]) {
  std::string bytes;
  for (const uint64_t word : words) add(bytes, word);
  add(bytes, check_of(bytes));
  return bytes;
}
bool are_words(std::string_view bytes, size_t words, uint64_t magic) {
  const size_t len_bytes = words * sizeof(uint64_t);
  return bytes.size() >= len_bytes + kCheckBytes && number_at(bytes, 0) == magic &&
         number_at(bytes, len_bytes) == check_of(bytes.substr(0, len_bytes));
}

/// The position at which the final zeros of the text begin.
size_t begin_of_zeros(std::string_view bytes) {
  const size_t last = bytes.find_last_not_of('\0');
  return last == std::string_view::npos ? 0 : last + 1;
}

/// The state of a log that has no record at `bytes`. A crash leaves the beginning of a record, and perhaps zeros in
/// place of its rest.
Log::End end_of(std::string_view bytes, std::optional<size_t> record_bytes) {
  if (bytes.size() < record_bytes.value_or(kRecordHeadBytes)) return Log::End::kTorn;
  const size_t written = begin_of_zeros(bytes);
  const bool is_torn = record_bytes ? written + kCheckBytes <= *record_bytes : written < kRecordHeadBytes;
  return is_torn ? Log::End::kTorn : Log::End::kDamaged;
}

}  // namespace

std::string encode(const State& state) {
  return encode_words({kStateMagic, state.term, state.vote, state.first_log, state.last_log, state.snapshot});
}

std::optional<State> parse_state(std::string_view bytes) {
  if (bytes.size() != 7 * sizeof(uint64_t) || !are_words(bytes, 6, kStateMagic)) return std::nullopt;
  const State state = {.term = number_at(bytes, 8),
                       .vote = number_at(bytes, 16),
                       .first_log = number_at(bytes, 24),
                       .last_log = number_at(bytes, 32),
                       .snapshot = number_at(bytes, 40)};
  if (state.last_log > kNumberMax || state.snapshot > kNumberMax) return std::nullopt;
  const bool has_log = state.first_log > 0 && state.first_log <= state.last_log;
  const bool is_new = state.first_log == 1 && state.last_log == 0 && state.snapshot == 0;
  return has_log || is_new ? std::optional(state) : std::nullopt;
}

std::string encode_log_head(uint64_t number, uint64_t first_index) {
  return encode_words({kLogMagic, number, first_index});
}

void encode_record(uint64_t index, const Entry& entry, std::string& to) {
  std::string head;
  add(head, index);
  add(head, entry.term);
  add(head, entry.bytes.size() | uint64_t{entry.type} << 32);
  const uint64_t check = check_of(head);
  add(to, check);
  to += head;
  const size_t begin = to.size();
  to += as_text(entry.bytes);
  to.resize(begin + padded(entry.bytes.size()));
  add(to, check_of(std::string_view(to).substr(begin), check));
}

std::optional<Log> parse_log(std::string_view bytes, uint64_t number, uint64_t until) {
  if (!are_words(bytes, 3, kLogMagic) || number_at(bytes, 8) != number) return std::nullopt;
  Log log;
  log.first_index = number_at(bytes, 16);
  if (log.first_index == 0 || log.first_index > kNumberMax) return std::nullopt;
  log.len_bytes = kLogHeadBytes;
  while (log.len_bytes < bytes.size() && log.first_index + log.entries.size() < until) {
    const std::string_view rest = bytes.substr(log.len_bytes);
    std::optional<size_t> record_bytes;
    uint64_t check = 0, term = 0, len_and_type = 0;
    size_t len_bytes = 0;
    if (rest.size() >= kRecordHeadBytes) {
      check = number_at(rest, 0);
      term = number_at(rest, 16);
      len_and_type = number_at(rest, 24);
      // A wrong index under a right check is not the result of a crash.
      const bool is_head = check == check_of(rest.substr(8, kRecordHeadBytes - 8)) && len_and_type >> 48 == 0 &&
                           number_at(rest, 8) == log.first_index + log.entries.size() && term > 0 &&
                           is_type(static_cast<uint16_t>(len_and_type >> 32));
      len_bytes = len_and_type & UINT32_MAX;
      if (is_head) record_bytes = kRecordHeadBytes + padded(len_bytes) + kCheckBytes;
    }
    if (record_bytes && rest.size() >= *record_bytes) {
      const std::string_view text = rest.substr(kRecordHeadBytes, padded(len_bytes));
      if (number_at(rest, *record_bytes - kCheckBytes) == check_of(text, check)) {
        log.entries.push_back(
            {term, static_cast<uint16_t>(len_and_type >> 32), std::string(text.substr(0, len_bytes))});
        log.len_bytes += *record_bytes;
        continue;
      }
    }
    log.end = end_of(rest, record_bytes);
    break;
  }
  return log;
}

std::string encode_snapshot_head(const Snapshot& snapshot) {
  return encode_words({kSnapshotMagic, snapshot.index, snapshot.term, snapshot.configuration_index,
                       snapshot.configuration.size(), snapshot.bytes.size()});
}

std::string encode_snapshot_end(const Snapshot& snapshot, std::string_view head) {
  std::string end;
  add(end, check_of(snapshot.bytes, check_of(snapshot.configuration, check_of(head))));
  return end;
}

std::optional<Snapshot> parse_snapshot(std::string_view bytes) {
  constexpr size_t kHeadBytes = 7 * sizeof(uint64_t);
  if (!are_words(bytes, 6, kSnapshotMagic)) return std::nullopt;
  const uint64_t configuration_len = number_at(bytes, 32), len = number_at(bytes, 40);
  const size_t rest = bytes.size() - kHeadBytes;
  if (configuration_len > rest || len > rest - configuration_len || rest - configuration_len - len != kCheckBytes) {
    return std::nullopt;
  }
  Snapshot snapshot{.index = number_at(bytes, 8),
                    .term = number_at(bytes, 16),
                    .configuration_index = number_at(bytes, 24),
                    .configuration = std::string(bytes.substr(kHeadBytes, configuration_len)),
                    .bytes = std::string(bytes.substr(kHeadBytes + configuration_len, len))};
  if (encode_snapshot_end(snapshot, bytes.substr(0, kHeadBytes)) != bytes.substr(bytes.size() - kCheckBytes)) {
    return std::nullopt;
  }
  if (snapshot.index == 0 || snapshot.index > kNumberMax) return std::nullopt;
  return snapshot;
}

}  // namespace replicated::disk
