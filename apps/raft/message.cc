#include "message.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace replicated {

const char* explain(Refusal refusal) {
  switch (refusal) {
    case kMalformedMessage:
      return "it considers the message malformed: both must run the same version of this program";
    case kOtherCluster:
      return "it belongs to another cluster: give both the same --cluster, or this one the addresses of its own "
             "cluster";
    case kOtherReplica:
      return "another replica is at its address: the lists of replicas differ";
    case kSameId:
      return "another replica has the id of this one: start this one with an id of its own";
    case kLostMemory:
      return "this id has taken part before, but this replica has lost its memory: start this replica with a new id "
             "and --join, "
             "and "
             "let raft_client --add it";
    case kStopped:
      return "it has stopped; its own output says why";
    case kOtherTimes:
      return "its election timeout is different: give both the same --election_ms";
  }
  return "for a reason that this version does not know";
}

namespace {

constexpr uint8_t kHasMemory = 1, kIsVoter = 2;  ///< flags in a head

}  // namespace

void encode(const Head& head, Writer& writer) {
  writer.write(head.cluster).write(head.from).write(head.to).write(head.life);
  const int flags = (head.has_memory ? kHasMemory : 0) | (head.is_voter ? kIsVoter : 0);
  writer.write(head.election_us).write(static_cast<uint8_t>(flags)).write_text<uint16_t>(head.address);
}

bool read_head(Reader& reader, Head& head) {
  uint8_t flags;
  if (!reader.read(head.cluster) || !reader.read(head.from) || !reader.read(head.to) || !reader.read(head.life) ||
      !reader.read(head.election_us) || !reader.read(flags) || !reader.read_text<uint16_t>(head.address)) {
    return false;
  }
  head.has_memory = (flags & kHasMemory) != 0;
  head.is_voter = (flags & kIsVoter) != 0;
  return flags <= (kHasMemory | kIsVoter) && head.from != 0 && head.life != 0 && !head.address.empty() &&
         head.address.size() <= kAddressBytesMax && head.address.find('\0') == head.address.npos;
}

namespace {

constexpr size_t kVoteRequestBytes = 1 + 3 * 8 + 1;
constexpr size_t kVoteBytes = 1 + 8 + 2;
constexpr size_t kAppendHeadBytes = 1 + 4 * 8 + 4;
constexpr size_t kEntryHeadBytes = 8 + 1 + 4;
constexpr size_t kAppendResultBytes = 1 + 3 * 8;
constexpr size_t kSnapshotHeadBytes = 1 + 4 * 8 + 4;

/// Upper bound of a log's index, so that sums of an index and a count never wrap.
constexpr uint64_t kIndexMax = std::numeric_limits<uint64_t>::max() / 4;

}  // namespace

unsigned entries_that_fit(const raft_append_entries& append, size_t bytes_max) {
  size_t bytes = 0;
  for (unsigned i = 0; i < append.n_entries; i++) {
    bytes += kEntryHeadBytes + append.entries[i].buf.len;
    if (bytes > bytes_max && i > 0) return i;
  }
  return append.n_entries;
}

size_t encoded_bytes(const raft_message& message, std::string_view configuration) {
  switch (message.type) {
    case RAFT_IO_REQUEST_VOTE:
      return kVoteRequestBytes;
    case RAFT_IO_REQUEST_VOTE_RESULT:
      return kVoteBytes;
    case RAFT_IO_APPEND_ENTRIES: {
      size_t bytes = kAppendHeadBytes;
      for (unsigned i = 0; i < message.append_entries.n_entries; i++) {
        bytes += kEntryHeadBytes + message.append_entries.entries[i].buf.len;
      }
      return bytes;
    }
    case RAFT_IO_APPEND_ENTRIES_RESULT:
      return kAppendResultBytes;
    case RAFT_IO_INSTALL_SNAPSHOT:
      return kSnapshotHeadBytes + configuration.size() + message.install_snapshot.data.len;
    default:
      return 0;
  }
}

void encode(const raft_message& message, std::span<std::byte> to, std::string_view configuration) {
  Writer writer(to);
  writer.write(static_cast<uint8_t>(message.type));
  switch (message.type) {
    case RAFT_IO_REQUEST_VOTE: {
      const raft_request_vote& vote = message.request_vote;
      writer.write(uint64_t{vote.term}).write(uint64_t{vote.last_log_index}).write(uint64_t{vote.last_log_term});
      writer.write(static_cast<uint8_t>(vote.pre_vote));
      break;
    }
    case RAFT_IO_REQUEST_VOTE_RESULT: {
      const raft_request_vote_result& vote = message.request_vote_result;
      writer.write(uint64_t{vote.term}).write(static_cast<uint8_t>(vote.vote_granted));
      writer.write(static_cast<uint8_t>(vote.pre_vote == raft_tribool_true));
      break;
    }
    case RAFT_IO_APPEND_ENTRIES: {
      const raft_append_entries& append = message.append_entries;
      writer.write(uint64_t{append.term}).write(uint64_t{append.prev_log_index}).write(uint64_t{append.prev_log_term});
      writer.write(uint64_t{append.leader_commit}).write(uint32_t{append.n_entries});
      const std::span entries(append.entries, append.n_entries);
      for (const raft_entry& entry : entries) {
        writer.write(uint64_t{entry.term}).write(static_cast<uint8_t>(entry.type));
        writer.write(static_cast<uint32_t>(entry.buf.len));
      }
      for (const raft_entry& entry : entries) writer.write(entry.buf.base, entry.buf.len);
      break;
    }
    case RAFT_IO_APPEND_ENTRIES_RESULT: {
      const raft_append_entries_result& result = message.append_entries_result;
      writer.write(uint64_t{result.term}).write(uint64_t{result.rejected}).write(uint64_t{result.last_log_index});
      break;
    }
    case RAFT_IO_INSTALL_SNAPSHOT: {
      const raft_install_snapshot& install = message.install_snapshot;
      writer.write(uint64_t{install.term}).write(uint64_t{install.last_index}).write(uint64_t{install.last_term});
      writer.write(uint64_t{install.conf_index}).write_text<uint32_t>(configuration);
      writer.write(install.data.base, install.data.len);
      break;
    }
    default:
      break;
  }
}

namespace {

/// Needed because libraft's integers are unsigned long long.
bool read_number(Reader& reader, unsigned long long& to) {
  uint64_t value;
  if (!reader.read(value)) return false;
  to = value;
  return value <= kIndexMax;
}
bool read_flag(Reader& reader, bool& to) {
  uint8_t value;
  if (!reader.read(value)) return false;
  to = value != 0;
  return value <= 1;
}

bool decode_entries(Reader& reader, raft_append_entries& append) {
  uint32_t count;
  if (!reader.read(count)) return false;
  append.entries = nullptr;
  append.n_entries = count;
  if (count == 0) return reader.rest().empty();
  Bytes heads;
  if (count > reader.rest().size() / kEntryHeadBytes || !reader.read(heads, count * kEntryHeadBytes)) return false;
  const Bytes bytes = reader.rest();
  auto* entries = static_cast<raft_entry*>(raft_malloc(count * sizeof(raft_entry)));
  auto* batch = static_cast<std::byte*>(raft_malloc(std::max<size_t>(bytes.size(), 1)));
  const auto fill = [&] {
    if (entries == nullptr || batch == nullptr) return false;
    if (!bytes.empty()) std::memcpy(batch, bytes.data(), bytes.size());
    Reader head(heads);
    size_t at = 0;
    uint64_t last_term = append.prev_log_term;
    for (uint32_t i = 0; i < count; i++) {
      uint64_t term;
      uint8_t type;
      uint32_t len_bytes;
      if (!head.read(term) || !head.read(type) || !head.read(len_bytes) || len_bytes > bytes.size() - at) return false;
      if (term == 0 || term < last_term || term > append.term || type < RAFT_COMMAND || type > RAFT_CHANGE)
        return false;
      if (type == RAFT_CHANGE) {
        raft_configuration configuration;
        if (!decode_configuration(bytes.subspan(at, len_bytes), configuration)) return false;
        raft_configuration_close(&configuration);
      }
      entries[i] = {term, type, {batch + at, len_bytes}, batch};
      last_term = term;
      at += len_bytes;
    }
    return at == bytes.size();
  };
  if (fill()) {
    append.entries = entries;
    return true;
  }
  raft_free(entries);
  raft_free(batch);
  return false;
}

bool decode_snapshot(Reader& reader, raft_install_snapshot& install) {
  std::string_view configuration;
  if (!read_number(reader, install.term) || !read_number(reader, install.last_index) ||
      !read_number(reader, install.last_term) || !read_number(reader, install.conf_index) ||
      !reader.read_text<uint32_t>(configuration)) {
    return false;
  }
  if (install.last_index == 0 || install.last_term == 0 || install.last_term > install.term ||
      install.conf_index > install.last_index || reader.rest().empty()) {
    return false;
  }
  if (!decode_configuration(as_bytes(configuration), install.conf)) return false;
  const Bytes data = reader.rest();
  install.data = {raft_malloc(data.size()), data.size()};
  if (install.data.base == nullptr) {
    raft_configuration_close(&install.conf);
    return false;
  }
  std::memcpy(install.data.base, data.data(), data.size());
  return true;
}

}  // namespace

bool decode(Bytes bytes, uint64_t from, raft_message& message) {
  Reader reader(bytes);
  uint8_t kind;
  if (!reader.read(kind)) return false;
  message = {};
  message.type = kind;
  switch (kind) {
    case RAFT_IO_REQUEST_VOTE: {
      raft_request_vote& vote = message.request_vote;
      vote.candidate_id = from;
      vote.disrupt_leader = false;  // leadership is never transferred, because a transfer would break a lease
      return read_number(reader, vote.term) && read_number(reader, vote.last_log_index) &&
             read_number(reader, vote.last_log_term) && read_flag(reader, vote.pre_vote) && reader.rest().empty() &&
             vote.term > 0;
    }
    case RAFT_IO_REQUEST_VOTE_RESULT: {
      raft_request_vote_result& vote = message.request_vote_result;
      bool is_pre_vote;
      if (!read_number(reader, vote.term) || !read_flag(reader, vote.vote_granted) || !read_flag(reader, is_pre_vote)) {
        return false;
      }
      vote.pre_vote = is_pre_vote ? raft_tribool_true : raft_tribool_false;
      return reader.rest().empty();
    }
    case RAFT_IO_APPEND_ENTRIES: {
      raft_append_entries& append = message.append_entries;
      return read_number(reader, append.term) && read_number(reader, append.prev_log_index) &&
             read_number(reader, append.prev_log_term) && read_number(reader, append.leader_commit) &&
             append.term > 0 && append.prev_log_term <= append.term &&
             (append.prev_log_index == 0) == (append.prev_log_term == 0) && decode_entries(reader, append);
    }
    case RAFT_IO_APPEND_ENTRIES_RESULT: {
      raft_append_entries_result& result = message.append_entries_result;
      return read_number(reader, result.term) && read_number(reader, result.rejected) &&
             read_number(reader, result.last_log_index) && reader.rest().empty();
    }
    case RAFT_IO_INSTALL_SNAPSHOT:
      return decode_snapshot(reader, message.install_snapshot);
    default:
      return false;
  }
}

void release(raft_message& message) {
  if (message.type == RAFT_IO_APPEND_ENTRIES && message.append_entries.entries != nullptr) {
    raft_free(message.append_entries.entries[0].batch);
    raft_free(message.append_entries.entries);
    message.append_entries.entries = nullptr;
  } else if (message.type == RAFT_IO_INSTALL_SNAPSHOT) {
    raft_configuration_close(&message.install_snapshot.conf);
    raft_free(message.install_snapshot.data.base);
    message.install_snapshot.data.base = nullptr;
  }
}

// libraft's own encoding (src/configuration.c of libraft): version:u8 (1) count:u64, for each replica id:u64 address
// (text with a final zero byte) role:u8; then any bytes up to a multiple of eight.
bool decode_configuration(Bytes bytes, raft_configuration& configuration) {
  raft_configuration_init(&configuration);
  const auto read_all = [&] {
    Reader reader(bytes);
    uint8_t version;
    uint64_t count;
    if (!reader.read(version) || version != 1 || !reader.read(count) || count == 0 || count > 2 * kReplicasMax) {
      return false;
    }
    for (uint64_t i = 0; i < count; i++) {
      uint64_t id;
      if (!reader.read(id) || id == 0) return false;
      const Bytes rest = reader.rest();
      const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
      const auto len_bytes = static_cast<size_t>(end - rest.begin());
      Bytes address;
      uint8_t role;
      if (end == rest.end() || len_bytes == 0 || len_bytes > kAddressBytesMax || !reader.read(address, len_bytes + 1) ||
          !reader.read(role) || role > RAFT_SPARE) {
        return false;
      }
      if (raft_configuration_add(&configuration, id, as_text(address).data(), role) != 0) return false;
    }
    return reader.rest().size() < 8 && bytes.size() % 8 == 0;
  };
  if (read_all()) return true;
  raft_configuration_close(&configuration);
  raft_configuration_init(&configuration);
  return false;
}

std::string encode_configuration(const raft_configuration& configuration) {
  raft_buffer buffer;
  if (raft_configuration_encode(&configuration, &buffer) != 0) return {};
  std::string bytes(static_cast<const char*>(buffer.base), buffer.len);
  raft_free(buffer.base);
  size_t used = 1 + 8;
  for (unsigned i = 0; i < configuration.n; i++) used += 8 + std::strlen(configuration.servers[i].address) + 1 + 1;
  std::fill(bytes.begin() + static_cast<ptrdiff_t>(std::min(used, bytes.size())), bytes.end(),
            '\0');  // libraft does not set these bytes
  return bytes;
}

}  // namespace replicated
