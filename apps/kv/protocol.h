// kv's messages: little-endian integers and bytes, back to back. Whoever parses one trusts none of its lengths: a
// parser returns nothing for a message that is too short, too long or breaks a limit. Standard library only; no state.
//
//   request                              its answer
//   kAbout     (nothing)                 partitions:u32
//   kGet       key:u64                   version:u64 value                           version 0: no such key, no value
//   kPut       key:u64 version:u64 value version:u64                                 the version that is stored now
//   kMultiGet  key:u64, once or more     version:u64 length:u32 value, for each key  all keys of one partition
//
// Partition p of a server is its endpoint p; a key is in one partition only. A value has the version that its writer
// gave it, 1 or more, and the server keeps the newest: a PUT of what is there already, or older, changes nothing and is
// answered like any other. So a writer that does not know whether its PUT was done repeats it, and a PUT that was held
// up on its way never undoes a later one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "../common/messages.h"

namespace kv {

enum RequestType : uint16_t { kAbout = 1, kGet, kPut, kMultiGet };

/// Why a request was refused: the app_code of kRefused. 0 is the library's own, when it refuses for the server.
enum Refusal : uint16_t {
  kOverloaded = 1,  ///< nothing was done; try again later
  kStoreFull,       ///< nothing was done: no room for this value
  kMalformed,       ///< not one of the messages above
  kStoreFailed,     ///< the server cannot read or write its store
};

constexpr size_t kValueBytesMax = 64u << 10;
constexpr size_t kMultiGetMax = 64;
constexpr size_t kPutHeadBytes = 16;     ///< of a kPut request, before its value
constexpr size_t kGetHeadBytes = 8;      ///< of a kGet answer
constexpr size_t kRecordHeadBytes = 12;  ///< of each record of a kMultiGet answer

using programs::Bytes;

struct Put {
  uint64_t key;
  uint64_t version;
  Bytes value;
};

/// What is stored under a key. Version 0: nothing.
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

/// How many keys a kMultiGet has, which a Reader then reads.
inline std::optional<size_t> parse_multi_get(Bytes message) {
  const size_t keys = message.size() / sizeof(uint64_t);
  if (message.size() % sizeof(uint64_t) != 0 || keys < 1 || keys > kMultiGetMax) return std::nullopt;
  return keys;
}

inline bool is_record(const Record& record) {
  return record.version != 0 ? record.value.size() <= kValueBytesMax : record.value.empty();
}

/// The answer to a kGet.
inline std::optional<Record> parse_record(Bytes message) {
  Record record;
  Reader reader(message);
  if (!reader.read(record.version)) return std::nullopt;
  record.value = reader.rest();
  if (!is_record(record)) return std::nullopt;
  return record;
}

/// The next record of an answer to a kMultiGet.
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
