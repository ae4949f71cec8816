// Packets between queue pairs are datagrams between UDP sockets. A queue pair's socket is bound to the address of its
// device, and the low 16 bits of the queue pair's number are the port. So queue pairs of all processes of a host can
// reach each other.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "provider.h"

namespace software_verbs {
namespace {

constexpr uint32_t kMagic = 0x73767262;
constexpr uint32_t kPrivilegedQkey = 1u << 31;  ///< a Q_Key with this bit stands for the Q_Key of the sending queue
                                                ///< pair
constexpr int kSocketBytes = 8 << 20;
constexpr uint32_t kPollsAtSocket = 16;  ///< one in this number of polls that find packets in the inbox also reads the
                                         ///< socket
constexpr size_t kBurst = 32;
constexpr size_t kBurstsMax = 256;  ///< limit for one call, so that a fast sender cannot hold the receiver in it
constexpr uint8_t kNextHeaderUdp = 17;
constexpr uint8_t kNextHeaderInfiniBand = 0x1b;

/// The header before the payload in a datagram.
struct PacketHeader {
  uint32_t magic;
  uint32_t destination_qpn;
  uint32_t source_qpn;
  uint32_t qkey;
  uint32_t immediate;
  uint32_t flow_label;
  uint16_t pkey;
  uint16_t destination_lid;
  uint16_t source_lid;
  uint8_t has_immediate;
  uint8_t is_solicited;
  uint8_t has_grh;
  uint8_t is_ip_packet;  ///< RoCE v2
  uint8_t service_level;
  uint8_t traffic_class;
  uint8_t hop_limit;
  uint8_t unused[3];
  ibv_gid source_gid;
  ibv_gid destination_gid;
};

constexpr size_t kDatagramMax = sizeof(PacketHeader) + 2 * kPayloadMax;

bool is_mapped_ipv4(const ibv_gid& gid) {
  return gid.global.subnet_prefix == 0 && gid.raw[8] == 0 && gid.raw[9] == 0 && gid.raw[10] == 0xff &&
         gid.raw[11] == 0xff;
}

PacketHeader describe(const QueuePair& queue_pair, const SendRequest& request) {
  const Context& context = context_of(&queue_pair);
  PacketHeader header{};
  header.magic = kMagic;
  header.destination_qpn = request.remote_qpn;
  header.source_qpn = queue_pair.qp_num;
  header.qkey = (request.remote_qkey & kPrivilegedQkey) != 0 ? queue_pair.qkey : request.remote_qkey;
  header.immediate = request.immediate;
  header.has_immediate = request.has_immediate;
  header.is_solicited = request.is_solicited;
  header.pkey = find_pkey(context.settings, queue_pair.pkey_index);
  header.service_level = request.attr.sl;
  header.has_grh = request.attr.is_global;
  if (context.settings.is_infiniband) {
    header.destination_lid = request.attr.dlid;
    header.source_lid = context.lid();
  }
  if (request.attr.is_global != 0) {
    ibv_gid_type type = IBV_GID_TYPE_IB;
    find_gid(context, request.attr.grh.sgid_index, &header.source_gid, &type);
    header.destination_gid = request.attr.grh.dgid;
    header.flow_label = request.attr.grh.flow_label;
    header.traffic_class = request.attr.grh.traffic_class;
    header.hop_limit = request.attr.grh.hop_limit;
    header.is_ip_packet = type == IBV_GID_TYPE_ROCE_V2;
  }
  return header;
}

/// The 40 B before a payload: a global route header or, for RoCE v2 over IPv4, the IP header in the last 20 B.
std::array<std::byte, kGrhBytes> make_grh(const PacketHeader& header, size_t payload_bytes) {
  std::array<std::byte, kGrhBytes> bytes{};
  if (header.is_ip_packet != 0 && is_mapped_ipv4(header.source_gid)) {
    const uint16_t total_bytes = htobe16(static_cast<uint16_t>(20 + 8 + 20 + payload_bytes + 4));
    std::byte* const ip = bytes.data() + 20;
    ip[0] = std::byte{0x45};
    ip[1] = std::byte{header.traffic_class};
    memcpy(ip + 2, &total_bytes, 2);
    ip[8] = std::byte{header.hop_limit};
    ip[9] = std::byte{kNextHeaderUdp};
    memcpy(ip + 12, header.source_gid.raw + 12, 4);
    memcpy(ip + 16, header.destination_gid.raw + 12, 4);
    return bytes;
  }
  ibv_grh grh{};
  grh.version_tclass_flow = htobe32(6u << 28 | uint32_t{header.traffic_class} << 20 | header.flow_label);
  grh.paylen = htobe16(static_cast<uint16_t>(20 + payload_bytes + 4));
  grh.next_hdr = header.is_ip_packet != 0 ? kNextHeaderUdp : kNextHeaderInfiniBand;
  grh.hop_limit = header.hop_limit;
  grh.sgid = header.source_gid;
  grh.dgid = header.destination_gid;
  memcpy(bytes.data(), &grh, sizeof(grh));
  return bytes;
}

/// Copies bytes to `offset` in a receive request's buffers, which must be long enough.
void scatter(const ReceiveRequest& request, size_t offset, const std::byte* bytes, size_t size) {
  for (uint32_t i = 0; i < request.sge_count && size > 0; i++) {
    const ibv_sge& sge = request.sges[i];
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const size_t part = std::min<size_t>(size, sge.length - offset);
    memcpy(reinterpret_cast<std::byte*>(sge.addr) + offset, bytes, part);
    bytes += part;
    size -= part;
    offset = 0;
  }
}

/// True if both P_Keys name the same partition, and at least one of them is of a full member.
bool do_pkeys_agree(uint16_t one, uint16_t other) {
  constexpr uint16_t kFullMember = 0x8000;
  return ((one ^ other) & ~kFullMember) == 0 && ((one | other) & kFullMember) != 0;
}

/// Null if the packet may be placed, otherwise the counter for its loss.
std::atomic<uint64_t>* check_arrival(QueuePair& queue_pair, const PacketHeader& header, size_t payload_bytes) {
  Context& context = context_of(&queue_pair);
  const ibv_qp_state state = queue_pair.state;
  const bool can_receive = state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQE;
  if (!can_receive || context.is_dead || context.port_state() != IBV_PORT_ACTIVE || header.magic != kMagic ||
      header.destination_qpn != queue_pair.qp_num || payload_bytes > context.settings.mtu)
    return &totals.dropped_other;
  if (context.settings.is_infiniband && header.destination_lid != 0 && header.destination_lid != context.lid())
    return &totals.dropped_other;
  if (!do_pkeys_agree(header.pkey, find_pkey(context.settings, queue_pair.pkey_index))) {
    context.bad_pkeys++;
    return &totals.dropped_bad_pkey;
  }
  if (header.qkey != queue_pair.qkey) {
    context.bad_qkeys++;
    return &totals.dropped_bad_qkey;
  }
  return queue_pair.receives.has_pending() ? nullptr : &totals.dropped_no_receive;
}

void place(QueuePair& queue_pair, const PacketHeader& header, const std::byte* payload, size_t payload_bytes) {
  Context& context = context_of(&queue_pair);
  const uint64_t position = queue_pair.receives.done;
  const ReceiveRequest& request = queue_pair.receives.at(position);
  size_t buffer_bytes = 0;
  for (uint32_t i = 0; i < request.sge_count; i++) {
    if (!may_access(context, queue_pair.pd, request.sges[i], IBV_ACCESS_LOCAL_WRITE))
      return fail_receive(queue_pair, IBV_WC_LOC_PROT_ERR);
    buffer_bytes += request.sges[i].length;
  }
  if (buffer_bytes < kGrhBytes + payload_bytes) return fail_receive(queue_pair, IBV_WC_LOC_LEN_ERR);
  if (header.has_grh != 0) scatter(request, 0, make_grh(header, payload_bytes).data(), kGrhBytes);
  scatter(request, kGrhBytes, payload, payload_bytes);
  Completion completion{{}, &queue_pair, position, false};
  completion.wc.wr_id = request.wr_id;
  completion.wc.opcode = IBV_WC_RECV;
  completion.wc.byte_len = static_cast<uint32_t>(kGrhBytes + payload_bytes);
  completion.wc.imm_data = header.immediate;
  completion.wc.qp_num = queue_pair.qp_num;
  completion.wc.src_qp = header.source_qpn;
  if (header.has_grh != 0) completion.wc.wc_flags |= IBV_WC_GRH;
  if (header.has_immediate != 0) completion.wc.wc_flags |= IBV_WC_WITH_IMM;
  completion.wc.pkey_index = queue_pair.pkey_index;
  completion.wc.slid = header.source_lid;
  completion.wc.sl = header.service_level;
  queue_pair.receives.done++;
  count(totals.packets_delivered);
  complete(static_cast<CompletionQueue&>(*queue_pair.recv_cq), completion, header.is_solicited != 0);
}

void receive_one(QueuePair& queue_pair, const std::byte* datagram, size_t size) {
  PacketHeader header{};
  const size_t payload_bytes = size >= sizeof(header) ? size - sizeof(header) : 0;
  if (size >= sizeof(header)) memcpy(&header, datagram, sizeof(header));
  if (auto* const loss = check_arrival(queue_pair, header, payload_bytes))
    count(*loss);
  else
    place(queue_pair, header, datagram + sizeof(header), payload_bytes);
}

bool receive_from_inbox(QueuePair& queue_pair) {
  return queue_pair.inbox->take(
      [&queue_pair](const std::byte* datagram, size_t size) { receive_one(queue_pair, datagram, size); });
}

void receive_from_socket(QueuePair& queue_pair) {
  Context& context = context_of(&queue_pair);
  std::array<mmsghdr, kBurst> messages{};
  std::array<iovec, kBurst> buffers;
  for (size_t i = 0; i < kBurst; i++) {
    buffers[i] = {context.arrivals.data() + i * kDatagramMax, kDatagramMax};
    messages[i].msg_hdr.msg_iov = &buffers[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  for (size_t burst = 0; burst < kBurstsMax; burst++) {
    const int received = recvmmsg(queue_pair.socket, messages.data(), kBurst, MSG_DONTWAIT, nullptr);
    for (int i = 0; i < received; i++) {
      const auto at = static_cast<size_t>(i);
      receive_one(queue_pair, static_cast<const std::byte*>(buffers[at].iov_base), messages[at].msg_len);
    }
    if (received < static_cast<int>(kBurst)) return;
  }
}

bool send_datagram(int socket, const sockaddr_in& to, iovec* parts, size_t part_count) {
  msghdr message{};
  message.msg_name = const_cast<sockaddr_in*>(&to);
  message.msg_namelen = sizeof(to);
  message.msg_iov = parts;
  message.msg_iovlen = part_count;
  return sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace

bool open_socket(QueuePair& queue_pair) {
  Context& context = context_of(&queue_pair);
  queue_pair.socket = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (queue_pair.socket == -1) return false;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr = context.settings.address;
  socklen_t address_bytes = sizeof(address);
  if (bind(queue_pair.socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      getsockname(queue_pair.socket, reinterpret_cast<sockaddr*>(&address), &address_bytes) != 0) {
    const int error = errno;
    close(queue_pair.socket);
    errno = error;
    return false;
  }
  if (setsockopt(queue_pair.socket, SOL_SOCKET, SO_RCVBUFFORCE, &kSocketBytes, sizeof(kSocketBytes)) != 0)
    setsockopt(queue_pair.socket, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof(kSocketBytes));
  setsockopt(queue_pair.socket, SOL_SOCKET, SO_SNDBUFFORCE, &kSocketBytes, sizeof(kSocketBytes));
  queue_pair.qp_num = queue_pair.handle =
      static_cast<uint32_t>(context.device->index + 1) << 16 | ntohs(address.sin_port);
  queue_pair.inbox = Inbox::open(queue_pair.qp_num, context.settings.address);
  context.arrivals.resize(kBurst * kDatagramMax);
  return true;
}

void transmit(QueuePair& queue_pair, SendRequest& request) {
  Context& context = context_of(&queue_pair);
  uint64_t bytes = request.inline_bytes.size();
  for (uint32_t i = 0; i < request.sge_count; i++) bytes += request.sges[i].length;
  if (bytes >
      context.settings.mtu) {  // InfiniBand Architecture Specification, volume 1, C10-93.1.1: lost without an error
    count(totals.oversized_sends);
    return;
  }
  if (bytes > context.settings.path_mtu || context.port_state() != IBV_PORT_ACTIVE || is_packet_dropped()) {
    count(totals.dropped_other);
    return;
  }
  PacketHeader header = describe(queue_pair, request);
  std::array<iovec, kSgesMax + 2> parts;
  size_t part_count = 0;
  parts[part_count++] = {&header, sizeof(header)};
  if (request.is_inline) parts[part_count++] = {request.inline_bytes.data(), request.inline_bytes.size()};
  for (uint32_t i = 0; i < request.sge_count; i++)
    parts[part_count++] = {reinterpret_cast<void*>(request.sges[i].addr), request.sges[i].length};
  std::vector<std::byte> copy;
  if (const size_t corrupted = corrupted_byte(); corrupted < bytes) [[unlikely]] {
    for (size_t i = 1; i < part_count; i++) {
      const auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      copy.insert(copy.end(), from, from + parts[i].iov_len);
    }
    copy[corrupted] ^= std::byte{0x10};
    parts[1] = {copy.data(), copy.size()};
    part_count = 2;
  }
  count(totals.packets_sent);
  if (Inbox::offer(request.remote_qpn, request.destination.sin_addr, {parts.data(), part_count})) return;
  request.destination.sin_port = htobe16(static_cast<uint16_t>(request.remote_qpn));
  send_datagram(queue_pair.socket, request.destination, parts.data(), part_count);  // a failure is a lost packet
}

uint64_t checksum(const SendRequest& request) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto add = [&hash](const std::byte* bytes, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ static_cast<uint8_t>(bytes[i])) * 0x100000001b3;
  };
  add(request.inline_bytes.data(), request.inline_bytes.size());
  for (uint32_t i = 0; i < request.sge_count; i++)
    add(reinterpret_cast<const std::byte*>(request.sges[i].addr), request.sges[i].length);
  return hash;
}

void receive_arrivals(QueuePair& queue_pair) {
  receive_from_inbox(queue_pair);
  receive_from_socket(queue_pair);
}

void receive_some(QueuePair& queue_pair) {
  if (!receive_from_inbox(queue_pair) || ++queue_pair.polls % kPollsAtSocket == 0) receive_from_socket(queue_pair);
}

bool inject_packet(int index, uint32_t qp_num, uint32_t source_qp_num, uint32_t qkey, const void* payload,
                   size_t size) {
  const Settings settings = read_settings(index);
  PacketHeader header{};
  header.magic = kMagic;
  header.destination_qpn = qp_num;
  header.source_qpn = source_qp_num;
  header.qkey = qkey;
  header.pkey = find_pkey(settings, 0);
  header.has_grh = !settings.is_infiniband;
  header.is_ip_packet = header.has_grh;
  header.source_gid.raw[10] = header.source_gid.raw[11] = 0xff;
  memcpy(header.source_gid.raw + 12, &settings.address, sizeof(settings.address));
  header.destination_gid = header.source_gid;
  const sockaddr_in to{AF_INET, htobe16(static_cast<uint16_t>(qp_num)), settings.address, {}};
  std::array<iovec, 2> parts{iovec{&header, sizeof(header)}, iovec{const_cast<void*>(payload), size}};
  const int sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (sender == -1) return false;
  const bool is_sent = send_datagram(sender, to, parts.data(), parts.size());
  close(sender);
  return is_sent;
}

}  // namespace software_verbs
