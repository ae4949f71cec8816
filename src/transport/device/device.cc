#include "transport/device/device.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/try.h"

namespace tern {

Device::~Device() = default;
Device::PeerState Device::peer_state(Peer) { return PeerState::kReady; }

}  // namespace tern

namespace tern::transport {

static_assert(TransportImpl<DeviceImpl>);

namespace {

constexpr Status kNoDevice(Code::kMisuse, "device: Device::Options::device is null");
constexpr Status kBadName(Code::kMisuse, "device: Properties::name must have 1 to 16 bytes");
constexpr Status kBadAddress(Code::kMisuse, "device: Device::address() must have 1 to 40 bytes");
constexpr Status kBadSize(Code::kMisuse, "device: Properties::packet_bytes_max must be 536 to 65000");
constexpr Status kBadQueue(Code::kMisuse,
                           "device: Properties::receive_queue_packets and link_bytes_per_sec must be at least 1");
constexpr Status kNoDescriptors(
    Code::kUnavailable,
    "device: no file descriptors are left (raise the limit, ulimit -n), or the device's descriptor cannot be polled");
constexpr Status kNoMemory(Code::kNoMemory, "device: no memory for the endpoint's queues: free some");
constexpr Status kNoPeerMemory(Code::kNoMemory, "device: no memory for another peer: free some, or end sessions");
constexpr Status kOtherDevice(Code::kMisuse,
                              "device: the peer's data-path address is not that of such a device: both sides must run "
                              "the same kind (Device::Properties::name)");

/// An address is packet_bytes_max (2 bytes), the length of the name (1), the name, and the device's own address.
constexpr size_t kSizeBytes = 2, kPrefixBytes = kSizeBytes + 1;

}  // namespace

Result<std::unique_ptr<DeviceImpl>> DeviceImpl::create(Options options, const Context&) {
  static_assert(kPrefixBytes + kNameBytesMax + kDeviceAddressBytesMax <= kAddressBytesMax);
  if (options.device == nullptr) return kNoDevice;
  const Device::Properties properties = options.device->properties();
  if (properties.name.empty() || properties.name.size() > kNameBytesMax) return kBadName;
  if (properties.packet_bytes_max < kPacketBytesMin || properties.packet_bytes_max > kPacketBytesMax) return kBadSize;
  if (properties.receive_queue_packets < 1 || properties.link_bytes_per_sec < 1) return kBadQueue;
  const size_t address_bytes = options.device->address().size();
  if (address_bytes < 1 || address_bytes > kDeviceAddressBytesMax) return kBadAddress;
  std::unique_ptr<DeviceImpl> made(new (std::nothrow) DeviceImpl(std::move(options.device), properties));
  if (made == nullptr) return kNoMemory;
  if (Status status = made->open_descriptors(); !status.ok()) return status;
  const bool is_addressed = base::try_grow([&] {
    auto& address = made->address_;
    address.push_back(static_cast<std::byte>(properties.packet_bytes_max & 0xff));
    address.push_back(static_cast<std::byte>(properties.packet_bytes_max >> 8));
    address.push_back(static_cast<std::byte>(properties.name.size()));
    for (const char c : properties.name) address.push_back(static_cast<std::byte>(c));
    const auto own = made->device_->address();
    address.insert(address.end(), own.begin(), own.end());
  });
  if (!is_addressed) return kNoMemory;
  return made;
}

DeviceImpl::DeviceImpl(std::unique_ptr<Device> device, const Device::Properties& properties)
    : device_(std::move(device)), properties_(properties), packet_bytes_max_(properties.packet_bytes_max) {}

DeviceImpl::~DeviceImpl() = default;

Status DeviceImpl::open_descriptors() {
  if (!waits_.open() || !wake_.open()) return kNoDescriptors;
  const int input = device_->descriptor();
  can_sleep_ = input >= 0;
  const bool is_watched = waits_.add(wake_.descriptor(), EPOLLIN, 0) && (!can_sleep_ || waits_.add(input, EPOLLIN, 0));
  if (!is_watched) return errno == ENOMEM ? kNoMemory : kNoDescriptors;
  return {};
}

Result<PeerId> DeviceImpl::connect(std::span<const std::byte> address, std::string_view host) {
  const size_t name_bytes = properties_.name.size();
  const auto refuse = [this] {
    ++counters_.peers_refused;
    return kOtherDevice;
  };
  if (address.size() <= kPrefixBytes + name_bytes || address.size() > kAddressBytesMax) return refuse();
  const std::string_view text(reinterpret_cast<const char*>(address.data()), address.size());
  if (static_cast<uint8_t>(text[kSizeBytes]) != name_bytes ||
      text.substr(kPrefixBytes, name_bytes) != properties_.name) {
    return refuse();
  }
  const uint32_t packet_bytes_max = std::to_integer<uint32_t>(address[0]) | std::to_integer<uint32_t>(address[1]) << 8;
  if (packet_bytes_max < kPacketBytesMin) return refuse();

  std::string key;
  const auto make_key = [&] { key.append(text).append(1, '\0').append(host); };  // no host has a zero byte
  if (!base::try_grow(make_key)) return kNoPeerMemory;
  if (const auto known = ids_.find(key); known != ids_.end()) {
    ++peers_[known->second].references;
    return known->second;
  }
  if (free_ids_.empty()) {
    const size_t count = peers_.size() + 1;
    if (!base::try_reserve(peers_, count) || !base::try_reserve(free_ids_, count)) return kNoPeerMemory;
    free_ids_.push_back(static_cast<PeerId>(peers_.size()));
    peers_.emplace_back();
  }
  const PeerId id = free_ids_.back();
  if (!base::try_grow([&] { ids_.emplace(key, id); })) return kNoPeerMemory;
  Result<Device::Peer> name = device_->connect(address.subspan(kPrefixBytes + name_bytes), host);
  if (!name.ok()) {
    ids_.erase(key);
    return name.status();
  }
  free_ids_.pop_back();
  Peer& peer = peers_[id];
  peer.name = *name;
  peer.packet_bytes_max = std::min(packet_bytes_max, packet_bytes_max_);
  peer.references = 1;
  peer.is_connected = device_->peer_state(*name) == Device::PeerState::kReady;
  peer.key = std::move(key);
  return id;
}

PeerState DeviceImpl::peer_state(PeerId id) {
  Peer& peer = peers_[id];
  if (peer.references == 0) return PeerState::kDead;
  const Device::PeerState state = device_->peer_state(peer.name);
  peer.is_connected = state == Device::PeerState::kReady;
  if (peer.is_connected) return PeerState::kReady;
  return state == Device::PeerState::kDead ? PeerState::kDead : PeerState::kConnecting;
}

/// Packets to the peer that the device does not take now are lost, because the device may use the peer's number for
/// another peer.
void DeviceImpl::disconnect(PeerId id) {
  Peer& peer = peers_[id];
  CHECK(peer.references, >, 0u);
  if (--peer.references > 0) return;
  if (queued_ != 0) transmit();
  uint32_t left = 0;
  for (uint32_t i = 0; i < queued_; ++i) {
    if (queue_[i].peer == peer.name) {
      ++counters_.send_errors;
      continue;
    }
    queue_[left] = queue_[i];
    tickets_[left++] = tickets_[i];
  }
  if (left != queued_) kept_since_ns_ = 0;  // the queue may have another first packet now
  queued_ = left;
  if (queued_ == 0) used_slots_ = 0;
  peer.is_connected = false;
  device_->disconnect(peer.name);
  ids_.erase(peer.key);
  free_ids_.push_back(id);  // connect() has reserved memory for it
}

const std::byte* DeviceImpl::copy(const std::byte* data, size_t len, Slot& slot) {
  CHECK(len, <=, sizeof(slot.payload));
  std::memcpy(slot.payload, data, len);
  return slot.payload;
}

void DeviceImpl::count_bad(std::span<const std::byte> packet, const wire::Header& header) {
  if (!wire::is_plausible(header, packet.size())) {
    ++counters_.dropped_unparsable;
  } else if ((header.flags() & wire::kByReference) != 0) {
    ++counters_.dropped_bad_reference;
  } else {
    ++counters_.dropped_oversize;
  }
}

void DeviceImpl::remove_first(uint32_t count) {
  queued_ -= count;
  std::copy_n(queue_.begin() + count, queued_, queue_.begin());
  std::copy_n(tickets_.begin() + count, queued_, tickets_.begin());
  if (queued_ == 0) used_slots_ = 0;
}

/// Offers the queue to the device.
void DeviceImpl::transmit() {
  const auto taken = static_cast<uint32_t>(
      std::min<size_t>(device_->transmit(std::span<const Device::Outgoing>(queue_).first(queued_)), queued_));
  counters_.packets_sent += taken;
  if (taken == queued_) [[likely]] {
    queued_ = used_slots_ = 0;
    kept_since_ns_ = 0;
    return;
  }
  remove_first(taken);
  const uint64_t time = now();
  if (taken != 0 || kept_since_ns_ == 0) {
    kept_since_ns_ = time;
  } else if (time - kept_since_ns_ >= kKeptNsMax) {
    counters_.send_errors += queued_;
    remove_first(queued_);
    kept_since_ns_ = 0;
  }
}

}  // namespace tern::transport
