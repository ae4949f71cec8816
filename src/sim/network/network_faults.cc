// The faults of the simulated network, and the calls that set them. See network_impl.h.
#include <algorithm>
#include <array>
#include <cstring>

#include "sim/network/network_impl.h"
#include "wire/header.h"

namespace tern::sim {

void Network::Impl::launch_into_faults(SimOutput& out, SimPacket* packet, Picoseconds at, EventQueue::Run run) {
  CableFaults& faults = *out.faults;
  const auto argument = reinterpret_cast<uint64_t>(&out);
  if (packet->frame_bytes > faults.frame_bytes_max) return drop(packet, counters.dropped_too_long);
  if (faults.drop.happens(random)) return drop(packet, counters.dropped_fault);
  if (packet->content_bytes != 0 && faults.corrupt.happens(random)) {
    note(kCorrupt, *packet, &out);
    corrupt(*packet);
  }
  if (faults.duplicate.happens(random)) {
    note(kDuplicate, *packet, &out);
    events.add(at + faults.draw_delay(random), run, copy(*packet), argument);
  }
  if (faults.reorder.happens(random)) return events.add(at + faults.draw_delay(random), run, packet, argument);
  if (faults.delay.happens(random)) faults.held_until = std::max(faults.held_until, at + faults.draw_delay(random));
  events.add(std::max(at, faults.held_until), run, packet, argument);
}

/// Flips one to four different bits. Each is drawn from the packet's header with a probability of one half, because
/// errors in the header have more effects.
void Network::Impl::corrupt(SimPacket& packet) {
  const uint64_t bits = uint64_t{packet.content_bytes} * 8;
  std::array<uint64_t, 4> flipped{};
  const size_t flips = 1 + random() % std::min<uint64_t>(4, bits);
  for (size_t i = 0; i < flips;) {
    const uint64_t within = random() % 2 == 0 ? std::min<uint64_t>(bits, wire::kHeaderBytes * 8) : bits;
    flipped[i] = random() % within;
    if (std::find(flipped.begin(), flipped.begin() + i, flipped[i]) != flipped.begin() + i) continue;
    packet.content[flipped[i] / 8] ^= std::byte{1} << static_cast<int>(flipped[i] % 8);
    i++;
  }
}

SimPacket* Network::Impl::copy(const SimPacket& packet) {
  SimPacket* const other = packets.take();
  std::byte* const content = other->content;
  *other = packet;
  other->content = content;
  std::memcpy(content, packet.content, packet.content_bytes);
  return other;
}

void Network::Impl::set_faults(size_t output, const Faults& faults) {
  Cable& cable = cables[output];
  cable.faults = faults;
  auto cable_faults = std::make_unique<CableFaults>(faults);
  cable_faults->frame_bytes_max = cable.frame_bytes_max;
  // A spike goes on unless the cable's delay ends, because later frames must not overtake those that it holds up.
  if (cable.drawn_faults && !cable_faults->delay.is_never()) cable_faults->held_until = cable.drawn_faults->held_until;
  if (cable_faults->is_nothing()) cable_faults.reset();
  outputs[output].faults = cable_faults.get();
  cable.drawn_faults = std::move(cable_faults);
}

void Network::Impl::set_frame_limit(size_t output, size_t frame_bytes_max) {
  cables[output].frame_bytes_max = static_cast<uint32_t>(std::min<size_t>(frame_bytes_max, UINT32_MAX));
  set_faults(output, cables[output].faults);
}
/// The event at which a topology's frame limit begins. `output`: the index of the output.
void Network::Impl::on_frame_limit(void* context, uint64_t output) {
  Impl& network = *static_cast<Impl*>(context);
  if (!network.is_healed) network.set_frame_limit(output, network.cables[output].frame_bytes_max_later);
}

void Network::Impl::set_up(size_t output, bool up) {
  Cable& cable = cables[output];
  if (cable.is_up && !up) outputs[output].epoch++;
  cable.is_up = up;
  update_open(output);
}
void Network::Impl::update_open(size_t output) {
  const Node from = cables[output].from;
  outputs[output].is_open = cables[output].is_up && (from.kind == Node::Kind::kSwitch || hosts[from.index].is_up);
}

/// Drops all packets in the queue of a host's interface.
void Network::Impl::lose_queue(SimOutput& out) {
  while (out.first != nullptr) {
    SimPacket* const packet = out.pop();
    release(*packet);
    drop(packet, counters.dropped_fault);
  }
}

void Network::set_host_up(uint32_t host, bool up) {
  Impl::Host& at = impl_->hosts[host];
  if (up && !at.is_up) impl_->lose_queue(impl_->outputs[at.interface]);
  at.is_up = up;
  impl_->update_open(at.interface);
}

void Network::set_faults(const Faults& faults) {
  for (size_t i = 0; i < impl_->cables.size(); i++) impl_->set_faults(i, faults);
}

bool Network::set_faults(Node from, Node to, const Faults& faults) {
  return impl_->change_cables(from, to, [&](size_t output) { impl_->set_faults(output, faults); });
}

bool Network::set_frame_limit(Node from, Node to, size_t frame_bytes_max) {
  return impl_->change_cables(from, to, [&](size_t output) { impl_->set_frame_limit(output, frame_bytes_max); });
}

bool Network::set_link_up(Node a, Node b, bool up) {
  const auto set = [&](size_t output) { impl_->set_up(output, up); };
  // A link has a cable in each direction.
  const bool is_there = impl_->change_cables(a, b, set) && impl_->change_cables(b, a, set);
  if (is_there) impl_->compute_routes();
  return is_there;
}

void Network::set_partition(uint32_t from_host, uint32_t to_host, bool is_cut) {
  const uint64_t pair = uint64_t{to_host} << 32 | from_host;
  if (is_cut) {
    impl_->partitions.insert(pair);
  } else {
    impl_->partitions.erase(pair);
  }
}

void Network::set_nat(uint32_t host, Picoseconds timeout) { impl_->nats.insert_or_assign(host, SimNat(timeout)); }

void Network::forget_flows(uint32_t host) {
  if (const auto nat = impl_->nats.find(host); nat != impl_->nats.end()) nat->second.forget();
}

void Network::heal() {
  impl_->partitions.clear();
  impl_->is_healed = true;
  for (size_t i = 0; i < impl_->cables.size(); i++) {
    impl_->set_faults(i, {});
    impl_->set_frame_limit(i, SIZE_MAX);
    impl_->set_up(i, true);
  }
  impl_->compute_routes();
}

}  // namespace tern::sim
