// A hostile server answers at random: with the right keys and request numbers mostly, and with sizes, echoes, credits
// and endings that contradict what it said before. A client that reconnects to it again and again gets an end for each
// call, and its buffers back.
#include <tern/transport/udp.h>

#include <deque>

#include "attack/honest.h"
#include "patience.h"
#include "rpc/rpc_core.h"

namespace attack {
namespace {

using tern::Udp;
using tern::rpc::EndpointCore;
namespace wire = tern::wire;

constexpr uint32_t kPayloadBytes = 1208;

/// A client that keeps calls of all sizes under way. Some have deadlines, and some are cancelled.
class Victim : public LiveEndpoint<Udp> {
 public:
  explicit Victim(const std::string& server_uri) : LiveEndpoint<Udp>("tern://127.0.0.4:0", {}, {}) {
    tern::SessionOptions options;
    options.connect_timeout = milliseconds(500);
    options.reconnect = true;
    options.reconnect_pause = milliseconds(1);
    options.reconnect_pause_max = milliseconds(10);
    session_ = *rpc().create_session(server_uri, options);
    run();
    in_loop([this] {
      for (int i = 0; i < 16; i++) call();
    });
  }
  ~Victim() { stop(); }
  uint64_t ended() const { return ended_.load(); }
  uint64_t ok() const { return ok_.load(); }
  /// Ends the session. Each call must have ended once, with both of its buffers.
  void check_end() {
    uint64_t started = 0;
    in_loop([&] {
      is_calling_ = false;
      started = started_;
      EXPECT_TRUE(rpc().destroy_session(session_).ok());
    });
    for (const auto until = Clock::now() + kPatience; ended_ < started && Clock::now() < until;) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    stop();
    EXPECT_EQ(ended_, started);
    EXPECT_EQ(without_buffers_, 0u);
    EndpointCore::of(rpc()).check_invariants();
  }

 private:
  void call() {
    if (!is_calling_) return;
    tern::MsgBuf request = rpc().alloc_msgbuf(random_.below(random_.below(4) == 0 ? 20 * kPayloadBytes : 600));
    tern::MsgBuf response = rpc().alloc_msgbuf(random_.below(random_.below(4) == 0 ? 20 * kPayloadBytes : 600));
    tern::CallOptions options;
    if (random_.below(4) == 0) options.deadline = std::chrono::microseconds(random_.below(20'000));
    started_++;
    const auto id = rpc().enqueue_request(
        session_, kEcho, std::move(request), std::move(response), [this](tern::Completion& done) { on_end(done); },
        options);
    if (!id.ok()) {
      started_--;
      call_later();
    } else if (random_.below(8) == 0) {
      (void)rpc().after(std::chrono::microseconds(random_.below(5000)),
                        [this, call = *id] { (void)rpc().cancel(call); });
    }
  }
  void call_later() {
    (void)rpc().after(milliseconds(1), [this] { call(); });
  }
  void on_end(const tern::Completion& done) {
    ended_++;
    ok_ += done.status.ok();
    without_buffers_ += !done.request || !done.response;
    call_later();
  }

  Random random_{seed() + 1};
  tern::Session session_;
  bool is_calling_ = true;  ///< belongs to the loop's thread, as the fields below
  uint64_t started_ = 0, without_buffers_ = 0;
  std::atomic<uint64_t> ended_ = 0, ok_ = 0;
};

class HostileServer {
 public:
  std::string uri() const { return "tern://127.0.0.1:" + std::to_string(management_.address().port); }
  void turn() {
    Address from;
    for (auto bytes = management_.receive(milliseconds(1), &from); !bytes.empty();
         bytes = management_.receive(milliseconds(0), &from)) {
      ManagementMessage message;
      if (wire::parse_management(bytes, message) == wire::ManagementDrop::kNone) manage(message, from);
    }
    for (auto bytes = data_.receive(); !bytes.empty(); bytes = data_.receive()) {
      const std::vector<std::byte> datagram(bytes.begin(), bytes.end());
      for (std::span<const std::byte> left = datagram; left.size() >= wire::kHeaderBytes;) {
        const Header header = wire::load_header(left.data());
        if (!wire::is_plausible(header, left.size())) break;
        on_packet(header);
        left = left.subspan(header.length());
      }
    }
  }

 private:
  /// One of the client's attempts.
  struct Attempt {
    Address client;
    uint32_t client_key = 0, server_key = 0;
    uint32_t number = 0;  ///< of the next packet
    uint32_t token = 0;
  };
  static constexpr uint32_t kFirstRequest = 7 << wire::kSlotBits;

  bool happens(uint32_t one_in) { return random_.below(one_in) == 0; }

  void manage(const ManagementMessage& message, const Address& from) {
    ManagementMessage answer = message;
    answer.sender_run = run_;
    answer.receiver_run = message.sender_run;
    std::swap(answer.to_key, answer.from_key);
    answer.from_client = false;
    switch (message.kind) {
      case ManagementKind::kConnectRequest:
        if (happens(8)) run_ = random_.next() | 1;  // as after a restart
        answer.sender_run = run_;
        accept(message, answer);
        break;
      case ManagementKind::kPing:
        answer.kind = ManagementKind::kPong;
        if (happens(4)) answer.sender_run = happens(2) ? 0 : random_.next();
        break;
      case ManagementKind::kAsk:
        answer.kind = ManagementKind::kAnswer;
        answer.liveness = static_cast<uint8_t>(random_.below(wire::kLivenessMax + 1));
        break;
      case ManagementKind::kDisconnect:
        answer.kind = ManagementKind::kDisconnectAck;
        break;
      default:
        return;
    }
    management_.send(from, encoded(answer));
    if (happens(8)) management_.send(from, encoded(answer));
    if (!attempts_.empty() && happens(64)) {
      answer.kind = ManagementKind::kDisconnect;
      answer.to_key = attempts_.back().client_key;
      answer.from_key = attempts_.back().server_key;
      management_.send(from, encoded(answer));
    }
  }
  void accept(const ManagementMessage& request, ManagementMessage& reply) {
    reply.kind = ManagementKind::kConnectReply;
    reply.to_endpoint = request.terms.endpoint_id;
    reply.to_key = request.terms.session_key;
    reply.version_min = happens(32) ? 1 : request.version_max;
    if (happens(8)) {
      reply.code = tern::Code::kRefused;
      reply.refusal = static_cast<wire::Refusal>(1 + random_.below(wire::kRefusals - 1));
      return;
    }
    const Address client = address_in(request.terms);
    set_address(reply.terms, data_.address());
    reply.terms.session_key = static_cast<uint32_t>(random_.next());
    reply.terms.first_number = static_cast<uint32_t>(random_.next()) & wire::kNumberMask;
    reply.terms.path_token = static_cast<uint32_t>(random_.next()) & wire::kTokenMask;
    reply.terms.payload_bytes_max = happens(4) ? wire::kPayloadBytesMin : kPayloadBytes;
    reply.terms.credits = static_cast<uint8_t>(1 + random_.below(128));
    reply.terms.window = static_cast<uint8_t>(1 + random_.below(request.terms.window));
    attempts_.push_back({client, request.terms.session_key, reply.terms.session_key, reply.terms.first_number,
                         static_cast<uint32_t>(random_.next()) & wire::kTokenMask});
    if (attempts_.size() > 4) attempts_.pop_front();
  }

  void on_packet(const Header& header) {
    const auto found = std::find_if(attempts_.begin(), attempts_.end(),
                                    [&](const Attempt& attempt) { return attempt.server_key == header.session_key(); });
    if (found == attempts_.end()) return;
    Attempt& attempt = *found;
    const size_t payload_bytes = header.length() - wire::kHeaderBytes;
    if (header.kind() == Kind::kPathProbe) {
      return send(attempt, Kind::kPathReply, header.flags() & wire::kPaired, kFirstRequest, header.number(), 8,
                  attempt.token, happens(16) ? 64 : payload_bytes);
    }
    if (header.kind() == Kind::kRequest && happens(2)) {  // an answer
      const uint32_t bytes = random_.below(happens(2) ? 600 : 20 * kPayloadBytes);
      return send(attempt, Kind::kResponse, wire::kFirst, header.request_number(), header.number(), 8, bytes,
                  std::min(bytes, kPayloadBytes));
    }
    for (uint32_t left = random_.below(4); left != 0; left--) answer_at_random(attempt, header);
    if (happens(8)) answer_at_random(attempts_.front(), header);
  }
  void answer_at_random(Attempt& attempt, const Header& header) {
    constexpr std::array kKinds = {Kind::kResponse, Kind::kResponse,  Kind::kResponse,
                                   Kind::kCr,       Kind::kCancelled, Kind::kPathReply};
    const Kind kind = kKinds[random_.below(kKinds.size())];
    const uint32_t request = header.request_number() + (happens(8) ? wire::kSlotsMax : 0) + (happens(8) ? 1 : 0);
    const uint32_t echo = header.number() + (happens(4) ? random_.below(300) - 200 : 0);
    const auto credits = static_cast<uint8_t>(happens(4) ? random_.next() : 8);
    uint8_t flags = happens(2) ? wire::kFirst : 0;
    if (happens(8)) flags |= static_cast<uint8_t>(random_.next()) & ~wire::kByReference;
    const uint32_t size = happens(8) ? static_cast<uint32_t>(random_.next()) & wire::kTokenMask : random_.below(24);
    const size_t payload_bytes = kind == Kind::kCr ? 8 * random_.below(happens(8) ? 70 : 5)
                                 : happens(4)      ? random_.below(kPayloadBytes + 1)
                                 : happens(2)      ? kPayloadBytes
                                                   : size;
    send(attempt, kind, flags, request, echo, credits, size, std::min<size_t>(payload_bytes, kPayloadBytes));
  }
  void send(Attempt& attempt, Kind kind, uint8_t flags, uint32_t request, uint32_t echo, uint8_t credits, uint32_t size,
            size_t payload_bytes) {
    if (happens(16)) attempt.number += random_.below(happens(16) ? 70'000 : 300) - 100;
    Header header = wire::server_header(kind, flags, attempt.client_key, attempt.number++, request, echo,
                                        static_cast<uint8_t>(happens(4) ? random_.next() : 0), credits, size);
    if (happens(16)) header.set_large();
    header.add_length(wire::kHeaderBytes + payload_bytes);
    packet_.assign(wire::kHeaderBytes + payload_bytes, static_cast<std::byte>(random_.next()));
    wire::store_header(packet_.data(), header);
    if (happens(64)) packet_.resize(random_.below(static_cast<uint32_t>(packet_.size())));
    data_.send(attempt.client, packet_);
    if (happens(16)) data_.send(attempt.client, packet_);
  }

  Random random_{seed()};
  Socket management_, data_;
  uint64_t run_ = random_.next() | 1;
  std::deque<Attempt> attempts_;  ///< the newest last
  std::vector<std::byte> packet_;
};

TEST(HostileServer, a_client_that_reconnects_gets_an_end_for_each_call) {
  constexpr uint64_t kCalls = 5000;
  HostileServer server;
  Victim victim(server.uri());
  for (const auto until = Clock::now() + kPatience * tern::patience(); victim.ended() < kCalls && Clock::now() < until;)
    server.turn();
  EXPECT_GE(victim.ended(), kCalls);
  EXPECT_GT(victim.ok(), 0u);
  victim.check_end();
}

}  // namespace
}  // namespace attack
