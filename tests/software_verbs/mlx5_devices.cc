// mlx5 devices: their interfaces, addresses and attributes.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "mlx5.h"

namespace software_verbs {
namespace {

constexpr std::string_view kKey = "mlx5=";

/// Returns false if the interface does not exist.
bool ask_interface(const Port& port, unsigned long what, ifreq* answer) {
  memset(answer, 0, sizeof(*answer));
  memcpy(answer->ifr_name, port.interface.data(), std::min(port.interface.size(), sizeof(answer->ifr_name) - 1));
  return ioctl(port.control, what, answer) == 0;
}

uint64_t current_network_space() {
  struct stat status {};
  return stat("/proc/thread-self/ns/net", &status) == 0 ? status.st_ino : 0;
}

/// EUI-64: RFC 4291, appendix A.
std::array<uint8_t, 8> interface_id(const Port& port) {
  std::array<uint8_t, 8> id = {0, 0, 0, 0xff, 0xfe, 0, 0, 0};
  std::copy_n(port.address.begin(), 3, id.begin());
  std::copy_n(port.address.begin() + 3, 3, id.begin() + 5);
  id[0] ^= 2;
  return id;
}

/// The GIDs that RoCE has: the link-local GID of the hardware's address, which always exists, and the addresses of the
/// interface, with IPv4 addresses mapped.
std::vector<ibv_gid> gids_of(const Port& port) {
  ibv_gid first{};
  first.raw[0] = 0xfe;
  first.raw[1] = 0x80;
  const auto id = interface_id(port);
  std::copy(id.begin(), id.end(), first.raw + 8);
  std::vector<ibv_gid> gids = {first};
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return gids;
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || port.interface != entry->ifa_name) continue;
    ibv_gid gid{};
    if (entry->ifa_addr->sa_family == AF_INET) {
      gid.raw[10] = gid.raw[11] = 0xff;
      memcpy(gid.raw + 12, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, 4);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr, sizeof(gid));
    } else {
      continue;
    }
    if (memcmp(&gid, &first, sizeof(gid)) != 0) gids.push_back(gid);
  }
  freeifaddrs(all);
  return gids;
}

}  // namespace

std::string interface_of(int device) {
  const char* text = getenv("SOFTWARE_VERBS");
  std::string_view rest = text != nullptr ? text : "";
  const size_t key = rest.starts_with(kKey) ? 0 : rest.find("," + std::string(kKey));
  if (key == rest.npos) return "";
  rest.remove_prefix(rest.find('=', key) + 1);
  rest = rest.substr(0, rest.find(','));
  for (int number = device - kDevices; number > 0; number--) {
    const size_t colon = rest.find(':');
    if (colon == rest.npos) return "";
    rest.remove_prefix(colon + 1);
  }
  const std::string name(rest.substr(0, rest.find(':')));
  return if_nametoindex(name.c_str()) != 0 ? name : "";
}

bool open_port(Context& context) {
  auto port = std::make_unique<Port>();
  port->context = &context;
  port->interface = context.settings.interface;
  port->network_space = current_network_space();
  port->control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (port->control == -1) return false;
  ifreq answer;
  if (!ask_interface(*port, SIOCGIFHWADDR, &answer)) {
    close(port->control);
    errno = ENODEV;
    return false;
  }
  memcpy(port->address.data(), answer.ifr_hwaddr.sa_data, port->address.size());
  port->index = ask_interface(*port, SIOCGIFINDEX, &answer) ? static_cast<unsigned>(answer.ifr_ifindex) : 0;
  read_mtu(*port);
  const std::lock_guard lock(network().mutex);
  network().ports.push_back(port.get());
  context.port = std::move(port);
  return true;
}

void close_port(Context& context) {
  {
    const std::lock_guard lock(network().mutex);
    std::erase(network().ports, context.port.get());
  }
  close(context.port->control);
}

bool is_interface_up(const Port& port) {
  ifreq request;
  if (!ask_interface(port, SIOCGIFFLAGS, &request) || (request.ifr_flags & IFF_UP) == 0) return false;
  ethtool_value link{};  // the carrier, because IFF_RUNNING is set later
  link.cmd = ETHTOOL_GLINK;
  request.ifr_data = reinterpret_cast<char*>(&link);
  return ioctl(port.control, SIOCETHTOOL, &request) != 0 || link.data != 0;
}

void read_mtu(Port& port) {
  ifreq answer;
  if (ask_interface(port, SIOCGIFMTU, &answer)) port.mtu.store(static_cast<uint32_t>(answer.ifr_mtu));
}

bool find_interface_gid(const Port& port, int index, ibv_gid* gid, ibv_gid_type* type) {
  const std::vector<ibv_gid> gids = gids_of(port);
  *type = index % 2 == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;  // each address exists with both types
  const auto at = static_cast<size_t>(index / 2);
  if (at >= gids.size()) return false;
  *gid = gids[at];
  return true;
}

void fill_device_attributes(const Context& context, ibv_device_attr* attr) {
  const auto guid = interface_id(*context.port);
  memcpy(&attr->node_guid, guid.data(), guid.size());
  attr->sys_image_guid = attr->node_guid;
  attr->vendor_id = 0x02c9;
  attr->max_ah = 0;
  attr->device_cap_flags = IBV_DEVICE_MANAGED_FLOW_STEERING;
  if (context.settings.has_send_checksums) attr->device_cap_flags |= IBV_DEVICE_RAW_IP_CSUM;
}

}  // namespace software_verbs
