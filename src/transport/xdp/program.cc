#include "transport/xdp/program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "frames/layout.h"

namespace tern::transport::xdp {

namespace {

using frames::network_order;

// ---- The instructions

/// The targets of jumps.
enum class Label : uint8_t { kNone, kIpv6, kLookUp, kForeign, kCount, kPass, kExit };

struct Line {
  bpf_insn instruction{};
  Label to = Label::kNone;  ///< of a jump
  Label at = Label::kNone;  ///< the name of this line
};

/// The registers, which comments call r0 to r10, as the kernel does.
enum Register : uint8_t { kR0, kR1, kR2, kR3, kR4, kR5, kR6, kR7, kR8, kR9, kR10 };

constexpr bpf_insn make(int code, uint8_t to, uint8_t from, size_t offset, int64_t value) {
  bpf_insn instruction{};
  instruction.code = static_cast<__u8>(code);
  instruction.dst_reg = to & 0xf;
  instruction.src_reg = from & 0xf;
  instruction.off = static_cast<__s16>(offset);
  instruction.imm = static_cast<__s32>(value);
  return instruction;
}

constexpr Line at(Label name, Line line) {
  line.at = name;
  return line;
}
/// to = *(from + offset), of `size` BPF_B (1 byte), BPF_H (2), BPF_W (4) or BPF_DW (8); the rest of `to` becomes 0.
constexpr Line load(int size, Register to, Register from, size_t offset) {
  return {make(BPF_LDX | BPF_MEM | size, to, from, offset, 0)};
}
/// *(frame + offset) = from. Offsets from r10, the end of the stack, are below 0.
constexpr Line store(int size, Register to, int offset, Register from) {
  return {make(BPF_STX | BPF_MEM | size, to, from, static_cast<size_t>(offset), 0)};
}
constexpr Line move(Register to, Register from) { return {make(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0)}; }
constexpr Line set(Register to, int64_t value) { return {make(BPF_ALU64 | BPF_MOV | BPF_K, to, 0, 0, value)}; }
constexpr Line add(Register to, int64_t value) { return {make(BPF_ALU64 | BPF_ADD | BPF_K, to, 0, 0, value)}; }
constexpr Line mask(Register to, int64_t bits) { return {make(BPF_ALU64 | BPF_AND | BPF_K, to, 0, 0, bits)}; }
/// to = the address of a map. kSecondHalf must follow, because the instruction takes two lines.
constexpr Line load_map(Register to, Map map) {
  return {make(BPF_LD | BPF_IMM | BPF_DW, to, BPF_PSEUDO_MAP_FD, 0, static_cast<int>(map))};
}
constexpr Line kSecondHalf = {};
constexpr Line jump(Label to) { return {make(BPF_JMP | BPF_JA, 0, 0, 0, 0), to}; }
constexpr Line jump_if(Register one, int condition, int64_t value, Label to) {
  return {make(BPF_JMP | condition | BPF_K, one, 0, 0, value), to};
}
constexpr Line jump_if(Register one, int condition, Register other, Label to) {
  return {make(BPF_JMP | condition | BPF_X, one, other, 0, 0), to};
}
/// r0 = the helper's result. Its arguments are in r1 to r5, which are lost.
constexpr Line call(int helper) { return {make(BPF_JMP | BPF_CALL, 0, 0, 0, helper)}; }
constexpr Line leave() { return {make(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)}; }

// Offsets in a frame without a VLAN tag.
constexpr size_t kIp = frames::kEthernetBytes;
constexpr size_t kUdp4 = kIp + frames::kIpv4Bytes, kUdp6 = kIp + frames::kIpv6Bytes;
constexpr int kEnd4 = kUdp4 + frames::kUdpBytes, kEnd6 = kUdp6 + frames::kUdpBytes;

// The stack: the key of the map of ports, and a number of 4 bytes as the key of the other maps.
constexpr int kKey = -24, kNumber = -4;
constexpr int kKeyPort = kKey + static_cast<int>(offsetof(PortKey, port));
constexpr int kKeyType = kKey + static_cast<int>(offsetof(PortKey, ether_type));
static_assert(kKey + int{sizeof(PortKey)} == kNumber);

/// r6: the context; r7: the port's owner; r8: the receive queue.
constexpr Line kLines[] = {
    // The frame's bounds, and its type.
    move(kR6, kR1),                                     // keep the context, because calls take r1
    load(BPF_W, kR2, kR6, offsetof(xdp_md, data)),      // r2: first byte of the frame
    load(BPF_W, kR3, kR6, offsetof(xdp_md, data_end)),  // r3: behind its last byte
    move(kR4, kR2),                                     // r4: the first byte
    add(kR4, kEnd4),                                    // r4: behind the headers over IPv4, the shortest
    jump_if(kR4, BPF_JGT, kR3, Label::kPass),           // a shorter frame is no UDP datagram
    load(BPF_H, kR5, kR2, frames::ethernet::kType),     // r5: the EtherType, kept for the key
    jump_if(kR5, BPF_JEQ, network_order(frames::kEtherTypeIpv6), Label::kIpv6),  // IPv6
    jump_if(kR5, BPF_JNE, network_order(frames::kEtherTypeIpv4), Label::kPass),  // ARP, a VLAN tag, anything else

    // IPv4.
    load(BPF_B, kR0, kR2, kIp + frames::ipv4::kVersion),           // version and header length
    jump_if(kR0, BPF_JNE, 0x45, Label::kPass),                     // options, or not IPv4
    load(BPF_H, kR0, kR2, kIp + frames::ipv4::kFragment),          // fragment bits and offset
    mask(kR0, network_order(frames::kFragmentBits)),               // without "don't fragment"
    jump_if(kR0, BPF_JNE, 0, Label::kPass),                        // the kernel puts fragments together
    load(BPF_B, kR0, kR2, kIp + frames::ipv4::kProtocol),          // r0: what is behind the header
    jump_if(kR0, BPF_JNE, frames::kProtocolUdp, Label::kPass),     // TCP, ICMP
    load(BPF_W, kR0, kR2, kIp + frames::ipv4::kDestination),       // r0: the address
    store(BPF_W, kR10, kKey, kR0),                                 // key.ip: the address
    set(kR0, 0),                                                   // r0: zeros
    store(BPF_W, kR10, kKey + 4, kR0),                             // key.ip: 4 zeros
    store(BPF_DW, kR10, kKey + 8, kR0),                            // key.ip: 8 zeros
    load(BPF_H, kR0, kR2, kUdp4 + frames::udp::kDestinationPort),  // r0: the port
    jump(Label::kLookUp),                                          // on as for IPv6

    // IPv6.
    at(Label::kIpv6, add(kR4, kEnd6 - kEnd4)),                     // r4: behind the headers over IPv6
    jump_if(kR4, BPF_JGT, kR3, Label::kPass),                      // a shorter frame is no UDP datagram
    load(BPF_B, kR0, kR2, kIp + frames::ipv6::kVersion),           // version and half of the traffic class
    mask(kR0, 0xf0),                                               // r0: the version
    jump_if(kR0, BPF_JNE, 0x60, Label::kPass),                     // not IPv6
    load(BPF_B, kR0, kR2, kIp + frames::ipv6::kNextHeader),        // r0: what is behind the header
    jump_if(kR0, BPF_JNE, frames::kProtocolUdp, Label::kPass),     // an extension header, a fragment, TCP
    load(BPF_DW, kR0, kR2, kIp + frames::ipv6::kDestination),      // r0: the first half of the address
    store(BPF_DW, kR10, kKey, kR0),                                // key.ip: the first half of the address
    load(BPF_DW, kR0, kR2, kIp + frames::ipv6::kDestination + 8),  // r0: its second half
    store(BPF_DW, kR10, kKey + 8, kR0),                            // key.ip: its second half
    load(BPF_H, kR0, kR2, kUdp6 + frames::udp::kDestinationPort),  // r0: the port

    // The port's owner.
    at(Label::kLookUp, store(BPF_H, kR10, kKeyPort, kR0)),  // key.port
    store(BPF_H, kR10, kKeyType, kR5),                      // key.ether_type: the key is complete
    load_map(kR1, Map::kPorts), kSecondHalf,                // first argument: the map
    move(kR2, kR10),                                        // r2: the end of the stack
    add(kR2, kKey),                                         // second argument: the key
    call(BPF_FUNC_map_lookup_elem),                         // r0: the entry, or null
    jump_if(kR0, BPF_JEQ, 0, Label::kPass),                 // no process of tern has this port
    load(BPF_DW, kR7, kR0, offsetof(PortEntry, owner)),     // r7: its owner

    // The queue's owner.
    load(BPF_W, kR8, kR6, offsetof(xdp_md, rx_queue_index)),  // r8: the queue
    store(BPF_W, kR10, kNumber, kR8),                         // the key: the queue
    load_map(kR1, Map::kQueues), kSecondHalf,                 // first argument: the map
    move(kR2, kR10),                                          // r2: the end of the stack
    add(kR2, kNumber),                                        // second argument: the queue
    call(BPF_FUNC_map_lookup_elem),                           // r0: its owner's place, or null
    jump_if(kR0, BPF_JEQ, 0, Label::kForeign),                // a queue beyond the map
    load(BPF_DW, kR1, kR0, 0),                                // r1: its owner, 0 for none
    jump_if(kR1, BPF_JNE, kR7, Label::kForeign),              // the port is another process's

    // To the socket.
    load_map(kR1, Map::kSockets), kSecondHalf,          // first argument: the map
    move(kR2, kR8),                                     // second argument: the queue
    set(kR3, XDP_PASS),                                 // third argument: the result without a socket
    call(BPF_FUNC_redirect_map),                        // r0: XDP_REDIRECT, or that
    jump_if(kR0, BPF_JEQ, XDP_REDIRECT, Label::kExit),  // the frame goes to the socket
    set(kR1, static_cast<int>(offsetof(Counts, no_socket) / sizeof(uint64_t))),  // r1: the counter
    jump(Label::kCount),                                                         // count it

    // To the kernel, though the port has an owner.
    at(Label::kForeign, set(kR1, static_cast<int>(offsetof(Counts, foreign_queue) / sizeof(uint64_t)))),
    at(Label::kCount, store(BPF_W, kR10, kNumber, kR1)),  // the counter
    load_map(kR1, Map::kCounts), kSecondHalf,             // first argument: the map
    move(kR2, kR10),                                      // r2: the end of the stack
    add(kR2, kNumber),                                    // second argument: the counter
    call(BPF_FUNC_map_lookup_elem),                       // r0: this CPU's value; never null
    jump_if(kR0, BPF_JEQ, 0, Label::kPass),               // the verifier wants this
    load(BPF_DW, kR1, kR0, 0),                            // r1: the count
    add(kR1, 1),                                          // no other program runs on this CPU meanwhile
    store(BPF_DW, kR0, 0, kR1),                           // the new count

    at(Label::kPass, set(kR0, XDP_PASS)),  // to the kernel
    at(Label::kExit, leave()),             // the result is in r0
};

constexpr size_t kInstructions = std::size(kLines);

consteval size_t place_of(Label name) {
  for (size_t i = 0; i < kInstructions; i++) {
    if (kLines[i].at == name) return i;
  }
  throw "a jump leads nowhere";  // it does not compile then
}

/// Jumps count from the instruction behind them.
consteval std::array<bpf_insn, kInstructions> link_jumps() {
  constexpr std::array kPlaces = {size_t{0},
                                  place_of(Label::kIpv6),
                                  place_of(Label::kLookUp),
                                  place_of(Label::kForeign),
                                  place_of(Label::kCount),
                                  place_of(Label::kPass),
                                  place_of(Label::kExit)};
  std::array<bpf_insn, kInstructions> linked{};
  for (size_t i = 0; i < kInstructions; i++) {
    linked[i] = kLines[i].instruction;
    if (kLines[i].to != Label::kNone)
      linked[i].off = static_cast<__s16>(kPlaces[static_cast<size_t>(kLines[i].to)] - i - 1);
  }
  return linked;
}

constexpr auto kLinked = link_jumps();

// ---- The maps

struct MapShape {
  bpf_map_type type;
  const char* name;
  uint32_t key_bytes;
  uint32_t value_bytes;
  uint32_t entries;
  uint32_t flags;
};

constexpr std::array<MapShape, kMaps> kShapes = {{
    {BPF_MAP_TYPE_HASH, "tern_ports", sizeof(PortKey), sizeof(PortEntry), kPortsMax, BPF_F_NO_PREALLOC},
    {BPF_MAP_TYPE_ARRAY, "tern_queues", sizeof(uint32_t), sizeof(uint64_t), kQueuesMax, 0},
    {BPF_MAP_TYPE_XSKMAP, "tern_sockets", sizeof(uint32_t), sizeof(int), kQueuesMax, 0},
    {BPF_MAP_TYPE_PERCPU_ARRAY, "tern_counts", sizeof(uint32_t), sizeof(uint64_t), sizeof(Counts) / sizeof(uint64_t),
     0},
}};

bool is_of_shape(const bpf_map_info& info, const MapShape& shape) {
  return info.type == shape.type && info.key_size == shape.key_bytes && info.value_size == shape.value_bytes &&
         info.max_entries == shape.entries && std::strncmp(info.name, shape.name, sizeof(info.name)) == 0;
}

}  // namespace

PortKey key_of(const base::SocketAddress& address) {
  PortKey key{};
  const auto ip = address.ip();
  std::memcpy(key.ip.data(), ip.data(), ip.size());
  key.port = htons(address.port());
  key.ether_type = network_order(address.family() == AF_INET6 ? frames::kEtherTypeIpv6 : frames::kEtherTypeIpv4);
  return key;
}

PortKey key_of_owner(uint64_t owner) {
  PortKey key{};
  std::memcpy(key.ip.data(), &owner, sizeof(owner));
  return key;
}

std::vector<bpf_insn> instructions(const std::array<int, kMaps>& maps) {
  std::vector<bpf_insn> result(kLinked.begin(), kLinked.end());
  for (bpf_insn& instruction : result) {
    if (instruction.code == (BPF_LD | BPF_IMM | BPF_DW)) instruction.imm = maps[static_cast<size_t>(instruction.imm)];
  }
  return result;
}

int Program::load() {
  std::array<int, kMaps> maps{};
  for (size_t i = 0; i < kMaps; i++) {
    const MapShape& shape = kShapes[i];
    LIBBPF_OPTS(bpf_map_create_opts, options, .map_flags = shape.flags);
    maps_[i] = base::Descriptor(
        bpf_map_create(shape.type, shape.name, shape.key_bytes, shape.value_bytes, shape.entries, &options));
    if (!maps_[i]) return errno;
    maps[i] = maps_[i].get();
  }
  const auto code = instructions(maps);
  program_ =
      base::Descriptor(bpf_prog_load(BPF_PROG_TYPE_XDP, kProgramName, "Apache-2.0", code.data(), code.size(), nullptr));
  return program_ ? 0 : errno;
}

int Program::open(uint32_t id) {
  program_ = base::Descriptor(bpf_prog_get_fd_by_id(id));
  if (!program_) return errno;
  std::array<__u32, kMaps> ids{};
  bpf_prog_info info{};
  info.nr_map_ids = kMaps;
  info.map_ids = reinterpret_cast<uintptr_t>(ids.data());
  if (const int error = read_info(program_.get(), &info); error != 0) return error;
  if (info.nr_map_ids != kMaps) return EINVAL;
  for (const __u32 map_id : ids) {
    base::Descriptor map(bpf_map_get_fd_by_id(map_id));
    bpf_map_info shape{};
    if (!map) return errno;
    if (const int error = read_info(map.get(), &shape); error != 0) return error;
    const auto found = std::ranges::find_if(kShapes, [&](const MapShape& own) { return is_of_shape(shape, own); });
    if (found == kShapes.end()) return EINVAL;
    maps_[static_cast<size_t>(found - kShapes.begin())] = std::move(map);
  }
  return std::ranges::all_of(maps_, [](const base::Descriptor& map) { return static_cast<bool>(map); }) ? 0 : EINVAL;
}

Program::Identity Program::identity() const {
  bpf_prog_info info{};
  Identity identity;
  if (read_info(program_.get(), &info) != 0) return identity;
  identity.name.assign(info.name, strnlen(info.name, sizeof(info.name)));
  std::ranges::copy(info.tag, identity.tag.begin());
  identity.id = info.id;
  return identity;
}

int Program::find_port(const PortKey& key, PortEntry* entry) const {
  return bpf_map_lookup_elem(map(Map::kPorts), &key, entry) == 0 ? 0 : errno;
}

int Program::set_port(const PortKey& key, const PortEntry& entry) const {
  return bpf_map_update_elem(map(Map::kPorts), &key, &entry, BPF_ANY) == 0 ? 0 : errno;
}

void Program::remove_port(const PortKey& key) const { (void)bpf_map_delete_elem(map(Map::kPorts), &key); }

uint64_t Program::queue_owner(uint32_t queue) const {
  uint64_t owner = 0;
  return bpf_map_lookup_elem(map(Map::kQueues), &queue, &owner) == 0 ? owner : 0;
}

int Program::set_queue_owner(uint32_t queue, uint64_t owner) const {
  return bpf_map_update_elem(map(Map::kQueues), &queue, &owner, BPF_ANY) == 0 ? 0 : errno;
}

Counts Program::counts() const {
  std::vector<uint64_t> of_cpus(static_cast<size_t>(std::max(libbpf_num_possible_cpus(), 1)));
  const auto sum = [&](uint32_t counter) {
    uint64_t total = 0;
    if (bpf_map_lookup_elem(map(Map::kCounts), &counter, of_cpus.data()) != 0) return total;
    for (const uint64_t value : of_cpus) total += value;
    return total;
  };
  return {sum(offsetof(Counts, foreign_queue) / sizeof(uint64_t)), sum(offsetof(Counts, no_socket) / sizeof(uint64_t))};
}

std::vector<PortKey> Program::port_keys() const {
  std::vector<PortKey> keys;
  PortKey next{};
  for (int more = bpf_map_get_next_key(map(Map::kPorts), nullptr, &next); more == 0 && keys.size() < kPortsMax;
       more = bpf_map_get_next_key(map(Map::kPorts), &keys.back(), &next)) {
    keys.push_back(next);
  }
  return keys;
}

}  // namespace tern::transport::xdp
