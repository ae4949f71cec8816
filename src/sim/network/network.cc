// The path of a frame through the network, and the ports of hosts. See network_impl.h.
#include "sim/network/network.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "sim/network/network_impl.h"

namespace tern::sim {

namespace {

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 32)) * Network::Impl::kMix2;
  x = (x ^ (x >> 29)) * Network::Impl::kMix3;
  return x ^ (x >> 32);
}

}  // namespace

void Network::Impl::send(SimPacket* packet) {
  CHECK(packet->content_bytes, <=, packets.content_bytes_max());
  packet->flow = static_cast<uint32_t>(mixed(hosts_of(*packet) * kMix1 ^ ports_of(*packet) * kMix4));
  SimOutput& out = outputs[hosts[packet->from_host].interface];
  if (is_idle(out)) {
    depart<true>(out, packet);
  } else {
    join(out, packet);
  }
}

/// Sends a list of packets, or takes it back if the source port is closed.
void Network::Impl::on_send(void* context, uint64_t argument) {
  auto* packet = reinterpret_cast<SimPacket*>(argument);
  Impl& network = *static_cast<Impl*>(context);
  const bool is_open = network.find_port(packet->from_host, packet->from_port) != nullptr;
  while (packet != nullptr) {
    SimPacket* const next = packet->next;
    if (is_open) {
      network.send(packet);
    } else {
      network.packets.give(packet);
    }
    packet = next;
  }
}

void Network::Impl::join(SimOutput& out, SimPacket* packet) {
  out.push(packet);
  if (!out.has_start) add_start(out);
}

void Network::Impl::add_start(SimOutput& out) {
  out.has_start = true;
  events.add(out.free_at, &Impl::on_start, &out, 0);
}

/// Starts the transmission of the first frame of an output's queue. The queue is empty if close_port() or
/// lose_queue() has emptied it.
void Network::Impl::on_start(void* context, uint64_t /*argument*/) {
  SimOutput& out = *static_cast<SimOutput*>(context);
  Impl& network = *out.network;
  out.has_start = false;
  if (out.first == nullptr) return;
  SimPacket* const packet = out.pop();
  if (out.first != nullptr) __builtin_prefetch(out.first);
  if (out.from == SimOutput::kHost) {
    network.depart<true>(out, packet);
  } else {
    out.queue_bytes -= packet->frame_bytes;
    network.switches[out.from].occupied_bytes -= packet->frame_bytes;
    network.depart<false>(out, packet);
  }
  if (out.first != nullptr) network.add_start(out);
}

inline SimOutput* Network::Impl::route(uint16_t at, const SimPacket& packet) {
  const Host& to = hosts[packet.to_host];
  if (to.at == at) return &outputs[to.downlink];
  const std::span<const uint32_t> ways = routes.outputs(at, to.at);
  if (ways.size() <= 1) return ways.empty() ? nullptr : &outputs[ways.front()];
  const auto chosen = static_cast<uint32_t>(packet.flow * switches[at].salt >> 32);
  return &outputs[ways[chosen * ways.size() >> 32]];
}

inline void Network::Impl::launch(SimOutput& out, SimPacket* packet, Picoseconds at, EventQueue::Run run) {
  if (out.faults != nullptr) [[unlikely]]
    return launch_into_faults(out, packet, at, run);
  events.add(at, run, packet, reinterpret_cast<uint64_t>(&out));
}

/// Begins the transmission of `packet`. The output must be idle, and the packet not in its queue.
template <bool kIsFirstHop>
void Network::Impl::depart(SimOutput& out, SimPacket* packet) {
  const uint64_t wire = wire_time(out, packet->frame_bytes);
  out.free_at = events.now() + wire;
  if (kIsFirstHop) release(*packet);
  note(kDeparture, *packet, &out);
  if (!out.is_open) [[unlikely]]
    return drop(packet, counters.dropped_fault);
  if (kIsFirstHop && tap) [[unlikely]]
    tap(*packet, false);
  packet->epoch = out.epoch;
  if (kIsFirstHop && !nats.empty()) [[unlikely]]
    leave_nat(*packet);
  if (out.to == SimOutput::kHost) {
    __builtin_prefetch(packet->content);
    __builtin_prefetch(hosts[packet->to_host].ports.data());
    return launch(out, packet, out.free_at + out.hop, &Impl::on_host);
  }
  if (kIsFirstHop && packet->to_host >= hosts.size()) [[unlikely]]
    return drop(packet, counters.dropped_no_receiver);
  SimOutput* const next = route(out.to, *packet);
  if (next == nullptr) [[unlikely]]
    return drop(packet, counters.dropped_fault);
  packet->out = next;
  const uint64_t wire_next = wire_time(*next, packet->frame_bytes);
  const uint64_t underrun = wire > wire_next ? wire - wire_next : 0;
  launch(out, packet, events.now() + out.hop + underrun, &Impl::on_switch);
}

void Network::Impl::on_switch(void* context, uint64_t argument) {
  SimPacket* const packet = static_cast<SimPacket*>(context);
  const SimOutput& in = *reinterpret_cast<const SimOutput*>(argument);
  Impl& network = *in.network;
  if (packet->epoch != in.epoch) return network.drop(packet, network.counters.dropped_fault);
  SimOutput& out = *packet->out;
  if (network.is_idle(out)) return network.depart<false>(out, packet);
  if (network.admit(out, *packet)) return network.join(out, packet);
  network.drop(packet, network.counters.dropped_buffer_full);
}

/// Returns false if the switch has no space for the packet in the output's queue. Otherwise counts the packet in the
/// queue and in the buffer, and marks it if the queue is above the ECN threshold.
bool Network::Impl::admit(SimOutput& out, SimPacket& packet) {
  Switch& at = switches[out.from];
  const uint64_t bytes = packet.frame_bytes;
  const uint64_t buffer = at.options.buffer_bytes;
  const uint64_t queue = out.queue_bytes + bytes;
  if (at.occupied_bytes + bytes > buffer) return false;
  if (static_cast<double>(queue) > at.options.alpha * static_cast<double>(buffer - at.occupied_bytes)) return false;
  if (out.queue_bytes > at.options.ecn_threshold_bytes) {
    packet.is_marked = true;
    counters.packets_marked++;
    note(kMark, packet, &out);
  }
  at.occupied_bytes += bytes;
  out.queue_bytes = static_cast<uint32_t>(queue);
  counters.queue_bytes_max = std::max(counters.queue_bytes_max, queue);
  return true;
}

void Network::Impl::on_host(void* context, uint64_t argument) {
  SimPacket* const packet = static_cast<SimPacket*>(context);
  const SimOutput& in = *reinterpret_cast<const SimOutput*>(argument);
  Impl& network = *in.network;
  NetworkCounters& counters = network.counters;
  const bool is_cut = !network.partitions.empty() && network.partitions.contains(hosts_of(*packet));
  if (packet->epoch != in.epoch || is_cut) return network.drop(packet, counters.dropped_fault);
  if (!network.nats.empty() && !network.enter_nat(*packet)) return network.drop(packet, counters.dropped_nat);
  SimPort* const port = network.hosts[packet->to_host].is_up ? network.find_port(packet->to_host, packet->to_port)  //
                                                             : nullptr;
  if (port == nullptr) return network.drop(packet, counters.dropped_no_receiver);
  network.note(kArrival, *packet, &in);
  counters.packets_delivered++;
  if (network.tap) [[unlikely]]
    network.tap(*packet, true);
  port->on_arrival(packet);
}

/// Translates the packet's source port if the sender is behind a NAT. Ports of Nexuses are not translated.
void Network::Impl::leave_nat(SimPacket& packet) {
  const auto from = nats.find(packet.from_host);
  if (from == nats.end() || packet.from_port < kNamedPorts) return;
  packet.from_port = from->second.outside(packet.from_port, packet.to_host, packet.to_port, events.now());
}

/// Translates the packet's destination port if the receiver is behind a NAT. Returns false if that NAT has no such
/// flow.
bool Network::Impl::enter_nat(SimPacket& packet) {
  const auto to = nats.find(packet.to_host);
  if (to == nats.end() || packet.to_port < kNamedPorts) return true;
  packet.to_port = to->second.inside(packet.to_port, packet.from_host, packet.from_port, events.now());
  return packet.to_port != 0;
}

uint32_t Network::hosts() const { return static_cast<uint32_t>(impl_->hosts.size()); }
size_t Network::frame_bytes_max() const { return impl_->packets.content_bytes_max(); }
Picoseconds Network::longest_round_trip() const { return impl_->longest_round_trip; }
uint64_t Network::link_bits_per_sec(uint32_t host) const {
  return impl_->cables[impl_->hosts[host].interface].bits_per_sec;
}

SimPacket* Network::take_packet() { return impl_->packets.take(); }
void Network::give_packet(SimPacket* packet) { impl_->packets.give(packet); }
void Network::refuse(SimPacket* packet) {
  impl_->counters.packets_delivered--;
  impl_->drop(packet, impl_->counters.dropped_receive_full);
}

uint32_t Network::open_port(uint32_t host, SimPort* port, uint32_t number) {
  Impl::Host& at = impl_->hosts[host];
  if (number == 0) {
    at.ports.push_back(port);
    return static_cast<uint32_t>(Impl::kNamedPorts + at.ports.size() - 1);
  }
  if (number >= Impl::kNamedPorts || impl_->find_port(host, number) != nullptr) return 0;
  at.named_ports.emplace_back(number, port);
  return number;
}

void Network::close_port(uint32_t host, uint32_t number) {
  Impl::Host& at = impl_->hosts[host];
  if (number >= Impl::kNamedPorts) {
    at.ports[number - Impl::kNamedPorts] = nullptr;
  } else {
    std::erase_if(at.named_ports, [number](const auto& named) { return named.first == number; });
  }
  SimOutput& out = impl_->outputs[at.interface];
  SimPacket* waiting = std::exchange(out.first, nullptr);
  while (waiting != nullptr) {
    SimPacket* const packet = std::exchange(waiting, waiting->next);
    if (packet->from_port == number && packet->source != nullptr) {
      impl_->note(Impl::kDrop, *packet, &out);
      impl_->packets.give(packet);
    } else {
      out.push(packet);
    }
  }
}

void Network::send(SimPacket* packet) { impl_->send(packet); }
void Network::send_at(Picoseconds at, SimPacket* packets) {
  impl_->events.add(at, &Impl::on_send, impl_.get(), reinterpret_cast<uint64_t>(packets));
}

void Network::set_tap(std::function<void(const SimPacket&, bool)> tap) { impl_->tap = std::move(tap); }
uint64_t Network::trace_hash() const { return impl_->hash; }
const NetworkCounters& Network::counters() const { return impl_->counters; }

}  // namespace tern::sim
