// Long requests over UDP are received in place. Whatever lands in a message that is still arriving, the message has its
// own bytes in the end; and after the end nothing is written to it.
#include <condition_variable>
#include <mutex>

#include <tern/transport/udp.h>

#include "attack/honest.h"
#include "wire/payload_code.h"

namespace attack {
namespace {

using tern::Udp;
namespace wire = tern::wire;

constexpr uint8_t kCode = 254;  ///< of 64512 B, the longest that UDP takes by default
constexpr uint32_t kPart = wire::payload_of_code(kCode);
constexpr uint32_t kParts = 4;
constexpr uint32_t kTail = 100;  ///< bytes of the last part, which is not full
constexpr uint32_t kMessage = (kParts - 1) * kPart + kTail;

/// A message whose bytes tell its session.
std::byte byte_of(uint32_t seed, size_t at) { return static_cast<std::byte>(seed * 37 + at * 11 + (at >> 8)); }

class InPlaceAttack : public testing::Test {
 protected:
  InPlaceAttack() {
    const auto keep = [this](tern::Request request) {
      const std::lock_guard lock(mutex_);
      kept_.push_back(std::move(request));
      changed_.notify_all();
    };
    EXPECT_TRUE(server_.rpc().on_request(kKeep, keep, {.max_request_bytes = kMessage}).ok());
    server_.run();
  }
  void TearDown() override {
    server_.stop();
    kept_.clear();
  }
  /// Sends part `index` of the session's first request. `seed` gives the bytes.
  void send_part(HostileSession& session, uint32_t index, uint32_t seed, uint32_t wrong_by = 0) {
    const uint32_t bytes = index == kParts - 1 ? kTail : kPart;
    Header header = wire::client_header(Kind::kRequest, index == 0 ? wire::kFirst : 0, session.server_key(),
                                        session.client_number++, session.first_request + wrong_by,
                                        index == 0 ? wire::kNoDeadline : index, kKeep, kMessage);
    header.set_length_and_flags(wire::kHeaderBytes + bytes, header.flags());
    header.add_payload_code(kCode);
    std::vector<std::byte> packet(wire::kHeaderBytes + bytes);
    wire::store_header(packet.data(), header);
    for (size_t i = 0; i < bytes; i++) packet[wire::kHeaderBytes + i] = byte_of(seed, index * size_t{kPart} + i);
    hostile_.data.send(session.server_data, packet);
    settle();
  }
  void send_garbage(const HostileSession& session, size_t bytes) {
    hostile_.data.send(session.server_data, std::vector<std::byte>(bytes, std::byte{0xff}));
    settle();
  }
  /// Waits until the server's loop has read everything that was sent.
  void settle() {
    hostile_.serve_management();
    server_.in_loop([] {});
    server_.in_loop([] {});
  }
  /// Waits for request `number`, counted from 0, and checks that it has the bytes of `seed`.
  void expect_message(size_t number, uint32_t seed) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, [&] { return kept_.size() > number; }));
    const auto bytes = kept_[number].bytes();
    ASSERT_EQ(bytes.size(), kMessage);
    for (size_t i = 0; i < kMessage; i++) ASSERT_EQ(bytes[i], byte_of(seed, i)) << "byte " << i << " of " << seed;
  }

  LiveEndpoint<Udp> server_{"tern://127.0.0.1:0", {}, {}};
  Hostile hostile_{server_.uri(), Address::parse("127.0.0.3").ip};
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<tern::Request> kept_;
};

TEST_F(InPlaceAttack, messages_have_their_own_bytes_whatever_comes_between_their_parts) {
  HostileSession a = hostile_.open(), b = hostile_.open();
  send_part(a, 0, 1);
  send_part(b, 0, 2);  // lies in the place of part 1 of `a` first
  send_part(a, 1, 1);
  send_garbage(a, wire::kHeaderBytes + kPart);
  for (const size_t bytes : {size_t{1}, wire::kHeaderBytes, size_t{100}, size_t{60'000}}) {
    send_part(a, 1, 3);  // again, with other bytes; the server expects part 2 after it
    send_garbage(a, bytes);
  }
  send_part(a, 2, 3, 1);  // of another slot, where it begins a request that never ends
  a.client_number--;      // the number of a packet that has been received
  send_part(a, 2, 3);
  send_part(b, 1, 2);
  send_part(a, 2, 1);
  send_part(b, 2, 2);
  send_part(a, 3, 1);
  send_part(b, 3, 2);
  expect_message(0, 1);
  expect_message(1, 2);
}

TEST_F(InPlaceAttack, parts_in_any_order_make_a_whole_message) {
  HostileSession a = hostile_.open();
  for (const uint32_t index : {2u, 3u, 0u, 0u, 1u}) send_part(a, index, 4);
  expect_message(0, 4);
}

TEST_F(InPlaceAttack, nothing_is_written_to_parts_that_have_been_received) {
  HostileSession a = hostile_.open();
  for (const uint32_t index : {0u, 2u, 1u}) send_part(a, index, 8);
  send_garbage(a, wire::kHeaderBytes + kPart);
  send_part(a, 1, 9);
  send_garbage(a, wire::kHeaderBytes + kPart);
  send_part(a, 3, 8);
  expect_message(0, 8);
}

TEST_F(InPlaceAttack, nothing_is_written_to_a_message_that_was_handed_over) {
  HostileSession a = hostile_.open(), b = hostile_.open();
  for (uint32_t index = 0; index < kParts; index++) send_part(a, index, 5);
  expect_message(0, 5);
  for (uint32_t index = 0; index < kParts; index++) send_part(a, index, 6);
  send_part(b, 0, 7);
  for (uint32_t index = 0; index < kParts; index++) send_part(a, index, 6);
  send_garbage(a, 65'000);
  for (uint32_t index = 1; index < kParts; index++) send_part(b, index, 7);
  expect_message(1, 7);
  expect_message(0, 5);
}

}  // namespace
}  // namespace attack
