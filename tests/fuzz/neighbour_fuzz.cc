// ARP and neighbour discovery of strangers, and any bytes, for a host with its own address and an endpoint's resolver.
// An input is a sequence of frames, look-ups and pauses. Each frame is in memory of exactly its size. For any input the
// host keeps its address, sends few frames, and stores only neighbours that it has asked for.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frames/neighbour_frame.h"
#include "fuzz/fuzz_parts.h"
#include "mld_query.h"
#include "neighbours/own_host.h"
#include "neighbours/own_neighbours.h"

uint64_t fuzz_packets = 0;  ///< frames given to the host; the runner of the target prints it

namespace {

using namespace tern::neighbours;
using tern::base::SocketAddress;
using tern::frames::MacAddress;
using tern::frames::NeighbourFrame;
using tern::fuzz::Input;
using Kind = NeighbourFrame::Kind;

constexpr uint16_t kVlan = 77;
constexpr const char* kIps[2][8] = {
    {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.254", "10.9.0.1", "0.0.0.0", "255.255.255.255", "127.0.0.1"},
    {"fd00::1", "fd00::2", "fe80::3", "fe80::fe", "fd99::1", "::", "ff02::1", "::1"}};
constexpr size_t kOwn = 0, kGateway = 3;
constexpr size_t kHopsMax =
    4;  ///< of destinations with the addresses above: two neighbours, the gateway, and one group

void require(bool is_true) {
  if (!is_true) std::abort();
}

class World {
 public:
  World(bool is_ipv6, uint16_t vlan) : ips_(kIps[is_ipv6 ? 1 : 0]), vlan_(vlan) {
    auto address = OwnAddress::parse(std::string(ips_[kOwn]) + (is_ipv6 ? "/64" : "/24"), ips_[kGateway]);
    require(address.ok());
    auto host = OwnHost::create(
        {.name = "port", .mac = own_mac(), .address = *address, .vlan = vlan},
        [this](std::span<const std::byte> frame) { on_sent(frame); }, now_ns_);
    require(host.ok());
    host_ = std::move(*host);
    auto resolver = OwnNeighbours::create(host_.get());
    require(resolver.ok());
    resolver_ = std::move(*resolver);
  }

  void turn(Input& input) {
    sent_ = 0;
    answers_ = 0;
    switch (input.below(9)) {
      case 0: {
        std::vector<uint8_t> bytes(input.below(120));
        for (uint8_t& byte : bytes) byte = input.u8();
        give(std::as_bytes(std::span(bytes)));
        break;
      }
      case 1:
        pass(uint64_t{input.u8()} * 10'000'000);
        break;
      case 2:
        pass(uint64_t{input.u8()} * 1'000'000'000);
        break;
      case 3:
        look_up(input.below(8));
        break;
      case 4:
        resolver_->update(now_ns_);
        break;
      case 6:
        give_query(input);
        break;
      case 5:
        host_->on_link(input.once_in(2), now_ns_);
        break;
      default:
        give_frame(input);
    }
    check();
  }

 private:
  static MacAddress own_mac() { return MacAddress({2, 0, 0, 0, 0, 1}); }
  SocketAddress ip(size_t index) const { return *SocketAddress::parse_ip(ips_[index]); }

  static MacAddress some_mac(Input& input) {
    switch (const uint32_t choice = input.below(8)) {
      case 0:
        return own_mac();
      case 1:
        return MacAddress::broadcast();
      case 2:
        return {};
      default:
        return MacAddress({2, 0, 0, 0, 0, static_cast<uint8_t>(choice)});
    }
  }
  void give_frame(Input& input) {
    NeighbourFrame frame;
    const uint8_t shape = input.u8();
    frame.kind = (shape & 1) != 0 ? Kind::kAdvertisement : Kind::kSolicitation;
    frame.is_solicited = (shape & 2) != 0;
    frame.is_override = (shape & 4) != 0;
    frame.source_mac = some_mac(input);
    frame.destination_mac = (shape & 8) != 0 ? MacAddress::broadcast() : own_mac();
    frame.source = ip(input.below(8));
    frame.target = ip(input.below(8));
    frame.destination = (shape & 16) != 0 ? tern::frames::solicited_node(frame.target) : ip(input.below(8));
    if (frame.destination.family() != frame.target.family()) frame.destination = frame.target;
    if ((shape & 32) == 0) frame.mac = some_mac(input);
    const tern::frames::NeighbourFrameBytes made(frame, vlan_);
    std::vector<std::byte> bytes(made.bytes().begin(), made.bytes().end());
    if ((shape & 64) != 0) bytes[input.u8() % bytes.size()] ^= std::byte{input.u8()};
    if ((shape & 128) != 0) bytes.resize(input.u8() % (bytes.size() + 1));
    give(bytes);
  }
  void give_query(Input& input) {
    const auto version = input.once_in(2) ? tern::frames::MldVersion::k1 : tern::frames::MldVersion::k2;
    std::vector<std::byte> bytes =
        tern::test::mld_query(version, input.once_in(2) ? "::" : "ff02::1:ff00:1", input.u8(), vlan_);
    if (input.once_in(4)) bytes[input.u8() % bytes.size()] ^= std::byte{input.u8()};
    if (input.once_in(4)) bytes.resize(input.u8() % (bytes.size() + 1));
    give(bytes);
  }
  void give(std::span<const std::byte> bytes) {
    const std::unique_ptr<std::byte[]> exact(new std::byte[bytes.size()]);
    std::ranges::copy(bytes, exact.get());
    const std::span<const std::byte> frame(exact.get(), bytes.size());
    const auto parsed = tern::frames::parse_neighbour_frame(frame, vlan_);
    require(!parsed || host_->wants(frame));
    const size_t known = host_->neighbours();
    fuzz_packets++;
    host_->on_frame(frame, now_ns_);
    require(host_->neighbours() <= known);
    require(answers_ <= (parsed && parsed->kind == Kind::kSolicitation ? 1u : 0u));
  }
  void pass(uint64_t ns) {
    now_ns_ += ns;
    host_->tick(now_ns_);
  }
  void look_up(size_t index) {
    if (found_[index]) {
      resolver_->release(*found_[index]);
      found_[index].reset();
    } else {
      auto id = resolver_->find(ip(index), now_ns_);
      require(id.ok());
      found_[index] = *id;
    }
  }

  void on_sent(std::span<const std::byte> bytes) {
    sent_++;
    require(bytes.size() >= 60 && bytes.size() <= Host::kFrameBytesMax);
    if (is_report(bytes)) return require(!is_lost_);
    const auto frame = tern::frames::parse_neighbour_frame(bytes, vlan_);
    require(frame.has_value() && frame->source_mac == own_mac() && (!frame->mac || frame->mac == own_mac()));
    const bool is_probe = frame->source.is_wildcard() && frame->target == ip(kOwn);
    require(is_probe || frame->source == ip(kOwn));
    if (frame->kind == Kind::kAdvertisement) {
      require(frame->target == ip(kOwn));
      if (frame->is_solicited) answers_++;
    }
    if (!host_) return;  // it is being made
    require(!is_lost_ && host_->failure().ok());
    require(is_probe || host_->is_settled());
  }
  /// Of the own group.
  bool is_report(std::span<const std::byte> bytes) const {
    using tern::frames::MldVersion;
    if (ip(kOwn).family() != AF_INET6) return false;
    for (const MldVersion version : {MldVersion::k1, MldVersion::k2}) {
      for (const bool is_change : {false, true}) {
        const auto group = tern::frames::solicited_node(ip(kOwn));
        const tern::frames::MldReportBytes report(version, group, is_change, own_mac(), vlan_);
        if (std::ranges::equal(report.bytes(), bytes)) return true;
      }
    }
    return false;
  }
  void check() {
    host_->check_invariants();
    require(host_->neighbours() <= kHopsMax);
    require(sent_ <= 4 + kHopsMax);  // an answer, an announcement or a probe, two reports of the group, and questions
    require(!is_lost_ || !host_->failure().ok());
    is_lost_ = !host_->failure().ok();
    require(!is_lost_ || host_->is_settled());
    for (const auto& id : found_) {
      if (!id) continue;
      const State state = resolver_->state(*id);
      require(state != State::kFailed || !resolver_->failure(*id).ok());
      if (state == State::kKnown) require(!resolver_->mac(*id).is_zero() && !resolver_->mac(*id).is_group());
    }
  }

  const char* const* ips_;
  const uint16_t vlan_;
  uint64_t now_ns_ = 1'000'000'000;
  std::unique_ptr<OwnHost> host_;
  std::unique_ptr<OwnNeighbours> resolver_;
  std::array<std::optional<Id>, 8> found_;
  size_t sent_ = 0;
  size_t answers_ = 0;
  bool is_lost_ = false;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  const uint8_t shape = input.u8();
  World world((shape & 1) != 0, (shape & 2) != 0 ? kVlan : 0);
  while (!input.is_empty()) world.turn(input);
  return 0;
}
