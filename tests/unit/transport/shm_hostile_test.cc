// Peers that break the rules: each spoils its own connection only.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm_fixture.h"
#include "transport/shm_memory.h"
#include "transport/shm_socket.h"

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

/// Speaks the transport's protocol by hand.
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
  /// What the victim has to say; kHangUp when it has refused us.
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
    std::string descriptor;
    const auto add = [&](const auto& value) { descriptor.append(reinterpret_cast<const char*>(&value), sizeof value); };
    add(chunk), add(lease), add(offset), add(data_offset), add(bytes);
    put(word(wire::kHeaderBytes + descriptor.size(), wire::kByReference), descriptor);
  }

  shm::Identity identity;
  Descriptor listener, socket;
  shm::OwnMemory ring, doorbell;
  shm::Mapping in;
  shm::Outbound out;
};

struct ShmHostile : testing::Test {
  /// The victim serves its other peer as before.
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

/// As an endpoint looks at packets: burst by burst, with a private copy before anything is believed. The peer writes
/// its ring between two looks.
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
  void in_burst(const wire::Header&, const Payload& payload, std::byte* room) const {
    look(private_copy(payload, room), payload.bytes);
  }
};

TEST_F(ShmHostile, ring__that_changes_while_a_packet_is_looked_at) {
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
  for (const std::string_view bytes :
       {std::string_view("\x01", 1), std::string_view("\x01\x01", 2), std::string_view("\x01\x02", 2),
        std::string_view("\x63\x01", 2), std::string_view("\x03\x01", 2), std::string_view("\x02\x01zz", 4)}) {
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

TEST_F(ShmHostile, identity__that_nobody_listens_under_is_refused) {
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
  const pid_t owner = ::fork();
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
  // A record that would wrap.
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
  expect_dropped(0u, 5u, 128ul, 0u, 1000u);  // not announced
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
  raw.put_reference(0, 0, kChunk - 128, 0, 64);  // to the last byte
  ASSERT_TRUE(run_until({&victim}, [&] { return victim.got.size() == 3; }));
  raw.put(RawPeer::word(wire::kHeaderBytes + 23, wire::kByReference), std::string(23, 0));
  ASSERT_TRUE(run_until({&victim}, [&] { return victim->counters().dropped_bad_reference == dropped + 1; }));
}

TEST_F(ShmHostile, chunks__beyond_the_rules_end_the_peer) {
  const auto sealed = memfd(1 << 20, kAllSeals);
  const auto unsealed = memfd(1 << 20, F_SEAL_SHRINK | F_SEAL_GROW);
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
  RawPeer raw(victim);
  raw.join(victim);
  ASSERT_EQ(shm::send_chunk(raw.socket.get(), 3, 1 << 20, sealed.get()), shm::SendResult::kSent);
  ASSERT_EQ(shm::send_chunk(raw.socket.get(), 3, 1 << 20, sealed.get()), shm::SendResult::kSent);
  EXPECT_TRUE(raw.is_refused(victim));
  EXPECT_EQ(victim->counters().peers_refused, 6u);
}

TEST_F(ShmHostile, consumed__that_cannot_be_true_fills_its_own_ring_only) {
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
  // A doorbell that always says "asleep" costs one message.
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
  // One is free: enough to knock, not enough to be let in.
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

}  // namespace
}  // namespace tern::transport
