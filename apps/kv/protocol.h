// kv's messages: little-endian integers and bytes, back to back. A parser must not trust any length in a message: it
// returns nullopt for a message that is too short, too long or breaks a limit. Standard library only; no state.
//
//   request                              answer
//   kAbout     (nothing)                 partitions:u32
//   kGet       key:u64                   version:u64 value                           version 0: no such key, no value
//   kPut       key:u64 version:u64 value version:u64                                 the version that is now stored
//   kMultiGet  key:u64, once or more     version:u64 length:u32 value, for each key  all keys of one partition
//
// Partition p of a server is its endpoint p. Each key is in exactly one partition. A value has the version that its
// writer gave it, 1 or more, and the server keeps the newest version. A PUT of the stored version, or of an older one,
// changes nothing and is answered like any other PUT. Therefore a writer may repeat a PUT if it does not know whether
// the server executed it, and a delayed PUT never overwrites a later one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../common/messages.h"

namespace kv {

enum RequestType : uint16_t { kAbout = 1, kGet, kPut, kMultiGet };

/// Why a request was refused: the app_code of kRefused. Code 0 means that the library refused it for the server.
enum Refusal : uint16_t {
  kOverloaded = 1,  ///< nothing was changed; try again later
  kStoreFull,       ///< nothing was changed: no room for this value
  kMalformed,       ///< not one of the messages above, or a key of another partition
  kStoreFailed,     ///< the server cannot read or write its store
};

constexpr size_t kValueBytesMax = 64u << 10;
constexpr size_t kMultiGetMax = 64;
constexpr size_t kPutHeadBytes = 16;     ///< bytes of a kPut request before its value
constexpr size_t kGetHeadBytes = 8;      ///< bytes of a kGet answer before its value
constexpr size_t kRecordHeadBytes = 12;  ///< bytes of each record of a kMultiGet answer before its value

using programs::Bytes;

struct Put {
  uint64_t key;
  uint64_t version;
  Bytes value;
};

/// The value that is stored under a key. Version 0: no value.
struct Record {
  uint64_t version = 0;
  Bytes value;
};

using programs::mix;
using programs::parse_integer;
using programs::Reader;
using programs::Writer;

inline std::optional<Put> parse_put(Bytes message) {
  Put put = {};
  Reader reader(message);
  if (!reader.read(put.key) || !reader.read(put.version) || put.version == 0) return std::nullopt;
  put.value = reader.rest();
  if (put.value.size() > kValueBytesMax) return std::nullopt;
  return put;
}

/// The number of keys of a kMultiGet, which a Reader then reads.
inline std::optional<size_t> parse_multi_get(Bytes message) {
  const size_t keys = message.size() / sizeof(uint64_t);
  if (message.size() % sizeof(uint64_t) != 0 || keys < 1 || keys > kMultiGetMax) return std::nullopt;
  return keys;
}

inline bool is_record(const Record& record) {
  return record.version != 0 ? record.value.size() <= kValueBytesMax : record.value.empty();
}

/// Parses the answer to a kGet.
inline std::optional<Record> parse_record(Bytes message) {
  Record record;
  Reader reader(message);
  if (!reader.read(record.version)) return std::nullopt;
  record.value = reader.rest();
  if (!is_record(record)) return std::nullopt;
  return record;
}

/// Reads the next record of an answer to a kMultiGet.
inline std::optional<Record> read_record(Reader& reader) {
  Record record;
  uint32_t len_bytes;
  if (!reader.read(record.version) || !reader.read(len_bytes) || !reader.read(record.value, len_bytes)) {
    return std::nullopt;
  }
  if (!is_record(record)) return std::nullopt;
  return record;
}

constexpr uint32_t partition_of(uint64_t key, uint32_t partitions) {
  return static_cast<uint32_t>(mix(key + 0x9e3779b97f4a7c15u) % partitions);
}

}  // namespace kv
