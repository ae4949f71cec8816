#include "rdma/port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/descriptor.h"
#include "base/status_text.h"

namespace tern::rdma {

namespace {

constexpr uint32_t kGidIndexes = 256;  ///< the number of indexes that ibv_global_route can hold

/// Texts name the transport, because several transports may use the same device.
class Refusal {
 public:
  explicit Refusal(std::string_view transport) : transport_(transport) {}

  Status operator()(const char* otherwise, std::initializer_list<std::string_view> parts) const {
    std::vector<std::string_view> all = {transport_, ": "};
    all.insert(all.end(), parts);
    return base::status_of(Code::kUnavailable, otherwise, all);
  }

 private:
  std::string_view transport_;
};

/// Returns `ip` as a GID. IPv4 is mapped (RoCE v2, InfiniBand Architecture annex A17).
std::optional<Gid> gid_of(std::string_view ip) {
  const auto address = base::SocketAddress::parse_ip(ip);
  if (!address || address->is_wildcard()) return std::nullopt;
  Gid gid{};
  const auto bytes = address->ip();
  if (bytes.size() == 4) gid[10] = gid[11] = std::byte{0xff};
  std::copy(bytes.begin(), bytes.end(), gid.end() - static_cast<ptrdiff_t>(bytes.size()));
  return gid;
}

bool is_link_local(const Gid& gid) {
  return gid[0] == std::byte{0xfe} && (gid[1] & std::byte{0xc0}) == std::byte{0x80};
}

struct FoundGid {
  uint32_t index;
  Gid gid;
  Fabric fabric;
  uint32_t rank;  ///< the GID of the highest rank is taken
};

/// Returns the GID of the highest rank, or the one at `choice.gid_index` if the program has set it. Returns nothing if
/// there is no such GID.
std::optional<FoundGid> find_gid(ibv_context* context, uint8_t port, const ibv_port_attr& attributes,
                                 const PortChoice& choice) {
  const bool is_infiniband = attributes.link_layer != IBV_LINK_LAYER_ETHERNET;
  const std::optional<Gid> wanted = gid_of(choice.host);
  std::optional<FoundGid> best;
  const auto entries = static_cast<uint32_t>(std::max(attributes.gid_tbl_len, 0));
  for (uint32_t index = 0; index < std::min(entries, kGidIndexes); ++index) {
    if (choice.gid_index != PortChoice::kAny && index != choice.gid_index) continue;
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, index, &entry, 0) != 0) continue;
    FoundGid found{index, {}, Fabric::kInfiniband, 1};
    std::memcpy(found.gid.data(), entry.gid.raw, found.gid.size());
    if (!is_infiniband) {
      found.fabric = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? Fabric::kRoce2 : Fabric::kRoce1;
      if (found.fabric == Fabric::kRoce2) found.rank += 1;
      if (!is_link_local(found.gid)) found.rank += 2;
    }
    if (wanted && *wanted == found.gid) found.rank += 4;
    if (!best || found.rank > best->rank) best = found;
  }
  return best;
}

/// Returns the P_Key table's entry, in the host's byte order. Nothing: there is none, or the query has failed, as where
/// descriptors are short.
std::optional<uint16_t> partition_at(ibv_context* context, uint8_t port, uint32_t index) {
  __be16 key = 0;
  if (ibv_query_pkey(context, port, static_cast<int>(index), &key) != 0) return std::nullopt;
  return be16toh(key);
}

struct FoundPartition {
  uint32_t index;
  uint16_t key;
};
std::optional<FoundPartition> find_partition(ibv_context* context, uint8_t port, const ibv_port_attr& attributes,
                                             uint32_t wanted) {
  std::optional<FoundPartition> limited;
  for (uint32_t index = 0; index < attributes.pkey_tbl_len; ++index) {
    if (wanted != PortChoice::kAny && index != wanted) continue;
    const uint16_t key = partition_at(context, port, index).value_or(0);  // 0 is no partition's P_Key
    if ((key & ~kFullMember) == 0) continue;
    if ((key & kFullMember) != 0) return FoundPartition{index, key};
    if (!limited) limited = FoundPartition{index, key};
  }
  return limited;
}

/// A search for the device with the best port.
class Search {
 public:
  Search(Refusal refuse, const PortChoice& choice) : refuse_(refuse), choice_(choice) {}

  /// Takes the device's context if it has the best port so far.
  void look_at(ibv_device* device) {
    const char* name = ibv_get_device_name(device);
    if (!choice_.device.empty() && choice_.device != name) return;
    is_known_ = true;
    if (device->transport_type != IBV_TRANSPORT_IB) {
      return note(
          1, "the device has no unreliable datagrams",
          {"the device ", name, " has no unreliable datagrams (iWARP and usNIC have none): use another device"});
    }
    Context context(ibv_open_device(device));
    if (context == nullptr) {
      return note(4, "the device cannot be opened",
                  {"the device ", name, " cannot be opened (", std::strerror(errno),
                   "): this user must be allowed to read and write /dev/infiniband/uverbs*"});
    }
    ibv_device_attr limits{};
    if (ibv_query_device(context.get(), &limits) != 0) {
      return note(4, "the device does not answer", {"the device ", name, " does not answer: see the kernel's log"});
    }
    if (choice_.port > limits.phys_port_cnt) {
      return note(4, "the device has no such port",
                  {"the device ", name, " has no port ", std::to_string(choice_.port), ": its ports are 1 to ",
                   std::to_string(limits.phys_port_cnt)});
    }
    std::optional<Port> best;
    uint32_t rank = best_rank_;
    for (uint32_t number = 1; number <= limits.phys_port_cnt; ++number) {
      if (choice_.port != 0 && choice_.port != number) continue;
      look_at_port(context.get(), name, static_cast<uint8_t>(number), &best, &rank);
    }
    if (!best) return;
    best_rank_ = rank;
    found_ = OpenedPort{std::move(context), nullptr, *best};
  }

  Result<OpenedPort> take() {
    if (found_.context != nullptr) return std::move(found_);
    if (!is_known_) {
      return refuse_("there is no such RDMA device",
                     {"there is no RDMA device ", choice_.device, ": ibv_devices lists those of this machine"});
    }
    return why_;
  }

 private:
  void look_at_port(ibv_context* context, const char* name, uint8_t number, std::optional<Port>* best, uint32_t* rank) {
    const std::string port = std::to_string(number);
    ibv_port_attr attributes{};
    if (ibv_query_port(context, number, &attributes) != 0) {
      return note(2, "the port does not answer",
                  {"port ", port, " of ", name, " does not answer: see the kernel's log"});
    }
    if (attributes.state != IBV_PORT_ACTIVE) {
      return note(2, "the port is not active",
                  {"port ", port, " of ", name, " is not active (", ibv_port_state_str(attributes.state),
                   "): check the cable, the network interface, and on InfiniBand the subnet manager"});
    }
    const auto gid = find_gid(context, number, attributes, choice_);
    if (!gid) {
      return note(3, "the port has no such GID",
                  {"port ", port, " of ", name, " has no GID ",
                   choice_.gid_index == PortChoice::kAny ? "at all" : std::to_string(choice_.gid_index),
                   ": give its network interface an address, and see ibv_devinfo -v for the indexes"});
    }
    const auto partition = find_partition(context, number, attributes, choice_.partition_index);
    if (!partition) {
      return note(3, "the port has no such P_Key",
                  {"port ", port, " of ", name, " has no P_Key at index ",
                   choice_.partition_index == PortChoice::kAny ? "0" : std::to_string(choice_.partition_index),
                   ": /sys/class/infiniband/", name, "/ports/", port, "/pkeys lists them"});
    }
    if (gid->rank <= *rank) return;
    *rank = gid->rank;
    *best = Port{.number = number,
                 .fabric = gid->fabric,
                 .lid = attributes.lid,
                 .gid_index = static_cast<uint16_t>(gid->index),
                 .gid = gid->gid,
                 .partition_index = static_cast<uint16_t>(partition->index),
                 .partition = partition->key,
                 .mtu_bytes = 128u << attributes.active_mtu,
                 .bytes_per_sec = bytes_per_sec_of(attributes),
                 .needs_global_route = (attributes.flags & IBV_QPF_GRH_REQUIRED) != 0};
  }

  /// Keeps, of all reasons why there is no port, the reason that is nearest to a usable port.
  void note(uint32_t weight, const char* otherwise, std::initializer_list<std::string_view> parts) {
    if (weight <= weight_) return;
    weight_ = weight;
    why_ = refuse_(otherwise, parts);
  }

  Refusal refuse_;
  const PortChoice& choice_;
  OpenedPort found_{};
  uint32_t best_rank_ = 0;
  bool is_known_ = false;
  uint32_t weight_ = 0;
  Status why_{Code::kUnavailable, "no RDMA device has a port"};
};

}  // namespace

std::string_view name_of(Fabric fabric) {
  switch (fabric) {
    case Fabric::kInfiniband:
      return "InfiniBand";
    case Fabric::kRoce1:
      return "RoCE v1";
    case Fabric::kRoce2:
      return "RoCE v2";
  }
  return "an unknown fabric";
}

/// ibv_port_attr has the codes of InfiniBand's PortInfo: LinkSpeedActive and LinkWidthActive.
uint64_t bytes_per_sec_of(const ibv_port_attr& attributes) {
  const auto megabits_a_lane = [](uint8_t speed) -> uint64_t {
    switch (speed) {
      case 1:
        return 2'000;  // SDR, DDR and QDR send 8 of 10 bits
      case 2:
        return 4'000;
      case 4:
        return 8'000;
      case 8:
        return 10'000;
      case 16:
        return 14'000;
      case 32:
        return 25'000;
      case 64:
        return 50'000;
      default:
        return speed >= 128 ? 100'000 : 2'000;
    }
  };
  const auto lanes = [](uint8_t width) -> uint64_t {
    switch (width) {
      case 2:
        return 4;
      case 4:
        return 8;
      case 8:
        return 12;
      case 16:
        return 2;
      default:
        return 1;
    }
  };
  return megabits_a_lane(attributes.active_speed) * lanes(attributes.active_width) * (1'000'000 / 8);
}

Result<OpenedPort> open_port(std::string_view transport, const PortChoice& choice) {
  const Refusal refuse(transport);
  int count = 0;
  const DeviceList devices(ibv_get_device_list(&count));
  if (devices == nullptr || count == 0) {
    return refuse("this machine has no RDMA device",
                  {"this machine has no RDMA device: load the driver of the NIC, or make a software device: "
                   "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0"});
  }
  Search search(refuse, choice);
  for (int i = 0; i < count; ++i) search.look_at(devices.get()[i]);
  auto opened = search.take();
  if (!opened.ok()) return opened;
  opened->domain.reset(ibv_alloc_pd(opened->context.get()));
  if (opened->domain == nullptr || !base::set_nonblocking(opened->context->async_fd)) {
    return refuse("the device refused a protection domain",
                  {"the device refused a protection domain (", std::strerror(errno), "): use fewer endpoints"});
  }
  return opened;
}

bool has_other_address(ibv_context* context, const Port& port) {
  ibv_port_attr attributes{};
  if (ibv_query_port(context, port.number, &attributes) != 0 || attributes.state != IBV_PORT_ACTIVE) return false;
  if (port.fabric == Fabric::kInfiniband) {
    if (attributes.lid != 0 && attributes.lid != port.lid) return true;
    const auto partition = partition_at(context, port.number, port.partition_index);
    if (partition && *partition != port.partition) return true;
  }
  ibv_gid_entry entry{};
  if (ibv_query_gid_ex(context, port.number, port.gid_index, &entry, 0) != 0) return false;
  return std::memcmp(entry.gid.raw, port.gid.data(), port.gid.size()) != 0;
}

}  // namespace tern::rdma
