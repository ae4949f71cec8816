#include "../apps/raft/message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../apps/raft/commands.h"

namespace {

using namespace replicated;

std::string encoded(const raft_message& message, std::string_view configuration = {}) {
  std::string bytes(encoded_bytes(message, configuration), '\0');
  encode(message, std::as_writable_bytes(std::span(bytes)), configuration);
  return bytes;
}

std::string configuration() {
  raft_configuration made;
  raft_configuration_init(&made);
  EXPECT_EQ(raft_configuration_add(&made, 1, "tern://10.0.0.1:1", RAFT_VOTER), 0);
  EXPECT_EQ(raft_configuration_add(&made, 5, "tern://10.0.0.2:1", RAFT_SPARE), 0);
  const std::string bytes = encode_configuration(made);
  raft_configuration_close(&made);
  return bytes;
}

/// Returns one encoded message of each kind.
std::vector<std::string> all_kinds() {
  std::vector<std::string> all;
  raft_message message = {};
  message.type = RAFT_IO_REQUEST_VOTE;
  message.request_vote = {7, 3, 20, 6, false, true};
  all.push_back(encoded(message));
  message.type = RAFT_IO_REQUEST_VOTE_RESULT;
  message.request_vote_result = {7, true, raft_tribool_true};
  all.push_back(encoded(message));
  std::string first = "one", second, change = configuration();
  raft_entry entries[] = {{5, RAFT_COMMAND, {first.data(), first.size()}, nullptr},
                          {6, RAFT_BARRIER, {second.data(), second.size()}, nullptr},
                          {6, RAFT_CHANGE, {change.data(), change.size()}, nullptr}};
  message.type = RAFT_IO_APPEND_ENTRIES;
  message.append_entries = {6, 10, 5, 9, entries, 3};
  all.push_back(encoded(message));
  message.append_entries = {6, 10, 5, 9, nullptr, 0};
  all.push_back(encoded(message));
  message.type = RAFT_IO_APPEND_ENTRIES_RESULT;
  message.append_entries_result = {7, 4, 12};
  all.push_back(encoded(message));
  std::string data(1000, 'd');
  message.type = RAFT_IO_INSTALL_SNAPSHOT;
  message.install_snapshot = {};
  message.install_snapshot.term = 7;
  message.install_snapshot.last_index = 30;
  message.install_snapshot.last_term = 6;
  message.install_snapshot.conf_index = 12;
  message.install_snapshot.data = {data.data(), data.size()};
  all.push_back(encoded(message, change));
  return all;
}

TEST(RaftMessage, each_kind_is_decoded_as_it_was_encoded) {
  for (const std::string& bytes : all_kinds()) {
    raft_message message;
    ASSERT_TRUE(decode(as_bytes(bytes), 3, message));
    std::string change;
    if (message.type == RAFT_IO_INSTALL_SNAPSHOT) change = encode_configuration(message.install_snapshot.conf);
    EXPECT_EQ(encoded(message, change), bytes) << int(bytes[0]);
    if (message.type == RAFT_IO_REQUEST_VOTE) {
      EXPECT_EQ(message.request_vote.candidate_id, 3u);
    }
    release(message);
  }
}

TEST(RaftMessage, every_shorter_and_longer_message_is_refused) {
  for (const std::string& bytes : all_kinds()) {
    raft_message message;
    // The data of a snapshot are the rest of its message, so a message with fewer data is valid, and one without data
    // is not.
    const size_t until = bytes[0] == RAFT_IO_INSTALL_SNAPSHOT ? bytes.size() - 1000 : bytes.size() - 1;
    for (size_t len = 0; len <= until; len++) {
      EXPECT_FALSE(decode(as_bytes(std::string_view(bytes).substr(0, len)), 3, message)) << int(bytes[0]) << " " << len;
    }
    if (bytes[0] != RAFT_IO_INSTALL_SNAPSHOT) {
      EXPECT_FALSE(decode(as_bytes(bytes + "x"), 3, message));
    }
  }
}

TEST(RaftMessage, any_flipped_bits_are_refused_or_harmless) {
  std::mt19937_64 random(1);
  for (const std::string& bytes : all_kinds()) {
    for (int i = 0; i < 20000; i++) {
      std::string broken = bytes;
      for (uint64_t flips = 1 + random() % 4; flips > 0; flips--) {
        broken[random() % broken.size()] ^= static_cast<char>(1u << random() % 8);
      }
      raft_message message;
      if (!decode(as_bytes(broken), 3, message)) continue;
      EXPECT_NE(message.type, RAFT_IO_TIMEOUT_NOW);
      if (message.type == RAFT_IO_APPEND_ENTRIES) {
        const raft_append_entries& append = message.append_entries;
        for (unsigned j = 0; j < append.n_entries; j++) {
          EXPECT_GE(append.entries[j].term, 1u);
          EXPECT_LE(append.entries[j].term, append.term);
        }
      }
      release(message);
    }
  }
}

TEST(RaftMessage, head_is_read_as_it_was_encoded_and_refused_without_address) {
  Head head{1, 2, 3, 4, 5, true, true, "tern://10.0.0.1:31850"};
  std::string bytes(encoded_bytes(head), '\0');
  Writer writer(std::as_writable_bytes(std::span(bytes)));
  encode(head, writer);
  Head again;
  Reader reader(as_bytes(bytes));
  ASSERT_TRUE(read_head(reader, again));
  EXPECT_TRUE(reader.rest().empty());
  EXPECT_EQ(again.cluster, 1u);
  EXPECT_EQ(again.to, 3u);
  EXPECT_EQ(again.election_us, 5u);
  EXPECT_TRUE(again.has_memory);
  EXPECT_TRUE(again.is_voter);
  EXPECT_EQ(again.address, head.address);
  for (size_t len = 0; len < bytes.size(); len++) {
    Reader shorter(as_bytes(std::string_view(bytes).substr(0, len)));
    EXPECT_FALSE(read_head(shorter, again)) << len;
  }
}

TEST(RaftMessage, configuration_ends_at_a_multiple_of_eight_bytes) {
  const std::string bytes = configuration();
  raft_configuration decoded;
  ASSERT_TRUE(decode_configuration(as_bytes(bytes), decoded));
  raft_configuration_close(&decoded);
  EXPECT_FALSE(decode_configuration(as_bytes(bytes).first(bytes.size() - 1), decoded));
}

TEST(RaftMessage, append_is_cut_where_it_would_be_too_long) {
  std::string big(6u << 20, 'b');
  const raft_entry entry = {1, RAFT_COMMAND, {big.data(), big.size()}, nullptr};
  raft_entry entries[] = {entry, entry, entry};
  EXPECT_EQ(entries_that_fit({1, 0, 0, 0, entries, 3}, kAppendBytesMax), 2u);
  std::string huge(20u << 20, 'h');
  entries[0].buf = {huge.data(), huge.size()};
  EXPECT_EQ(entries_that_fit({1, 0, 0, 0, entries, 3}, kAppendBytesMax), 1u) << "one goes, however long it is";
}

TEST(RaftMessage, commands_and_answers_of_strangers_are_bounded) {
  const Command command = {Operation::kSwap, 1, 2, "key", "old", "new"};
  std::string bytes(encoded_bytes(command), '\0');
  encode(command, std::as_writable_bytes(std::span(bytes)));
  const auto parsed = parse_command(as_bytes(bytes));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->key, "key");
  EXPECT_EQ(parsed->expected, "old");
  EXPECT_EQ(parsed->value, "new");
  for (size_t len = 0; len < bytes.size() - 3; len++)
    EXPECT_FALSE(parse_command(as_bytes(std::string_view(bytes).substr(0, len))));
  const std::string long_key(kKeyBytesMax + 1, 'k');
  const Command longer = {Operation::kPut, 1, 2, long_key, {}, {}};
  std::string long_bytes(encoded_bytes(longer), '\0');
  encode(longer, std::as_writable_bytes(std::span(long_bytes)));
  EXPECT_FALSE(parse_command(as_bytes(long_bytes)));
  EXPECT_FALSE(parse_answer({}));
  EXPECT_FALSE(
      parse_answer(as_bytes(std::string_view("\x81"
                                             "123",
                                             4))))
      << "replicas that end early";
}

}  // namespace
