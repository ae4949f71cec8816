// Flow steering rules. They are checked as the kernel and its mlx5 driver check them, and matched to frames. Among the
// flows that a frame matches, the first one by priority, number of specifications and age decides. All flows that are
// equal to it also take the frame, because the kernel gives one entry of the flow table several destinations.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mlx5.h"

namespace software_verbs {
namespace {

template <class Spec>
Spec read_spec(const std::byte* from) {
  Spec spec;
  memcpy(&spec, from, sizeof(spec));
  return spec;
}

struct SpecHeader {
  ibv_flow_spec_type type;
  uint16_t size;
};

/// The size of a specification; 0 for a type that is not supported here.
size_t size_of(ibv_flow_spec_type type) {
  switch (type) {
    case IBV_FLOW_SPEC_ETH:
      return sizeof(ibv_flow_spec_eth);
    case IBV_FLOW_SPEC_IPV4:
      return sizeof(ibv_flow_spec_ipv4);
    case IBV_FLOW_SPEC_IPV4_EXT:
      return sizeof(ibv_flow_spec_ipv4_ext);
    case IBV_FLOW_SPEC_IPV6:
      return sizeof(ibv_flow_spec_ipv6);
    case IBV_FLOW_SPEC_UDP:
    case IBV_FLOW_SPEC_TCP:
      return sizeof(ibv_flow_spec_tcp_udp);
    default:
      return 0;
  }
}

int layer_of(ibv_flow_spec_type type) { return static_cast<int>(type) >> 4; }  // Ethernet 2, IP 3, TCP and UDP 4

/// True if the specification has fields that mlx5 cannot match.
bool has_unmatched_fields(ibv_flow_spec_type type, const std::byte* spec) {
  if (type == IBV_FLOW_SPEC_IPV4_EXT) {
    const auto mask = read_spec<ibv_flow_spec_ipv4_ext>(spec).mask;
    return mask.ttl != 0 || mask.flags != 0;
  }
  return type == IBV_FLOW_SPEC_IPV6 && read_spec<ibv_flow_spec_ipv6>(spec).mask.hop_limit != 0;
}

/// Returns an error code.
int check_flow(const QueuePair& pair, const ibv_flow_attr& attr) {
  if (!context_of(&pair).settings.may_send_raw) return EPERM;
  if (pair.table == nullptr || attr.comp_mask != 0 || attr.port != kPort || attr.flags != 0) return EINVAL;
  if (attr.type != IBV_FLOW_ATTR_NORMAL) return EOPNOTSUPP;
  const auto* const first = reinterpret_cast<const std::byte*>(&attr);
  size_t at = sizeof(attr);
  int layer = 0;
  for (int i = 0; i < attr.num_of_specs; i++) {
    if (at + sizeof(SpecHeader) > attr.size) return EINVAL;
    const auto header = read_spec<SpecHeader>(first + at);
    const size_t size = size_of(header.type);
    if (size == 0 || header.size != size || at + size > attr.size || layer_of(header.type) <= layer) return EINVAL;
    if (has_unmatched_fields(header.type, first + at)) return EOPNOTSUPP;
    layer = layer_of(header.type);
    at += size;
  }
  return at == attr.size ? 0 : EINVAL;
}

template <class Filter>
bool is_masked_equal(const Filter& value, const Filter& wanted, const Filter& mask) {
  const auto* const a = reinterpret_cast<const uint8_t*>(&value);
  const auto* const b = reinterpret_cast<const uint8_t*>(&wanted);
  const auto* const m = reinterpret_cast<const uint8_t*>(&mask);
  for (size_t i = 0; i < sizeof(Filter); i++)
    if (((a[i] ^ b[i]) & m[i]) != 0) return false;
  return true;
}
template <class Spec, class Filter>
bool matches(const std::byte* bytes, const Filter& value) {
  const Spec spec = read_spec<Spec>(bytes);
  return is_masked_equal(value, spec.val, spec.mask);
}

bool matches_ethernet(const std::byte* spec, FrameView frame, const Headers& headers) {
  ibv_flow_eth_filter value{};
  memcpy(value.dst_mac, frame.data(), 6);
  memcpy(value.src_mac, frame.data() + 6, 6);
  value.ether_type = htobe16(headers.ether_type);
  value.vlan_tag = htobe16(headers.vlan_tag.value_or(0));
  const bool is_tag_asked = read_spec<ibv_flow_spec_eth>(spec).mask.vlan_tag != 0;
  return (!is_tag_asked || headers.vlan_tag) && matches<ibv_flow_spec_eth>(spec, value);
}

bool matches_ipv4(const std::byte* spec, FrameView frame, const Headers& headers, bool is_extended) {
  if (!headers.is_ipv4()) return false;
  ibv_flow_ipv4_ext_filter value{};
  memcpy(&value.src_ip, frame.data() + headers.ip + 12, 4);
  memcpy(&value.dst_ip, frame.data() + headers.ip + 16, 4);
  value.proto = headers.protocol;
  value.tos = std::to_integer<uint8_t>(frame[headers.ip + 1]);
  if (is_extended) return matches<ibv_flow_spec_ipv4_ext>(spec, value);
  return matches<ibv_flow_spec_ipv4>(spec, ibv_flow_ipv4_filter{value.src_ip, value.dst_ip});
}

bool matches_ipv6(const std::byte* spec, FrameView frame, const Headers& headers) {
  if (!headers.is_ip || headers.is_ipv4()) return false;
  ibv_flow_ipv6_filter value{};
  uint32_t first;
  memcpy(&first, frame.data() + headers.ip, sizeof(first));
  memcpy(value.src_ip, frame.data() + headers.ip + 8, 16);
  memcpy(value.dst_ip, frame.data() + headers.ip + 24, 16);
  value.flow_label = first & htobe32(0xfffff);
  value.next_hdr = headers.protocol;
  value.traffic_class = static_cast<uint8_t>(be32toh(first) >> 20);
  return matches<ibv_flow_spec_ipv6>(spec, value);
}

bool matches_ports(const std::byte* spec, FrameView frame, const Headers& headers, uint8_t protocol) {
  if (headers.transport == 0 || headers.protocol != protocol) return false;
  ibv_flow_tcp_udp_filter value{};
  memcpy(&value.src_port, frame.data() + headers.transport, 2);
  memcpy(&value.dst_port, frame.data() + headers.transport + 2, 2);
  return matches<ibv_flow_spec_tcp_udp>(spec, value);
}

bool matches_spec(ibv_flow_spec_type type, const std::byte* spec, FrameView frame, const Headers& headers) {
  switch (type) {
    case IBV_FLOW_SPEC_ETH:
      return matches_ethernet(spec, frame, headers);
    case IBV_FLOW_SPEC_IPV4:
    case IBV_FLOW_SPEC_IPV4_EXT:
      return matches_ipv4(spec, frame, headers, type == IBV_FLOW_SPEC_IPV4_EXT);
    case IBV_FLOW_SPEC_IPV6:
      return matches_ipv6(spec, frame, headers);
    default:
      return matches_ports(spec, frame, headers, type == IBV_FLOW_SPEC_UDP ? kProtocolUdp : kProtocolTcp);
  }
}

bool matches_flow(const Flow& flow, FrameView frame, const Headers& headers) {
  for (size_t at = 0; at < flow.specs.size();) {
    const auto header = read_spec<SpecHeader>(flow.specs.data() + at);
    if (!matches_spec(header.type, flow.specs.data() + at, frame, headers)) return false;
    at += header.size;
  }
  return true;
}

/// True if `one` decides for a frame that both match.
bool precedes(const Flow& one, const Flow& other) {
  if (one.priority != other.priority) return one.priority < other.priority;
  return one.specs.size() > other.specs.size();
}

}  // namespace

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr) {
  if (const int error = injected_error(Verb::kCreateFlow)) return fail(error);
  Context& context = context_of(qp);
  auto& pair = static_cast<QueuePair&>(*qp);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return fail(EIO);
  if (const int error = check_flow(pair, *attr)) return fail(error);
  auto* flow = new Flow;
  flow->comp_mask = 0;
  flow->context = qp->context;
  flow->handle = next_number();
  const auto* const first = reinterpret_cast<const std::byte*>(attr);
  flow->specs.assign(first + sizeof(*attr), first + attr->size);
  flow->priority = attr->priority;
  flow->queue_pair = &pair;
  pair.flows++;
  context.objects++;
  count(totals.steering_rules);
  const std::lock_guard network_lock(network().mutex);
  context.port->flows.push_back(flow);
  return flow;
}

int destroy_flow(ibv_flow* base) {
  auto* flow = static_cast<Flow*>(base);
  Context& context = context_of(base);
  check_process(context);
  const std::lock_guard lock(context.mutex);
  {
    const std::lock_guard network_lock(network().mutex);
    std::erase(context.port->flows, flow);
  }
  flow->queue_pair->flows--;
  context.objects--;
  delete flow;
  uncount(totals.steering_rules);
  return 0;
}

bool steer(Port& port, FrameView frame) {
  if (frame.size() < kEthernetBytes) return false;
  const Headers headers = find_headers(frame);
  const Flow* best = nullptr;
  for (const Flow* flow : port.flows)
    if (matches_flow(*flow, frame, headers) && (best == nullptr || precedes(*flow, *best))) best = flow;
  if (best == nullptr) return false;
  for (const Flow* flow : port.flows)
    if (flow->priority == best->priority && flow->specs == best->specs)
      place(*flow->queue_pair->table->queue, frame, headers);
  return true;
}

}  // namespace software_verbs
