// Hostile packets into both ends of a session, between honest ones. Input: steps of one operation byte and what it
// needs. Whatever arrives: no crash, no access outside of the buffers (AddressSanitizer), invariants hold, memory is
// bounded.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "session/client_session.h"
#include "session/server_session.h"
#include "unit/session/session_parts.h"

namespace {

using namespace tern;
using namespace tern::session;

constexpr uint32_t kPayloadMax = 32;
constexpr uint32_t kLargePayloadMax = 200;
constexpr uint8_t kWindow = 4;
constexpr uint32_t kFirstCount = 5;

constexpr uint32_t kPathToken = 77, kSessionToken = 99;
constexpr uint32_t kPairToken = 0x3456780;

detail::Buffer* new_buffer(uint32_t bytes) { return make_buffer(bytes).release(); }

class Input {
 public:
  Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
  bool empty() const { return at_ == end_; }
  uint8_t byte() { return empty() ? 0 : *at_++; }
  uint64_t word() {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= static_cast<uint64_t>(byte()) << (8 * i);
    return value;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

class Target {
 public:
  Target() {
    ClientTerms client_terms;
    client_terms.window = kWindow;
    client_terms.local_key = 7;
    client_pools_.credit_unit = 5;
    client_ = std::make_unique<ClientSession>(client_terms, client_pools_);
    ServerTerms server_terms;
    server_terms.window = kWindow;
    server_terms.remote_key = 7;
    server_terms.payload_bytes_max = kPayloadMax;
    server_terms.first_request_count = kFirstCount;
    server_terms.path_token = kPathToken;
    server_terms.session_token = kSessionToken;
    offers_.buffer_bytes_max = 4096;
    server_pools_.large_payload_bytes = kLargePayloadMax;
    server_ = std::make_unique<ServerSession>(server_terms);
  }
  ~Target() {
    if (client_->state() == ClientSession::State::kOpen) {
      for (uint32_t i = 0; i < kWindow; i++) {
        if (client_->slot(i) != nullptr) free_buffers(client_->slot(i));
      }
    }
    client_.reset();
    if (client_pools_.response_credits_free != 64) std::abort();
    server_->end_all(offers_);
    server_->give_back(server_pools_);
    const size_t taken = server_pools_.slots.taken() + server_pools_.assemblies.taken() + server_pools_.extras.taken() +
                         server_pools_.number_bits.taken();
    if (offers_.arriving_bytes != 0 || taken != 0) std::abort();
  }

  void step(Input& in) {
    const uint8_t op = in.byte();
    now_ += uint64_t{in.byte()} * in.byte() * 1000;
    switch (op % 8) {
      case 0:
        return to_server(hostile(in, false), op);
      case 1:
        return to_client(hostile(in, true), op);
      case 2:
        return pump(in);
      case 3:
        if (client_->state() == ClientSession::State::kConnecting)
          return client_->on_accepted({9, kPayloadMax, kWindow, static_cast<uint8_t>(1 + op / 8), 1, kPathToken,
                                       static_cast<uint8_t>(op >= 128 ? 5 : 0), kLargePayloadMax},
                                      now_);
        if (client_->state() == ClientSession::State::kProbing && client_->may_probe_path()) {
          if (op >= 240) client_->pair();
          const auto probe = client_->path_probe(now_);
          to_server_.push_back({probe.header, std::vector<std::byte>(probe.payload_bytes)});
        }
        if (op >= 240 && client_->state() == ClientSession::State::kOpen && client_->is_paired()) {
          const auto probe = client_->pair_probe(now_);
          to_server_.push_back({probe.header, std::vector<std::byte>(probe.payload_bytes)});
        }
        if (client_->state() == ClientSession::State::kOpen && client_->has_free_slot()) {
          ClientSlot* slot = client_->begin(new_buffer(in.byte()), new_buffer(in.byte()), in.byte());
          client_->set_deadline(slot, op / 8 % 4 == 0 ? now_ + 1'000'000 : UINT64_MAX);
        }
        return;
      case 4:
        if (client_->state() == ClientSession::State::kOpen && (client_->busy_mask() >> (op / 8 % kWindow) & 1) != 0) {
          end_early(client_->slot(op / 8 % kWindow));
        }
        return;
      case 5:
        if (ServerSlot* slot = server_->slot(op / 8 % kWindow);
            slot != nullptr && slot->phase == ServerSlot::Phase::kRunning) {
          const uint32_t bytes = in.byte() * 4;
          if (bytes > 900) return server_->fail(slot, wire::FailureCode::kApplication, 1);
          std::free(slot->response);
          slot->response = new_buffer(bytes);
          slot->response_bytes = bytes;
          server_->respond(slot);
        }
        return;
      case 6:  // honest delivery, in an order of the input's
        if (!to_server_.empty()) to_server(take(to_server_, in.byte()), 8 + op / 8 % 2 * 16);
        return;
      case 7:
        if (!to_client_.empty()) to_client(take(to_client_, in.byte()), 8);
        return;
    }
  }
  void check() {
    client_->check_invariants();
    server_->check_invariants();
  }

 private:
  struct Packet {
    wire::Header header;
    std::vector<std::byte> payload;
  };

  static Packet take(std::deque<Packet>& queue, size_t index) {
    index %= queue.size();
    Packet packet = std::move(queue[index]);
    queue.erase(queue.begin() + static_cast<ptrdiff_t>(index));
    return packet;
  }
  /// A number near the receiver's expected one, or any number.
  Packet hostile(Input& in, bool is_to_client) {
    const uint8_t shape = in.byte();
    Packet packet;
    packet.payload.assign(shape % 4 == 0 ? kPayloadMax : in.byte() % (8 * kPayloadMax), std::byte{shape});
    for (size_t i = 0; i < packet.payload.size() && i < shape / 4; i++) packet.payload[i] = std::byte{in.byte()};
    if (shape == 255) {
      packet.header = {in.word(), in.word(), in.word()};
      return packet;
    }
    const uint32_t request = ((kFirstCount + in.byte() % 8) << wire::kSlotBits) + in.byte() % (kWindow + 1);
    const uint8_t kind = in.byte(), flags = in.byte();
    const uint32_t number = last_number_[is_to_client] + static_cast<uint32_t>(static_cast<int8_t>(in.byte()));
    const uint32_t size = shape % 8 < 4 ? in.byte() : static_cast<uint32_t>(packet.payload.size());
    if (is_to_client) {
      packet.header = wire::server_header(static_cast<wire::Kind>(8 + kind % 4), flags, 7, number, request, in.byte(),
                                          in.byte(), in.byte(), size);
      if ((flags & 128) != 0) packet.header.set_large();
    } else {
      const uint32_t token = kind % 6 == 5 && kind < 128 ? kPathToken : kSessionToken;
      const bool has_token = kind % 6 >= 2 && shape % 16 != 1;
      packet.header = wire::client_header(static_cast<wire::Kind>(1 + kind % 6), flags, 9, number, request,
                                          in.byte() % 32, 3, has_token ? token : size);
      if ((flags & 128) != 0) packet.header.add_payload_code(static_cast<uint8_t>(number % 32));
    }
    return packet;
  }
  static transport::Payload view(const Packet& packet, uint8_t op) {
    static const std::atomic<uint32_t> lease{2};
    static const std::byte nothing{};
    const std::byte* data = packet.payload.empty() ? &nothing : packet.payload.data();
    transport::Payload payload{data, static_cast<uint32_t>(packet.payload.size()), nullptr, 0};
    if (op >= 224) {
      payload.lease = &lease;
      payload.lease_value = op % 2 + 1;
    }
    return payload;
  }

  static auto queue(std::deque<Packet>& to) {
    return [&to](const wire::Header& header, const std::byte* data, uint32_t bytes, detail::Buffer*) {
      if (to.size() >= 256) return false;
      if (data == nullptr)
        to.push_back({header, std::vector<std::byte>(bytes)});
      else
        to.push_back({header, {data, data + bytes}});
      return true;
    };
  }

  void to_client(const Packet& packet, uint8_t op) {
    const transport::Payload payload = view(packet, op);
    last_number_[1] = packet.header.number();
    ClientVerdict verdict;
    if (packet.header.kind() == wire::Kind::kResponse) {
      if (ClientSlot* slot = client_->try_finish(packet.header, payload, now_)) {
        std::free(slot->request);  // it is free already
        std::free(slot->response);
        return;
      }
    }
    switch (packet.header.kind()) {
      case wire::Kind::kResponse:
        verdict = client_->on_response(packet.header, payload, now_);
        break;
      case wire::Kind::kCr:
        verdict = client_->on_credit_return(packet.header, payload, now_);
        break;
      case wire::Kind::kCancelled:
        verdict = client_->on_cancelled(packet.header, now_);
        break;
      case wire::Kind::kPathReply:
        client_->on_path_reply(packet.header, payload.bytes, now_);
        break;
      default:
        break;
    }
    if (verdict.finished == nullptr) return;
    free_buffers(verdict.finished);
    client_->release_slot(verdict.finished);
  }
  void to_server(const Packet& packet, uint8_t op) {
    const transport::Payload payload = view(packet, op);
    const wire::Header& header = packet.header;
    last_number_[0] = header.number();
    if (session::is_whole_request(header, payload.bytes)) {
      if (ServerSlot* slot = server_->try_begin(header, payload.bytes, now_)) {
        if (op % 32 < 16) {
          server_->defer(slot);
          if (op % 2 == 0 || !server_->try_hold(slot, 64)) server_->owe_credit_return(server_->newest(), now_);
          return;
        }
        const uint32_t bytes = header.request_type() + op;  // of one packet, or of two
        std::free(slot->response);
        slot->response = new_buffer(bytes);
        slot->response_bytes = bytes;
        if (!server_->try_answer(slot, bytes, 8, queue(to_client_))) server_->respond(slot);
        return;
      }
    }
    const ServerVerdict verdict = server_->on_packet(header, payload, now_, offers_);
    if (verdict.was_assembled) offers_.arriving_bytes -= verdict.started->request_bytes;
    BufferDeleter()(verdict.message);
    if (verdict.started != nullptr) server_->owe_credit_return(server_->newest(), now_);
    if (verdict.wants_pair) server_->owe_pair_reply(kPairToken + op % 2);
  }
  void pump(Input& in) {
    const auto ticket = [this] { return ++ticket_; };
    const uint8_t limit = in.byte();
    ClientSession::Turn turn;
    uint32_t packets = 0;
    do {
      turn = client_->transmit(now_, queue(to_server_), ticket, packets);
    } while (turn >= ClientSession::Turn::kSent);
    while (server_->transmit(now_, limit, queue(to_client_), ticket, packets) == ServerSession::Turn::kSent) {
    }
    if (server_->owes_pair_reply()) to_client_.push_back({server_->pair_reply(limit), {}});
    if (limit % 8 == 3 && server_->holds_return()) server_->return_held();
    if (limit % 16 == 15) server_->forget_old(now_ + ServerSession::kKeepNs, 0, offers_);
    const ClientTick tick = client_->tick(now_);
    for (uint64_t mask = tick.expired_mask; mask != 0; mask &= mask - 1) {
      end_early(client_->slot(static_cast<uint32_t>(std::countr_zero(mask))));
    }
    if (limit % 2 == 1) client_->try_rest();
  }
  void end_early(ClientSlot* slot) {
    if (slot->phase == ClientSlot::Phase::kEnded) return;
    free_buffers(slot);
    client_->end_early(slot, now_);
  }
  static void free_buffers(ClientSlot* slot) {
    if (slot->phase == ClientSlot::Phase::kFree || slot->phase == ClientSlot::Phase::kEnded) return;
    std::free(slot->request);
    std::free(slot->response);
  }
  ClientPools client_pools_;
  ServerPools server_pools_;
  HeapOffers offers_{server_pools_};
  std::unique_ptr<ClientSession> client_;
  std::unique_ptr<ServerSession> server_;
  std::deque<Packet> to_server_, to_client_;
  uint32_t last_number_[2] = {};
  uint64_t now_ = 1'000'000'000;
  uint64_t ticket_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input in(data, size);
  Target target;
  while (!in.empty()) {
    target.step(in);
    target.check();
  }
  return 0;
}
