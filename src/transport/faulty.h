// A layer that drops, duplicates, reorders, delays and corrupts packets that an inner transport receives. Transport
// layer; for programs and tests only. Owned by the endpoint's owner thread.
//
// Faults happen on the receive side, so that the inner transport sends as without the layer (zero copy, references,
// trains). A packet is copied only if it is kept or changed. The seed and the order of the packets decide which faults
// happen; the clock also decides how long a packet is kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <tern/counters.h>
#include <tern/transport/faulty.h>

#include "transport/layer.h"

namespace tern::transport {

template <class Inner>
class FaultyImpl : public Layer<Inner> {
 public:
  using Options = FaultyOptions<typename Inner::Options>;
  using Sender = PlainSender<FaultyImpl>;
  /// readable_bytes is 0, because a kept packet has only the bytes of its payload.
  static constexpr Traits kTraits = [] {
    Traits traits = Inner::kTraits;
    traits.readable_bytes = 0;
    return traits;
  }();

  /// kMisuse: a probability outside of 0 to 1, a negative delay. All errors of Inner::create().
  static Result<std::unique_ptr<FaultyImpl>> create(Options options, const Context& context) {
    for (const double p : {options.drop, options.duplicate, options.reorder, options.delay, options.corrupt}) {
      if (!(p >= 0 && p <= 1)) return Status(Code::kMisuse, "a fault's probability is not between 0 and 1");
    }
    if (options.delay_max.count() < 0) return Status(Code::kMisuse, "FaultyOptions::delay_max is negative");
    auto inner = Inner::create(std::move(options.inner), context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<FaultyImpl>(new FaultyImpl(std::move(*inner), std::move(options)));
  }

  template <class Visit>
  size_t receive(Visit&& visit) {
    size_t visited = 0;
    this->inner_->receive(Visitor<std::remove_reference_t<Visit>>{*this, visit, visited});
    return visited + deliver_due(visit);
  }

  /// False while packets are kept, because the inner descriptor does not report them.
  bool prepare_wait() {
    const bool is_idle = this->inner_->prepare_wait();
    return is_idle && kept_.empty();
  }

  const FaultCounters* fault_counters() const { return &faults_; }

 private:
  template <class Visit>
  struct Visitor {
    FaultyImpl& faulty;
    Visit& visit;
    size_t& visited;
    void operator()(const wire::Header& header, const Payload& payload) const {
      ++faulty.arrived_;
      visited += faulty.pass_on(header, payload, visit);
    }
    ExpectedPacket expected_packet() const requires ExpectingVisitor<Visit> { return visit.expected_packet(); }
  };

  static constexpr size_t kKeptMax = 4096;  ///< bounds memory: with 64 KiB packets 256 MiB
  static constexpr uint64_t kReorderPacketsMax = 8;
  static constexpr size_t kDropUnitBytes = 4096;

  struct Packet {
    wire::Header header;
    std::vector<std::byte> data;
    uint64_t due_ns = UINT64_MAX;       ///< deliver at this time at the latest,
    uint64_t due_arrived = UINT64_MAX;  ///< or when `arrived_` has this value
    bool is_marked = false;

    /// `data` is never null, so that an empty payload can be copied like any other.
    Payload payload() const {
      static constexpr std::byte kNothing{};
      return {data.empty() ? &kNothing : data.data(), static_cast<uint32_t>(data.size()), nullptr, 0, is_marked};
    }
  };

  FaultyImpl(std::unique_ptr<Inner> inner, Options options)
      : Layer<Inner>(std::move(inner)), options_(std::move(options)), random_(options_.seed) {}

  /// splitmix64: the same on every machine.
  uint64_t random() {
    uint64_t z = random_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  bool happens(double probability) {
    return probability > 0 && static_cast<double>(random() >> 11) * 0x1p-53 < probability;
  }
  bool is_dropped(const Payload& payload) {
    const size_t units = payload.lease == nullptr ? 1 : (payload.bytes + kDropUnitBytes - 1) / kDropUnitBytes;
    for (size_t i = 0; i < units; ++i) {
      if (happens(options_.drop)) return true;
    }
    return false;
  }

  /// Returns the number of visited packets.
  template <class Visit>
  size_t pass_on(const wire::Header& header, const Payload& payload, Visit& visit) {
    if (is_dropped(payload)) {
      ++faults_.dropped;
      return 0;
    }
    const bool is_corrupted = happens(options_.corrupt);
    const bool is_duplicated = happens(options_.duplicate);
    const bool is_delayed = happens(options_.delay);
    const bool is_reordered = !is_delayed && happens(options_.reorder);
    if (!is_corrupted && !is_duplicated && !is_delayed && !is_reordered) [[likely]] {
      visit(header, payload);
      return 1;
    }
    Packet packet{header, std::vector<std::byte>(payload.bytes)};
    packet.is_marked = payload.is_marked;
    if (payload.bytes != 0 && !payload.copy_to(packet.data.data())) {
      ++faults_.revoked;
      return 0;
    }
    if (is_corrupted && !corrupt(packet)) {
      ++faults_.implausible;
      return 0;
    }
    faults_.corrupted += is_corrupted;
    if (is_duplicated && keep(packet, false)) ++faults_.duplicated;
    if (is_delayed || is_reordered) {
      if (keep(std::move(packet), is_reordered)) ++(is_reordered ? faults_.reordered : faults_.delayed);
      return 0;
    }
    visit(packet.header, packet.payload());
    return 1;
  }

  /// Half of the flips hit the header, although it is the smaller part, because more checks depend on it.
  bool corrupt(Packet& packet) {
    const uint16_t length = packet.header.length();
    const uint64_t flips = 1 + random() % 4;
    for (uint64_t i = 0; i < flips; ++i) {
      if (packet.data.empty() || random() % 2 == 0) {
        const uint64_t bit = random() % 192;
        (bit < 64 ? packet.header.w0 : bit < 128 ? packet.header.w1 : packet.header.w2) ^= uint64_t{1} << bit % 64;
      } else {
        const uint64_t bit = random() % (packet.data.size() * 8);
        packet.data[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      }
    }
    return wire::is_plausible(packet.header, length);
  }

  bool keep(Packet packet, bool is_reordered) {
    if (kept_.size() == kKeptMax) {
      ++faults_.overflowed;
      return false;
    }
    const auto delay_ns_max = static_cast<uint64_t>(options_.delay_max.count());
    if (is_reordered) packet.due_arrived = arrived_ + 1 + random() % kReorderPacketsMax;
    packet.due_ns =
        this->inner_->now() + (is_reordered || delay_ns_max == 0 ? delay_ns_max : 1 + random() % delay_ns_max);
    kept_.push_back(std::move(packet));
    return true;
  }

  /// Delivers the packets that were kept long enough, in the order of their arrival.
  template <class Visit>
  size_t deliver_due(Visit& visit) {
    if (kept_.empty()) [[likely]]
      return 0;
    const uint64_t now_ns = this->inner_->now();
    const auto first_due = std::stable_partition(kept_.begin(), kept_.end(), [&](const Packet& packet) {
      return packet.due_ns > now_ns && packet.due_arrived > arrived_;
    });
    const std::vector<Packet> due(std::make_move_iterator(first_due), std::make_move_iterator(kept_.end()));
    kept_.erase(first_due, kept_.end());
    for (const Packet& packet : due) visit(packet.header, packet.payload());
    return due.size();
  }

  const Options options_;
  uint64_t random_;
  uint64_t arrived_ = 0;  ///< packets from the inner transport
  std::vector<Packet> kept_;
  FaultCounters faults_;
};

}  // namespace tern::transport
