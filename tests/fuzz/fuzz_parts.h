// Parts of the fuzz targets of whole endpoints: the input, an environment in virtual time in which the target may
// change management datagrams, and a transport layer at which it sees and adds packets.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/environment.h>

#include "base/check.h"
#include "transport/in_place.h"
#include "transport/layer.h"
#include "wire/header.h"

namespace tern::fuzz {

/// The bytes of the input; zeros when they are used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}
  bool is_empty() const { return bytes_.empty(); }
  uint8_t u8() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  uint16_t u16() {
    const uint8_t low = u8();
    return static_cast<uint16_t>(low | u8() << 8);
  }
  uint32_t u32() {
    const uint16_t low = u16();
    return low | uint32_t{u16()} << 16;
  }
  uint64_t u64() {
    const uint32_t low = u32();
    return low | uint64_t{u32()} << 32;
  }
  /// Returns 0 to `count` - 1. `count` is at most 256.
  uint32_t below(uint32_t count) { return u8() % count; }
  /// Returns true once in `times`.
  bool once_in(uint32_t times) { return below(times) == 0; }

 private:
  std::span<const uint8_t> bytes_;
};

/// splitmix64
inline uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

/// A packet, and how its payload travels.
struct Packet {
  enum class Lease : uint8_t { kNone, kHeld, kLost };
  wire::Header header;
  std::vector<std::byte> data;
  Lease lease = Lease::kNone;
  bool is_marked = false;
};

/// The last packets of one direction at one endpoint.
class Record {
 public:
  static constexpr size_t kPackets = 64;
  void add(const wire::Header& header, const std::byte* data, size_t bytes) {
    Packet& packet = packets_[count_++ % kPackets];
    packet.header = header;
    packet.data.assign(data, data + bytes);
  }
  size_t size() const { return std::min<size_t>(count_, kPackets); }
  /// Returns the packet `back` places before the newest.
  const Packet& newest(size_t back = 0) const {
    CHECK(back, <, size());
    return packets_[(count_ - 1 - back) % kPackets];
  }

 private:
  std::array<Packet, kPackets> packets_;
  size_t count_ = 0;
};

/// A target's access to one endpoint's transport. It must outlive the transport.
struct Tap {
  const uint64_t* now_ns = nullptr;  ///< the world's clock
  Record arrived, sent;
  std::deque<Packet> to_deliver;  ///< made-up packets, delivered before those of the network
  bool refuse_sends = false;
  bool hold_tickets = false;
  const wire::Header* visiting = nullptr;  ///< header of the packet that the endpoint is reading
  uint64_t packets = 0;                    ///< packets delivered to the endpoint
  std::atomic<uint32_t> lease{1};          ///< lease word of payloads by reference
};

/// The transport `Inner` in virtual time with a Tap.
template <class Inner>
class TappedImpl : public transport::Layer<Inner> {
 public:
  struct Options {
    typename Inner::Options inner;
    Tap* tap = nullptr;
  };
  using Sender = transport::PlainSender<TappedImpl>;
  static Result<std::unique_ptr<TappedImpl>> create(const Options& options, const transport::Context& context) {
    auto inner = Inner::create(options.inner, context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<TappedImpl>(new TappedImpl(std::move(*inner), *options.tap));
  }
  bool send(transport::PeerId peer, const wire::Header& header, const std::byte* data, size_t len,
            detail::Buffer* buffer) {
    // The layers above must obey the limit in the peer's address, whatever else the peer said.
    CHECK(len, <=, size_t{this->inner_->payload_bytes_max(peer)});
    if (tap_.refuse_sends || !this->inner_->send(peer, header, data, len, buffer)) return false;
    tap_.sent.add(header, data, len);
    return true;
  }
  uint64_t released() const {
    if (!tap_.hold_tickets) held_ = this->inner_->released();
    return held_;
  }
  template <class Visit>
  size_t receive(Visit&& visit) {
    size_t visited = 0;
    for (size_t left = std::min(tap_.to_deliver.size(), kBurst); left > 0; left--) {
      const Packet packet = std::move(tap_.to_deliver.front());
      tap_.to_deliver.pop_front();
      // Real transports pass a valid pointer even without bytes.
      transport::Payload payload{packet.data.empty() ? reinterpret_cast<const std::byte*>(&packet) : packet.data.data(),
                                 static_cast<uint32_t>(packet.data.size()), nullptr, 0, packet.is_marked};
      if (packet.lease != Packet::Lease::kNone) {
        payload.lease = &tap_.lease;
        payload.lease_value = packet.lease == Packet::Lease::kHeld ? 1 : 2;
      }
      hand_over(visit, packet.header, payload);
      visited++;
    }
    return visited + this->inner_->receive([&](const wire::Header& header, const transport::Payload& payload) {
      tap_.arrived.add(header, payload.data, payload.bytes);
      transport::Payload copy = payload;
      if (copy.data == nullptr) copy.data = reinterpret_cast<const std::byte*>(this);
      hand_over(visit, header, copy);
    });
  }
  uint64_t now() { return *tap_.now_ns; }

 private:
  static constexpr size_t kBurst = 64;

  TappedImpl(std::unique_ptr<Inner> inner, Tap& tap) : transport::Layer<Inner>(std::move(inner)), tap_(tap) {}
  template <class Visit>
  void hand_over(Visit&& visit, const wire::Header& header, transport::Payload payload) {
    tap_.visiting = &header;
    tap_.packets++;
    transport::receive_in_place(visit, header, payload);
    visit(header, payload);
    tap_.visiting = nullptr;
  }

  Tap& tap_;
  mutable uint64_t held_ = 0;
};

/// An environment of one thread in virtual time, with management datagrams in queues. The address of a Nexus is
/// "10.0.0.N:1". The world itself runs the work of worker threads from a queue.
class VirtualEnvironment final : public Environment {
 public:
  static constexpr size_t kWorkerQueue = 4;

  explicit VirtualEnvironment(const uint64_t& now_ns) : now_ns_(now_ns) {}

  /// Sees each management datagram in the network and may change it. False: the datagram is lost.
  std::function<bool(std::vector<std::byte>& bytes)> on_the_way;

  Duration now() override { return Duration(static_cast<int64_t>(now_ns_)); }
  uint64_t random() override { return next_random(random_); }
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view, ManagementSink& sink) override {
    return std::unique_ptr<ManagementChannel>(std::make_unique<Channel>(*this, sink));
  }
  Result<std::string> resolve(std::string_view host_and_port) override { return std::string(host_and_port); }
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t, size_t) override {
    return std::unique_ptr<WorkerPool>(std::make_unique<Workers>(*this));
  }

  /// Runs everything that is due now.
  void run() {
    for (bool has_more = true; has_more;) {
      has_more = false;
      for (size_t i = 0; i < channels_.size(); i++) has_more |= channels_[i]->run();
    }
  }
  void run_workers() {
    for (auto& task : std::exchange(tasks_, {})) task();
  }
  /// Delivers a stranger's datagram to every Nexus.
  void inject(std::span<const std::byte> bytes) {
    for (Channel* channel : channels_) channel->push("10.0.0.99:1", bytes);
  }

 private:
  class Channel final : public ManagementChannel {
   public:
    Channel(VirtualEnvironment& world, ManagementSink& sink)
        : world_(world), sink_(sink), address_("10.0.0." + std::to_string(world.channels_.size() + 1) + ":1") {
      world_.channels_.push_back(this);
    }
    ~Channel() override { std::erase(world_.channels_, this); }
    void send(std::string_view to, std::span<const std::byte> bytes) override {
      for (Channel* channel : world_.channels_) {
        if (channel->address_ == to) channel->push(address_, bytes);
      }
    }
    void wake() override { is_woken_ = true; }
    std::string local_address() const override { return address_; }

    void push(const std::string& from, std::span<const std::byte> bytes) {
      queue_.push_back({from, {bytes.begin(), bytes.end()}});
    }
    bool run() {
      if (!is_woken_ && queue_.empty() && world_.now() < next_turn_) return false;
      is_woken_ = false;
      for (Datagram& datagram : std::exchange(queue_, {})) {
        if (world_.on_the_way && !world_.on_the_way(datagram.bytes)) continue;
        sink_.on_datagram(datagram.from, datagram.bytes);
      }
      next_turn_ = sink_.on_turn(world_.now());
      return next_turn_ > world_.now();  // so that a timer that is always due waits for time to pass
    }

   private:
    struct Datagram {
      std::string from;
      std::vector<std::byte> bytes;
    };
    VirtualEnvironment& world_;
    ManagementSink& sink_;
    const std::string address_;
    std::vector<Datagram> queue_;
    bool is_woken_ = true;
    Duration next_turn_{0};
  };
  class Workers final : public WorkerPool {
   public:
    explicit Workers(VirtualEnvironment& world) : world_(world) {}
    ~Workers() override { world_.run_workers(); }
    bool submit(std::function<void()> task) override {
      if (world_.tasks_.size() >= kWorkerQueue) return false;
      world_.tasks_.push_back(std::move(task));
      return true;
    }

   private:
    VirtualEnvironment& world_;
  };

  const uint64_t& now_ns_;
  uint64_t random_ = 1;
  std::vector<Channel*> channels_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace tern::fuzz
