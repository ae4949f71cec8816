// The messages between replicas: libraft's messages as bytes, after a head with the cluster and the replica. No state,
// no network. A message may come from any sender. libraft trusts its messages, so a decoder returns false for a message
// that libraft could not survive.
//
//   head              cluster:u64 from:u64 to:u64 life:u64 election_us:u32 flags:u8 (1: has_memory, 2: is_voter)
//                     address:u16+text
//                     followed by a message, or nothing
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
  kHello = 1,  ///< a head; the answer is life:u64 has_memory:u8 of the replica at that address
  kMessage,    ///< a head and any message except a snapshot
  kSnapshot,   ///< a head and a snapshot
  kExecute,    ///< from clients: commands.h
  kChange,     ///< from clients: admin.h
  kAbout,      ///< from any sender: admin.h
  kEcho,       ///< from clients that measure: any bytes; the answer is one byte, as for a PUT
};

/// Application codes of Request::fail(), between replicas.
enum Refusal : uint16_t {
  kMalformedMessage = 1,
  kOtherCluster,  ///< our cluster has another number
  kOtherReplica,  ///< the replica at this address has another id than the head's `to`
  kSameId,        ///< another address has the sender's id
  kLostMemory,    ///< the sender's id belonged to an earlier life, which the sender does not remember
  kStopped,       ///< this replica has stopped
  kOtherTimes,    ///< our election timeout differs from the sender's, so no lease would be safe
};
/// The text that a refused replica prints: the broken rule and the remedy.
const char* explain(Refusal refusal);

constexpr size_t kHelloAnswerBytes = 8 + 1;
constexpr size_t kAddressBytesMax = 256;
constexpr size_t kReplicasMax = 7;
/// The maximum total size of the entries of an append, unless one entry alone is longer.
constexpr size_t kAppendBytesMax = 16u << 20;
constexpr size_t kMessageBytesMax = kAppendBytesMax + (4u << 20);
constexpr size_t kSnapshotMessageBytesMax = 1u << 30;

struct Head {
  uint64_t cluster = 0;
  uint64_t from = 0;              ///< id of the sending replica, above 0
  uint64_t to = 0;                ///< id of the receiving replica; 0: any replica at that address (kHello)
  uint64_t life = 0;              ///< random number of the sending process, constant until it ends
  uint32_t election_us = 0;       ///< the sender's election timeout
  bool has_memory = false;        ///< the sender has found the stored state of an earlier life of its id
  bool is_voter = false;          ///< in the sender's configuration `to` is a voter
  std::string_view address = {};  ///< URI of the sending replica
};

constexpr size_t kHeadBytes = 4 * 8 + 4 + 1 + 2;
inline size_t encoded_bytes(const Head& head) { return kHeadBytes + head.address.size(); }
void encode(const Head& head, Writer& writer);
/// The address points into the bytes that are read.
[[nodiscard]] bool read_head(Reader& reader, Head& head);

/// The number of entries of an append that fit into one message: all entries, or as many as `bytes_max` allows, but at
/// least one.
unsigned entries_that_fit(const raft_append_entries& append, size_t bytes_max);

/// The number of bytes that encode() writes; 0 if tern's replicas do not send this kind of message (a leadership
/// transfer). `configuration` is the encoded configuration of a snapshot.
size_t encoded_bytes(const raft_message& message, std::string_view configuration = {});
void encode(const raft_message& message, std::span<std::byte> to, std::string_view configuration = {});

/// Fills `message`, except its server_id and server_address. Its memory comes from raft_malloc(); the caller must pass
/// it to libraft or to release(). Returns false if the bytes are malformed, or if there is no memory; then there is
/// nothing to release. `from` becomes the candidate of a request for votes.
[[nodiscard]] bool decode(Bytes bytes, uint64_t from, raft_message& message);
void release(raft_message& message);

/// Decodes a configuration in libraft's log encoding: one to 2 * kReplicasMax replicas. Returns false if the bytes are
/// malformed, or if there is no memory; `configuration` is then empty. Otherwise the caller must release it with
/// raft_configuration_close().
[[nodiscard]] bool decode_configuration(Bytes bytes, raft_configuration& configuration);
/// Encodes a configuration. Empty: no memory.
std::string encode_configuration(const raft_configuration& configuration);

}  // namespace replicated
