// Strangers' datagrams into the management parser and into a live machine. Input: a row of steps, each
//   op 8 | length 8 | bytes;  op & 3: 0 raw datagram, 1 datagram behind a valid header (the bytes begin with its kind),
//   2 time passes, 3 an endpoint acts;  op >> 2 & 3: who sends.
// The machine's random numbers are 1, 2, 3, ..., so that the fuzzer can guess runs and tokens. It cannot guess cookies:
// a request that is answered with a cookie is sent again with it, unless op & 16.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nexus/management.h"
#include "wire/management.h"

namespace {

using tern::Duration;
using namespace tern::nexus;

/// Whatever the parser accepts must come out of the encoder again.
void check_parser(std::span<const std::byte> bytes) {
  tern::wire::ManagementMessage once, twice;
  if (tern::wire::parse_management(bytes, once) != tern::wire::ManagementDrop::kNone) return;
  tern::wire::ManagementBytes out;
  tern::wire::encode_management(once, out);
  if (tern::wire::parse_management(out.view(), twice) != tern::wire::ManagementDrop::kNone || !(once == twice))
    std::abort();
}

class Target {
 public:
  Target() : machine_(options(), {[this] { return ++random_; }, [this](EndpointName) { return iteration_; }}) {
    machine_.add_endpoint({1, 1}, "udp");
    machine_.add_endpoint({2, 2}, "udp");
  }

  void datagram(size_t sender, std::span<const std::byte> bytes, bool echoes) {
    static const std::string kSenders[] = {"10.0.0.1:1", "10.0.0.2:1", "[::1]:1", "10.0.0.3:1"};
    check_parser(bytes);
    tern::wire::ManagementMessage m;
    const bool is_request = tern::wire::parse_management(bytes, m) == tern::wire::ManagementDrop::kNone &&
                            m.kind == tern::wire::ManagementKind::kConnectRequest;
    last_cookie_ = 0;
    machine_.on_datagram(kSenders[sender], bytes, now_);
    settle();
    machine_.on_time(now_);  // connect requests wait for their turn
    settle();
    if (!is_request || !echoes || last_cookie_ == 0) return;
    m.cookie = last_cookie_;
    tern::wire::ManagementBytes echo;
    tern::wire::encode_management(m, echo);
    machine_.on_datagram(kSenders[sender], echo.view(), now_);
    machine_.on_time(now_);
    settle();
  }
  void pass(uint8_t amount) {
    now_ += std::chrono::microseconds(amount) * amount * 16;  // up to a second
    machine_.on_time(now_);
    settle();
  }
  void act(uint8_t what) {
    const uint32_t key = what >> 4;
    switch (what & 7) {
      case 0:
        machine_.connect({2, 2}, std::array{AddressText("10.0.0.1:1")}, 1, terms(key), std::chrono::seconds(1), now_);
        break;
      case 1:
        machine_.connect({2, 2}, std::array{AddressText("10.0.0.2:1"), AddressText("10.0.0.1:1")}, 1, terms(key),
                         std::chrono::seconds(1), now_);
        break;
      case 2:
        machine_.disconnect({2, 2}, key, true, now_);
        break;
      case 3:
        machine_.disconnect({1, 1}, key, false, now_);
        break;
      case 4:
        machine_.ask_liveness({2, 2}, key, now_);
        break;
      case 5:
        iteration_++;
        break;
      case 6:
        refusing_ = !refusing_;
        break;
      case 7:
        machine_.remove_endpoint({2, 2}, now_);
        machine_.add_endpoint({2, 2}, "udp");
        break;
    }
    settle();
  }

 private:
  static ManagementOptions options() {
    ManagementOptions o;
    o.peers_max = 6;
    o.sessions_max = 32;
    o.asked_max = 4;
    o.peers_per_address_max = 3;
    o.sessions_per_address_max = 8;
    o.asked_per_address_max = 3;
    return o;
  }
  static SessionTerms terms(uint32_t key) {
    SessionTerms t;
    t.transport = "udp";
    t.session_key = key;
    t.payload_bytes_max = 1024;
    t.window = 8;
    t.credits = 8;
    return t;
  }
  void settle() {
    for (const Management::Datagram& datagram : machine_.datagrams()) {
      check_parser(datagram.content.view());
      tern::wire::ManagementMessage m;
      if (tern::wire::parse_management(datagram.content.view(), m) != tern::wire::ManagementDrop::kNone) std::abort();
      if (m.kind == tern::wire::ManagementKind::kCookie) last_cookie_ = m.cookie;
    }
    machine_.datagrams().clear();
    const auto notices = std::exchange(machine_.notices(), {});
    for (const Management::Notice& notice : notices) {
      if (notice.event.kind != ControlEvent::Kind::kConnectRequest) continue;
      const auto refusal = refusing_ ? tern::wire::Refusal::kNoCapacity : tern::wire::Refusal::kNone;
      machine_.answer_connect(notice.to, notice.event.token, refusal, terms(next_server_key_++), now_);
    }
    machine_.datagrams().clear();
    machine_.check_invariants();
    if (machine_.census().peers > 6 || machine_.sessions() > 32) std::abort();
  }

  uint64_t random_ = 0, iteration_ = 0, last_cookie_ = 0;
  uint32_t next_server_key_ = 0;
  bool refusing_ = false;
  Duration now_ = std::chrono::seconds(1);
  Management machine_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  Target target;
  while (input.size() >= 2) {
    const auto op = static_cast<uint8_t>(input[0]);
    const size_t length = std::min<size_t>(static_cast<uint8_t>(input[1]), input.size() - 2);
    const auto bytes = input.subspan(2, length);
    input = input.subspan(2 + length);
    switch (op & 3) {
      case 0:
        target.datagram(op >> 2 & 3, bytes, (op & 16) == 0);
        break;
      case 1: {
        if (bytes.empty()) break;
        const bool is_request = bytes[0] == std::byte{1};
        std::vector<std::byte> whole = {std::byte{0x74}, std::byte{0x72}, std::byte{0x6e}, std::byte{0x4d},
                                        std::byte{1},    bytes[0],        std::byte{0},    std::byte{0}};
        whole.insert(whole.end(), bytes.begin() + 1, bytes.end());
        if (is_request) whole.resize(tern::wire::kConnectRequestBytes);
        whole[6] = static_cast<std::byte>(whole.size());
        whole[7] = static_cast<std::byte>(whole.size() >> 8);
        target.datagram(op >> 2 & 3, whole, (op & 16) == 0);
        break;
      }
      case 2:
        target.pass(static_cast<uint8_t>(op >> 2) + static_cast<uint8_t>(length));
        break;
      case 3:
        target.act(length > 0 ? static_cast<uint8_t>(bytes[0]) : op >> 2);
        break;
    }
  }
  return 0;
}
