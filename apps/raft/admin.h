// What administrators ask of a replica: to change the configuration, and what it is about. Standard library only.
//
//   kChange   cluster:u64 action:u8 id:u64 address:u16+text    answer: outcome:u8 sentence (the rest); of kOtherLeader:
//                                                              leader:u64 URI
//   kAbout    nothing, or anything: the measurement of         answer: a JSON object
//             served commands begins again
//
// A replica's id is used once in the life of a cluster: whoever comes back without its memory comes back under a new
// one, so that nobody votes twice in a term. The leader takes ids that are higher than all before, and writes them down
// in the log before it adds a replica.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "bytes.h"
#include "message.h"

namespace replicated {

enum class Action : uint8_t {
  kAdd = 1,  ///< a new replica: at first it only receives the log, and then votes, too
  kRemove,
};

enum class ChangeOutcome : uint8_t {
  kDone = 1,
  kOtherLeader,  ///< ask that one
  kLater,        ///< another change, or this one, is under way: ask again
  kRefused,      ///< the sentence says why
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

/// The address refers to `bytes`. Nothing: it is malformed.
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
