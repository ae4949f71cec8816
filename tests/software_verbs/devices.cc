// Devices, contexts, ports, and the tables of GIDs and P_Keys.
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "mlx5.h"

namespace software_verbs {
namespace {

constexpr uint16_t kLidFirst = 0x10;
constexpr uint16_t kDefaultPkey = 0xffff;
constexpr int kNoFile = -1;
constexpr uint64_t kLinkLocalPrefix = 0xfe80000000000000;

std::mutex contexts_mutex;
std::vector<Context*>& contexts() {
  static auto* const all = new std::vector<Context*>;
  return *all;
}

/// A universally unique node number that contains the address.
uint64_t guid(in_addr address) { return 0x0253000000000000 | ntohl(address.s_addr); }

void set_setting(Settings& settings, std::string_view key, const std::string& value) {
  const auto number = [&value] { return strtoull(value.c_str(), nullptr, 0); };
  if (key == "devices")
    settings.devices = atoi(value.c_str());
  else if (key == "link")
    settings.is_infiniband = value == "infiniband";
  else if (key == "ud")
    settings.has_ud = number() != 0;
  else if (key == "leak_check")
    settings.is_leak_checked = number() != 0;
  else if (key == "send_error")
    settings.ends_on_send_error = value == "err";
  else if (key == "port")
    settings.port_state = value == "down" ? IBV_PORT_DOWN : value == "init" ? IBV_PORT_INIT : IBV_PORT_ACTIVE;
  else if (key == "mtu")
    settings.mtu = static_cast<uint32_t>(number());
  else if (key == "path_mtu")
    settings.path_mtu = static_cast<uint32_t>(number());
  else if (key == "max_inline")
    settings.max_inline = static_cast<uint32_t>(number());
  else if (key == "max_sge")
    settings.max_sge = std::min(static_cast<uint32_t>(number()), kSgesMax);
  else if (key == "max_qp_wr")
    settings.max_qp_wr = static_cast<uint32_t>(number());
  else if (key == "max_cqe")
    settings.max_cqe = static_cast<uint32_t>(number());
  else if (key == "max_ah")
    settings.max_ah = static_cast<uint32_t>(number());
  else if (key == "memlock")
    settings.memlock = number();
  else if (key == "open_error")
    settings.open_error = static_cast<int>(number());
  else if (key == "subnet")
    settings.subnet = number();
  else if (key == "address")
    inet_pton(AF_INET, value.c_str(), &settings.address);
  else if (key == "dv")
    settings.has_direct_verbs = number() != 0;
  else if (key == "raw")
    settings.may_send_raw = number() != 0;
  else if (key == "flows")
    settings.has_flows = number() != 0;
  else if (key == "striding")
    settings.has_strides = number() != 0;
  else if (key == "ip_csum")
    settings.has_send_checksums = number() != 0;
  else if (key == "rx_csum")
    settings.has_receive_checksums = number() != 0;
  else if (key == "cqe_size")
    settings.entry_bytes = number() == 128 ? 128 : 64;
  else if (key == "mlx5")
    ;  // interface_of() reads it
  else if (key == "pkeys") {
    settings.pkeys.clear();
    for (const char* at = value.c_str(); *at != '\0';) {
      char* end;
      settings.pkeys.push_back(static_cast<uint16_t>(strtoul(at, &end, 16)));
      at = *end == ':' ? end + 1 : end + strlen(end);
    }
  } else {
    fprintf(stderr, "software_verbs: SOFTWARE_VERBS has no key '%.*s'\n", static_cast<int>(key.size()), key.data());
    abort();
  }
}

ibv_mtu to_mtu(uint32_t bytes) {
  switch (bytes) {
    case 256:
      return IBV_MTU_256;
    case 512:
      return IBV_MTU_512;
    case 1024:
      return IBV_MTU_1024;
    case 2048:
      return IBV_MTU_2048;
    default:
      return IBV_MTU_4096;
  }
}

int query_port(ibv_context* base, uint8_t port_num, ibv_port_attr* attr, size_t attr_bytes) {
  if (const int error = injected_error(Verb::kQueryPort)) return error;
  Context& context = context_of(base);
  if (port_num != kPort) return EINVAL;
  ibv_port_attr port{};
  port.state = context.port_state();
  port.max_mtu = IBV_MTU_4096;
  if (context.port != nullptr) read_mtu(*context.port);
  port.active_mtu = to_mtu(context.port != nullptr ? context.port->mtu.load() : context.settings.mtu);
  port.gid_tbl_len = context.gid_entries();
  port.port_cap_flags = IBV_PORT_CM_SUP | (context.settings.is_infiniband ? 0 : IBV_PORT_IP_BASED_GIDS);
  port.max_msg_sz = 1u << 30;
  {
    const std::lock_guard lock(context.mutex);
    port.bad_pkey_cntr = static_cast<uint32_t>(context.bad_pkeys);
    port.qkey_viol_cntr = static_cast<uint32_t>(context.bad_qkeys);
  }
  port.pkey_tbl_len = static_cast<uint16_t>(context.settings.is_infiniband ? context.settings.pkeys.size() : 1);
  port.lid = context.settings.is_infiniband ? context.lid() : 0;
  port.max_vl_num = 1;
  port.active_width = 2;                                  // 4X
  port.active_speed = 32;                                 // EDR: 25 Gbit/s a lane
  port.phys_state = port.state == IBV_PORT_DOWN ? 3 : 5;  // disabled, link up
  port.link_layer = context.settings.is_infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  memcpy(attr, &port, std::min(attr_bytes, sizeof(port)));
  return 0;
}

struct AtExit {
  ~AtExit() {
    const auto alive = [](const char* what, const std::atomic<uint64_t>& total) {
      const uint64_t objects = total.load();
      if (objects > 0)
        fprintf(stderr, "software_verbs: %llu %s left behind\n", static_cast<unsigned long long>(objects), what);
      return objects > 0;
    };
    if (!device(0).settings.is_leak_checked) return;
    bool leaks = alive("contexts", totals.contexts);
    leaks |= alive("protection domains", totals.protection_domains);
    leaks |= alive("memory regions", totals.memory_regions);
    leaks |= alive("address handles", totals.address_handles);
    leaks |= alive("completion channels", totals.completion_channels);
    leaks |= alive("completion queues", totals.completion_queues);
    leaks |= alive("queue pairs", totals.queue_pairs);
    leaks |= alive("receive queues", totals.receive_queues);
    leaks |= alive("indirection tables", totals.indirection_tables);
    leaks |= alive("steering rules", totals.steering_rules);
    if (leaks) _exit(97);
  }
} at_exit;

}  // namespace

Settings read_settings(int index) {
  Settings settings;
  settings.address.s_addr = htonl(INADDR_LOOPBACK + static_cast<uint32_t>(index));
  settings.pkeys = {kDefaultPkey, 0x8001, 0x0002};
  if (index >= kDevices) settings.interface = interface_of(index);
  const char* text = getenv("SOFTWARE_VERBS");
  std::string_view rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(item.size() + 1, rest.size()));
    const size_t equals = item.find('=');
    if (equals == item.npos) continue;
    std::string_view key = item.substr(0, equals);
    if (key.starts_with("soft") && key.find('.') == 5) {
      if (key[4] != '0' + index) continue;
      key.remove_prefix(6);
    }
    if (key.starts_with("mlx5_") && key.find('.') == 6) {
      if (key[5] - '0' != index - kDevices) continue;
      key.remove_prefix(7);
    }
    set_setting(settings, key, std::string(item.substr(equals + 1)));
  }
  return settings;
}

Device& device(int index) {
  static Device* const all = [] {
    auto* devices = new Device[kDevicesMax];
    for (int i = 0; i < kDevicesMax; i++) {
      const char* const name = i < kDevices ? "soft" : "mlx5_";
      const int number = i < kDevices ? i : i - kDevices;
      devices[i].index = i;
      devices[i].node_type = IBV_NODE_CA;
      devices[i].transport_type = IBV_TRANSPORT_IB;
      snprintf(devices[i].name, sizeof(devices[i].name), "%s%d", name, number);
      snprintf(devices[i].dev_name, sizeof(devices[i].dev_name), "uverbs%d", i);
      snprintf(devices[i].dev_path, sizeof(devices[i].dev_path), "/sys/class/infiniband_verbs/uverbs%d", i);
      snprintf(devices[i].ibdev_path, sizeof(devices[i].ibdev_path), "/sys/class/infiniband/%s%d", name, number);
    }
    return devices;
  }();
  return all[index];
}

Settings settings_of(const ibv_device& device) {
  const std::lock_guard lock(contexts_mutex);
  return static_cast<const Device&>(device).settings;
}

ibv_port_state Context::port_state() const {
  const int raised = device->port_state.load();
  if (raised < 0 && port != nullptr) return is_interface_up(*port) ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  return raised >= 0 ? static_cast<ibv_port_state>(raised) : settings.port_state;
}

bool Context::is_port_taken_down() const {
  const int raised = device->port_state.load();
  return raised >= 0 && raised != IBV_PORT_ACTIVE;
}

int Context::gid_entries() const { return port != nullptr ? kInterfaceGidEntries : kGidTableEntries; }

uint16_t Context::lid() const { return static_cast<uint16_t>(kLidFirst + device->index + device->lid_change.load()); }

bool find_gid(const Context& context, int index, ibv_gid* gid, ibv_gid_type* type) {
  memset(gid, 0, sizeof(*gid));
  if (context.port != nullptr) return find_interface_gid(*context.port, index, gid, type);
  const uint32_t changed = context.device->gid_address.load();
  const in_addr address = changed != 0 ? in_addr{changed} : context.settings.address;
  if (context.settings.is_infiniband) {
    *type = IBV_GID_TYPE_IB;
    if (index != 0) return false;
  } else {
    *type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
    if (index < 0 || index > 3) return false;
  }
  if (index < 2) {
    gid->global.subnet_prefix = htobe64(context.settings.is_infiniband ? context.settings.subnet : kLinkLocalPrefix);
    gid->global.interface_id = htobe64(guid(address));
  } else {  // ::ffff:A.B.C.D
    gid->raw[10] = gid->raw[11] = 0xff;
    memcpy(gid->raw + 12, &address, sizeof(address));
  }
  return true;
}

uint16_t find_pkey(const Settings& settings, int index) {
  if (!settings.is_infiniband) return kDefaultPkey;
  return settings.pkeys[static_cast<size_t>(index)];
}

bool resolve(const Context& context, const ibv_ah_attr& attr, in_addr* address) {
  static constexpr std::array<uint8_t, 12> kMappedPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (context.settings.is_infiniband && attr.dlid != 0) {
    const int index = (attr.dlid & 0xf) % kDevices;
    *address = index == context.device->index ? context.settings.address : read_settings(index).address;
    return true;
  }
  const ibv_gid& gid = attr.grh.dgid;
  if (memcmp(gid.raw, kMappedPrefix.data(), kMappedPrefix.size()) == 0) {
    memcpy(address, gid.raw + 12, sizeof(*address));
    return true;
  }
  const uint64_t id = be64toh(gid.global.interface_id);
  if (be64toh(gid.global.subnet_prefix) != kLinkLocalPrefix || id >> 32 != guid({}) >> 32) return false;
  address->s_addr = htonl(static_cast<uint32_t>(id));
  return true;
}

void check_process(const Context& context) {
  if (context.process == getpid()) return;
  fprintf(stderr, "software_verbs: a forked child destroys an object of its parent\n");
  abort();
}

void for_each_context(int index, void (*visit)(Context& context, void* argument), void* argument) {
  const std::lock_guard lock(contexts_mutex);
  for (Context* context : contexts())
    if (index < 0 || context->device->index == index) visit(*context, argument);
}

}  // namespace software_verbs

using namespace software_verbs;

SOFTWARE_VERBS_EXPORT ibv_device** ibv_get_device_list(int* num_devices) {
  if (num_devices != nullptr) *num_devices = 0;
  if (const int error = injected_error(Verb::kGetDeviceList)) return fail(error);
  const std::lock_guard lock(contexts_mutex);
  for (int i = 0; i < kDevicesMax; i++) device(i).settings = read_settings(i);
  const int devices = std::min(device(0).settings.devices, kDevices);
  if (devices < 0) return fail(ENOSYS);
  auto** list = static_cast<ibv_device**>(calloc(kDevicesMax + 1, sizeof(ibv_device*)));
  int listed = 0;
  for (int i = 0; i < kDevicesMax; i++)
    if (i < kDevices ? i < devices : !device(i).settings.interface.empty()) list[listed++] = &device(i);
  if (num_devices != nullptr) *num_devices = listed;
  return list;
}

SOFTWARE_VERBS_EXPORT void ibv_free_device_list(ibv_device** list) { free(list); }

SOFTWARE_VERBS_EXPORT const char* ibv_get_device_name(ibv_device* base) { return base->name; }

SOFTWARE_VERBS_EXPORT int ibv_get_device_index(ibv_device* base) { return static_cast<Device*>(base)->index; }

SOFTWARE_VERBS_EXPORT __be64 ibv_get_device_guid(ibv_device* base) { return htobe64(guid(settings_of(*base).address)); }

SOFTWARE_VERBS_EXPORT ibv_context* ibv_open_device(ibv_device* base) {
  if (const int error = injected_error(Verb::kOpenDevice)) return fail(error);
  auto* opened = static_cast<Device*>(base);
  Settings settings = settings_of(*base);
  if (settings.open_error != 0) return fail(settings.open_error);
  auto* context = new Context{};  // set now, because libibverbs checks which operations exist
  context->device = opened;
  context->process = getpid();
  context->settings = std::move(settings);
  context->sz = sizeof(verbs_context);
  context->query_port = query_port;
  ibv_context& shared = context->context;
  shared.device = base;
  shared.ops.poll_cq = software_verbs_poll_cq;
  shared.ops.req_notify_cq = software_verbs_req_notify_cq;
  shared.ops.post_send = software_verbs_post_send;
  shared.ops.post_recv = software_verbs_post_recv;
  shared.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  shared.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
  shared.num_comp_vectors = 1;
  shared.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&shared.mutex, nullptr);
  const bool is_mlx5 = opened->index >= kDevices;
  if (is_mlx5) set_operations(*context);
  if (shared.cmd_fd == kNoFile || shared.async_fd == kNoFile || (is_mlx5 && !open_port(*context))) {
    const int error = errno;
    if (shared.cmd_fd != kNoFile) close(shared.cmd_fd);
    if (shared.async_fd != kNoFile) close(shared.async_fd);
    delete context;
    return fail(error);
  }
  const std::lock_guard lock(contexts_mutex);
  contexts().push_back(context);
  count(totals.contexts);
  return &shared;
}

SOFTWARE_VERBS_EXPORT int ibv_close_device(ibv_context* base) {
  Context& context = context_of(base);
  check_process(context);
  if (context.objects.load() > 0) {  // libibverbs leaks here, and this context stays unchanged
    errno = EBUSY;
    return -1;
  }
  {
    const std::lock_guard lock(contexts_mutex);
    std::erase(contexts(), &context);
  }
  if (context.port != nullptr) close_port(context);
  close(base->cmd_fd);
  close(base->async_fd);
  pthread_mutex_destroy(&base->mutex);
  delete &context;
  uncount(totals.contexts);
  return 0;
}

SOFTWARE_VERBS_EXPORT int ibv_query_device(ibv_context* base, ibv_device_attr* attr) {
  if (const int error = injected_error(Verb::kQueryDevice)) return error;
  const Settings& settings = context_of(base).settings;
  memset(attr, 0, sizeof(*attr));
  snprintf(attr->fw_ver, sizeof(attr->fw_ver), "software");
  attr->node_guid = attr->sys_image_guid = htobe64(guid(settings.address));
  attr->max_mr_size = UINT64_MAX;
  attr->page_size_cap = 4096;
  attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = 1 << 16;
  attr->max_qp_wr = static_cast<int>(settings.max_qp_wr);
  attr->max_sge = static_cast<int>(settings.max_sge);
  attr->max_cqe = static_cast<int>(settings.max_cqe);
  attr->max_ah = static_cast<int>(settings.max_ah);
  attr->max_pkeys = static_cast<uint16_t>(settings.is_infiniband ? settings.pkeys.size() : 1);
  attr->phys_port_cnt = 1;
  if (context_of(base).port != nullptr) fill_device_attributes(context_of(base), attr);
  return 0;
}

SOFTWARE_VERBS_EXPORT int ibv_query_port(ibv_context* base, uint8_t port_num, _compat_ibv_port_attr* attr) {
  return query_port(base, port_num, reinterpret_cast<ibv_port_attr*>(attr), offsetof(ibv_port_attr, port_cap_flags2));
}

SOFTWARE_VERBS_EXPORT int ibv_query_gid(ibv_context* base, uint8_t port_num, int index, ibv_gid* gid) {
  int error = injected_error(Verb::kQueryGid);
  if (error == 0 && (port_num != kPort || index < 0 || index >= context_of(base).gid_entries())) error = EINVAL;
  if (error != 0) {
    errno = error;
    return -1;
  }
  ibv_gid_type type;
  find_gid(context_of(base), index, gid, &type);  // an empty entry is all zeros
  return 0;
}

SOFTWARE_VERBS_EXPORT int _ibv_query_gid_ex(ibv_context* base, uint32_t port_num, uint32_t gid_index,
                                            ibv_gid_entry* entry, uint32_t flags, size_t entry_bytes) {
  if (const int error = injected_error(Verb::kQueryGid)) return error;
  Context& context = context_of(base);
  if (flags != 0 || port_num != kPort || gid_index >= static_cast<uint32_t>(context.gid_entries())) return EINVAL;
  ibv_gid_entry found{};
  ibv_gid_type type;
  if (!find_gid(context, static_cast<int>(gid_index), &found.gid, &type)) return ENODATA;
  found.gid_index = gid_index;
  found.port_num = port_num;
  found.gid_type = type;
  if (context.port != nullptr)
    found.ndev_ifindex = context.port->index;
  else
    found.ndev_ifindex = context.settings.is_infiniband ? 0 : if_nametoindex("lo");
  memcpy(entry, &found, std::min(entry_bytes, sizeof(found)));
  return 0;
}

SOFTWARE_VERBS_EXPORT ssize_t _ibv_query_gid_table(ibv_context* base, ibv_gid_entry* entries, size_t entries_max,
                                                   uint32_t flags, size_t entry_bytes) {
  size_t found = 0;
  const auto entries_all = static_cast<uint32_t>(context_of(base).gid_entries());
  for (uint32_t index = 0; index < entries_all && found < entries_max; index++) {
    auto* entry = reinterpret_cast<ibv_gid_entry*>(reinterpret_cast<char*>(entries) + found * entry_bytes);
    const int error = _ibv_query_gid_ex(base, kPort, index, entry, flags, entry_bytes);
    if (error == 0) found++;
    if (error != 0 && error != ENODATA) return -error;
  }
  return static_cast<ssize_t>(found);
}

SOFTWARE_VERBS_EXPORT int ibv_query_pkey(ibv_context* base, uint8_t port_num, int index, __be16* pkey) {
  const Settings& settings = context_of(base).settings;
  const int entries = settings.is_infiniband ? static_cast<int>(settings.pkeys.size()) : 1;
  int error = injected_error(Verb::kQueryPkey);
  if (error == 0 && (port_num != kPort || index < 0 || index >= entries)) error = EINVAL;
  if (error != 0) {
    errno = error;
    return -1;
  }
  *pkey = htobe16(find_pkey(settings, index));
  return 0;
}

SOFTWARE_VERBS_EXPORT int ibv_get_pkey_index(ibv_context* base, uint8_t port_num, __be16 pkey) {
  __be16 entry;
  for (int index = 0; ibv_query_pkey(base, port_num, index, &entry) == 0; index++)
    if (entry == pkey) return index;
  return -1;
}
