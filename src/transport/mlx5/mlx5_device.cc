#include "transport/mlx5/mlx5_device.h"

#include <infiniband/mlx5dv.h>
#include <net/if.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/descriptor.h"
#include "base/folder.h"
#include "ethernet/setup.h"
#include "rdma/overflowed_queue.h"
#include "rdma/port.h"

namespace tern::transport {

namespace {

constexpr uint32_t kGidIndexes = 256;  ///< number of entries of a port's GID table that are searched

Status refuse(const char* otherwise, std::initializer_list<std::string_view> parts) {
  return ethernet::status_of(kMlx5Names, Code::kUnavailable, otherwise, parts);
}

/// Returns the network interface of a device's port: the interface of its GIDs, or if RoCE is switched off, the one in
/// sysfs. 0: none.
uint32_t interface_index_of(ibv_context* context, uint8_t port, const ibv_port_attr& attributes) {
  const auto entries = static_cast<uint32_t>(std::max(attributes.gid_tbl_len, 0));
  for (uint32_t i = 0; i < std::min(entries, kGidIndexes); ++i) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, i, &entry, 0) != 0 || entry.ndev_ifindex == 0) continue;
    auto interface = neighbours::interface_by_index(entry.ndev_ifindex);
    if (!interface.ok()) continue;
    return interface->parent != 0 ? interface->parent : interface->index;
  }
  const std::string path = std::string(context->device->ibdev_path) + "/device/net";
  const base::Folder folder(opendir(path.c_str()));
  if (folder == nullptr) return 0;
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] != '.') return if_nametoindex(entry->d_name);
  }
  return 0;
}

/// All devices, and the best of their ports.
class Search {
 public:
  explicit Search(const Mlx5Choice& choice) : choice_(choice) {}

  void look_at(ibv_device* device) {
    const char* const name = ibv_get_device_name(device);
    if (!choice_.device.empty() && choice_.device != name) return;
    is_known_ = true;
    if (!mlx5dv_is_supported(device)) {
      return note(1, "the device is not an mlx5 device",
                  {"the device ", name,
                   " is not an mlx5 device (ConnectX-4 or newer): use such a device, or another transport"});
    }
    Mlx5Device found;
    found.context.reset(ibv_open_device(device));
    if (found.context == nullptr) {
      return note(4, "the device cannot be opened",
                  {"the device ", name, " cannot be opened (", std::strerror(errno),
                   "): this user must be allowed to read and write /dev/infiniband/uverbs*"});
    }
    ibv_device_attr_ex limits{};
    mlx5dv_context strides{};
    strides.comp_mask = MLX5DV_CONTEXT_MASK_STRIDING_RQ;
    if (ibv_query_device_ex(found.context.get(), nullptr, &limits) != 0 ||
        mlx5dv_query_device(found.context.get(), &strides) != 0) {
      return note(4, "the device does not answer", {"the device ", name, " does not answer: see the kernel's log"});
    }
    if (!take_strides(strides, &found)) {
      return note(4, "the device has no strided receive queues",
                  {"the device ", name,
                   " has no strided receive queues for raw packets: use a ConnectX-4 Lx or newer, with new firmware"});
    }
    found.has_checksums = (limits.raw_packet_caps & IBV_RAW_PACKET_CAP_IP_CSUM) != 0;
    look_at_ports(name, limits.orig_attr.phys_port_cnt, std::move(found));
  }

  Result<Mlx5Device> take() {
    if (found_.context != nullptr) return std::move(found_);
    if (is_known_) return why_;
    return refuse("there is no such RDMA device",
                  {"there is no RDMA device ", choice_.device, ": ibv_devices lists those of this machine"});
  }

 private:
  static bool take_strides(const mlx5dv_context& context, Mlx5Device* found) {
    constexpr uint32_t kLog = rdma::OverflowedQueue::kStridesPerDescriptorLog;
    const mlx5dv_striding_rq_caps& caps = context.striding_rq_caps;
    found->stride_bytes_min = 1u << std::min(caps.min_single_stride_log_num_of_bytes, 31u);
    found->stride_bytes_max = 1u << std::min(caps.max_single_stride_log_num_of_bytes, 31u);
    return (context.comp_mask & MLX5DV_CONTEXT_MASK_STRIDING_RQ) != 0 &&
           (caps.supported_qpts & 1u << IBV_QPT_RAW_PACKET) != 0 && caps.min_single_wqe_log_num_of_strides <= kLog &&
           kLog <= caps.max_single_wqe_log_num_of_strides;
  }

  void look_at_ports(std::string_view name, uint32_t ports, Mlx5Device found) {
    uint32_t rank = best_rank_;
    for (uint32_t number = 1; number <= ports; ++number) {
      look_at_port(name, static_cast<uint8_t>(number), &found, &rank);
    }
    if (rank == best_rank_) return;
    best_rank_ = rank;
    found_ = std::move(found);
  }

  void look_at_port(std::string_view name, uint8_t number, Mlx5Device* found, uint32_t* best) {
    const std::string port = std::to_string(number);
    ibv_port_attr attributes{};
    if (ibv_query_port(found->context.get(), number, &attributes) != 0) {
      return note(2, "the port does not answer",
                  {"port ", port, " of ", name, " does not answer: see the kernel's log"});
    }
    if (attributes.link_layer != IBV_LINK_LAYER_ETHERNET) {
      return note(2, "the port is not an Ethernet port",
                  {"port ", port, " of ", name, " is an InfiniBand port: use the verbs transport"});
    }
    const std::string device = "port " + port + " of " + std::string(name);
    auto interface =
        ethernet::find_interface(kMlx5Names, device, interface_index_of(found->context.get(), number, attributes));
    if (!interface.ok()) return note(interface.status().code() == Code::kNoMemory ? 5 : 2, interface.status());
    const uint32_t port_mtu_bytes = interface->mtu_bytes;
    if (choice_.vlan != 0) {
      interface = ethernet::find_vlan(kMlx5Names, *interface, choice_.vlan);
      if (!interface.ok()) return note(3, interface.status());
    }
    const bool has_link = attributes.state == IBV_PORT_ACTIVE;
    if (Status status = ethernet::check_is_up(kMlx5Names, name, *interface, has_link); !status.ok()) {
      return note(3, status);
    }
    auto own = ethernet::choose_address(kMlx5Names, name, *interface, choice_.bind, choice_.listen_host);
    if (!own.ok()) return note(4, own.status());
    const uint32_t rank = own->is_wished ? 2 : 1;
    if (rank <= *best) return;
    *best = rank;
    found->port = number;
    found->interface = std::move(*interface);
    found->port_mtu_bytes = port_mtu_bytes;
    found->address = own->address;
    found->bytes_per_sec = rdma::bytes_per_sec_of(attributes);
  }

  /// The most specific of all reasons why there is no device.
  void note(uint32_t weight, const Status& why) {
    if (weight <= weight_) return;
    weight_ = weight;
    why_ = why;
  }
  void note(uint32_t weight, const char* otherwise, std::initializer_list<std::string_view> parts) {
    if (weight > weight_) note(weight, refuse(otherwise, parts));
  }

  const Mlx5Choice& choice_;
  Mlx5Device found_;
  uint32_t best_rank_ = 0;
  bool is_known_ = false;
  uint32_t weight_ = 0;
  Status why_{Code::kUnavailable, "mlx5: no device has a port"};
};

}  // namespace

uint32_t Mlx5Device::stride_bytes() const {
  const uint32_t mtu_bytes = std::max(interface.mtu_bytes, port_mtu_bytes);
  const uint32_t wished = std::max(std::bit_ceil(mtu_bytes + kTagsBytes), kStrideBytesMin);
  return std::max(std::min(wished, stride_bytes_max), stride_bytes_min);
}

Result<Mlx5Device> open_mlx5_device(const Mlx5Choice& choice) {
  int count = 0;
  const rdma::DeviceList devices(ibv_get_device_list(&count));
  if (devices == nullptr || count == 0) {
    return refuse("this machine has no RDMA device",
                  {"this machine has no RDMA device: it needs a Mellanox NIC (ConnectX-4 or newer) and the driver "
                   "mlx5_ib (modprobe mlx5_ib)"});
  }
  Search search(choice);
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

}  // namespace tern::transport
