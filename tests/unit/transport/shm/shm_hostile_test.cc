// Peers that break the rules. Each of them spoils only its own connection.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shm_fixture.h"
#include "transport/shm/shm_closer.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_socket.h"

namespace tern::transport {
namespace {

using shm::Descriptor;

constexpr size_t kPage = 4096;
constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

Descriptor memfd(size_t bytes, int seals) {
  Descriptor fd(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_TRUE(seals == 0 || ::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

bool is_closing() {
  std::string name;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (std::getline(std::ifstream(thread.path() / "comm"), name) && name == "tern-close") return true;
  }
  return false;
}
/// fork() when no thread of an earlier case is closing connections: ThreadSanitizer ends a child that starts threads if
/// its parent had several.
pid_t fork_alone() {
  EXPECT_TRUE(run_until({}, [] { return !is_closing(); }));
  return ::fork();
}

/// A hand-written peer of the transport's protocol.
struct RawPeer {
  static constexpr uint32_t kCells = 256;
  static constexpr uint64_t kStart = uint64_t{77} << 20;

  explicit RawPeer(ShmEnd& victim) {
    identity = *shm::make_identity();
    listener = std::move(*shm::listen_as(identity));
    ring = std::move(*shm::make_own_memory("raw-ring", shm::region_bytes(kCells)));
    doorbell = std::move(*shm::make_own_memory("raw-doorbell", kPage));
    shm::Identity to;
    std::copy(victim->address().begin(), victim->address().end(), to.begin());
    socket = std::move(*shm::connect_to(to));
  }
  shm::Hello hello() const { return {identity, kStart, kCells, true}; }
  void say(const shm::Hello& words, int ring_fd, int doorbell_fd) {
    EXPECT_EQ(shm::send_hello(socket.get(), words, ring_fd, doorbell_fd), shm::SendResult::kSent);
  }
  void say_hello() { say(hello(), ring.fd.get(), doorbell.fd.get()); }
  /// Returns the victim's next message, or kHangUp if the victim has refused us.
  shm::ReceiveResult listen(ShmEnd& victim, shm::Message& message) {
    auto result = shm::ReceiveResult::kNothing;
    run_until({&victim},
              [&] { return (result = shm::receive_message(socket.get(), message)) != shm::ReceiveResult::kNothing; });
    return result;
  }
  bool is_refused(ShmEnd& victim) {
    shm::Message message;
    return listen(victim, message) == shm::ReceiveResult::kHangUp;
  }
  void join(ShmEnd& victim) {
    say_hello();
    shm::Message message;
    ASSERT_EQ(listen(victim, message), shm::ReceiveResult::kMessage);
    ASSERT_EQ(message.type, shm::MessageType::kHello);
    auto mapped = shm::map_peer_memory(message.descriptors[0], shm::region_bytes(message.hello.ring_cells),
                                       shm::PeerMemoryKind::kRing);
    ASSERT_TRUE(mapped.ok());
    in = std::move(*mapped);
    out.attach(ring.mapping.data(), kCells, kStart, &reinterpret_cast<shm::RingControl*>(in.data())->consumed);
  }
  void put(uint64_t w0, std::string_view payload) {
    std::byte* cell = out.cells + (out.position & out.offset_mask);
    shm::put_header(cell, {w0, 1, 2});
    std::memcpy(cell + shm::kPayloadOffset, payload.data(), payload.size());
    shm::word_at(cell).store(out.position, std::memory_order_release);
    out.position += shm::kCellBytes;
  }
  static uint64_t word(size_t length, uint8_t flags = 0, wire::Kind kind = wire::Kind::kRequest) {
    auto header = wire::client_header(kind, flags, 1, 0, 0, 0, 0, 0);
    header.set_length_and_flags(length, 0);
    return header.w0;
  }
  void put_reference(uint32_t chunk, uint32_t lease, uint64_t offset, uint32_t data_offset, uint32_t bytes) {
    alignas(8) std::byte cell[shm::kCellBytes] = {};
    shm::put_reference(cell, {chunk, lease, offset, data_offset, bytes});
    put(word(wire::kHeaderBytes + shm::kReferenceBytes, wire::kByReference),
        {reinterpret_cast<const char*>(cell) + shm::kPayloadOffset, shm::kReferenceBytes});
  }

  shm::Identity identity;
  Descriptor listener, socket;
  shm::OwnMemory ring, doorbell;
  shm::Mapping in;
  shm::Outbound out;
};

struct ShmHostile : testing::Test {
  /// Checks that the victim still serves its other peer.
  void TearDown() override {
    const size_t before = victim.got.size();
    ASSERT_TRUE(good.send(peer, "fine"));
    good->flush();
    ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() > before; }));
    EXPECT_EQ(victim.got.back(), "fine");
    EXPECT_EQ(good->peer_state(peer), PeerState::kReady);
  }
  ShmEnd victim, good;
  PeerId peer = connect(good, victim);
};

TEST_F(ShmHostile, raw_peer__is_accepted_when_it_keeps_the_rules) {
  RawPeer raw(victim);
  raw.join(victim);
  raw.put(RawPeer::word(29), "hello");
  ASSERT_TRUE(run_until({&victim}, [&] { return !victim.got.empty(); }));
  EXPECT_EQ(victim.got[0], "hello");
  EXPECT_EQ(victim->counters().peers_refused, 0u);
}

/// Both sides connect at one time, and the peer drops the victim's attempt before it says its hello.
TEST_F(ShmHostile, raw_peer__may_drop_an_attempt_before_its_own_hello) {
  RawPeer raw(victim);
  const auto id = victim->connect(raw.identity, "");
  ASSERT_TRUE(id.ok());
  Descriptor attempt;
  ASSERT_TRUE(run_until({&victim}, [&] {
    attempt = Descriptor(::accept4(raw.listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return static_cast<bool>(attempt);
  }));
  attempt.reset();
  run_some({&victim});
  EXPECT_EQ(victim->peer_state(*id), PeerState::kConnecting);
  raw.join(victim);
  EXPECT_EQ(victim->peer_state(*id), PeerState::kReady);
}

/// A connection without a hello could be the peer's, but not for ever.
TEST_F(ShmHostile, attempt__that_was_dropped_ends_though_a_stranger_is_silent) {
  const RawPeer silent(victim);
  auto raw = std::make_unique<RawPeer>(victim);
  const auto id = victim->connect(raw->identity, "");
  ASSERT_TRUE(id.ok());
  raw.reset();
  EXPECT_TRUE(run_until({&victim}, [&] { return victim->peer_state(*id) == PeerState::kDead; }));
}

/// Reads packets as an endpoint does: burst by burst, with a private copy before any check. The peer writes to its ring
/// between two reads.
struct RewritingVisitor {
  RawPeer& raw;
  std::string& first_look;
  std::string& second_look;
  void look(const std::byte* data, size_t bytes) const {
    first_look.assign(reinterpret_cast<const char*>(data), bytes);
    std::memset(raw.out.cells, 'x', size_t{RawPeer::kCells} * shm::kCellBytes);
    second_look.assign(reinterpret_cast<const char*>(data), bytes);
  }
  void operator()(const wire::Header&, const Payload& payload) const { look(payload.data, payload.bytes); }
  void begin_burst() const {}
  bool try_in_burst(const wire::Header&, const Payload&, std::byte*) const { return false; }
  void in_burst(const wire::Header&, const Payload& payload, std::byte* room) const {
    look(private_copy(payload, room), payload.bytes);
  }
};

TEST_F(ShmHostile, ring__changed_while_a_packet_is_read_affects_only_trusting_readers) {
  ShmImpl::Options options;
  for (const bool trust : {false, true}) {
    options.trust_peers = trust;
    ShmEnd reader(options);
    for (const size_t bytes : {shm::kCellPayloadBytes, shm::kInlinePayloadBytes}) {
      RawPeer raw(reader);
      raw.join(reader);
      const std::string text(bytes, 'a');
      const wire::Header header = {RawPeer::word(wire::kHeaderBytes + bytes), 1, 2};
      ASSERT_TRUE(raw.out.try_put(header, reinterpret_cast<const std::byte*>(text.data()), bytes));
      std::string first_look, second_look;
      const RewritingVisitor visitor{raw, first_look, second_look};
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (first_look.empty() && std::chrono::steady_clock::now() < limit) reader->receive(visitor);
      EXPECT_EQ(first_look, text);
      EXPECT_EQ(second_look == text, !trust) << "only a trusted peer's ring is read in place";
    }
  }
}

TEST_F(ShmHostile, memory__that_can_change_is_refused) {
  const size_t ring_bytes = shm::region_bytes(RawPeer::kCells);
  uint64_t refused = 0;
  const auto expect_refused = [&](int ring_fd, int doorbell_fd) {
    RawPeer raw(victim);
    raw.say(raw.hello(), ring_fd < 0 ? raw.ring.fd.get() : ring_fd,
            doorbell_fd < 0 ? raw.doorbell.fd.get() : doorbell_fd);
    EXPECT_TRUE(raw.is_refused(victim));
    EXPECT_EQ(victim->counters().peers_refused, ++refused);
  };
  expect_refused(memfd(ring_bytes, 0).get(), -1);
  expect_refused(memfd(ring_bytes, F_SEAL_SHRINK | F_SEAL_GROW).get(), -1);
  expect_refused(memfd(ring_bytes, F_SEAL_GROW | F_SEAL_FUTURE_WRITE).get(), -1);
  expect_refused(memfd(ring_bytes - kPage, kAllSeals).get(), -1);
  expect_refused(memfd(ring_bytes + kPage, kAllSeals).get(), -1);
  expect_refused(-1, memfd(kPage, 0).get());
  expect_refused(-1, memfd(2 * kPage, kAllSeals).get());
  expect_refused(-1, memfd(0, kAllSeals).get());
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  expect_refused(pipe_ends[0], -1);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  Descriptor file(::open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(ring_bytes)), 0);
  expect_refused(file.get(), -1);
}

TEST_F(ShmHostile, hello__with_nonsense_is_refused) {
  for (int fault = 0; fault < 5; fault++) {
    RawPeer raw(victim);
    auto words = raw.hello();
    if (fault == 0) words.ring_cells = 0;
    if (fault == 1) words.ring_cells = 300;
    if (fault == 2) words.ring_cells = 1u << 31;
    if (fault == 3) words.ring_start = UINT64_MAX - 100;
    if (fault == 4) std::copy(victim->address().begin(), victim->address().end(), words.identity.begin());
    raw.say(words, raw.ring.fd.get(), raw.doorbell.fd.get());
    EXPECT_TRUE(raw.is_refused(victim)) << fault;
    EXPECT_EQ(victim->counters().peers_refused, static_cast<uint64_t>(fault) + 1);
  }
}

TEST_F(ShmHostile, messages__that_cannot_be_parsed_are_refused) {
  constexpr char kVersion = shm::kProtocolVersion;
  for (const std::string& bytes :
       {std::string{1}, std::string{1, kVersion}, std::string{1, kVersion + 1}, std::string{0x63, kVersion},
        std::string{3, kVersion}, std::string{2, kVersion, 'z', 'z'}}) {
    RawPeer raw(victim);
    ASSERT_GT(::send(raw.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(raw.is_refused(victim));
  }
  const std::string long_one(5000, 1);
  RawPeer raw(victim);
  ASSERT_GT(::send(raw.socket.get(), long_one.data(), long_one.size(), MSG_NOSIGNAL), 0);
  EXPECT_TRUE(raw.is_refused(victim));
  EXPECT_EQ(victim->counters().peers_refused, 7u);
}

TEST_F(ShmHostile, identity__without_a_listener_is_refused) {
  RawPeer raw(victim);
  auto words = raw.hello();
  words.identity = *shm::make_identity();
  raw.say(words, raw.ring.fd.get(), raw.doorbell.fd.get());
  EXPECT_TRUE(raw.is_refused(victim));
}

TEST_F(ShmHostile, identity__of_another_process_cannot_be_claimed) {
  const shm::Identity other = *shm::make_identity();
  int listens[2];
  ASSERT_EQ(::pipe2(listens, O_CLOEXEC), 0);
  const pid_t owner = fork_alone();
  if (owner == 0) {
    auto listener = shm::listen_as(other);
    if (!listener.ok() || ::write(listens[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(listens[0], &byte, 1), 1);
  RawPeer raw(victim);
  auto words = raw.hello();
  words.identity = other;
  raw.say(words, raw.ring.fd.get(), raw.doorbell.fd.get());
  EXPECT_TRUE(raw.is_refused(victim));
  EXPECT_EQ(victim->counters().peers_refused, 1u);
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  ::close(listens[0]);
  ::close(listens[1]);
}

TEST_F(ShmHostile, second_hello__does_not_displace_the_first) {
  RawPeer raw(victim);
  raw.join(victim);
  RawPeer again(victim);
  again.identity = raw.identity;
  again.say_hello();
  EXPECT_TRUE(again.is_refused(victim));
  raw.put(RawPeer::word(27), "one");
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 1; }));
}

TEST_F(ShmHostile, headers__with_wrong_lengths_end_the_peer) {
  const uint64_t faults[] = {
      RawPeer::word(0),         RawPeer::word(23), RawPeer::word(65535), RawPeer::word(shm::kRecordBytesMax),
      RawPeer::word(32) | 0xf0,
  };
  uint64_t dropped = 0;
  for (const uint64_t w0 : faults) {
    RawPeer raw(victim);
    raw.join(victim);
    raw.put(w0, "whatever");
    EXPECT_TRUE(raw.is_refused(victim));
    EXPECT_EQ(victim->counters().dropped_unparsable, ++dropped);
  }
  // A record that would wrap around.
  RawPeer raw(victim);
  raw.join(victim);
  while ((raw.out.position & raw.out.offset_mask) != raw.out.offset_mask) raw.put(RawPeer::word(24), "");
  raw.put(RawPeer::word(200), "");
  EXPECT_TRUE(raw.is_refused(victim));
  EXPECT_EQ(victim->counters().dropped_unparsable, ++dropped);
}

TEST_F(ShmHostile, padding__without_end_is_bounded) {
  RawPeer raw(victim);
  raw.join(victim);
  for (int i = 0; i < 100; i++) {
    raw.put(0, "");
    raw.out.position = (raw.out.position | raw.out.offset_mask | 63) + 1;
    victim.receive();
  }
  EXPECT_TRUE(victim.got.empty());
  raw.put(RawPeer::word(29), "after");
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 1; }));
}

TEST_F(ShmHostile, references__outside_of_the_chunk_are_dropped) {
  RawPeer raw(victim);
  raw.join(victim);
  constexpr uint64_t kChunk = 1 << 20;
  auto chunk = std::move(*shm::make_own_memory("raw-chunk", kChunk));
  auto* buffer = reinterpret_cast<detail::Buffer*>(chunk.mapping.data() + 128);
  buffer->lease.store(5);
  std::memset(buffer->data(), 'q', 70'000);
  uint64_t dropped = 0;
  const auto expect_dropped = [&](auto... fields) {
    raw.put_reference(fields...);
    ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().dropped_bad_reference == dropped + 1; }));
    dropped++;
  };
  expect_dropped(0u, 5u, 128ul, 0u, 1000u);  // the chunk was not announced
  ASSERT_EQ(shm::send_chunk(raw.socket.get(), 0, kChunk, chunk.fd.get()), shm::SendResult::kSent);
  raw.put_reference(0, 5, 128, 0, 65536);
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 1; }));
  EXPECT_EQ(victim.got[0], std::string(65536, 'q'));
  EXPECT_TRUE(victim.intact);
  raw.put_reference(0, 6, 128, 0, 1000);  // another lease
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 2; }));
  EXPECT_FALSE(victim.intact);
  raw.put_reference(0, 0, kChunk - 64 - 100, 0, 36);  // unaligned
  dropped++;
  expect_dropped(1u, 5u, 128ul, 0u, 1000u);
  expect_dropped(UINT32_MAX, 5u, 128ul, 0u, 1000u);
  expect_dropped(0u, 5u, 128ul, 0u, 0u);
  expect_dropped(0u, 5u, 128ul, 0u, 65537u);
  expect_dropped(0u, 5u, kChunk - 64, 0u, 1u);
  expect_dropped(0u, 5u, kChunk, 0u, 1u);
  expect_dropped(0u, 5u, ~uint64_t{63}, 0u, 1u);
  expect_dropped(0u, 5u, 0ul, UINT32_MAX, 65536u);
  expect_dropped(0u, 5u, 0ul, static_cast<uint32_t>(kChunk - 64), 1u);
  raw.put_reference(0, 0, kChunk - 128, 0, 64);  // up to the last byte
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 3; }));
  // In one burst, where each is looked at before its turn.
  for (uint32_t i = 0; i < 4; i++) {
    raw.put_reference(0, 5, 128, 0, 1000);
    raw.put_reference(i, 5, i % 2 == 0 ? kChunk - 64 : ~uint64_t{63}, UINT32_MAX, 8192);
    dropped++;
  }
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 7; }));
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().dropped_bad_reference == dropped; }));
  EXPECT_TRUE(victim.intact);
  raw.put(RawPeer::word(wire::kHeaderBytes + 23, wire::kByReference), std::string(23, 0));
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().dropped_bad_reference == dropped + 1; }));
}

TEST_F(ShmHostile, chunks__beyond_the_rules_end_the_peer) {
  const auto filled = std::move(*shm::make_own_memory("filled", 1 << 20));
  const auto& sealed = filled.fd;
  const auto unsealed = memfd(1 << 20, F_SEAL_SHRINK | F_SEAL_GROW);
  const auto empty = memfd(1 << 20, kAllSeals);
  auto beyond = memfd(1 << 20, 0);  // its pages lie behind its end, and it could give them back
  ASSERT_EQ(::fallocate(beyond.get(), FALLOC_FL_KEEP_SIZE, 1 << 20, 1 << 20), 0);
  ASSERT_EQ(::fcntl(beyond.get(), F_ADD_SEALS, kAllSeals), 0);
  auto last = memfd(1 << 20, 0);  // one hole
  ASSERT_EQ(::fallocate(last.get(), 0, 0, (1 << 20) - kPage), 0);
  ASSERT_EQ(::fcntl(last.get(), F_ADD_SEALS, kAllSeals), 0);
  const auto expect_end = [&](uint32_t id, uint64_t bytes, int fd) {
    RawPeer raw(victim);
    raw.join(victim);
    ASSERT_EQ(shm::send_chunk(raw.socket.get(), id, bytes, fd), shm::SendResult::kSent);
    EXPECT_TRUE(raw.is_refused(victim));
  };
  expect_end(0, 1 << 20, unsealed.get());
  expect_end(0, 2 << 20, sealed.get());
  expect_end(0, 0, sealed.get());
  expect_end(0, UINT64_MAX, sealed.get());
  expect_end(1u << 30, 1 << 20, sealed.get());
  expect_end(0, 1 << 20, empty.get());
  expect_end(0, 1 << 20, beyond.get());
  expect_end(0, 1 << 20, last.get());
  RawPeer raw(victim);
  raw.join(victim);
  ASSERT_EQ(shm::send_chunk(raw.socket.get(), 3, 1 << 20, sealed.get()), shm::SendResult::kSent);
  ASSERT_EQ(shm::send_chunk(raw.socket.get(), 3, 1 << 20, sealed.get()), shm::SendResult::kSent);
  EXPECT_TRUE(raw.is_refused(victim));
  EXPECT_EQ(victim->counters().peers_refused, 9u);
}

TEST_F(ShmHostile, chunks__of_huge_pages_with_a_hole_end_the_peer) {
  constexpr size_t kHugePage = 2 << 20;
  Descriptor holes(::memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!holes) GTEST_SKIP() << "the kernel has no huge pages";
  ASSERT_EQ(::ftruncate(holes.get(), 2 * kHugePage), 0);
  (void)::fallocate(holes.get(), 0, 0, kHugePage);  // without a free huge page both are holes
  ASSERT_EQ(::fcntl(holes.get(), F_ADD_SEALS, kAllSeals), 0);
  RawPeer raw(victim);
  raw.join(victim);
  ASSERT_EQ(shm::send_chunk(raw.socket.get(), 0, 2 * kHugePage, holes.get()), shm::SendResult::kSent);
  EXPECT_TRUE(raw.is_refused(victim));
}

TEST_F(ShmHostile, consumed__impossible_count_fills_its_own_ring_only) {
  RawPeer raw(victim);
  raw.join(victim);
  const PeerId id = *victim->connect(raw.identity, "");
  auto& consumed = reinterpret_cast<shm::RingControl*>(raw.ring.mapping.data())->consumed;
  for (const uint64_t claim : {uint64_t{0}, uint64_t{1}, UINT64_MAX, UINT64_MAX / 2}) {
    consumed.store(claim);
    size_t sent = 0;
    while (sent < 5000 && victim.send(id, "x")) sent++;
    EXPECT_LE(sent, 1024u);
    EXPECT_FALSE(victim.send(id, "x"));
  }
  // A doorbell that always has "asleep" costs one message.
  reinterpret_cast<std::atomic<uint32_t>*>(raw.doorbell.mapping.data())->store(1);
  const uint64_t calls = victim->counters().system_calls;
  victim->flush();
  victim->flush();
  EXPECT_LE(victim->counters().system_calls, calls + 1);
}

TEST_F(ShmHostile, silent_connections__do_not_keep_others_out) {
  shm::Identity to;
  std::copy(victim->address().begin(), victim->address().end(), to.begin());
  std::vector<Descriptor> silent;
  for (int i = 0; i < 200; i++) {
    silent.push_back(std::move(*shm::connect_to(to)));
    victim.receive();
  }
  ShmEnd other;
  connect(other, victim);
}

TEST_F(ShmHostile, out_of_descriptors__is_named_and_does_not_spin) {
  std::vector<Descriptor> taken;
  ShmEnd other;
  run_some({&victim, &good});
  for (;;) {
    Descriptor fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!fd) break;
    taken.push_back(std::move(fd));
  }
  const auto refused = other->connect(victim->address(), "");
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  EXPECT_NE(refused.status().message().find("descriptors"), std::string_view::npos);
  // One descriptor is free, which suffices to connect to the listening socket but not to become a peer.
  taken.pop_back();
  shm::Identity to;
  std::copy(victim->address().begin(), victim->address().end(), to.begin());
  auto knock = shm::connect_to(to);
  ASSERT_TRUE(knock.ok());
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().peers_refused == 1; }));
  taken.clear();
  knock = shm::connect_to(to);
  connect(other, victim);
}

shm::Identity identity_of(ShmEnd& end) {
  shm::Identity identity;
  std::copy(end->address().begin(), end->address().end(), identity.begin());
  return identity;
}

TEST_F(ShmHostile, connections__beyond_a_rounds_share_wait_in_the_backlog) {
  constexpr size_t kKnocks = 300;
  run_some({&victim, &good});
  std::vector<Descriptor> knocks;
  for (size_t i = 0; i < kKnocks; i++) knocks.push_back(std::move(*shm::connect_to(identity_of(victim))));
  knocks.clear();  // the connections have come and gone; the victim needs a few system calls to detect the end of each
  constexpr uint64_t kCallsPerRoundMax = 100;
  uint64_t accepted_at = victim->counters().system_calls;
  uint64_t most = 0;
  for (uint32_t round = 0; round < 200'000; round++) {
    victim.receive();
    most = std::max(most, victim->counters().system_calls - accepted_at);
    accepted_at = victim->counters().system_calls;
  }
  EXPECT_LE(most, kCallsPerRoundMax);
  // The backlog is empty now. A new peer is served, and the victim checks the backlog only rarely.
  ShmEnd other;
  connect(other, victim);
  run_some({&victim, &other});
  const uint64_t calls = victim->counters().system_calls;
  for (int i = 0; i < 10 * 1024; i++) victim.receive();
  EXPECT_LE(victim->counters().system_calls - calls, 20u);
}

TEST_F(ShmHostile, connections__are_all_served_though_the_endpoint_sleeps) {
  ShmEnd sleeper;
  run_some({&sleeper});
  std::vector<Descriptor> knocks;
  for (size_t i = 0; i < 500; i++) knocks.push_back(std::move(*shm::connect_to(identity_of(sleeper))));
  knocks.clear();
  // Waits end at once while connections are left. In the end no connection is left, and a wait no longer ends at once.
  const uint64_t limit = sleeper->now() + 100'000'000'000;
  uint32_t waits = 0;
  for (bool is_quiet = false; !is_quiet && sleeper->now() < limit;) {
    sleeper.receive();
    if (!sleeper->prepare_wait()) {
      sleeper->end_wait();
      continue;
    }
    const uint64_t until = sleeper->now() + 20'000'000;
    sleeper->wait(until);
    is_quiet = sleeper->now() >= until;
    sleeper->end_wait();
    waits++;
  }
  EXPECT_LE(waits, 500u);
  ShmEnd other;
  connect(other, sleeper);
}

/// A process that keeps `count` silent connections to the endpoint open.
struct SilentProcess {
  SilentProcess(const shm::Identity& to, int count) {
    EXPECT_EQ(::pipe2(ready, O_CLOEXEC), 0);
    pid = fork_alone();
    if (pid == 0) {
      std::vector<Descriptor> kept;
      for (int i = 0; i < count; i++) {
        auto socket = shm::connect_to(to);
        if (!socket.ok()) ::_exit(1);
        kept.push_back(std::move(*socket));
      }
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  }
  ~SilentProcess() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
  }
  int ready[2];
  pid_t pid = -1;
};

TEST_F(ShmHostile, silent_connections__push_out_their_own_process_only) {
  RawPeer slow(victim);  // is connected, and sends its hello later
  run_some({&victim, &good});
  SilentProcess first(identity_of(victim), 100), second(identity_of(victim), 100), third(identity_of(victim), 100);
  // The victim keeps the last 16 connections of each process, and 49 with ours.
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().peers_refused == 3 * (100 - 16); }));
  SilentProcess fourth(identity_of(victim), 100);
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().peers_refused >= 4 * 100 - 64 + 1; }));
  slow.join(victim);
  slow.put(RawPeer::word(29), "hello");
  ASSERT_TRUE(run_until({&victim}, [&] { return !victim.got.empty(); }));
  EXPECT_EQ(victim.got[0], "hello");
}

TEST_F(ShmHostile, connections__whose_hello_has_just_come_are_not_pushed_out) {
  RawPeer oldest(victim);
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 15; i++) silent.push_back(std::make_unique<RawPeer>(victim));
  run_some({&victim});
  EXPECT_EQ(victim->counters().peers_refused, 0u);
  oldest.say_hello();
  RawPeer newest(victim);  // the 17th
  EXPECT_FALSE(oldest.is_refused(victim));
  EXPECT_EQ(victim->counters().peers_refused, 0u);
  RawPeer one_more(victim);
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().peers_refused == 1; }));
  EXPECT_TRUE(silent[0]->is_refused(victim));
}

/// A process with `count` endpoints that all connect to `to`. It reports the number of connected endpoints in the end.
struct ManyEndpoints {
  ManyEndpoints(std::span<const std::byte> to, int count) {
    EXPECT_EQ(::pipe2(told, O_CLOEXEC), 0);
    const std::vector<std::byte> address(to.begin(), to.end());
    pid = fork_alone();
    if (pid != 0) return;
    std::vector<std::unique_ptr<ShmEnd>> ends;
    std::vector<PeerId> peers;
    for (int i = 0; i < count; i++) {
      ends.push_back(std::make_unique<ShmEnd>(ShmImpl::Options{.ring_cells = 256}));
      auto peer = (*ends.back())->connect(address, "");
      if (!peer.ok()) ::_exit(1);
      peers.push_back(*peer);
    }
    for (bool is_settled = false; !is_settled;) {
      is_settled = true;
      for (size_t i = 0; i < ends.size(); i++) {
        ends[i]->receive();
        if ((*ends[i])->peer_state(peers[i]) == PeerState::kConnecting) is_settled = false;
      }
    }
    int connected = 0;
    for (size_t i = 0; i < ends.size(); i++) connected += (*ends[i])->peer_state(peers[i]) == PeerState::kReady;
    if (::write(told[1], &connected, sizeof connected) != sizeof connected) ::_exit(1);
    for (;;) ::pause();
  }
  /// Returns that number. `victim` serves the process meanwhile.
  int connected(ShmEnd& victim) {
    ::fcntl(told[0], F_SETFL, O_NONBLOCK);
    int count = -1;
    run_until({&victim}, [&] { return ::read(told[0], &count, sizeof count) == sizeof count; });
    return count;
  }
  ~ManyEndpoints() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    ::close(told[0]);
    ::close(told[1]);
  }
  int told[2];
  pid_t pid = -1;
};

TEST_F(ShmHostile, peers__of_one_process_have_a_share_of_all) {
  ShmEnd few({.peers_max = 16});
  ManyEndpoints greedy(few->address(), 10);
  EXPECT_EQ(greedy.connected(few), 4) << "a quarter";
  EXPECT_GE(few->counters().peers_refused, 6u);
  ManyEndpoints another(few->address(), 3);
  EXPECT_EQ(another.connected(few), 3);
  ShmEnd chosen({.peers_max = 16, .process_peers_max = 9});
  ManyEndpoints allowed(chosen->address(), 10);
  EXPECT_EQ(allowed.connected(chosen), 9);
  EXPECT_EQ(ShmImpl::create({.peers_max = 4, .process_peers_max = 5}, *victim.arena).status().code(), Code::kMisuse);
}

TEST_F(ShmHostile, unknown_chunks__cost_a_bounded_number_of_system_calls) {
  RawPeer raw(victim);
  raw.join(victim);
  run_some({&victim, &good});
  for (int i = 0; i < 2000; i++) shm::send_plain(raw.socket.get(), shm::MessageType::kWake);  // fills the queue
  for (uint32_t i = 0; i < 32; i++) raw.put_reference(7, 0, 0, 0, 100);
  const uint64_t before = victim->counters().dropped_bad_reference;
  uint64_t most = 0;
  while (victim->counters().dropped_bad_reference < before + 32) {
    const uint64_t calls = victim->counters().system_calls;
    victim.receive();
    most = std::max(most, victim->counters().system_calls - calls);
  }
  EXPECT_LE(most, 100u);
}

TEST_F(ShmHostile, messages__without_end_have_a_share_of_a_round) {
  std::vector<std::unique_ptr<RawPeer>> floods;
  for (int i = 0; i < 8; i++) {
    floods.push_back(std::make_unique<RawPeer>(victim));
    floods.back()->join(victim);
  }
  for (auto& raw : floods) {
    while (shm::send_plain(raw->socket.get(), shm::MessageType::kHold) == shm::SendResult::kSent) {
    }
  }
  uint64_t most = 0;
  for (uint32_t round = 0; round < 5000; round++) {
    const uint64_t calls = victim->counters().system_calls;
    victim.receive();
    most = std::max(most, victim->counters().system_calls - calls);
    for (auto& raw : floods) shm::send_plain(raw->socket.get(), shm::MessageType::kRelease);
  }
  EXPECT_LE(most, 400u);
}

TEST_F(ShmHostile, listener__that_never_accepts_does_not_keep_the_victim_awake) {
  // The raw peer's own backlog is full. The victim can neither verify the hello nor connect to the peer.
  RawPeer raw(victim);
  raw.listener = {};
  raw.identity = *shm::make_identity();
  raw.listener = std::move(*shm::listen_as(raw.identity));
  std::vector<Descriptor> filling;
  for (auto socket = shm::connect_to(raw.identity); socket.ok(); socket = shm::connect_to(raw.identity)) {
    filling.push_back(std::move(*socket));
  }
  raw.say_hello();
  run_some({&victim, &good});
  auto attempt = victim->connect(raw.identity, "");
  ASSERT_TRUE(attempt.ok());
  uint32_t waits = 0;
  const uint64_t until = victim->now() + 200'000'000;
  while (victim->now() < until) {
    victim.receive();
    if (victim->prepare_wait()) victim->wait(until);
    victim->end_wait();
    waits++;
  }
  EXPECT_LT(waits, 1000u) << "one a millisecond, and some";
  EXPECT_EQ(victim->peer_state(*attempt), PeerState::kConnecting);
  EXPECT_TRUE(raw.is_refused(victim)) << "it has waited for a second";
  filling.clear();
  victim->disconnect(*attempt);
}

TEST_F(ShmHostile, peer__that_closes_orderly_again_and_again_is_given_up) {
  RawPeer raw(victim);
  auto attempt = victim->connect(raw.identity, "");
  ASSERT_TRUE(attempt.ok());
  int welcomes = 0;
  std::vector<shm::Mapping> ours;
  ASSERT_TRUE(run_until({&victim}, [&] {
    Descriptor accepted(::accept4(raw.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted) {
      shm::send_hello(accepted.get(), raw.hello(), raw.ring.fd.get(), raw.doorbell.fd.get());
      shm::send_plain(accepted.get(), shm::MessageType::kBye);
      welcomes++;
    }
    return victim->peer_state(*attempt) == PeerState::kDead;
  }));
  EXPECT_LE(welcomes, 10);
  victim->disconnect(*attempt);
}

TEST_F(ShmHostile, chunks__of_one_process_have_a_share) {
  // Each chunk has one page, because the scarce resource is places in the table of mappings.
  const auto page = std::move(*shm::make_own_memory("raw-page", kPage));
  const pid_t child = fork_alone();
  if (child == 0) {
    std::vector<std::unique_ptr<RawPeer>> raws;
    for (int i = 0; i < 6; i++) {
      raws.push_back(std::make_unique<RawPeer>(victim));
      raws.back()->say_hello();
      shm::Message message;
      while (shm::receive_message(raws.back()->socket.get(), message) == shm::ReceiveResult::kNothing) {
      }
      if (message.type != shm::MessageType::kHello) ::_exit(1);
      for (uint32_t chunk = 0; chunk < 1024; chunk++) {
        shm::SendResult sent;
        while ((sent = shm::send_chunk(raws.back()->socket.get(), chunk, kPage, page.fd.get())) ==
               shm::SendResult::kFull) {
        }
        if (sent == shm::SendResult::kGone) ::_exit(0);
      }
    }
    ::_exit(3);  // all 6144 were accepted
  }
  int status = 0;
  ASSERT_TRUE(run_until({&victim, &good}, [&] { return ::waitpid(child, &status, WNOHANG) == child; }));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_GE(victim->counters().peers_refused, 1u);
}

// --- other users ---------------------------------------------------------------------------------------------------

/// Runs `task` in a process of another user, and returns its exit code. -1: this process cannot change its user.
int as_another_user(ShmEnd& served, const std::function<int()>& task) {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() != 0) return -1;
  const pid_t child = fork_alone();
  if (child == 0) ::_exit(::setresuid(kNobody, kNobody, kNobody) == 0 ? task() : 99);
  int status = 0;
  EXPECT_TRUE(run_until({&served}, [&] { return ::waitpid(child, &status, WNOHANG) == child; }));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

/// Returns the outcome of a connection that `end` makes: 0 ready, 1 dead, 2 refused by name, 3 any other error.
int outcome_of_connect(ShmEnd& end, std::span<const std::byte> to) {
  auto peer = end->connect(to, "");
  if (!peer.ok()) {
    const bool is_named = peer.status().message().find("allow_other_users") != std::string_view::npos;
    return peer.status().code() == Code::kRefused && is_named ? 2 : 3;
  }
  run_until({&end}, [&] { return end->peer_state(*peer) != PeerState::kConnecting; });
  return end->peer_state(*peer) == PeerState::kReady ? 0 : 1;
}

#define SKIP_WITHOUT_ROOT()                                                                      \
  do {                                                                                           \
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user in a forked child"; \
  } while (false)

TEST_F(ShmHostile, other_user__is_refused_by_name_when_it_connects) {
  SKIP_WITHOUT_ROOT();
  EXPECT_EQ(as_another_user(victim,
                            [&] {
                              ShmEnd stranger;
                              return outcome_of_connect(stranger, victim->address());
                            }),
            2);
}

TEST_F(ShmHostile, other_user__is_refused_by_the_server_though_it_allows_it_itself) {
  SKIP_WITHOUT_ROOT();
  const int outcome = as_another_user(victim, [&] {
    ShmEnd stranger({.allow_other_users = true});
    return outcome_of_connect(stranger, victim->address());
  });
  EXPECT_TRUE(outcome == 1 || outcome == 2) << outcome << ": refused after its hello, or before";
  EXPECT_EQ(victim->counters().peers_refused, 1u);
}

/// A TCP socket whose close takes as long as `reader` is open, because it has unsent bytes and SO_LINGER.
Descriptor lingering_socket(Descriptor& reader) {
  Descriptor listener(::socket(AF_INET, SOCK_STREAM, 0)), writer(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  constexpr linger kLinger{1, 100'000};
  if (::bind(listener.get(), name, bytes) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), name, &bytes) != 0 || ::connect(writer.get(), name, bytes) != 0 ||
      ::setsockopt(writer.get(), SOL_SOCKET, SO_LINGER, &kLinger, sizeof(kLinger)) != 0) {
    return {};
  }
  reader = Descriptor(::accept(listener.get(), nullptr, nullptr));
  static constexpr std::array<char, 65536> kBytes{};
  while (::send(writer.get(), kBytes.data(), kBytes.size(), MSG_DONTWAIT) > 0) {
  }
  return writer;
}

/// A process of another user that has connected to `victim` several times, and whose connections take until its end to
/// close.
struct LingeringStranger {
  LingeringStranger(ShmEnd& victim, size_t connections) {
    int ready[2];
    if (::pipe2(told_, O_CLOEXEC) != 0 || ::pipe2(ready, O_CLOEXEC) != 0) return;
    child_ = fork_alone();
    char any = 0;
    if (child_ == 0) {
      if (::setresuid(65534, 65534, 65534) != 0) ::_exit(99);
      for (int fd = 3; fd < 1024; fd++) {  // the victim's listener is its own
        if (fd != told_[0] && fd != ready[1]) ::close(fd);
      }
      std::vector<Descriptor> readers;
      for (size_t i = 0; i < connections; i++) {
        const auto socket = shm::connect_to(identity_of(victim));
        const Descriptor lingers = lingering_socket(readers.emplace_back());
        if (!socket.ok() || !lingers) ::_exit(1);
        if (shm::send_chunk(socket->get(), 0, kPage, lingers.get()) != shm::SendResult::kSent) ::_exit(2);
      }
      ::_exit(::write(ready[1], "x", 1) == 1 && ::read(told_[0], &any, 1) == 1 ? 0 : 3);
    }
    ::close(ready[1]);
    is_connected = ::read(ready[0], &any, 1) == 1;
    ::close(ready[0]);
  }
  ~LingeringStranger() {
    EXPECT_EQ(::write(told_[1], "x", 1), 1);
    int status = 0;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    for (const int fd : told_) ::close(fd);
  }

  bool is_connected = false;

 private:
  int told_[2] = {-1, -1};
  pid_t child_ = -1;
};

/// The endpoint accepts no more connections than it can close soon.
TEST_F(ShmHostile, other_user__does_not_stop_the_endpoint_with_descriptors_whose_close_takes_long) {
  SKIP_WITHOUT_ROOT();
  constexpr size_t kConnections = 200;
  {
    const LingeringStranger stranger(victim, kConnections);
    ASSERT_TRUE(stranger.is_connected);
    // The endpoint would wait in its first close until the stranger ends.
    EXPECT_TRUE(run_until({&victim, &good}, [&] { return shm::connections_to_close() > shm::kClosingMax; }));
    ASSERT_TRUE(good.send(peer, "still here"));
    EXPECT_TRUE(run_until({&victim, &good}, [&] { return !victim.got.empty(); }));
    EXPECT_LT(shm::connections_to_close(), kConnections);
  }
  ShmEnd late;
  connect(late, victim);
  EXPECT_TRUE(run_until({&victim}, [&] { return shm::connections_to_close() == 0; }));
}

TEST_F(ShmHostile, other_user__does_not_stop_the_end_of_an_endpoint_either) {
  SKIP_WITHOUT_ROOT();
  auto ending = std::make_unique<ShmEnd>();
  {
    const LingeringStranger stranger(*ending, 4);
    ASSERT_TRUE(stranger.is_connected);
    ending.reset();  // would wait for the connections of its backlog
    EXPECT_EQ(shm::connections_to_close(), 1u) << "the listener has them";
  }
  EXPECT_TRUE(run_until({&victim}, [&] { return shm::connections_to_close() == 0; }));
}

TEST_F(ShmHostile, other_user__does_not_keep_others_waiting_for_an_endpoint_that_has_ended) {
  SKIP_WITHOUT_ROOT();
  auto ending = std::make_unique<ShmEnd>();
  {
    const LingeringStranger stranger(*ending, 1);
    ASSERT_TRUE(stranger.is_connected);
    EXPECT_TRUE(run_until({ending.get()}, [] { return shm::connections_to_close() == 1; }));
    const auto waiting = shm::connect_to(identity_of(*ending));
    ASSERT_TRUE(waiting.ok());
    ending.reset();
    EXPECT_TRUE(run_until({&victim}, [&] {
      shm::Message message;
      return shm::receive_message(waiting->get(), message) == shm::ReceiveResult::kHangUp;
    })) << "the listener waits for the stranger's connection";
  }
  EXPECT_TRUE(run_until({&victim}, [&] { return shm::connections_to_close() == 0; }));
}

TEST_F(ShmHostile, other_user__is_a_peer_where_both_sides_allow_it) {
  SKIP_WITHOUT_ROOT();
  ShmEnd open({.allow_other_users = true});
  EXPECT_EQ(as_another_user(open,
                            [&] {
                              ShmEnd stranger({.allow_other_users = true});
                              return outcome_of_connect(stranger, open->address());
                            }),
            0);
  EXPECT_EQ(open->counters().peers_refused, 0u);
}

TEST_F(ShmHostile, other_user__is_not_connected_to_either) {
  SKIP_WITHOUT_ROOT();
  int told[2];
  ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
  const pid_t child = fork_alone();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(1);
    ShmEnd foreign({.allow_other_users = true});
    if (::write(told[1], foreign->address().data(), 16) != 16) ::_exit(1);
    for (;;) foreign.receive();
  }
  std::array<std::byte, 16> address;
  ASSERT_EQ(::read(told[0], address.data(), 16), 16);
  EXPECT_EQ(outcome_of_connect(victim, address), 2) << "root is a user like any other";
  ShmEnd open({.allow_other_users = true});
  EXPECT_EQ(outcome_of_connect(open, address), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(told[0]);
  ::close(told[1]);
}

TEST_F(ShmHostile, other_users__together_have_half_of_the_peers) {
  SKIP_WITHOUT_ROOT();
  ShmEnd open({.peers_max = 4, .process_peers_max = 4, .allow_other_users = true});
  EXPECT_EQ(
      as_another_user(open,
                      [&] {
                        std::vector<std::unique_ptr<ShmEnd>> strangers;
                        int outcomes = 0;
                        for (int i = 0; i < 3; i++) {
                          strangers.push_back(std::make_unique<ShmEnd>(ShmImpl::Options{.allow_other_users = true}));
                          outcomes = outcomes * 10 + outcome_of_connect(*strangers.back(), open->address());
                        }
                        return outcomes;
                      }),
      1);
}

}  // namespace
}  // namespace tern::transport
