// Endpoints of shm with honest peers: references, many peers, ends. tests/conformance has the tests for all transports.
#include "transport/shm/shm.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "shm_fixture.h"
#include "transport/shm/shm_closer.h"

namespace tern::transport {
namespace {

size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 4096; fd++) count += ::fcntl(fd, F_GETFD) >= 0;
  return count;
}
/// Waits for connections of the tests before, which threads close.
size_t descriptors_at_rest() {
  while (shm::connections_to_close() != 0) std::this_thread::yield();
  return open_descriptors();
}

TEST(Shm, create__needs_a_shared_arena) {
  auto arena = memory::Arena::create({.shared = false, .huge_pages = false, .chunk_bytes = 1 << 20});
  ASSERT_TRUE(arena.ok());
  EXPECT_EQ(ShmImpl::create({}, **arena).status().code(), Code::kMisuse);
  (*arena)->orphan();
}

TEST(Shm, packets__arrive_in_order_with_their_bytes) {
  for (const bool trust : {false, true}) {
    ShmImpl::Options options;
    options.ring_cells = 256;
    options.trust_peers = trust;
    ShmEnd a(options), b(options);
    const PeerId peer = connect(a, b);
    std::mt19937 random(3);
    std::vector<std::string> sent;
    size_t refused = 0;
    while (sent.size() < 5000) {
      std::string bytes =
          pattern(random() % 3 == 0 ? random() % (shm::kInlinePayloadBytes + 1) : random() % 33, random());
      if (a.send(peer, bytes, static_cast<uint32_t>(sent.size()))) {
        sent.push_back(std::move(bytes));
      } else {
        refused++;
        a->flush();
        b.receive();
      }
    }
    a->flush();
    EXPECT_GT(refused, 10u);
    ASSERT_TRUE(run_until({&b}, [&] { return b.got.size() >= sent.size(); }));
    ASSERT_EQ(b.got, sent);
    for (size_t i = 0; i < sent.size(); i++) {
      ASSERT_EQ(b.headers[i].number(), i);
      ASSERT_EQ(b.headers[i].length(), wire::kHeaderBytes + sent[i].size());
    }
    EXPECT_EQ(b->counters().packets_received, sent.size());
    EXPECT_EQ(a->counters().packets_sent, sent.size());
    EXPECT_GE(a->released(), a->ticket());
  }
}

TEST(Shm, sender__sends_short_and_long_packets_in_turn) {
  ShmImpl::Options options;
  options.ring_cells = 256;
  ShmEnd a(options), b(options);
  const PeerId peer = connect(a, b);
  std::vector<std::string> sent;
  uint32_t full = 0;
  for (uint32_t turn = 0; turn < 500; turn++) {
    {
      ShmImpl::Sender sender(*a.shm, peer);
      for (uint32_t i = 0; i < 11; i++) {
        const std::string bytes = pattern(i % 4 == 3 ? 100 + i : 20 + i, turn + i);
        const auto number = static_cast<uint32_t>(sent.size());
        const auto header = wire::client_header(wire::Kind::kRequest, wire::kFirst, 7, number, 1, 0, 1, 32);
        if (!sender.send(header, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), nullptr)) {
          full++;
          break;
        }
        sent.push_back(bytes);
      }
    }
    EXPECT_EQ(a->counters().packets_sent, sent.size());
    a->flush();
    if (turn % 25 == 24) {
      ASSERT_TRUE(run_until({&b}, [&] { return b.got.size() == sent.size(); }));
    }
  }
  EXPECT_GT(full, 10u);
  ASSERT_TRUE(run_until({&b}, [&] { return b.got.size() == sent.size(); }));
  EXPECT_EQ(b.got, sent);
}

TEST(Shm, connect__serves_both_directions_and_counts_references) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  const PeerId ba = connect(b, a);  // finds the existing connection
  EXPECT_TRUE(a.send(ab, "ping"));
  EXPECT_TRUE(b.send(ba, "pong"));
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.got.size() == 1 && b.got.size() == 1; }));
  EXPECT_EQ(*a->connect(b->address(), ""), ab);
  a->disconnect(ab);
  run_some({&a, &b});
  EXPECT_EQ(a->peer_state(ab), PeerState::kReady);
  a->disconnect(ab);
  run_some({&a, &b});
  EXPECT_EQ(b->peer_state(ba), PeerState::kReady) << "the other side still refers to it";
  EXPECT_TRUE(b.send(ba, "again"));
  ASSERT_TRUE(run_until({&a, &b}, [&] { return a.got.size() == 2; }));
}

TEST(Shm, disconnect__by_both_leaks_nothing_and_reconnects) {
  ShmEnd a, b;
  run_some({&a, &b});
  const size_t before = descriptors_at_rest();
  for (int round = 0; round < 20; round++) {
    const PeerId ab = connect(a, b);
    const PeerId ba = connect(b, a);
    ASSERT_TRUE(a.send(ab, "x"));
    ASSERT_TRUE(b.send(ba, "y"));
    ASSERT_TRUE(
        run_until({&a, &b}, [&] { return a.got.size() == size_t(round) + 1 && b.got.size() == size_t(round) + 1; }));
    ShmEnd& first = round % 2 == 0 ? a : b;
    ShmEnd& second = round % 2 == 0 ? b : a;
    first->disconnect(round % 2 == 0 ? ab : ba);
    if (round % 3 == 0) run_some({&a, &b});
    second->disconnect(round % 2 == 0 ? ba : ab);
    if (round % 5 != 0) {
      run_some({&a, &b});
      ASSERT_EQ(open_descriptors(), before) << round;
    }
  }
}

TEST(Shm, disconnect__other_side_may_connect_again) {
  // The initiator closes the connection at the moment in which the other side begins to need it.
  ShmEnd a, b;
  for (int round = 0; round < 20; round++) {
    const PeerId ab = connect(a, b);
    a->disconnect(ab);
    for (int i = 0; i < round; i++) a.receive();
    auto ba = b->connect(a->address(), "");
    ASSERT_TRUE(ba.ok());
    a.receive();
    a.receive();
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b->peer_state(*ba) == PeerState::kReady && b.send(*ba, "here"); }));
    const size_t before = a.got.size();
    ASSERT_TRUE(run_until({&a, &b}, [&] {
      if (b->peer_state(*ba) == PeerState::kReady) b.send(*ba, "here");
      return a.got.size() > before;
    }));
    b->disconnect(*ba);
    run_some({&a, &b});
  }
}

TEST(Shm, connect__simultaneously) {
  for (int round = 0; round < 20; round++) {
    ShmEnd a, b;
    auto ab = a->connect(b->address(), "");
    auto ba = b->connect(a->address(), "");
    ASSERT_TRUE(ab.ok() && ba.ok());
    ASSERT_TRUE(run_until(
        {&a, &b}, [&] { return a->peer_state(*ab) == PeerState::kReady && b->peer_state(*ba) == PeerState::kReady; }));
    run_some({&a, &b});
    EXPECT_EQ(a->peer_state(*ab), PeerState::kReady);
    EXPECT_EQ(b->peer_state(*ba), PeerState::kReady);
    ASSERT_TRUE(a.send(*ab, "ping"));
    ASSERT_TRUE(b.send(*ba, "pong"));
    ASSERT_TRUE(run_until({&a, &b}, [&] { return a.got.size() == 1 && b.got.size() == 1; }));
  }
}

TEST(Shm, connect__simultaneously_in_threads) {
  for (int round = 0; round < 20; round++) {
    ShmEnd a, b;
    std::atomic<int> ready{0}, finished{0};
    const auto run = [&](ShmEnd& self, ShmEnd& other) {
      ready++;
      while (ready != 2) std::this_thread::yield();
      auto peer = self->connect(other->address(), "");
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(100);
      bool is_sent = false, is_finished = false;
      for (uint32_t turn = 0; finished != 2 && std::chrono::steady_clock::now() < limit; turn++) {
        self.receive();
        if (!is_sent) is_sent = self->peer_state(*peer) == PeerState::kReady && self.send(*peer, "hello");
        self->flush();
        yield_sometimes(turn);
        if (is_sent && !self.got.empty() && !is_finished) {
          is_finished = true;
          finished++;
        }
      }
    };
    std::thread other([&] { run(b, a); });
    run(a, b);
    other.join();
    ASSERT_EQ(finished, 2) << round;
  }
}

TEST(Shm, connect__absent_peer_is_refused) {
  ShmEnd a;
  const shm::Identity nobody = *shm::make_identity();
  EXPECT_EQ(a->connect(nobody, "").status().code(), Code::kPeerUnreachable);
  EXPECT_EQ(a->connect(std::span(nobody).first(5), "").status().code(), Code::kMisuse);
}

TEST(Shm, connect__peer_of_another_version_is_named) {
  ShmEnd a, b;
  std::vector<std::byte> address(b->address().begin(), b->address().end());
  address[0] ^= std::byte{1};
  const auto peer = a->connect(address, "");
  EXPECT_EQ(peer.status().code(), Code::kMisuse);
  EXPECT_NE(peer.status().message().find("must run the same version"), std::string::npos) << peer.status().message();
}

TEST(Shm, connect__to_itself) {
  ShmEnd a;
  const PeerId self = connect(a, a);
  ASSERT_TRUE(a.send(self, "me"));
  auto* buffer = a.arena->alloc(5000);
  std::memset(buffer->data(), 'b', 5000);
  ASSERT_TRUE(a.send(self, buffer, 0, 5000));
  ASSERT_TRUE(run_until({&a}, [&] { return a.got.size() == 2; }));
  EXPECT_EQ(a.got[0], "me");
  EXPECT_EQ(a.got[1], std::string(5000, 'b'));
  a->disconnect(self);
  run_some({&a});
  connect(a, a);
  memory::Arena::release(buffer);
}

/// A session to the endpoint itself may begin in any iteration after the last one has ended.
TEST(Shm, connect__to_itself_while_the_last_connection_ends) {
  for (int rounds = 0; rounds < 8; rounds++) {
    ShmEnd a;
    const PeerId self = connect(a, a);
    a->disconnect(self);
    for (int i = 0; i < rounds; i++) a.receive();
    const PeerId again = connect(a, a);
    ASSERT_EQ(a->peer_state(again), PeerState::kReady) << rounds;
    ASSERT_EQ(a->counters().peers_refused, 0u) << rounds;
  }
}

TEST(Shm, peers_max__is_an_error_with_a_remedy) {
  ShmEnd a({.peers_max = 1}), b, c;
  connect(a, b);
  auto second = a->connect(c->address(), "");
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_NE(second.status().message().find("peers_max"), std::string_view::npos);
  auto third = c->connect(a->address(), "");
  ASSERT_TRUE(third.ok());
  ASSERT_TRUE(run_until({&a, &c}, [&] { return c->peer_state(*third) == PeerState::kDead; }));
  EXPECT_EQ(a->counters().peers_refused, 1u);
}

TEST(Shm, reference__is_one_packet_of_any_part_of_a_buffer) {
  ShmEnd a, b;
  const PeerId peer = connect(a, b);
  auto* buffer = a.arena->alloc(200'000);
  const std::string bytes = pattern(200'000, 5);
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  const auto send = [&](size_t offset, size_t len) {
    b.got.clear();
    EXPECT_TRUE(a.send(peer, buffer, offset, len));
    EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
    EXPECT_TRUE(b.intact);
    EXPECT_TRUE(b.got[0] == bytes.substr(offset, len)) << offset;
  };
  // Short parts travel in cells.
  for (const size_t len : {size_t{1}, shm::kCellPayloadBytes + 1, size_t{993}, shm::kInlinePayloadBytes}) {
    send(100, len);
    EXPECT_FALSE(b.was_reference);
    EXPECT_FALSE(buffer->exposed) << len;
  }
  for (const auto& [offset, len] :
       {std::pair<size_t, size_t>{0, 8193}, {0, 65536}, {65536, 65536}, {131072, 68928 - 3400}, {17, 14001}}) {
    send(offset, len);
    EXPECT_TRUE(b.was_reference);
    EXPECT_NE(b.headers.back().flags() & wire::kByReference, 0);
  }
  EXPECT_TRUE(buffer->exposed);
  memory::Arena::release(buffer);
}

/// The visitor gets such a packet as if it had come in cells.
TEST(Shm, reference__of_up_to_8_KiB_is_copied_before_the_visit) {
  ShmEnd a, b;
  const PeerId peer = connect(a, b);
  auto* buffer = a.arena->alloc(20'000);
  const std::string bytes = pattern(20'000, 5);
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  size_t visits = 0;
  for (const size_t len : {shm::kInlinePayloadBytes + 1, size_t{4096}, size_t{8192}}) {
    for (const size_t offset : {size_t{0}, size_t{11'001}}) {
      buffer->revoke_lease();
      ASSERT_TRUE(a.send(peer, buffer, offset, len));
      EXPECT_TRUE(buffer->exposed);
      visits++;
      ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == visits; }));
      EXPECT_TRUE(b.intact);
      EXPECT_FALSE(b.was_reference);
      EXPECT_EQ(b.headers.back().flags(), wire::kFirst);
      EXPECT_EQ(b.headers.back().length(), wire::kHeaderBytes + len);
      EXPECT_TRUE(b.got.back() == bytes.substr(offset, len)) << offset;
    }
  }
  memory::Arena::release(buffer);
}

TEST(Shm, reference__is_refused_after_the_lease) {
  for (const size_t len : {size_t{5'000}, size_t{50'000}}) {
    ShmEnd a, b;
    const PeerId peer = connect(a, b);
    auto* buffer = a.arena->alloc(len);
    ASSERT_TRUE(a.send(peer, buffer, 0, len));
    buffer->revoke_lease();
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
    EXPECT_FALSE(b.intact) << len;
    ASSERT_TRUE(a.send(peer, buffer, 0, len));  // sent under the next lease
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 2; }));
    EXPECT_TRUE(b.intact);
    memory::Arena::release(buffer);
  }
}

/// While one packet is handled, the payload of the next one is prefetched, although its lease may be over.
TEST(Shm, reference__packets_of_one_burst) {
  constexpr uint32_t kPackets = 20;
  ShmEnd a, b;
  const PeerId peer = connect(a, b);
  std::vector<detail::Buffer*> buffers;
  std::vector<std::string> sent;
  for (uint32_t i = 0; i < kPackets; i++) {
    buffers.push_back(a.arena->alloc(12'000));
    sent.push_back(pattern(i % 3 == 0 ? 40 : 4'200 * (i % 3) + i, i));  // in a cell, copied, and by reference
    std::memcpy(buffers[i]->data(), sent[i].data(), sent[i].size());
    ASSERT_TRUE(a.send(peer, buffers[i], 0, sent[i].size()));
  }
  for (uint32_t i = 4; i < kPackets; i += 5) buffers[i]->revoke_lease();
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == kPackets; }));
  for (uint32_t i = 0; i < kPackets; i++) {
    const bool is_lost = i % 5 == 4 && i % 3 != 0;
    EXPECT_EQ(b.were_intact[i], !is_lost) << i;
    EXPECT_TRUE(is_lost || b.got[i] == sent[i]) << i;
  }
  for (auto* buffer : buffers) memory::Arena::release(buffer);
}

TEST(Shm, arena_growth__announces_the_new_chunk) {
  ShmEnd a({}, 1 << 20), b;
  const PeerId peer = connect(a, b);
  std::vector<detail::Buffer*> buffers;
  for (int i = 0; i < 12; i++) {
    auto* buffer = a.arena->alloc(600'000);
    ASSERT_NE(buffer, nullptr);
    buffers.push_back(buffer);
    const std::string bytes = pattern(60'000, static_cast<uint32_t>(i));
    std::memcpy(buffer->data() + 500'000, bytes.data(), bytes.size());
    ASSERT_TRUE(a.send(peer, buffer, 500'000, bytes.size()));
    ASSERT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == buffers.size(); }));
    EXPECT_TRUE(b.got.back() == bytes);
  }
  EXPECT_GT(a.arena->chunks().size(), 2u);
  EXPECT_EQ(b->counters().dropped_bad_reference, 0u);
  for (auto* buffer : buffers) memory::Arena::release(buffer);
}

TEST(Shm, many_peers__are_all_served) {
  constexpr int kPeers = 100;  // fits the usual limit of 1024 descriptors
  ShmEnd hub({.ring_cells = 256});
  std::vector<std::unique_ptr<ShmEnd>> spokes;
  std::vector<PeerId> to_hub;
  for (int i = 0; i < kPeers; i++) {
    spokes.push_back(std::make_unique<ShmEnd>(ShmImpl::Options{.ring_cells = 256}, 1 << 16));
    to_hub.push_back(connect(*spokes.back(), hub));
  }
  for (int round = 0; round < 3; round++) {
    hub.got.clear();
    for (int i = 0; i < kPeers; i++) ASSERT_TRUE(spokes[i]->send(to_hub[i], std::to_string(i)));
    // Each call visits the active peers and four of the others.
    for (int call = 0; call < (kPeers - 64) / 4 + 2 + kPeers; call++) hub.receive();
    std::vector<bool> seen(kPeers);
    for (const auto& bytes : hub.got) seen[std::stoul(bytes)] = true;
    EXPECT_EQ(hub.got.size(), size_t{kPeers});
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kPeers);
  }
  // A peer that sends without end neither delays the others nor makes a call longer than its bound.
  for (int call = 0; call < 200; call++) {
    for (int i = 0; i < 100; i++) spokes[0]->send(to_hub[0], "flood");
    if (call == 100) {
      ASSERT_TRUE(spokes[99]->send(to_hub[99], "me too"));
    }
    hub.got.clear();
    hub.receive();
    EXPECT_LE(hub.got.size(), 96u);
    if (call >= 100 && std::find(hub.got.begin(), hub.got.end(), "me too") != hub.got.end()) return;
  }
  FAIL() << "the quiet peer was not heard";
}

TEST(Shm, many_peers__end_and_leave_nothing) {
  ShmEnd hub({.ring_cells = 256});
  run_some({&hub});
  const size_t before = descriptors_at_rest();
  {
    std::vector<std::unique_ptr<ShmEnd>> spokes;
    for (int i = 0; i < 80; i++) {
      spokes.push_back(std::make_unique<ShmEnd>(ShmImpl::Options{.ring_cells = 256}, 1 << 16));
      connect(*spokes.back(), hub);
    }
  }
  ASSERT_TRUE(run_until({&hub}, [&] { return open_descriptors() == before; }));
}

TEST(Shm, last_packets__are_read_before_death_is_reported) {
  ShmEnd a;
  PeerId ab = 0;
  {
    ShmEnd b;
    ab = connect(a, b);
    const PeerId ba = connect(b, a);
    for (int i = 0; i < 100; i++) ASSERT_TRUE(b.send(ba, "farewell"));
  }
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(ab) == PeerState::kDead; }));
  EXPECT_EQ(a.got.size(), 100u);
  EXPECT_FALSE(a.send(ab, "too late"));
  a->disconnect(ab);
  run_some({&a});
}

TEST(Shm, sleep__one_message_ends_one_sleep) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  run_some({&a, &b});
  ASSERT_TRUE(b->prepare_wait());
  const uint64_t calls = a->counters().system_calls;
  for (int i = 0; i < 5; i++) {
    ASSERT_TRUE(a.send(ab, "z"));
    a->flush();
  }
  EXPECT_EQ(a->counters().system_calls, calls + 1);
  b->wait(UINT64_MAX);
  b->end_wait();
}

bool is_readable(int descriptor) {
  pollfd one{descriptor, POLLIN, 0};
  return ::poll(&one, 1, 0) == 1;
}
/// A peer that looks at its rings before it sees a packet, and sleeps, may do so unseen by flush().
TEST(Shm, sleep__a_peer_that_flush_missed_is_woken_before_a_pause) {
  ShmEnd a, b;
  const PeerId ab = connect(a, b);
  run_some({&a, &b});
  const auto pause = [&] { a->before_pause(); };
  const auto sleep = [&] {
    a->prepare_wait();
    a->end_wait();
  };
  const std::pair<const char*, std::function<void()>> ways[] = {{"pause", pause}, {"sleep", sleep}};
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    a->before_burst();
    ASSERT_TRUE(a.send(ab, "z"));
    a->flush();
    ASSERT_FALSE(b->prepare_wait()) << "its doorbell says that it sleeps, until end_wait()";
    ASSERT_FALSE(is_readable(b->descriptor()));
    way();
    EXPECT_TRUE(is_readable(b->descriptor()));
    b->end_wait();
    run_some({&a, &b});
  }
}

/// A process that serves one endpoint until it is killed. It echoes, and forks a child at the packet "fork".
struct ServerProcess {
  ServerProcess() {
    EXPECT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
    pid = ::fork();
    if (pid == 0) serve();
    address.resize(16);
    EXPECT_EQ(::read(pipe_ends[0], address.data(), 16), 16);
  }
  ~ServerProcess() {
    ::kill(pid, SIGKILL);
    if (!is_reaped) ::waitpid(pid, nullptr, 0);
    if (grandchild > 0) ::kill(grandchild, SIGKILL);
    ::close(pipe_ends[0]);
    ::close(pipe_ends[1]);
  }
  [[noreturn]] void serve() {
    ShmEnd end;
    if (::write(pipe_ends[1], end->address().data(), 16) != 16) ::_exit(1);
    for (uint32_t round = 0;; round++) {
      end->receive([&](const wire::Header& header, const Payload& payload) {
        std::string bytes(payload.bytes, 0);
        payload.copy_to(reinterpret_cast<std::byte*>(bytes.data()));
        if (bytes == "fork") {
          const pid_t child = ::fork();
          if (child == 0) {
            for (;;) ::pause();
          }
          if (::write(pipe_ends[1], &child, sizeof child) != sizeof child) ::_exit(1);
          return;
        }
        end.send(0, bytes.substr(0, 992), header.number());
      });
      end->flush();
      if (::getppid() == 1) ::_exit(0);
      yield_sometimes(round);
    }
  }
  std::vector<std::byte> address;
  int pipe_ends[2];
  pid_t pid = -1;
  pid_t grandchild = -1;
  bool is_reaped = false;
};

TEST(ShmProcesses, echo__and_references) {
  ServerProcess server;
  ShmEnd a;
  const PeerId peer = *a->connect(server.address, "");
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) == PeerState::kReady; }));
  auto* buffer = a.arena->alloc(60'000);
  const std::string large = pattern(60'000, 9);
  std::memcpy(buffer->data(), large.data(), large.size());
  for (int i = 0; i < 500; i++) {
    ASSERT_TRUE(i % 2 == 0 ? a.send(peer, pattern(32, static_cast<uint32_t>(i)))
                           : a.send(peer, buffer, 0, large.size()));
    a->flush();
    ASSERT_TRUE(run_until({&a}, [&] { return a.got.size() == size_t(i) + 1; }));
    EXPECT_EQ(a.got.back(), i % 2 == 0 ? pattern(32, static_cast<uint32_t>(i)) : large.substr(0, 992));
  }
  memory::Arena::release(buffer);
}

TEST(ShmProcesses, kill__is_seen_though_a_grandchild_keeps_the_sockets) {
  ServerProcess server;
  ShmEnd a;
  const PeerId peer = *a->connect(server.address, "");
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) == PeerState::kReady; }));
  run_some({&a});
  ASSERT_TRUE(a.send(peer, "fork"));
  a->flush();
  ASSERT_EQ(::read(server.pipe_ends[0], &server.grandchild, sizeof(pid_t)), ssize_t{sizeof(pid_t)});
  ::kill(server.pid, SIGKILL);
  ::waitpid(server.pid, nullptr, 0);
  server.is_reaped = true;
  ASSERT_EQ(::kill(server.grandchild, 0), 0);
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) == PeerState::kDead; }));
  EXPECT_FALSE(a.send(peer, "anybody?"));
  EXPECT_EQ(a->released(), UINT64_MAX);
  // The grandchild also keeps the listening socket. A new attempt is refused, or dies for the same reason.
  a->disconnect(peer);
  run_some({&a});
  auto again = a->connect(server.address, "");
  if (again.ok()) {
    EXPECT_TRUE(run_until({&a}, [&] { return a->peer_state(*again) == PeerState::kDead; }));
  }
}

TEST(ShmProcesses, kill__ends_a_sleep) {
  ServerProcess server;
  ShmEnd a;
  const PeerId peer = *a->connect(server.address, "");
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) == PeerState::kReady; }));
  run_some({&a});
  ASSERT_TRUE(a->prepare_wait());
  ::kill(server.pid, SIGKILL);
  a->wait(UINT64_MAX);
  a->end_wait();
  EXPECT_TRUE(run_until({&a}, [&] { return a->peer_state(peer) == PeerState::kDead; }));
}

TEST(ShmProcesses, fork__child_does_not_end_its_parents_connections) {
  ShmEnd a;
  auto b = std::make_unique<ShmEnd>();
  const PeerId peer = connect(a, *b);
  const pid_t child = ::fork();
  if (child == 0) {
    b->shm.reset();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  run_some({&a, b.get()});
  EXPECT_EQ(a->peer_state(peer), PeerState::kReady);
  ASSERT_TRUE(a.send(peer, "still here"));
  EXPECT_TRUE(run_until({&a, b.get()}, [&] { return b->got.size() == 1; }));
}

}  // namespace
}  // namespace tern::transport
