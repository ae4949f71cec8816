#include "transport/sim/sim_transport.h"

#include "transport/options.h"

namespace tern::transport {

namespace {

/// The address has the host and the port, in 4 bytes each.
constexpr size_t kAddressBytes = 8;

void store_u32(std::byte* to, uint32_t value) {
  for (int i = 0; i < 4; i++) to[i] = static_cast<std::byte>(value >> (8 * i));
}

uint32_t load_u32(const std::byte* from) {
  uint32_t value = 0;
  for (int i = 0; i < 4; i++) value |= static_cast<uint32_t>(from[i]) << (8 * i);
  return value;
}

uint32_t safe_payload_bytes(const Sim::Options& options, uint32_t frame_payload_bytes) {
  constexpr uint32_t kHeaders = SimImpl::kFrameHeaderBytes + static_cast<uint32_t>(wire::kHeaderBytes);
  if (options.safe_frame_bytes == 0) return frame_payload_bytes;
  return std::min(std::max<uint32_t>(options.safe_frame_bytes, kHeaders + wire::kPayloadBytesMin) - kHeaders,
                  frame_payload_bytes);
}

/// The delay target for a longest round trip without load of `round_trip_ns`.
DelayTarget target_of(uint64_t round_trip_ns) {
  constexpr uint64_t kQueueNs = 22'800;
  const uint64_t target_ns = std::min<uint64_t>(round_trip_ns + std::max(kQueueNs, round_trip_ns / 4), UINT32_MAX / 3);
  return {static_cast<uint32_t>(target_ns), static_cast<uint32_t>(3 * target_ns), true};
}

}  // namespace

Result<std::unique_ptr<SimImpl>> SimImpl::create(const Options& options, const Context&) {
  if (options.nic == nullptr) {
    return Status(Code::kMisuse, "Sim::Options::nic: take the options from sim::Host::transport_options()");
  }
  if (Status status = check_ranges<Sim>(options); !status.ok()) return status;
  return std::unique_ptr<SimImpl>(new SimImpl(options));
}

SimImpl::SimImpl(const Options& options)
    : nic_(*options.nic),
      options_(options),
      frame_payload_bytes_(
          static_cast<uint32_t>(nic_.network.frame_bytes_max() - kFrameHeaderBytes - wire::kHeaderBytes)),
      payload_bytes_max_(safe_payload_bytes(options, frame_payload_bytes_)),
      link_bytes_per_sec_(nic_.network.link_bits_per_sec(nic_.host) / 8),
      delay_target_(target_of(nic_.network.longest_round_trip() / kPicosecondsPerNs)),
      address_(kAddressBytes) {
  port_ = nic_.network.open_port(nic_.host, this);
  nic_.users++;
  store_u32(address_.data(), nic_.host);
  store_u32(address_.data() + 4, port_);
}

SimImpl::~SimImpl() {
  nic_.network.close_port(nic_.host, port_);
  for (PacketList* list : {&received_, &burst_}) {
    while (!list->empty()) nic_.network.give_packet(list->take());
  }
  nic_.users--;
  if (nic_.running == this) nic_.running = nullptr;
  if (nic_.polling == this) nic_.polling = nullptr;
  if (driver_ != nullptr) driver_->on_gone();
}

Result<PeerId> SimImpl::connect(std::span<const std::byte> address, std::string_view) {
  if (address.size() != kAddressBytes || load_u32(address.data()) >= nic_.network.hosts()) {
    return Status(Code::kRefused, "the peer's address is not in this simulation");
  }
  return connect_port(load_u32(address.data()), load_u32(address.data() + 4));
}

Result<PeerId> SimImpl::connect_port(uint32_t host, uint32_t port) {
  const std::pair<uint32_t, uint32_t> key(host, port);
  if (const auto known = peer_ids_.find(key); known != peer_ids_.end()) {
    peers_[known->second].references++;
    return known->second;
  }
  if (free_peers_.empty()) {
    free_peers_.push_back(static_cast<PeerId>(peers_.size()));
    peers_.emplace_back();
  }
  const PeerId peer = free_peers_.back();
  free_peers_.pop_back();
  peers_[peer] = {key.first, key.second, 1};
  peer_ids_.emplace(key, peer);
  return peer;
}

void SimImpl::disconnect(PeerId peer) {
  Peer& entry = peers_[peer];
  if (--entry.references != 0) return;
  peer_ids_.erase({entry.host, entry.port});
  free_peers_.push_back(peer);
}

bool SimImpl::send(PeerId peer, const wire::Header& header, const std::byte* data, size_t len, detail::Buffer* buffer) {
  if (queued_ - departed_ >= options_.send_queue_packets) return false;
  if (len > frame_payload_bytes_) [[unlikely]] {
    counters_.send_errors++;
    return true;  // counts as a loss, because the packet would not fit later either
  }
  SimPacket* packet = nic_.network.take_packet();
  const auto content_bytes = static_cast<uint32_t>(wire::kHeaderBytes + len);
  wire::Header with_length = header;
  with_length.add_length(content_bytes);
  wire::store_header(packet->content, with_length);
  packet->source = nullptr;
  if (buffer != nullptr) {
    if (len != 0) packet->source = data;
  } else if (len != 0) {
    std::memcpy(packet->content + wire::kHeaderBytes, data, len);
  }
  packet->from_host = nic_.host;
  packet->from_port = port_;
  packet->to_host = peers_[peer].host;
  packet->to_port = peers_[peer].port;
  packet->content_bytes = content_bytes;
  packet->frame_bytes = content_bytes + kFrameHeaderBytes;
  packet->is_marked = false;
  queued_++;
  work(nic_.cost.packet_sent);
  burst_.add(packet);
  counters_.packets_sent++;
  return true;
}

/// Hands the packets over to the interface when the endpoint's work is done, after those of earlier flushes.
void SimImpl::flush() {
  if (burst_.empty()) return;
  const Picoseconds now = nic_.network.events().now();
  if (thread_time_ <= now && handed_over_at_ != now) {
    while (!burst_.empty()) nic_.network.send(burst_.take());
    return;
  }
  handed_over_at_ = thread_time();
  nic_.network.send_at(handed_over_at_, burst_.take_all());
}

void SimImpl::on_arrival(SimPacket* packet) {
  if (received_count_ == options_.receive_queue_packets) {
    nic_.network.refuse(packet);
    return;
  }
  received_.add(packet);
  received_count_++;
  if (driver_ == nullptr) return;
  __builtin_prefetch(peers_.data());  // for the answer
  driver_->expect(wire::load_header(packet->content));
  driver_->on_ready();
}

/// Runs the next event, until `until` at the latest. It is no part of the endpoint's work.
void SimImpl::step(Picoseconds until) {
  SimImpl* const before = std::exchange(nic_.polling, nullptr);
  nic_.network.events().step(until);
  nic_.polling = before;
}

/// Advances virtual time by a poll, or to the next packet, because only the program's polling advances it now.
void SimImpl::poll_in_vain() {
  sim::EventQueue& events = nic_.network.events();
  thread_time_ = thread_time() + kPollTime;
  while (events.now() < thread_time_ && received_.empty()) step(thread_time_);
}

void SimImpl::wait(uint64_t ns) {
  sim::EventQueue& events = nic_.network.events();
  // Each event may change the drift of the clock.
  const auto until = [&] { return ns == UINT64_MAX ? UINT64_MAX : nic_.clock.when(ns); };
  while (received_.empty() && !is_woken_ && events.now() < until() && (until() != UINT64_MAX || !events.empty())) {
    step(until());
  }
}

}  // namespace tern::transport
