// scripts/wireshark/tern.lua reads captures of real traffic, of damaged traffic and of other programs' traffic. What it
// shows is compared with what the endpoints counted, and with what the library's own parsers read. Needs root and
// tshark.

#include <tern/transport/udp.h>

#include <fstream>
#include <optional>
#include <random>
#include <set>

#include "e2e/caller.h"
#include "e2e/capture.h"
#include "e2e/dissected_fields.h"
#include "e2e/namespaces.h"
#include "e2e/peer.h"
#include "e2e/peer_process.h"
#include "e2e/tshark.h"
#include "own_folder.h"

using namespace e2e;

namespace {

/// A network namespace with a loopback interface only, and a folder for files.
class Wireshark : public testing::Test {
 protected:
  void SetUp() override {
    std::string why = Namespace::missing();
    if (why.empty() && !run("tshark --version")) why = "no tshark: scripts/setup test";
    if (!why.empty()) GTEST_SKIP() << "SKIPPED: " << why;
    namespace_.emplace("wireshark");
    ASSERT_TRUE(namespace_->is_made());
    inside_.emplace(namespace_->name());
  }
  void TearDown() override {
    inside_.reset();
    namespace_.reset();
  }

  Dissection dissect_frames(std::span<const Frame> frames, const std::string& flags = "") {
    write_pcap(folder_.file("capture.pcap"), frames);
    Dissection result = dissect(folder_.file("capture.pcap"), flags);
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.lua_errors, std::vector<std::string>());
    EXPECT_EQ(result.frames, frames.size());
    return result;
  }

  const tern::test::OwnFolder folder_{testing::TempDir() + "tern-wireshark"};

 private:
  std::optional<Namespace> namespace_;
  std::optional<Inside> inside_;
};

/// Traffic of two processes at an address, each of which loses a part of what it receives.
struct Traffic {
  std::vector<Frame> frames;
  tern::EndpointCounters client;
  uint64_t server_packets_sent = 0;
  uint64_t calls = 0;
  uint64_t failed_calls = 0;
};

Traffic make_traffic(const std::string& host, const std::string& drop, uint64_t calls) {
  Traffic traffic;
  const Settings settings = {{"transport", "udp"},
                             {"listen", "tern://" + host + ":0"},
                             {"faults", "1"},
                             {"drop", drop},
                             {"liveness_ms", "5000"}};
  Capture capture("lo");
  Peer server(settings.with("seed", 1));
  Caller caller(settings.with("seed", 2));
  const tern::Session sessions[] = {caller.open(server.uri()), caller.open(server.uri(), {.window = 3})};
  for (uint64_t id = 0; id < calls; id++) {
    const bool fails = id % 50 == 7;
    const uint64_t size_max = id % 20 == 0 ? 40'000 : 300;
    const auto reply_bytes = fails ? static_cast<uint32_t>(id) : static_cast<uint32_t>(pattern_word(3, id) % size_max);
    const tern::CallOptions options = {.deadline = id % 3 == 0 ? kBound : tern::Duration::max()};
    caller.send_order(sessions[id % 2], fails ? kFail : kWork, {id, reply_bytes, 0},
                      sizeof(Order) + pattern_word(4, id) % size_max, options);
    traffic.failed_calls += fails;
  }
  EXPECT_TRUE(caller.finish());
  traffic.calls = calls;
  for (const auto& call : caller.calls()) {
    EXPECT_TRUE(Caller::is_right(*call) || call->code() == tern::Code::kRefused) << call->status.message();
  }
  caller.run_for(std::chrono::milliseconds(50));  // the last report
  server.close();
  EXPECT_TRUE(caller.run_until([&] { return !caller.endpoint().is_open(sessions[0]); }));
  traffic.client = caller.counters();
  traffic.server_packets_sent = server.board().packets_sent;
  traffic.frames = capture.stop();
  // Errors of ICMP quote what has come after the server's end.
  std::erase_if(traffic.frames, [](const Frame& frame) { return payload_of(frame).empty(); });
  return traffic;
}

void expect_what_was_counted(const Dissection& dissection, const Traffic& traffic) {
  const auto is_data = [](const Dissected& item) { return item.has("tern.kind"); };
  const auto is_sent_again = [](const Dissected& item) { return item.has("tern.retransmission"); };
  EXPECT_EQ(count(dissection, [&](auto& item) { return is_data(item) && is_from_client(item); }),
            traffic.client.packets_sent);
  EXPECT_EQ(count(dissection, [&](auto& item) { return is_data(item) && !is_from_client(item); }),
            traffic.server_packets_sent);
  // The probes of paths that are open already search for larger packets.
  const auto is_search = [](const Dissected& item) {
    return is(item, Kind::kPathProbe) && item.number("tern.length") > tern::Udp::Options().datagram_bytes;
  };
  EXPECT_EQ(count(dissection,
                  [&](auto& item) { return is(item, Kind::kProbe) || is(item, Kind::kCancel) || is_search(item); }),
            traffic.client.probes);
  EXPECT_GT(traffic.client.retransmissions, 0u) << "nothing to mark";
  EXPECT_EQ(count(dissection, [&](auto& item) { return is_data(item) && is_from_client(item) && is_sent_again(item); }),
            traffic.client.retransmissions);

  // Each call once, with its response and the way back.
  const auto is_call = [&](const Dissected& item) {
    return is(item, Kind::kRequest) && item.number("tern.index") == 0 && !is_sent_again(item);
  };
  EXPECT_EQ(count(dissection, is_call), traffic.calls);
  EXPECT_EQ(count(dissection, [&](auto& item) { return is_call(item) && item.has("tern.response_in"); }),
            traffic.calls);
  const auto is_answer = [&](const Dissected& item) {
    return is(item, Kind::kResponse) && item.number("tern.index") == 0 && !is_sent_again(item);
  };
  EXPECT_EQ(count(dissection, is_answer), traffic.calls);
  EXPECT_EQ(count(dissection, [&](auto& item) { return is_answer(item) && item.has("tern.failed"); }),
            traffic.failed_calls);
  EXPECT_EQ(count(dissection, [](auto& item) { return item.has("tern.malformed"); }), 0u);
  EXPECT_EQ(count(dissection, [](auto& item) { return item.has("tern.duplicate"); }), 0u);

  std::map<std::string, const Dissected*> calls;  // by request number
  for (const Dissected& item : dissection.items) {
    if (is_call(item)) calls[item.text("tern.request_number")] = &item;
  }
  std::set<std::string> sessions;
  for (const Dissected& item : dissection.items) {
    if (!is_answer(item)) continue;
    const Dissected& call = *calls.at(item.text("tern.request_number"));
    EXPECT_EQ(item.number("tern.request_in"), call.frame);
    EXPECT_EQ(call.number("tern.response_in"), item.frame);
    EXPECT_EQ(item.text("tern.session"), call.text("tern.session"));
    const double passed =
        static_cast<double>(traffic.frames[item.frame - 1].time_ns - traffic.frames[call.frame - 1].time_ns) / 1e9;
    EXPECT_NEAR(item.seconds("tern.time"), passed, 2e-9);
    sessions.insert(item.text("tern.session"));
  }
  EXPECT_EQ(sessions, (std::set<std::string>{"0", "1"}));
}

void expect_what_the_library_reads(const Dissection& dissection, const Traffic& traffic) {
  std::vector<const Dissected*> data, management;
  for (const Dissected& item : dissection.items) {
    if (item.has("tern.kind")) data.push_back(&item);
    if (item.has("tern.mgmt.kind")) management.push_back(&item);
  }
  size_t packets = 0, together = 0, frame_before = 0;
  each_packet(traffic.frames, [&](const RealPacket& packet) {
    ASSERT_LT(packets, data.size());
    expect_fields(*data[packets++], packet);
    together += packet.frame == frame_before;
    frame_before = packet.frame;
  });
  EXPECT_EQ(packets, data.size());
  EXPECT_GT(together, 0u) << "no datagram has several packets";
  size_t messages = 0;
  for (const Frame& frame : traffic.frames) {
    ManagementMessage message;
    if (!is_management(payload_of(frame))) continue;
    ASSERT_EQ(tern::wire::parse_management(payload_of(frame), message), tern::wire::ManagementDrop::kNone);
    ASSERT_LT(messages, management.size());
    expect_fields(*management[messages++], message);
  }
  EXPECT_EQ(messages, management.size());
  for (const auto kind : {ManagementKind::kConnectRequest, ManagementKind::kConnectReply, ManagementKind::kCookie,
                          ManagementKind::kConfirm, ManagementKind::kDisconnect, ManagementKind::kDisconnectAck}) {
    EXPECT_GT(
        count(dissection, [&](auto& item) { return item.number("tern.mgmt.kind") == static_cast<uint64_t>(kind); }), 0u)
        << "no message of kind " << static_cast<int>(kind);
  }
}

}  // namespace

TEST_F(Wireshark, shows_as_many_packets_as_the_programs_counted) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    SCOPED_TRACE(host);
    const Traffic traffic = make_traffic(host, "0.05", 400);
    const Dissection dissection = dissect_frames(traffic.frames);
    expect_what_was_counted(dissection, traffic);
    expect_what_the_library_reads(dissection, traffic);
  }
}

// A capture that begins later has no handshake: what responses answer tells which keys are of one session.
TEST_F(Wireshark, joins_both_directions_of_a_session_without_its_handshake) {
  const Traffic traffic = make_traffic("127.0.0.1", "0.05", 150);
  std::vector<Frame> later;
  for (const Frame& frame : traffic.frames) {
    if (!is_management(payload_of(frame))) later.push_back(frame);
  }
  const Dissection dissection = dissect_frames(later);
  const auto is_call = [](const Dissected& item) {
    return is(item, Kind::kRequest) && item.number("tern.index") == 0 && !item.has("tern.retransmission");
  };
  EXPECT_EQ(count(dissection, is_call), traffic.calls);
  EXPECT_EQ(count(dissection, [&](auto& item) { return is_call(item) && item.has("tern.response_in"); }),
            traffic.calls);
  EXPECT_EQ(count(dissection, [](auto& item) { return item.has("tern.retransmission") && is_from_client(item); }),
            traffic.client.retransmissions);
  std::set<std::string> sessions;
  for (const Dissected& item : dissection.items) sessions.insert(item.text("tern.session"));
  sessions.erase("");  // padding
  EXPECT_EQ(sessions, (std::set<std::string>{"0", "1"}));
}

namespace {

/// The ICMP error of a host that takes no datagrams at this port: IP header, ICMP header, and the IP packet in
/// question.
Frame error_that_quotes(Frame frame) {
  constexpr size_t kIpBytes = 20, kIcmpBytes = 8;
  UdpPlace place;
  EXPECT_TRUE(find_udp(frame, &place));
  const auto ip = frame.bytes.begin() + static_cast<ptrdiff_t>(place.ip_at);
  std::vector<std::byte> headers(ip, ip + kIpBytes);
  headers.resize(kIpBytes + kIcmpBytes);
  const size_t bytes = frame.bytes.size() - place.ip_at + headers.size();
  headers[2] = static_cast<std::byte>(bytes >> 8);
  headers[3] = static_cast<std::byte>(bytes);
  headers[9] = static_cast<std::byte>(IPPROTO_ICMP);
  headers[kIpBytes] = headers[kIpBytes + 1] = std::byte{3};  // unreachable, port
  frame.bytes.insert(ip, headers.begin(), headers.end());
  frame.length = frame.bytes.size();
  return frame;
}

}  // namespace

// What a switch, an ICMP error, or a capture at two places makes of packets.
TEST_F(Wireshark, marks_duplicates_and_quotations_in_icmp_errors) {
  Traffic traffic = make_traffic("127.0.0.1", "0.05", 150);
  std::vector<Frame>& frames = traffic.frames;
  const size_t sent = frames.size();
  size_t packets = 0, first = 0;
  each_packet(frames, [&](const RealPacket& packet) {
    if (packets++ == 0) first = packet.frame - 1;
  });
  for (size_t i = 0; i < sent; i++) frames.push_back(frames[i]);
  frames.push_back(error_that_quotes(frames[first]));
  ASSERT_EQ(frames.size(), 2 * sent + 1);
  const Dissection dissection = dissect_frames(frames);
  EXPECT_EQ(count(dissection, [](auto& item) { return item.has("tern.duplicate"); }), packets + 1);
  EXPECT_EQ(
      count(dissection,
            [&](auto& item) { return item.has("tern.retransmission") && item.has("tern.kind") && item.frame > sent; }),
      0u);
  EXPECT_EQ(dissection.items.back().frame, frames.size()) << "the error's quotation is not shown";
  EXPECT_TRUE(dissection.items.back().has("tern.duplicate"));
}

namespace {

/// Makes `frame` one of a datagram with this payload.
void set_payload(Frame& frame, std::span<const std::byte> payload) {
  UdpPlace place;
  ASSERT_TRUE(find_udp(frame, &place));
  const auto set_word = [&frame](size_t at, size_t value) {
    frame.bytes[at] = static_cast<std::byte>(value >> 8);
    frame.bytes[at + 1] = static_cast<std::byte>(value);
  };
  frame.bytes.resize(place.payload_at());
  frame.bytes.insert(frame.bytes.end(), payload.begin(), payload.end());
  frame.length = frame.bytes.size();
  set_word(place.udp_at + 4, frame.bytes.size() - place.udp_at);
  const bool is_v4 = frame.bytes[place.ip_at] == std::byte{0x45};
  set_word(place.ip_at + (is_v4 ? 2 : 4), frame.bytes.size() - (is_v4 ? place.ip_at : place.udp_at));
}

using Random = std::mt19937_64;

/// One that was cut off, by the sender or by the capture, or of which bits are wrong.
Frame damaged(const Frame& frame, Random& random) {
  Frame result = frame;
  const std::span<const std::byte> payload = payload_of(frame);
  std::vector<std::byte> bytes(payload.begin(), payload.end());
  switch (random() % 4) {
    case 0:
      bytes.resize(random() % (bytes.size() + 1));
      break;
    case 1:
      bytes.insert(bytes.end(), random() % 64, static_cast<std::byte>(random()));
      break;
    case 2:  // header bytes of the first packet
      bytes[random() % std::min<size_t>(bytes.size(), 48)] = static_cast<std::byte>(random());
      break;
    default:
      for (size_t i = random() % 8; i-- > 0;) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
  }
  set_payload(result, bytes);
  if (random() % 4 == 0) {  // the capture has its first bytes only
    UdpPlace place;
    find_udp(result, &place);
    result.bytes.resize(place.payload_at() + random() % (bytes.size() + 1));
  }
  return result;
}

}  // namespace

TEST_F(Wireshark, damaged_packets_are_marked_and_make_no_error) {
  const Traffic traffic = make_traffic("127.0.0.1", "0.05", 150);
  Random random(20);
  std::vector<Frame> frames;
  std::set<uint16_t> ports;  // of the data
  std::string flags;
  for (const Frame& frame : traffic.frames) {
    UdpPlace place;
    if (payload_of(frame).empty() || !find_udp(frame, &place)) continue;
    const auto port = static_cast<uint16_t>(std::to_integer<unsigned>(frame.bytes[place.udp_at + 2]) << 8 |
                                            std::to_integer<unsigned>(frame.bytes[place.udp_at + 3]));
    if (ports.insert(port).second) flags += " -d udp.port==" + std::to_string(port) + ",tern";
    frames.push_back(frame);
    if (payload_of(frame).size() > 20'000) continue;  // long trains, which take time
    for (int i = 0; i < 2; i++) frames.push_back(damaged(frame, random));
  }
  const Dissection by_port = dissect_frames(frames, flags);
  EXPECT_GT(count(by_port, [](auto& item) { return item.has("tern.malformed") && item.has("tern.kind"); }), 0u);
  EXPECT_GT(count(by_port, [](auto& item) { return item.has("tern.malformed") && item.has("tern.mgmt.kind"); }), 0u);
  EXPECT_GT(count(by_port, [](auto& item) { return item.has("tern.malformed") && item.fields.size() == 1; }), 0u)
      << "datagrams in which no packet begins";
  const Dissection by_contents = dissect_frames(frames);
  EXPECT_GT(count(by_contents, [](auto& item) { return item.has("tern.malformed"); }), 0u);
}

namespace {

/// Changes the payload of the first frame for which `change` returns true. Returns the frame's number; 0: there is
/// none.
template <class Change>
size_t change_one(std::vector<Frame>& frames, Change&& change) {
  for (size_t i = 0; i < frames.size(); i++) {
    const std::span<const std::byte> payload = payload_of(frames[i]);
    std::vector<std::byte> bytes(payload.begin(), payload.end());
    if (bytes.size() < tern::wire::kHeaderBytes || !change(bytes)) continue;
    set_payload(frames[i], bytes);
    return i + 1;
  }
  return 0;
}

}  // namespace

// Clause 7.2.3a: an unknown code means "refused". The message is good, and answers its request.
TEST_F(Wireshark, refusals_with_later_codes_are_good) {
  std::vector<Frame> frames = make_traffic("127.0.0.1", "0", 1).frames;
  const size_t changed = change_one(frames, [](std::vector<std::byte>& bytes) {
    ManagementMessage message;
    if (tern::wire::parse_management(bytes, message) != tern::wire::ManagementDrop::kNone) return false;
    if (message.kind != ManagementKind::kConnectReply) return false;
    message.code = static_cast<tern::Code>(77);
    message.refusal = tern::wire::Refusal::kOther;
    tern::wire::ManagementBytes encoded;
    tern::wire::encode_management(message, encoded);
    bytes.assign(encoded.bytes.begin(), encoded.bytes.begin() + encoded.size);
    EXPECT_EQ(tern::wire::parse_management(bytes, message), tern::wire::ManagementDrop::kNone);
    return true;
  });
  ASSERT_NE(changed, 0u);
  const Dissection dissection = dissect_frames(frames);
  size_t replies = 0;
  for (const Dissected& item : dissection.items) {
    if (item.frame != changed) continue;
    replies++;
    EXPECT_EQ(item.number("tern.mgmt.code"), 77u);
    EXPECT_FALSE(item.has("tern.malformed"));
    EXPECT_TRUE(item.has("tern.failed"));
    EXPECT_TRUE(item.has("tern.request_in"));
  }
  EXPECT_EQ(replies, 1u);
}

// Clause 5.2: packet 0 of a request has the flag `first`. The good packet after one without it is no retransmission.
TEST_F(Wireshark, packet_0_of_a_request_without_its_flag_is_malformed) {
  std::vector<Frame> frames = make_traffic("127.0.0.1", "0", 1).frames;
  std::vector<Frame> changed = frames;
  const size_t request = change_one(changed, [](std::vector<std::byte>& bytes) {
    if (is_management(bytes)) return false;
    const Header header = tern::wire::load_header(bytes.data());
    if (header.kind() != Kind::kRequest || (header.flags() & tern::wire::kFirst) == 0) return false;
    bytes.resize(header.length());
    bytes[1] &= ~std::byte{tern::wire::kFirst};
    bytes[16] = bytes[17] = std::byte{0};  // the index, where the deadline was
    bytes[18] &= std::byte{0xe0};
    EXPECT_EQ(tern::wire::load_header(bytes.data()).index(), 0u);
    return true;
  });
  ASSERT_NE(request, 0u);
  frames.insert(frames.begin() + static_cast<ptrdiff_t>(request) - 1, changed[request - 1]);
  const Dissection dissection = dissect_frames(frames);
  const auto has_malformed = [](const Dissected& item) { return item.has("tern.malformed"); };
  const auto malformed = std::find_if(dissection.items.begin(), dissection.items.end(), has_malformed);
  ASSERT_EQ(count(dissection, has_malformed), 1u);
  EXPECT_EQ(malformed->frame, request);
  const Dissected& good = *std::next(malformed);
  EXPECT_EQ(good.frame, request + 1);
  EXPECT_TRUE(is(good, Kind::kRequest));
  EXPECT_EQ(good.number("tern.index"), 0u);
  EXPECT_FALSE(good.has("tern.retransmission"));
  EXPECT_TRUE(good.has("tern.response_in"));
}

// Clause 5.6: the code of a failure has 15 bits.
TEST_F(Wireshark, later_codes_of_failures_are_unknown) {
  std::vector<Frame> frames = make_traffic("127.0.0.1", "0", 1).frames;
  const size_t changed = change_one(frames, [](std::vector<std::byte>& bytes) {
    if (is_management(bytes)) return false;
    if (tern::wire::load_header(bytes.data()).kind() != Kind::kResponse) return false;
    bytes[1] |= std::byte{tern::wire::kFirst | tern::wire::kFailure};
    const uint32_t size = 256u << 16 | 7;
    std::memcpy(&bytes[20], &size, sizeof(size));
    bytes.resize(tern::wire::kHeaderBytes);
    bytes[2] = std::byte{tern::wire::kHeaderBytes};
    bytes[3] = std::byte{0};
    return true;
  });
  ASSERT_NE(changed, 0u);
  const Dissection dissection = dissect_frames(frames);
  size_t responses = 0;
  for (const Dissected& item : dissection.items) {
    if (item.frame != changed) continue;
    responses++;
    EXPECT_EQ(item.number("tern.failure_code"), 256u);
    EXPECT_EQ(item.number("tern.app_code"), 7u);
    EXPECT_FALSE(item.has("tern.malformed"));
  }
  EXPECT_EQ(responses, 1u);
}

TEST_F(Wireshark, leaves_the_datagrams_of_other_programs_alone) {
  const Traffic traffic = make_traffic("127.0.0.1", "0", 1);
  Frame like;
  for (const Frame& frame : traffic.frames) {
    if (!payload_of(frame).empty()) like = frame;
  }
  std::vector<Frame> frames;
  Random random(21);
  const auto add = [&](std::vector<std::byte> payload) {
    set_payload(like, payload);
    frames.push_back(like);
  };
  for (int i = 0; i < 6000; i++) {
    std::vector<std::byte> payload(random() % 1400);
    for (auto& byte : payload) byte = static_cast<std::byte>(random());
    // Each third begins as a packet of tern does, and each ninth has a plausible length.
    if (i % 3 == 0 && payload.size() > 4) payload[0] = static_cast<std::byte>(0x21 + random() % 11);
    if (i % 9 == 0 && payload.size() > 24) {
      const size_t length = 24 + random() % (payload.size() - 24);
      payload[2] = static_cast<std::byte>(length);
      payload[3] = static_cast<std::byte>(length >> 8);
    }
    add(std::move(payload));
  }
  for (size_t bytes : {0, 1, 23, 24, 48, 1000}) {
    add(std::vector<std::byte>(bytes));  // zeros are padding, and no packet
    std::vector<std::byte> time_request(bytes);
    if (bytes != 0) time_request[0] = std::byte{0x23};  // NTP, version 4: a probe's first byte
    add(time_request);
  }
  const Dissection dissection = dissect_frames(frames, "-o tern.ports:");
  EXPECT_EQ(dissection.items.size(), 0u) << "the first in frame " << dissection.items.front().frame;
}

// Each is in the first column of the table in docs/network.md.
TEST_F(Wireshark, takes_the_filters_of_the_document) {
  const Traffic traffic = make_traffic("127.0.0.1", "0", 1);
  write_pcap(folder_.file("capture.pcap"), traffic.frames);
  std::ifstream document(TERN_SOURCE_DIR "/docs/network.md");
  std::string all;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("| `tern.")) continue;
    all += (all.empty() ? "(" : " || (") + line.substr(3, line.find('`', 3) - 3) + ")";
  }
  ASSERT_NE(all, "");
  EXPECT_EQ(dissect(folder_.file("capture.pcap"), "-Y '" + all + "'").exit_code, 0) << all;
  EXPECT_EQ(dissect(folder_.file("capture.pcap"), "-Y tern.no_such_field").exit_code, 2);
}
