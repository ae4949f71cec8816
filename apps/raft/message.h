// What replicas say to each other: libraft's messages as bytes, behind a head that says of which cluster and replica
// they are. No state, no network. Whatever is decoded may be from anybody: a decoder returns false for what libraft,
// which trusts its messages, could not survive.
//
//   head              cluster:u64 from:u64 to:u64 life:u64 election_us:u32 flags:u8 (1: has_memory, 2: is_voter)
//                     address:u16+text
//                     and then a message, or nothing
//   answer            a message, or nothing
//   request for votes kind:u8 term:u64 last_index:u64 last_term:u64 flags:u8 (1: pre-vote)
//   vote              kind:u8 term:u64 granted:u8 pre_vote:u8
//   append            kind:u8 term:u64 prev_index:u64 prev_term:u64 commit:u64 count:u32
//                     for each entry: term:u64 type:u8 length:u32; then the bytes of all entries
//   append's result   kind:u8 term:u64 rejected:u64 last_index:u64
//   snapshot          kind:u8 term:u64 last_index:u64 last_term:u64 configuration_index:u64
//                     configuration:u32+text (as libraft's log has it) data (the rest)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bytes.h"
#include "libraft.h"

namespace replicated {

/// Request types of a replica's endpoint.
enum RequestType : uint16_t {
  kHello = 1,  ///< a head; the answer is life:u64 has_memory:u8 of the one that is there
  kMessage,    ///< a head and any message but a snapshot
  kSnapshot,   ///< a head and a snapshot
  kExecute,    ///< of clients: commands.h
  kChange,     ///< of clients: admin.h
  kAbout,      ///< of anybody: admin.h
  kEcho,       ///< of clients that measure: anything; the answer is one byte, as that of a PUT
};

/// Application codes of Request::fail(), between replicas.
enum Refusal : uint16_t {
  kMalformedMessage = 1,
  kOtherCluster,  ///< our cluster has another number
  kOtherReplica,  ///< the one meant has another id than the one at this address
  kSameId,        ///< another address has the sender's id
  kLostMemory,    ///< the sender's id belonged to another life, which it does not remember
  kStopped,       ///< this replica has stopped
  kOtherTimes,    ///< our election timeout is another one, with which no lease would be safe
};
/// What a replica that was refused prints: the rule and the remedy.
const char* explain(Refusal refusal);

constexpr size_t kHelloAnswerBytes = 8 + 1;
constexpr size_t kAddressBytesMax = 256;
constexpr size_t kReplicasMax = 7;
/// The most that the entries of an append have together, but for one that is longer.
constexpr size_t kAppendBytesMax = 16u << 20;
constexpr size_t kMessageBytesMax = kAppendBytesMax + (4u << 20);
constexpr size_t kSnapshotMessageBytesMax = 1u << 30;

struct Head {
  uint64_t cluster = 0;
  uint64_t from = 0;              ///< id of the sending replica, above 0
  uint64_t to = 0;                ///< id of the one that is meant; 0: whoever is there (kHello)
  uint64_t life = 0;              ///< random, of the sending program: from its start to its end
  uint32_t election_us = 0;       ///< its election timeout
  bool has_memory = false;        ///< it has found what an earlier life of this id has stored
  bool is_voter = false;          ///< in the sender's configuration `to` is a voter
  std::string_view address = {};  ///< URI of the sending replica
};

constexpr size_t kHeadBytes = 4 * 8 + 4 + 1 + 2;
inline size_t encoded_bytes(const Head& head) { return kHeadBytes + head.address.size(); }
void encode(const Head& head, Writer& writer);
/// The address refers to what is read.
[[nodiscard]] bool read_head(Reader& reader, Head& head);

/// How many entries of an append go into one message: all, or as many as `bytes_max` allows, and one at least.
unsigned entries_that_fit(const raft_append_entries& append, size_t bytes_max);

/// The bytes that encode() fills; 0: it is no message of ours (a leadership transfer). `configuration` is that of a
/// snapshot, encoded.
size_t encoded_bytes(const raft_message& message, std::string_view configuration = {});
void encode(const raft_message& message, std::span<std::byte> to, std::string_view configuration = {});

/// Fills `message`, but for its server_id and server_address. Its memory is that of raft_malloc(), and goes to libraft,
/// or to release(). False: malformed, or no memory; there is nothing to release. A request for votes is of `from`.
[[nodiscard]] bool decode(Bytes bytes, uint64_t from, raft_message& message);
void release(raft_message& message);

/// A configuration, as libraft encodes it in its log: one to 2 * kReplicasMax replicas. False: malformed, or no memory;
/// `configuration` is empty then. Otherwise raft_configuration_close() releases it.
[[nodiscard]] bool decode_configuration(Bytes bytes, raft_configuration& configuration);
/// The other way. Empty: no memory.
std::string encode_configuration(const raft_configuration& configuration);

}  // namespace replicated
