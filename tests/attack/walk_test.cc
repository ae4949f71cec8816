// Hostile peers walk through the protocol at random. They have proper sessions, so that most of their packets carry the
// right keys, numbers and proofs; what the packets say contradicts what was said before. An honest client beside them
// loses nothing, and the server has nothing left of them after their end.
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "attack/honest.h"
#include "attack/raw_peer.h"
#include "rpc/rpc_core.h"
#include "transport/shm/shm.h"
#include "wire/payload_code.h"

namespace attack {
namespace {

using tern::Shm;
using tern::Udp;
using tern::rpc::EndpointCore;
namespace wire = tern::wire;

constexpr uint32_t kPayloadBytes = wire::kPayloadBytesMin;
constexpr uint64_t kSteps = 20'000, kStepsPerSecond = 20'000;

/// Of the 16 ways in which a Link can send.
constexpr uint32_t kPlain = 15;

/// The packets of a session of a hostile client over UDP. Two processes send them, from three addresses.
class UdpLink {
 public:
  static constexpr bool kMayDamage = true;
  UdpLink(Hostile& hostile, Hostile& ally) : hostile_(hostile), ally_(ally) {}
  std::optional<HostileSession> connect() {
    return hostile_.connect([](ManagementMessage& request) { request.terms.payload_bytes_max = kPayloadBytes; });
  }
  void send(const HostileSession& session, std::span<const std::byte> datagram, uint32_t from) {
    Socket& socket = from == 0 ? ally_.data : from == 1 ? hostile_.management : hostile_.data;
    socket.send(session.server_data, datagram);
  }
  template <class Visit>
  void receive(Visit&& visit) {
    const auto visit_packet = [&](const Header& header, std::span<const std::byte> payload) {
      visit(header, payload.size());
    };
    hostile_.receive(milliseconds(0), visit_packet);
    ally_.receive(milliseconds(0), visit_packet);
  }

 private:
  Hostile& hostile_;
  Hostile& ally_;
};

/// The same over shared memory, where packets have one way. Each session has a connection of its own.
class ShmLink {
 public:
  static constexpr bool kMayDamage = false;  // a header that is not plausible ends the connection
  ShmLink(Hostile& hostile, const shm::Identity& server) : hostile_(hostile), server_(server) {}
  std::optional<HostileSession> connect() {
    peer_ = std::make_unique<RawPeer>(server_);
    peer_->join();
    peer_->announce();
    return hostile_.connect([this](ManagementMessage& request) { peer_->fill(request.terms, kPayloadBytes); });
  }
  void send(const HostileSession&, std::span<const std::byte> datagram, uint32_t from) {
    while (datagram.size() >= wire::kHeaderBytes) {
      const Header header = wire::load_header(datagram.data());
      const size_t bytes = std::clamp<size_t>(header.length(), wire::kHeaderBytes, datagram.size());
      const auto payload = datagram.subspan(wire::kHeaderBytes, bytes - wire::kHeaderBytes);
      const bool is_reference = from < 4 && !payload.empty();
      const bool is_sent =
          is_reference ? peer_->put_reference(header, payload, from % 2) : peer_->put_long(header, payload);
      if (!is_sent) return;
      datagram = datagram.subspan(bytes);
    }
  }
  template <class Visit>
  void receive(Visit&& visit) {
    peer_->read(visit);
  }

 private:
  Hostile& hostile_;
  const shm::Identity server_;
  std::unique_ptr<RawPeer> peer_;
};

/// Sends the packets of one session after another, in an order that no client would have.
template <class Link>
class Walker {
 public:
  Walker(Link link, Hostile& hostile) : link_(std::move(link)), hostile_(hostile), random_(hostile.random) {}

  void open() {
    auto session = link_.connect();
    ASSERT_TRUE(session.has_value()) << static_cast<int>(hostile_.refusal);
    if (session_.has_value()) ended_ = *session_;
    session_ = *session;
    is_open_ = false;
    for (bool is_full : {false, true}) {
      bool has_reply = false;
      for (const auto until = Clock::now() + kPatience; !has_reply && Clock::now() < until;) {
        add(Kind::kPathProbe, 0, is_full ? session_->first_request : 0, 0, 0, session_->token,
            is_full ? session_->reply.terms.payload_bytes_max : 0);
        flush();
        for (int i = 0; i < 20 && !has_reply; i++) {
          std::this_thread::sleep_for(milliseconds(1));
          link_.receive([&](const Header& header, size_t payload_bytes) {
            if (header.kind() != Kind::kPathReply || header.session_key() != session_->client_key()) return;
            if (is_full != (payload_bytes != 0)) return;
            session_->first_request = header.request_number();
            session_->token = header.size_or_index();
            has_reply = true;
          });
        }
      }
      ASSERT_TRUE(has_reply);
    }
    is_open_ = true;
    for (uint32_t i = 0; i < slots_.size(); i++) slots_[i] = {session_->first_request + i - wire::kSlotsMax, 1};
  }
  void close() {
    ManagementMessage message = about(*session_, ManagementKind::kDisconnect);
    hostile_.management.send(session_->server_management, encoded(message));
  }

  void step() {
    const uint32_t place = random_.below(random_.below(8) == 0 ? wire::kSlotsMax : session_->reply.terms.window);
    Slot& slot = slots_[place];
    // Mostly the slot's next request, which may be under way, and sometimes its last one.
    const uint32_t request = slot.answered + (random_.below(8) == 0 ? 0 : wire::kSlotsMax);
    switch (random_.below(16)) {
      case 0:
      case 1:
      case 2: {  // a request of one packet
        const uint32_t bytes = random_.below(kPayloadBytes + 1);
        const uint32_t deadline = random_.below(4) == 0 ? random_.below(wire::kIndexMask + 1) : wire::kNoDeadline;
        add(Kind::kRequest, flags_with(wire::kFirst), request, deadline, type(), bytes, bytes, code());
        break;
      }
      case 3:
      case 4:
      case 5: {  // packets of a long request
        if (random_.below(4) == 0) {
          slot.bytes = random_.below(16) == 0 ? random_.below(1u << 30) : 1 + random_.below(6 * kPayloadBytes);
        }
        const uint32_t packets = wire::packets_of(slot.bytes, kPayloadBytes);
        uint32_t index = random_.below(random_.below(4) == 0 ? packets + 2 : 1);
        const uint16_t its_type = type();
        for (uint32_t left = 1 + random_.below(6); left != 0 && index <= packets; left--, index++) {
          const uint32_t full = std::min(kPayloadBytes, slot.bytes - std::min(slot.bytes, index * kPayloadBytes));
          add(Kind::kRequest, flags_with(index == 0 ? wire::kFirst : 0), request,
              index == 0 ? wire::kNoDeadline : index, its_type, slot.bytes,
              random_.below(16) == 0 ? random_.below(kPayloadBytes) : full, random_.below(16) == 0 ? code() : 0);
        }
        break;
      }
      case 6:
      case 7: {  // packets of a response, which may not exist
        const uint32_t first = random_.below(8) == 0 ? random_.below(wire::kIndexMask + 1) : random_.below(64);
        const uint32_t count = random_.below(8) == 0 ? random_.below(wire::kTokenMask) : random_.below(32);
        add(Kind::kRfr, flags_with(0), request, first, 0, count, 0, code());
        break;
      }
      case 8:
        add(Kind::kProbe, flags_with(0), request, random_.below(1024), 0, session_->token);
        break;
      case 9:
        add(Kind::kCancel, 0, request, 0, 0, session_->token);
        break;
      case 10: {  // a report of requests that may still run
        const size_t count = random_.below(20);
        const size_t at = add(Kind::kReport, 0, 0, 0, 0, session_->token, 4 * count);
        for (size_t i = 0; i < count; i++) {
          const Slot& other = slots_[random_.below(wire::kSlotsMax)];
          const uint32_t reported = other.answered + random_.below(2) * wire::kSlotsMax;
          std::memcpy(&burst_[at + wire::kHeaderBytes + 4 * i], &reported, 4);
        }
        break;
      }
      case 11: {  // path probes of all lengths and ways, which may come from other addresses
        constexpr std::array<size_t, 6> kSizes = {0, 1, kPayloadBytes - 1, kPayloadBytes, kPayloadBytes + 1, 1400};
        const bool is_paired = random_.below(2) == 0;
        const std::array tokens = {session_->token, session_->reply.terms.path_token, pair_token_};
        const uint32_t token = tokens[random_.below(tokens.size())];
        add(Kind::kPathProbe, is_paired ? wire::kPaired : 0, random_.below(2) == 0 ? session_->first_request : 0, 0, 0,
            token, kSizes[random_.below(kSizes.size())]);
        flush();
        break;
      }
      case 12: {  // what only a server sends
        constexpr std::array kKinds = {Kind::kResponse, Kind::kCr, Kind::kCancelled, Kind::kPathReply};
        add(kKinds[random_.below(kKinds.size())], flags_with(0), request, random_.below(1u << 21), 0,
            random_.below(1u << 30), 8 * random_.below(5));
        break;
      }
      case 13:  // packets of the session before, whose place another session may have
        if (ended_.has_value()) {
          add(random_.below(2) == 0 ? Kind::kRequest : Kind::kProbe, wire::kFirst, ended_->first_request + place,
              wire::kNoDeadline, kEcho, ended_->token, random_.below(64), 0, &*ended_);
        }
        break;
      case 14:
        manage();
        break;
      case 15:
        flush();
        break;
    }
    if (burst_.size() > 1000) flush();
    link_.receive([this](const Header& header, size_t) {
      if (header.kind() == Kind::kPathReply && (header.flags() & wire::kPaired) != 0)
        pair_token_ = header.size_or_index();
      const bool is_end = header.kind() == Kind::kResponse || header.kind() == Kind::kCancelled;
      if (!is_end || header.session_key() != session_->client_key()) return;
      slots_[header.request_number() % wire::kSlotsMax].answered = header.request_number();
    });
  }

 private:
  struct Slot {
    uint32_t answered = 0;  ///< number of the last request that has ended
    uint32_t bytes = 0;     ///< of the long request
  };

  uint16_t type() {
    constexpr std::array kTypes = {kEcho, kReply, kWork};
    if (random_.below(16) == 0) return random_.below(2) == 0 ? kKeep : static_cast<uint16_t>(random_.below(4096));
    return kTypes[random_.below(kTypes.size())];
  }
  uint8_t code() { return static_cast<uint8_t>(random_.below(4) == 0 ? random_.below(256) : 0); }
  uint8_t flags_with(uint8_t flags) {
    return flags | (random_.below(8) == 0 ? static_cast<uint8_t>(random_.next()) & ~wire::kByReference : 0);
  }

  /// Adds a packet to the burst. Returns its place there.
  size_t add(Kind kind, uint8_t flags, uint32_t request, uint32_t index, uint32_t type, uint32_t size,
             size_t payload_bytes = 0, uint8_t code = 0, HostileSession* session = nullptr) {
    HostileSession& its = session != nullptr ? *session : *session_;
    uint32_t number = its.client_number++;
    if (is_open_ && random_.below(16) == 0) number -= random_.below(300);
    if (is_open_ && random_.below(256) == 0) number = its.client_number += random_.below(70'000);
    Header header = wire::client_header(kind, flags, its.server_key(), number, request, index, type, size);
    header.add_payload_code(code);
    header.add_length(wire::kHeaderBytes + payload_bytes);
    if (Link::kMayDamage && is_open_ && random_.below(256) == 0)
      header.w0 ^= uint64_t{1} << (4 + random_.below(28));  // not the kind or key
    const size_t at = burst_.size();
    burst_.resize(at + wire::kHeaderBytes + payload_bytes);
    wire::store_header(burst_.data() + at, header);
    const uint32_t response_bytes = random_.below(30 * kPayloadBytes);
    if (payload_bytes >= 4) std::memcpy(burst_.data() + at + wire::kHeaderBytes, &response_bytes, 4);
    return at;
  }
  void flush() {
    if (Link::kMayDamage && is_open_ && random_.below(64) == 0)
      burst_.resize(random_.below(static_cast<uint32_t>(burst_.size()) + 1));
    link_.send(*session_, burst_, is_open_ ? random_.below(16) : kPlain);
    burst_.clear();
  }

  /// Messages to the Nexus: about the present session or the one before, with other runs and keys, damaged, cut, and
  /// connect requests that were answered long ago.
  void manage() {
    hostile_.serve_management();
    const HostileSession& session = ended_.has_value() && random_.below(2) == 0 ? *ended_ : *session_;
    ManagementMessage message = session.request;  // with its cookie
    if (random_.below(4) != 0) {
      constexpr std::array kKinds = {ManagementKind::kConfirm, ManagementKind::kDisconnectAck, ManagementKind::kPing,
                                     ManagementKind::kPong,    ManagementKind::kAsk,           ManagementKind::kAnswer};
      message = about(session, kKinds[random_.below(kKinds.size())]);
      message.liveness = static_cast<uint8_t>(random_.below(3));
      if (random_.below(4) == 0) message.from_key = static_cast<uint32_t>(random_.next());
      if (random_.below(4) == 0) message.from_client = false;
      if (random_.below(8) == 0) message.to_endpoint = static_cast<uint16_t>(random_.next());
    }
    std::vector<std::byte> bytes = encoded(message);
    if (random_.below(4) == 0) bytes[random_.below(static_cast<uint32_t>(bytes.size()))] ^= std::byte{1};
    if (random_.below(8) == 0) bytes.resize(random_.below(static_cast<uint32_t>(bytes.size()) + 1));
    (random_.below(8) == 0 ? hostile_.data : hostile_.management).send(session.server_management, bytes);
  }

  Link link_;
  Hostile& hostile_;
  Random& random_;
  std::optional<HostileSession> session_, ended_;
  bool is_open_ = false;
  uint32_t pair_token_ = 0;  ///< of the last reply that one of the addresses got
  std::array<Slot, wire::kSlotsMax> slots_;
  std::vector<std::byte> burst_;
};

template <class T>
class Walk : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(honest_.ask(kEcho, 32).status.ok());
    honest_.start_calls(20'000);
  }
  /// After the attackers' sessions have ended.
  void TearDown() override {
    ASSERT_TRUE(honest_.reaches(honest_.ok() + 50)) << honest_.stop_calls().first;
    const auto losses = honest_.stop_calls();
    EXPECT_EQ(losses.failed, 0u) << losses.first.message();
    EXPECT_GT(server_.handled(), losses.ok + 500) << "the attackers' requests reach handlers, too";
    EndpointCore::Census census;
    const auto is_alone = [&] {
      server_.in_loop([&] { census = EndpointCore::of(server_.rpc()).census(); });
      return census.server_sessions == 1 && census.arriving_bytes == 0 && census.response_bytes == 0;
    };
    for (const auto until = Clock::now() + kPatience; !is_alone() && Clock::now() < until;) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    EXPECT_EQ(census.server_sessions, 1u);
    EXPECT_EQ(census.arriving_bytes, 0u);
    EXPECT_EQ(census.response_bytes, 0u);
    server_.stop();
    EndpointCore::of(server_.rpc()).check_invariants();
  }
  template <class Walkers>
  void walk(Walkers&& walkers) {
    for (auto& walker : walkers) ASSERT_NO_FATAL_FAILURE(walker->open());
    at_rate(kSteps, kStepsPerSecond, [&](uint64_t round) {
      auto& walker = walkers[round % walkers.size()];
      if (round % 2000 < walkers.size() && round >= 2000) {  // the server may give the place to the next session
        walker->close();
        walker->open();
      }
      walker->step();
    });
    for (auto& walker : walkers) walker->close();
  }

  Server<T> server_;
  Honest<T> honest_{server_.uri()};
  const uint64_t seed_ = seed();
  Hostile first_{server_.uri(), Address::parse("127.0.0.3").ip, seed_};
  Hostile second_{server_.uri(), Address::parse("127.0.0.5").ip, seed_ + 1};
};

class UdpWalk : public Walk<Udp> {};
TEST_F(UdpWalk, two_clients_that_send_for_each_other) {
  std::vector<std::unique_ptr<Walker<UdpLink>>> walkers;
  walkers.push_back(std::make_unique<Walker<UdpLink>>(UdpLink(first_, second_), first_));
  walkers.push_back(std::make_unique<Walker<UdpLink>>(UdpLink(second_, first_), second_));
  walk(walkers);
}

class ShmWalk : public Walk<Shm> {};
TEST_F(ShmWalk, two_clients) {
  shm::Identity identity;
  const auto address = server_.rpc().core().transport().address();
  std::copy(address.begin(), address.end(), identity.begin());
  std::vector<std::unique_ptr<Walker<ShmLink>>> walkers;
  for (Hostile* hostile : {&first_, &second_}) {
    walkers.push_back(std::make_unique<Walker<ShmLink>>(ShmLink(*hostile, identity), *hostile));
  }
  walk(walkers);
}

}  // namespace
}  // namespace attack
