// Two live endpoints and an attacker, in one thread and in virtual time. The client endpoint has three sessions with
// the server:
//
//   hostile   the fuzzer is its client; it knows keys, numbers and tokens, and sends legal and illegal packets
//   mixed     honest calls; the fuzzer is its server, and an attacker on the path between the two
//   victim    honest calls only; the fuzzer sends no packet of this session
//
// The input decides the events. The promises are CHECKed: a handler runs at most once for a request number, a
// continuation runs exactly once, the victim's calls succeed, the endpoints' invariants hold, and a new session works
// afterwards.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tern/rpc.h>

#include "base/check.h"
#include "fuzz/fuzz_parts.h"
#include "rpc/rpc_impl.h"
#include "wire/header.h"
#include "wire/management.h"

namespace tern::fuzz {

using std::chrono::milliseconds;
using wire::Header;
using wire::Kind;

inline constexpr uint16_t kEcho = 1, kKeep = 2, kLong = 3, kDrop = 4, kFail = 5, kWorker = 6, kNoHandler = 7;
inline constexpr uint16_t kTypes = 8;
inline constexpr uint32_t kPayloadBytes = 512;
inline constexpr size_t kLongBytes = 20 * kPayloadBytes + 3;
/// The capacity of a MsgBuf for such a response. The arena's blocks are powers of two.
inline constexpr size_t kRoomBytes = 16'384;
inline constexpr uint64_t kTurnNs = 20'000;
inline constexpr uint32_t kServer = 0, kClient = 1;  ///< indices of the two taps and endpoints

/// The knowledge of a session that a hostile peer has, or an attacker who reads its packets.
struct Known {
  Session session;
  uint32_t server_key = 0, client_key = 0;           ///< the session's keys at the server and at the client
  uint32_t token = 0;                                ///< proves a client's packets without a request number
  uint32_t client_number = 0, server_number = 0;     ///< numbers of the next packets
  uint32_t first_request = 0;                        ///< first request number of slot 0
  std::array<uint32_t, wire::kSlotsMax> requests{};  ///< newest request number of each slot
};

/// A change of one field of the terms in every datagram of a handshake.
struct Mutation {
  enum class Field : uint8_t { kNone, kPayload, kWindow, kCredits, kAddress, kKey, kNumber, kToken, kBytes };
  static constexpr uint32_t kFields = 9;
  Field field = Field::kNone;
  bool is_reply = false;  ///< changes the server's terms; false: the client's
  uint32_t value = 0;
  uint8_t at = 0;
};

/// `T`: a transport whose Impl is a TappedImpl.
template <class T>
class World {
 public:
  using Options = typename T::Options;

  /// `make_options(side)` gives the options of the inner transport.
  template <class MakeOptions>
  explicit World(uint64_t& now_ns, MakeOptions&& make_options) : now_ns_(now_ns), environment_(now_ns) {
    NexusOptions nexus;
    nexus.environment = &environment_;
    nexus.liveness_timeout = milliseconds(20);
    environment_.on_the_way = [this](std::vector<std::byte>& bytes) { return mutate(bytes); };
    RpcOptions options;
    options.huge_pages = false;
    options.memory_limit_bytes = 4u << 20;
    options.receive_budget_bytes = 1u << 20;
    options.report_delay = milliseconds(2);
    options.server_sessions_max = 16;
    for (const uint32_t side : {kServer, kClient}) {
      taps_[side].now_ns = &now_ns_;
      nexuses_[side] = must(Nexus::create(side == kServer ? "tern://10.0.0.1:1" : "tern://10.0.0.2:1", nexus));
      Options transport;
      transport.inner = make_options(side);
      transport.tap = &taps_[side];
      rpcs_[side] = must(Rpc<T>::create(*nexuses_[side], transport, options));
    }
    handle(kEcho, [](Request& request) { answer(std::move(request), 0); });
    handle(kKeep, [this](Request& request) {
      kept_.push_back(std::move(request));
      if (kept_.size() > kKeptMax) kept_.erase(kept_.begin());
    });
    handle(kLong, [](Request& request) { answer(std::move(request), kLongBytes); });
    handle(kDrop, [](Request&) {});
    handle(kFail, [](Request& request) { request.fail(1); });
    CHECK(server().on_request(kWorker, [](Request request) { answer(std::move(request), 0); }, {.worker = true}).ok());
    victim_ = must_open();
    mixed_ = must_open();
    hostile_ = must_open();
  }
  ~World() {
    rpcs_[kClient].reset();
    rpcs_[kServer].reset();
    kept_.clear();
    CHECK(calls_.ended, ==, calls_.begun);
    CHECK(honest_calls_.ended, ==, honest_calls_.begun);
  }

  /// The number of packets that the endpoints have read.
  uint64_t packets() const { return taps_[kServer].packets + taps_[kClient].packets; }

  void play(Input& input) {
    for (uint32_t steps = 0; !input.is_empty(); steps++) {
      switch (input.below(16)) {
        case 0:
        case 1:
        case 2:
        case 3:
        case 4:
          burst_to_server(input);
          break;
        case 5:
        case 6:
        case 7:
          burst_to_client(input);
          break;
        case 8:
          tampered(input);
          break;
        case 9:
          made_up(input);
          break;
        case 10:
          call(mixed_, input);
          break;
        case 11:
          begin_call(victim_, input.once_in(4) ? kLong : kEcho, input.u8(), Duration::max(), true);
          break;
        case 12:
          turns(1 + input.below(4));
          break;
        case 13:
          now_ns_ += kTurnNs << input.below(12);
          turns(1);
          break;
        case 14:
          control(input);
          break;
        default:
          reconnect(input);
          break;
      }
      if (steps % kStepsPerCheck == 0) check();
    }
    check();
  }

  /// Opens a session with changed terms and makes calls on it.
  void play_terms(Input& input) {
    while (!input.is_empty()) {
      const Known session = begin_session(mutation_from(input));
      for (const uint16_t type : {kEcho, kLong})
        begin_call(session, type, input.once_in(2) ? 40 : 3 * kPayloadBytes, Duration::max(), false);
      turns(1 + input.below(16));
      check();
      (void)client().destroy_session(session.session);
      mutation_ = {};
      turns(2);
    }
  }

  /// Checks that all calls end and that new sessions work.
  void expect_health() {
    mutation_ = {};
    end_calls(honest_calls_, 20'000);
    // A hostile server may leave a call without an answer for ever, but the call ends with its session.
    for (Known* session : {&hostile_, &mixed_}) (void)client().destroy_session(session->session);
    end_calls(calls_, 10);
    for (Known* session : {&hostile_, &mixed_}) *session = must_open();
    const uint64_t before = calls_ok_;
    for (const Known* session : {&hostile_, &mixed_, &victim_}) {
      for (const uint16_t type : {kEcho, kLong, kEcho})
        CHECK(begin_call(*session, type, 3 * kPayloadBytes, Duration::max(), true));
    }
    end_calls(honest_calls_, 10'000);
    CHECK(calls_ok_ - before, ==, 9u);
    for (Known* session : {&hostile_, &mixed_, &victim_}) CHECK(client().destroy_session(session->session).ok());
    // Sessions of changed handshakes end when one side learns that the other side does not have them.
    for (int i = 0;; i++) {
      turns(1);
      const auto census = core(kServer).census();
      if (census.server_sessions == 0 && census.buffers_out == 0 && census.requests_open == 0) break;
      CHECK(i, <, 20'000);
      now_ns_ += 10 * kTurnNs;
    }
    CHECK(core(kClient).census().buffers_out, ==, 0u);
    CHECK(core(kClient).census().client_sessions, ==, 0u);
    check();
  }

 private:
  static constexpr size_t kKeptMax = 40;
  static constexpr uint32_t kStepsPerCheck = 8;
  static constexpr int kTurnsToOpen = 400;

  template <class V>
  static V must(Result<V> result) {
    CHECK(result.ok());
    return std::move(*result);
  }
  Rpc<T>& server() { return *rpcs_[kServer]; }
  Rpc<T>& client() { return *rpcs_[kClient]; }
  rpc::EndpointCore& core(uint32_t side) { return rpc::EndpointCore::of(*rpcs_[side]); }
  void check() {
    for (const uint32_t side : {kServer, kClient}) core(side).check_invariants();
  }

  // -- Honest traffic --

  /// Registers a handler. `f(Request&)` may take the request; otherwise it is dropped.
  template <class F>
  void handle(uint16_t type, F f) {
    auto handler = [this, f](Request request) {
      // Promise 1: a handler runs at most once for a request number of a session.
      const Header* header = taps_[kServer].visiting;
      CHECK(header != nullptr);
      CHECK(handled_.insert(uint64_t{header->session_key()} << 32 | header->request_number()).second);
      f(request);
    };
    CHECK(server().on_request(type, std::move(handler), {.max_request_bytes = 300'000}).ok());
  }
  /// Echoes the message, or as much as there is of it and then zeros.
  static void answer(Request request, size_t bytes) {
    const auto in = request.bytes();
    auto out = request.response(std::max(bytes, in.size()));
    if (!out.ok()) return request.fail(kOutOfMemory);
    if (!in.empty()) std::memcpy(out->data(), in.data(), in.size());
    std::memset(out->data() + in.size(), 0, out->size() - in.size());
    request.respond();
  }
  void turn_of(uint32_t side) {
    CHECK(rpcs_[side]->run_event_loop_once().ok());
    if (side == kServer) environment_.run_workers();
  }
  void turns(uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
      turn_of(kServer);
      turn_of(kClient);
      now_ns_ += kTurnNs;
      environment_.run();
    }
  }
  struct Count {
    uint64_t begun = 0, ended = 0;
  };
  void end_calls(const Count& calls, int turns_max) {
    for (int i = 0; calls.ended != calls.begun; i++) {
      CHECK(i, <, turns_max);
      turns(1);
      kept_.clear();
    }
  }
  /// After a failure the arena skips some allocations before it searches again for freed memory.
  MsgBuf alloc(size_t bytes) {
    MsgBuf buffer;
    for (int i = 0; i < 1000 && !buffer; i++) buffer = client().alloc_msgbuf(bytes);
    return buffer;
  }
  bool begin_call(const Known& session, uint16_t type, size_t bytes, Duration deadline, bool must_work) {
    MsgBuf request = alloc(bytes), room = alloc(std::max(bytes, kLongBytes));
    if (!request || !room) return false;
    if (bytes != 0) std::memset(request.bytes().data(), 'q', bytes);
    auto id = client().enqueue_request(session.session, type, std::move(request), std::move(room),
                                       [this, must_work](Completion& done) {
                                         (must_work ? honest_calls_ : calls_).ended++;
                                         calls_ok_ += done.status.ok();
                                         CHECK(done.request && done.response);
                                         if (must_work) expect_success(done);
                                         std::memset(done.request.bytes().data(), 0xee, done.request.bytes().size());
                                         std::memset(done.response.bytes().data(), 0xdd, done.response.bytes().size());
                                       },
                                       {.deadline = deadline});
    if (!id.ok()) return false;
    (must_work ? honest_calls_ : calls_).begun++;
    if (!must_work) last_call_ = *id;
    return true;
  }
  /// Memory may be short. A call that is refused for that must be refused in time.
  static void expect_success(const Completion& done) {
    const bool is_short = done.status.code() == Code::kNoMemory || done.app_code == kOutOfMemory;
    if (!is_short) CHECK(static_cast<int>(done.status.code()), ==, static_cast<int>(Code::kOk));
  }
  void call(const Known& session, Input& input) {
    const uint16_t type = static_cast<uint16_t>(1 + input.below(kTypes - 1));
    const uint8_t size = input.u8();
    const size_t bytes = size < 200 ? size : size_t{size - 199u} * 1'000;
    const uint8_t deadline = input.u8();
    begin_call(session, type, bytes, deadline < 192 ? Duration::max() : Duration(int64_t{deadline} * 10'000), false);
  }
  void control(Input& input) {
    const uint32_t side = input.below(2);
    switch (input.below(6)) {
      case 0:
        (void)client().cancel(last_call_);
        break;
      case 1:
        for (Request& request : kept_) answer(std::move(request), input.once_in(2) ? kLongBytes : 0);
        kept_.clear();
        break;
      case 2:
        kept_.clear();
        break;
      case 3:
        taps_[side].refuse_sends = true;
        turns(1 + input.below(3));
        taps_[side].refuse_sends = false;
        break;
      case 4:
        taps_[side].hold_tickets = true;
        turns(1 + input.below(3));
        taps_[side].hold_tickets = false;
        break;
      default: {
        std::array<std::byte, 300> bytes;
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(input.u8());
        environment_.inject(std::span(bytes).first(input.u8()));
        break;
      }
    }
  }

  // -- Handshakes --

  Mutation mutation_from(Input& input) {
    Mutation mutation;
    mutation.field = static_cast<Mutation::Field>(input.below(Mutation::kFields));
    mutation.is_reply = input.once_in(2);
    mutation.at = input.u8();
    mutation.value = input.u32();
    if (input.once_in(2)) mutation.value &= 0xfff;
    return mutation;
  }
  /// Changes a datagram of the handshake. False: the datagram is lost.
  bool mutate(std::vector<std::byte>& bytes) {
    if (mutation_.field == Mutation::Field::kNone) return true;
    wire::ManagementMessage message;
    if (wire::parse_management(bytes, message) != wire::ManagementDrop::kNone) return true;
    const bool is_request = message.kind == wire::ManagementKind::kConnectRequest;
    const bool is_reply = message.kind == wire::ManagementKind::kConnectReply && message.code == Code::kOk;
    if (mutation_.is_reply ? !is_reply : !is_request) return true;
    wire::ManagementTerms& terms = message.terms;
    const uint32_t value = mutation_.value;
    switch (mutation_.field) {
      case Mutation::Field::kPayload:
        terms.payload_bytes_max = value;
        break;
      case Mutation::Field::kWindow:
        terms.window = static_cast<uint8_t>(value);
        break;
      case Mutation::Field::kCredits:
        terms.credits = static_cast<uint8_t>(value);
        break;
      case Mutation::Field::kAddress:
        // The last two bytes of a UDP address are its endpoint's datagram size.
        if (terms.address_bytes >= 2 && mutation_.at < 192) {
          terms.address[terms.address_bytes - 2u] = static_cast<std::byte>(value);
          terms.address[terms.address_bytes - 1u] = static_cast<std::byte>(value >> 8);
        } else if (terms.address_bytes != 0) {
          terms.address[mutation_.at % terms.address_bytes] = static_cast<std::byte>(value);
          if ((value & 0xf00) == 0) terms.address_bytes = static_cast<uint8_t>(mutation_.at % terms.address.size());
        }
        break;
      case Mutation::Field::kKey:
        terms.session_key = value;
        break;
      case Mutation::Field::kNumber:
        terms.first_number = value & wire::kNumberMask;
        break;
      case Mutation::Field::kToken:
        terms.path_token = value & wire::kTokenMask;
        break;
      default:
        bytes[mutation_.at % bytes.size()] ^= static_cast<std::byte>(value);
        return true;
    }
    if (!wire::is_valid(terms) || (is_reply && terms.credits == 0)) return true;
    wire::ManagementBytes out;
    wire::encode_management(message, out);
    bytes.assign(out.view().begin(), out.view().end());
    return true;
  }
  /// Starts a session that may never open.
  Known begin_session(const Mutation& mutation) {
    mutation_ = mutation;
    Known known;
    auto session = client().create_session(nexuses_[kServer]->uri(), {.window = 16});
    if (!session.ok()) return known;
    known.session = *session;
    for (int i = 0; i < kTurnsToOpen && !client().is_open(*session); i++) turns(1);
    if (client().is_open(*session)) learn(known);
    return known;
  }
  Known must_open() {
    const Known known = begin_session({});
    CHECK(client().is_open(known.session));
    return known;
  }
  void reconnect(Input& input) {
    Known& session = input.once_in(2) ? hostile_ : mixed_;
    (void)client().destroy_session(session.session);
    const Known next = begin_session(input.once_in(2) ? mutation_from(input) : Mutation{});
    mutation_ = {};
    if (client().is_open(next.session)) {
      session = next;
    } else {
      (void)client().destroy_session(next.session);
      session = must_open();
    }
  }
  /// Reads the client's knowledge from the path probes and replies of the session that has just opened.
  void learn(Known& known) {
    const Record& sent = taps_[kClient].sent;
    for (size_t back = 0; back < sent.size(); back++) {
      const Header& header = sent.newest(back).header;
      if (header.kind() != Kind::kPathProbe) continue;
      known.server_key = header.session_key();
      known.client_number = header.number() + 1;
      break;
    }
    const Record& arrived = taps_[kClient].arrived;
    for (size_t back = 0; back < arrived.size(); back++) {
      const Packet& packet = arrived.newest(back);
      if (packet.header.kind() != Kind::kPathReply) continue;
      if (known.client_key == 0) {
        known.client_key = packet.header.session_key();
        known.server_number = packet.header.number() + 1;
      }
      if (packet.header.session_key() != known.client_key) break;
      if (packet.data.empty()) known.token = packet.header.size_or_index();
      if (packet.header.request_number() == 0) continue;
      known.first_request = packet.header.request_number();
      for (uint32_t slot = 0; slot < wire::kSlotsMax; slot++)
        known.requests[slot] = (packet.header.request_number() | slot) - wire::kSlotsMax;
    }
  }

  // -- The hostile client --

  uint32_t next_number(uint32_t& number, Input& input) {
    switch (input.below(64)) {
      case 0:
        return number - input.u16();
      case 1:  // if the receiver believes it, all later packets count as late
        return number + input.u16();
      case 2:
      case 3:
        return number - 1;  // a duplicate
      case 4:
      case 5:
        return number + input.below(128);
      case 6:
      case 7:
        return number += 1 + input.below(128);
      default:
        return number++;
    }
  }
  /// A client's packet with the right fields. A proof overwrites `size` where the packet has one.
  void to_server(Kind kind, uint8_t flags, uint32_t request, uint32_t index, uint32_t type, uint32_t size,
                 size_t payload_bytes, Input& input) {
    if constexpr (wire::kVersion >= 2) {
      if (kind == Kind::kProbe || kind == Kind::kCancel || kind == Kind::kReport) size = hostile_.token;
    }
    Packet packet;
    packet.header = wire::client_header(kind, flags, hostile_.server_key, next_number(hostile_.client_number, input),
                                        request, index, type, size);
    packet.data.resize(payload_bytes, std::byte{'h'});
    if (kind == Kind::kReport) {
      for (size_t i = 0; 4 * i + 4 <= payload_bytes; i++) {
        const uint32_t reported = i == 0 ? request : hostile_.requests[i % wire::kSlotsMax];
        std::memcpy(packet.data.data() + 4 * i, &reported, 4);
      }
    }
    deliver(kServer, std::move(packet), input);
  }
  /// Sends packets about one request in any order, mostly without a turn of the server between them.
  void burst_to_server(Input& input) {
    uint32_t& request = hostile_.requests[input.once_in(8) ? input.below(wire::kSlotsMax) : input.below(4)];
    const uint16_t type = static_cast<uint16_t>(input.once_in(2) ? kLong : input.below(kTypes));
    const bool refuses = input.once_in(16), holds = input.once_in(16);
    taps_[kServer].refuse_sends = refuses;
    taps_[kServer].hold_tickets = holds;
    if (!input.once_in(4)) {  // a new one to begin with
      request += wire::kSlotsMax;
      const uint32_t bytes = input.below(64);
      to_server(Kind::kRequest, wire::kFirst, request, wire::kNoDeadline, type, bytes, bytes, input);
      if (!input.once_in(4)) turn_of(kServer);
    }
    for (uint32_t left = 1 + input.below(12); left > 0; left--) {
      const uint32_t other = input.once_in(8) ? request + wire::kSlotsMax : request;
      switch (input.below(16)) {
        case 0:
          request += wire::kSlotsMax;
          [[fallthrough]];
        case 1:
          to_server(Kind::kRequest, wire::kFirst, request, input.once_in(8) ? input.u16() : wire::kNoDeadline, type, 8,
                    8, input);
          break;
        case 2:
        case 3:
        case 4:
          to_server(Kind::kRfr, 0, other, input.below(24), type, 1 + input.below(32), 0, input);
          break;
        case 5:
        case 6:
          to_server(Kind::kCancel, 0, other, input.below(2), type, 0, 0, input);
          break;
        case 7:
          to_server(Kind::kReport, 0, other, 0, 0, 4, 4 * size_t{1 + input.below(4)}, input);
          break;
        case 8:
        case 9:
        case 10:
          to_server(Kind::kProbe, 0, other, 1, type, 0, 0, input);
          break;
        case 11:
          to_server(Kind::kProbe, 0, other, 0, type, 0, 0, input);
          break;
        case 12: {  // one of three packets of a long request
          constexpr uint32_t kBytes = 2 * kPayloadBytes + 100;
          const uint32_t index = input.below(3);
          if (input.once_in(4)) request += wire::kSlotsMax;
          to_server(Kind::kRequest, index == 0 ? wire::kFirst : 0, request, index == 0 ? wire::kNoDeadline : index,
                    type, kBytes, index == 2 ? 100 : kPayloadBytes, input);
          break;
        }
        case 13:
          path_probe(input);
          break;
        case 14:
          turn_of(kServer);
          break;
        default:
          if (!kept_.empty()) {
            answer(std::move(kept_.back()), input.once_in(2) ? kLongBytes : 0);
            kept_.pop_back();
          }
          break;
      }
    }
    turn_of(kServer);
    taps_[kServer].refuse_sends = taps_[kServer].hold_tickets = false;
    if (input.once_in(2)) turns(1);
  }
  void path_probe(Input& input) {
    const bool is_full = input.once_in(2);
    uint32_t size = kPayloadBytes, request = 0;
    if (wire::kVersion >= 2) {
      size = hostile_.token;
      request = is_full ? hostile_.first_request : 0;
    }
    to_server(Kind::kPathProbe, 0, request, 0, 0, size, is_full ? kPayloadBytes : 0, input);
  }

  // -- The hostile server --

  void to_client(Kind kind, uint8_t flags, uint32_t request, uint32_t echo, uint32_t size_or_index,
                 size_t payload_bytes, Input& input) {
    Packet packet;
    const uint8_t credits = input.once_in(8) ? input.u8() : uint8_t{8};
    packet.header =
        wire::server_header(kind, flags, mixed_.client_key, next_number(mixed_.server_number, input), request, echo,
                            input.once_in(8) ? input.u8() : uint8_t{0}, credits, size_or_index);
    packet.data.resize(payload_bytes, std::byte{'s'});
    if (kind == Kind::kCr) {
      for (size_t i = 0; i < std::min<size_t>(payload_bytes, 64); i++)
        packet.data[i] = static_cast<std::byte>(input.once_in(2) ? 0xff : input.u8());
    }
    deliver(kClient, std::move(packet), input);
  }
  /// Sends answers to one request of the client in any order, before the honest server's answer.
  void burst_to_client(Input& input) {
    if (!client().is_open(mixed_.session)) {
      (void)client().destroy_session(mixed_.session);
      mixed_ = must_open();
    }
    if (!input.once_in(4)) call(mixed_, input);
    const bool refuses = input.once_in(16), holds = input.once_in(16);
    taps_[kClient].refuse_sends = refuses;
    taps_[kClient].hold_tickets = holds;
    turn_of(kClient);
    const Record& sent = taps_[kClient].sent;
    Header target;  // newer packets are more likely
    for (size_t back = input.below(4); back < sent.size(); back++) {
      target = sent.newest(back).header;
      if (target.session_key() == mixed_.server_key) break;
    }
    for (uint32_t left = 1 + input.below(12); left > 0; left--) {
      const uint32_t request = target.request_number() + (input.once_in(16) ? wire::kSlotsMax : 0);
      const uint32_t echo = target.number() - (input.once_in(4) ? input.below(8) : 0);
      switch (input.below(12)) {
        case 0: {
          const uint32_t bytes = input.u8();
          to_client(Kind::kResponse, wire::kFirst, request, echo, bytes, bytes, input);
          break;
        }
        case 1:
        case 2:
          to_client(Kind::kResponse, wire::kFirst, request, echo, kPayloadBytes + input.u16() % kRoomBytes,
                    kPayloadBytes, input);
          break;
        case 3:
        case 4:
          to_client(Kind::kResponse, 0, request, echo, input.below(24),
                    input.once_in(4) ? input.below(256) : size_t{kPayloadBytes}, input);
          break;
        case 5:
          to_client(Kind::kResponse, wire::kFirst | wire::kFailure, request, echo, input.u32() & 0xf'ffff, 0, input);
          break;
        case 6:
        case 7:
          to_client(Kind::kCr, input.once_in(8) ? wire::kNoEcho : 0, input.once_in(2) ? 0 : request, echo, 0,
                    input.once_in(4) ? size_t{input.below(65)} * 8 : 32, input);
          break;
        case 8:
          to_client(Kind::kCancelled, input.once_in(2) ? wire::kNoEcho : 0, request, echo, 0, 0, input);
          break;
        case 9:
          to_client(Kind::kPathReply, 0, input.once_in(2) ? mixed_.first_request : request, echo, mixed_.token,
                    input.once_in(2) ? 0 : kPayloadBytes, input);
          break;
        case 10:
          (void)client().cancel(last_call_);
          break;
        default:
          turn_of(kClient);
          break;
      }
    }
    turn_of(kClient);
    taps_[kClient].refuse_sends = taps_[kClient].hold_tickets = false;
    if (input.once_in(2)) turns(1);
  }

  // -- Mutations and noise --

  /// Sends one of the recent packets again, with some or no bytes changed.
  void tampered(Input& input) {
    const uint32_t side = input.below(2);
    const Record& record = taps_[side].arrived;
    if (record.size() == 0) return;
    Packet packet = record.newest(input.below(static_cast<uint32_t>(record.size())));
    if (is_victims(packet.header)) return;
    const uint8_t what = input.u8();
    // Its number has been seen: a new one gets it further.
    if ((what & 0x80) != 0) {
      packet.header.w1 = (packet.header.w1 & ~uint64_t{wire::kNumberMask}) |
                         ((packet.header.w1 + (what >> 4 & 7) + 1) & wire::kNumberMask);
    }
    auto* header_bytes = reinterpret_cast<uint8_t*>(&packet.header);
    for (int i = 0; i < (what & 7); i++) {
      const uint8_t at = input.u8();
      if (at < 192) {
        header_bytes[at % sizeof(packet.header)] ^= input.u8();
      } else if (!packet.data.empty()) {
        packet.data[(at - 192u) % packet.data.size()] ^= static_cast<std::byte>(input.u8());
      }
    }
    if ((what & 8) != 0) packet.data.resize(std::min<size_t>(input.u16(), kPayloadBytes));
    deliver(side, std::move(packet), input);
  }
  /// A packet of random fields, with or without a valid key.
  void made_up(Input& input) {
    const uint32_t side = input.below(2);
    Packet packet;
    packet.header = {input.u64(), input.u64(), input.u64()};
    if (!input.once_in(4)) {
      const uint32_t key = side == kServer ? hostile_.server_key : mixed_.client_key;
      packet.header.w0 = (packet.header.w0 & 0xffffffff) | uint64_t{key} << 32;
    }
    // One that is dropped at once for its version teaches nothing.
    packet.header.w0 = (packet.header.w0 & ~uint64_t{0xf0}) | uint64_t{wire::kVersion} << 4;
    packet.data.resize(input.once_in(4) ? kPayloadBytes : input.u8());
    deliver(side, std::move(packet), input);
  }
  bool is_victims(const Header& header) const {
    return header.session_key() == victim_.server_key || header.session_key() == victim_.client_key;
  }
  /// Sends a made-up packet, with the mutations that the input wants.
  void deliver(uint32_t side, Packet packet, Input& input) {
    if (is_victims(packet.header)) return;
    const uint8_t what = input.u8();
    if (what >= 250) packet.header.w0 ^= uint64_t{1} << (8 + what % 6);  // a flag
    packet.is_marked = what >= 240 && what < 245;
    const bool has_lease = what >= 230 && what < 240 && !packet.data.empty();
    if (has_lease) packet.lease = (what & 1) != 0 ? Packet::Lease::kHeld : Packet::Lease::kLost;
    packet.header.w0 = (packet.header.w0 & ~uint64_t{0xffff0000}) | uint64_t{wire::kHeaderBytes + packet.data.size()}
                                                                        << 16;
    if (!wire::is_plausible(packet.header, wire::kPacketBytesMax)) return;
    taps_[side].to_deliver.push_back(std::move(packet));
  }

  static constexpr uint16_t kOutOfMemory = 2;  ///< Request::fail() of handlers

  uint64_t& now_ns_;
  VirtualEnvironment environment_;
  std::array<Tap, 2> taps_;
  std::array<std::unique_ptr<Nexus>, 2> nexuses_;
  std::vector<Request> kept_;
  std::array<std::unique_ptr<Rpc<T>>, 2> rpcs_;
  Known hostile_, mixed_, victim_;
  Mutation mutation_;
  std::unordered_set<uint64_t> handled_;
  CallId last_call_;
  Count calls_, honest_calls_;  ///< calls of sessions with an attacker, and of the others
  uint64_t calls_ok_ = 0;
};

}  // namespace tern::fuzz
