// The requests of administrators to a replica: a change of the configuration, and a report. Standard library only.
//
//   kChange   cluster:u64 action:u8 id:u64 address:u16+text    answer: outcome:u8 sentence (the rest); for
//                                                              kOtherLeader: leader:u64 URI
//   kAbout    empty, or any bytes: the measurement of          answer: a JSON object
//             served commands begins again
//
// An id of a replica is used only once in the life of a cluster. A replica that comes back without its memory must use
// a new id, so that no replica votes twice in a term. The leader accepts only ids that are higher than all earlier
// ones, and writes an id to the log before it adds the replica.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "bytes.h"
#include "message.h"

namespace replicated {

enum class Action : uint8_t {
  kAdd = 1,  ///< a new replica: it first receives the log, and then becomes a voter
  kRemove,
};

enum class ChangeOutcome : uint8_t {
  kDone = 1,
  kOtherLeader,  ///< ask the other leader
  kLater,        ///< this change, or another one, is under way: ask again
  kRefused,      ///< the sentence gives the reason
};

struct Change {
  uint64_t cluster = 0;
  Action action = Action::kAdd;
  uint64_t id = 0;
  std::string_view address;
};

constexpr size_t kChangeHeadBytes = 8 + 1 + 8 + 2;
constexpr size_t kChangeAnswerBytesMax = 1 + 1024;
constexpr size_t kAboutBytesMax = 8192;

/// The address points into `bytes`. nullopt if the change is malformed.
inline std::optional<Change> parse_change(Bytes bytes) {
  Change change;
  Reader reader(bytes);
  if (!reader.read(change.cluster) || !reader.read(change.action) || !reader.read(change.id) ||
      !reader.read_text<uint16_t>(change.address) || !reader.rest().empty()) {
    return std::nullopt;
  }
  if (change.action < Action::kAdd || change.action > Action::kRemove || change.id == 0) return std::nullopt;
  if (change.action == Action::kAdd && change.address.empty()) return std::nullopt;
  if (change.address.size() > kAddressBytesMax || change.address.find('\0') != change.address.npos) return std::nullopt;
  return change;
}

}  // namespace replicated
