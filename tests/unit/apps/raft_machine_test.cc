#include "../apps/raft/machine.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "../apps/raft/lease.h"

namespace {

using namespace replicated;
using namespace std::chrono_literals;

class MachineTest : public testing::Test {
 protected:
  Outcome run(const Command& command) {
    std::string bytes(encoded_bytes(command), '\0');
    encode(command, std::as_writable_bytes(std::span(bytes)));
    const auto answer = parse_answer(as_bytes(machine_.apply(++index_, as_bytes(bytes))));
    value_ = answer->value;
    return answer->outcome;
  }
  uint64_t add_client() {
    Command command;
    command.operation = Operation::kRegister;
    EXPECT_EQ(run(command), Outcome::kDone);
    uint64_t client;
    std::memcpy(&client, value_.data(), sizeof(client));
    return client;
  }
  Machine machine_;
  uint64_t index_ = 0;
  std::string value_;
};

TEST_F(MachineTest, command_that_comes_twice_is_executed_once_and_answered_twice) {
  const uint64_t client = add_client();
  EXPECT_EQ(run({Operation::kPut, client, 1, "k", {}, "a"}), Outcome::kDone);
  EXPECT_EQ(run({Operation::kSwap, client, 2, "k", "a", "b"}), Outcome::kDone);
  EXPECT_EQ(run({Operation::kSwap, client, 2, "k", "a", "b"}), Outcome::kDone) << "its first answer";
  EXPECT_EQ(run({Operation::kPut, client, 1, "k", {}, "a"}), Outcome::kStale);
  EXPECT_EQ(run({Operation::kGet, client, 3, "k", {}, {}}), Outcome::kDone);
  EXPECT_EQ(value_, "b");
  EXPECT_EQ(machine_.last_outcome(client, 2), std::nullopt);
}

TEST_F(MachineTest, client_that_is_not_in_the_table_is_refused) {
  EXPECT_EQ(run({Operation::kPut, 77, 1, "k", {}, "a"}), Outcome::kExpired);
  const uint64_t oldest = add_client(), used = add_client();
  for (size_t i = 2; i < kClientsMax; i++) add_client();
  EXPECT_EQ(machine_.clients(), kClientsMax);
  EXPECT_EQ(run({Operation::kPut, used, 1, "k", {}, "a"}), Outcome::kDone);
  add_client();  // replaces the oldest client
  EXPECT_EQ(machine_.clients(), kClientsMax);
  EXPECT_EQ(run({Operation::kPut, oldest, 1, "k", {}, "b"}), Outcome::kExpired);
  EXPECT_EQ(run({Operation::kPut, used, 1, "k", {}, "a"}), Outcome::kDone) << "its first answer";
}

TEST_F(MachineTest, snapshot_has_all_of_it) {
  const uint64_t client = add_client();
  EXPECT_EQ(run({Operation::kPut, client, 1, "k", {}, "a"}), Outcome::kDone);
  EXPECT_EQ(run({Operation::kErase, client, 2, "missing", {}, {}}), Outcome::kNotFound);
  EXPECT_EQ(run({Operation::kReserve, 0, 9, {}, {}, {}}), Outcome::kDone);
  std::string bytes(machine_.snapshot_bytes(), '\0');
  machine_.write_snapshot(std::as_writable_bytes(std::span(bytes)));
  machine_ = Machine();
  ASSERT_TRUE(machine_.restore(as_bytes(bytes)));
  EXPECT_EQ(machine_.last_outcome(client, 2), Outcome::kNotFound);
  EXPECT_EQ(machine_.highest_replica(), 9u);
  EXPECT_EQ(parse_answer(as_bytes(machine_.read("k")))->value, "a");
  for (size_t len = 0; len < bytes.size(); len++) {
    EXPECT_FALSE(machine_.restore(as_bytes(std::string_view(bytes).substr(0, len)))) << len;
    EXPECT_EQ(machine_.keys(), 0u);
  }
}

TEST_F(MachineTest, snapshot_that_no_machine_has_written_is_refused) {
  const auto snapshot = [](uint8_t outcome, uint64_t clients, std::string_view key, std::string_view second_key) {
    std::vector<std::byte> bytes(1024 + key.size() + second_key.size());
    Writer writer(bytes);
    writer.write(uint32_t{0x31535254}).write(uint64_t{0}).write(clients);
    for (uint64_t i = 0; i < clients; i++) {
      writer.write(uint64_t{5}).write(uint64_t{1}).write(uint64_t{2}).write(outcome).write(uint8_t{0});
    }
    writer.write(uint64_t{2}).write_text<uint16_t>(key).write_text<uint32_t>("value");
    writer.write_text<uint16_t>(second_key).write_text<uint32_t>("value");
    bytes.resize(4 + 8 + 8 + clients * 26 + 8 + 2 * (2 + 4 + 5) + key.size() + second_key.size());
    return bytes;
  };
  EXPECT_TRUE(machine_.restore(snapshot(1, 1, "a", "b")));
  EXPECT_FALSE(machine_.restore(snapshot(1, 1, "a", "a"))) << "a key twice";
  EXPECT_FALSE(machine_.restore(snapshot(1, 2, "a", "b"))) << "a client twice";
  EXPECT_FALSE(machine_.restore(snapshot(11, 1, "a", "b"))) << "an outcome that there is not";
  EXPECT_FALSE(machine_.restore(snapshot(1, 1, "a", std::string(kKeyBytesMax + 1, 'b')))) << "a key that is too long";
}

TEST_F(MachineTest, number_of_a_replica_is_taken_once) {
  EXPECT_EQ(run({Operation::kReserve, 0, 4, {}, {}, {}}), Outcome::kDone);
  EXPECT_EQ(run({Operation::kReserve, 0, 4, {}, {}, {}}), Outcome::kDifferent);
  EXPECT_EQ(run({Operation::kReserve, 0, 3, {}, {}, {}}), Outcome::kDifferent);
}

TEST(RaftLease, begins_with_the_oldest_promise_of_a_majority) {
  raft_configuration configuration;
  raft_configuration_init(&configuration);
  for (raft_id id = 1; id <= 5; id++) {
    ASSERT_EQ(raft_configuration_add(&configuration, id, std::to_string(id).c_str(), id == 5 ? RAFT_SPARE : RAFT_VOTER),
              0);
  }
  Lease lease(1000ms, 0);  // four voters: a majority is three, the leader and two others
  EXPECT_EQ(lease.end(configuration, 1), tern::Duration::min());
  lease.promise(2, 10ms);
  lease.promise(5, 50ms);  // replica 5 has no vote
  EXPECT_EQ(lease.end(configuration, 1), tern::Duration::min());
  lease.promise(3, 30ms);
  EXPECT_EQ(lease.end(configuration, 1), 1010ms);
  lease.promise(4, 40ms);
  EXPECT_EQ(lease.end(configuration, 1), 1030ms);
  lease.promise(4, 20ms);  // an older promise changes nothing
  EXPECT_EQ(lease.end(configuration, 1), 1030ms);
  EXPECT_EQ(lease.end(configuration, 5), 1010ms) << "a leader that does not vote needs three others: 2, 3 and 4";
  lease.clear();
  EXPECT_EQ(lease.end(configuration, 1), tern::Duration::min());
  raft_configuration_close(&configuration);
}

TEST(RaftLease, is_shorter_by_the_error_of_two_clocks) {
  raft_configuration configuration;
  raft_configuration_init(&configuration);
  ASSERT_EQ(raft_configuration_add(&configuration, 1, "1", RAFT_VOTER), 0);
  ASSERT_EQ(raft_configuration_add(&configuration, 2, "2", RAFT_VOTER), 0);
  Lease lease(1100ms, 0.1);
  lease.promise(2, 0ms);
  EXPECT_NEAR(static_cast<double>(lease.end(configuration, 1).count()), 900e6, 1);
  raft_configuration_close(&configuration);
}

}  // namespace
