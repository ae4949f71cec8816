// Runs a command on a network of its own, for cases over transports that need network interfaces.
//
// Words of the command that name mlx5 or xdp: a cable. This namespace has `lo` and `tern0`, whose other end `tern1` is
// in a second namespace. For mlx5, the device mlx5_0 of the software provider is on tern0, mlx5_1 on tern1.
//
// With --hosts, words that name dpdk or xdp: a switch with three hosts. tern0 is in this namespace; each of two further
// namespaces has a `tern1`. Each process of a test is a host, because a port of DPDK takes a whole interface, and so
// that all frames over AF_XDP cross the switch: TERN_E2E_CALLER puts the test's own endpoints at tern0, and
// TERN_E2E_PEER each peer at a tern1 (tests/e2e/peer.h). DPDK has af_packet there.
//
//   tern0 10.77.0.1/24 fd77::1/64    tern1 10.77.0.2/24 fd77::2/64    tern1 of the third host 10.77.0.3/24 fd77::3/64
//
// The namespaces end with the last process that uses them, so that a killed test leaves nothing behind. The second has
// the name that TERN_PEER_NETNS gives, a path for setns(). Frames have checksums, as on a cable between NICs.
// usage: on_cable [--hosts] COMMAND...   a network as its words say; without these names the command runs as it is
//        on_cable --always COMMAND...    the cable, whatever the words
// Without root, such cases are not run but count as skipped, and with --always the command runs without the network.
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <string>
#include <string_view>

#include "software_verbs/carrier.h"

namespace {

/// The last error, or an empty text.
std::string problem;

bool refuse(const char* what) {
  problem = std::string(what) + ": " + std::strerror(errno);
  return false;
}

/// Runs `ip -batch` with these lines in the namespace of this thread.
bool run_ip(const std::string& lines) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) return refuse("pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[0], STDIN_FILENO);
    execlp("ip", "ip", "-batch", "-", nullptr);
    _exit(127);
  }
  close(pipe_ends[0]);
  const bool is_written = write(pipe_ends[1], lines.data(), lines.size()) == static_cast<ssize_t>(lines.size());
  close(pipe_ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  if (is_written && status == 0) return true;
  problem = WEXITSTATUS(status) == 127 ? "there is no ip command: install iproute2" : "veth pairs cannot be made here";
  return false;
}

/// Switches offloads off: by default the kernel leaves checksums and segmentation to the other end of a veth pair,
/// which a cable between NICs cannot do.
bool end_offloads(const char* interface) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  bool is_done = fd >= 0;
  for (const uint32_t command : {ETHTOOL_SGRO, ETHTOOL_SGSO, ETHTOOL_STSO, ETHTOOL_STXCSUM}) {
    ethtool_value value{command, 0};
    ifreq request{};
    std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
    request.ifr_data = reinterpret_cast<char*>(&value);
    is_done = is_done && ioctl(fd, SIOCETHTOOL, &request) == 0;
  }
  if (!is_done) refuse("checksum offload of a veth pair");
  if (fd >= 0) close(fd);
  return is_done;
}

/// For tern0 or tern1 of the thread's namespace.
bool wait_for_carrier(const char* interface) {
  if (software_verbs::wait_for_carrier(interface)) return true;
  problem = "a veth pair gets no carrier here";
  return false;
}

/// A new network namespace, which becomes the one of this thread. A descriptor of it that children inherit, or -1.
int enter_namespace() {
  if (unshare(CLONE_NEWNET) != 0) {
    refuse("network namespaces cannot be made here");
    return -1;
  }
  return open("/proc/self/ns/net", O_RDONLY);
}

/// Of a namespace's descriptor, for this process and those that it becomes and starts.
std::string path_of(int descriptor) {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor);
}

/// Makes the namespace of a host that of this thread and configures its interface. Host 1 has tern0, the others tern1.
/// Gives a host its addresses: IPv4, and IPv6 if the kernel has it.
bool configure_host(int netns, int host) {
  if (setns(netns, CLONE_NEWNET) != 0) return refuse("setns");
  const std::string interface = host == 1 ? "tern0" : "tern1";
  std::string lines = "link set " + interface + " addrgenmode none\n";
  lines += "address add 10.77.0." + std::to_string(host) + "/24 dev " + interface + "\n";
  if (access("/proc/sys/net/ipv6", F_OK) == 0) {
    lines += "address add fd77::" + std::to_string(host) + "/64 dev " + interface + " nodad\n";
  }
  lines += "link set lo up\nlink set " + interface + " up\n";
  return run_ip(lines) && end_offloads(interface.c_str());
}

bool make_cable() {
  const int peer = enter_namespace();
  const int own = peer < 0 ? -1 : enter_namespace();
  if (own < 0) return false;
  // The kernel checks the carrier at once if the interfaces have different indices, and otherwise within a second.
  const std::string ends = "tern0 index 10 mtu 1500 type veth peer name tern1 index 11 mtu 1500";
  if (!run_ip("link add " + ends + " netns " + path_of(peer) + "\n")) return false;
  if (!configure_host(peer, 2) || !configure_host(own, 1) || !wait_for_carrier("tern0")) return false;
  if (setns(peer, CLONE_NEWNET) != 0 || !wait_for_carrier("tern1") || setns(own, CLONE_NEWNET) != 0) return false;
  close(own);
  setenv("TERN_PEER_NETNS", path_of(peer).c_str(), 1);
  return true;
}

/// Switches off the kernel's firewall for bridges, which would drop and reassemble frames.
void end_bridge_firewall() {
  for (const char* name : {"iptables", "ip6tables", "arptables"}) {
    const int fd = open((std::string("/proc/sys/net/bridge/bridge-nf-call-") + name).c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) continue;  // this kernel does not have it
    (void)!write(fd, "0", 1);
    close(fd);
  }
}

/// A bridge, in a namespace of its own.
bool make_switch(bool is_dpdk) {
  constexpr int kHosts = 3, kFirstDescriptor = 100;  // of host 1
  std::string lines = "link add switch type bridge forward_delay 0 mcast_snooping 0\nlink set switch up\n";
  const int middle = enter_namespace();
  for (int host = 1; host <= kHosts; host++) {
    const int netns = middle < 0 ? -1 : enter_namespace();
    if (netns < 0 || dup2(netns, kFirstDescriptor + host) < 0) return false;
    close(netns);
    const std::string digit = std::to_string(host), port = "port" + digit;
    lines += "link add " + port + " index 2" + digit + " mtu 1500 type veth peer name tern" + (host == 1 ? "0" : "1") +
             " index 10 mtu 1500 netns " + path_of(kFirstDescriptor + host) + "\n";
    lines += "link set " + port + " master switch up\n";
  }
  if (setns(middle, CLONE_NEWNET) != 0) return refuse("setns");  // the open descriptor keeps the bridge alive
  if (!run_ip(lines)) return false;
  end_bridge_firewall();
  for (int host = kHosts; host >= 1; host--) {
    if (!configure_host(kFirstDescriptor + host, host) || !wait_for_carrier(host == 1 ? "tern0" : "tern1"))
      return false;
  }
  close(kFirstDescriptor + 1);
  setenv("TERN_PEER_NETNS", path_of(kFirstDescriptor + 2).c_str(), 1);
  const std::string netns = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(kFirstDescriptor / 10) + "%";
  const auto device = [is_dpdk](const char* interface) {
    return is_dpdk ? std::string(" device=net_af_packet0;iface=") + interface : std::string();
  };
  setenv("TERN_E2E_CALLER", ("listen=tern://10.77.0.1:0" + device("tern0")).c_str(), 1);
  setenv("TERN_E2E_PEER", ("listen=tern://10.77.0.%:0" + device("tern1") + " netns=" + netns).c_str(), 1);
  return true;
}

/// Sets the environment for the devices of mlx5 and their provider, which is in the folder beside this program.
void add_software_nics() {
  const char* verbs = std::getenv("SOFTWARE_VERBS");
  const std::string before = verbs != nullptr && *verbs != '\0' ? std::string(verbs) + "," : "";
  setenv("SOFTWARE_VERBS", (before + "mlx5=tern0:tern1").c_str(), 1);
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) < 0) return;
  *std::strrchr(program, '/') = '\0';
  const char* path = std::getenv("LD_LIBRARY_PATH");
  const std::string rest = path != nullptr && *path != '\0' ? std::string(":") + path : "";
  setenv("LD_LIBRARY_PATH", (program + std::string("/software_verbs") + rest).c_str(), 1);
}

/// Removes the software provider from the environment, because DPDK loads all its drivers, and that of mlx5 needs the
/// real libibverbs.
void drop_software_nics() {
  const char* path = std::getenv("LD_LIBRARY_PATH");
  std::string kept;
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.ends_with("/software_verbs")) kept += (kept.empty() ? "" : ":") + folder;
  }
  setenv("LD_LIBRARY_PATH", kept.c_str(), 1);
}

/// True: a word of the command contains `name` (in small letters), whatever its case. The program's folder does not
/// count, nor what a filter of googletest excludes ("*-*mlx5*").
bool has_name(char** command, std::string_view name) {
  const auto is_same = [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; };
  for (char** at = command; *at != nullptr; at++) {
    std::string_view word = *at;
    if (at == command) word.remove_prefix(word.rfind('/') + 1);  // npos + 1 is 0
    if (word.starts_with("--gtest_filter=")) word = word.substr(0, word.find('-', 2));
    if (std::search(word.begin(), word.end(), name.begin(), name.end(), is_same) != word.end()) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view option = argc > 1 ? argv[1] : "";
  const bool is_always = option == "--always", has_hosts = option == "--hosts";
  char** command = argv + (is_always || has_hosts ? 2 : 1);
  if (argc < 2 || *command == nullptr) {
    std::fprintf(stderr, "usage: on_cable [--always | --hosts] COMMAND...\n");
    return 2;
  }
  const bool is_list = has_name(command, "--gtest_list_tests");
  if (!is_always && has_name(command, "dpdk")) drop_software_nics();
  const bool is_dpdk = has_hosts && !is_list && has_name(command, "dpdk");
  const bool is_xdp = !is_dpdk && !is_list && has_name(command, "xdp");
  if (is_dpdk || is_xdp || is_always || (!is_list && has_name(command, "mlx5"))) {
    if (geteuid() != 0) {
      problem = "network namespaces need root";
    } else if (is_dpdk || (is_xdp && has_hosts)) {
      make_switch(is_dpdk);
    } else if (make_cable() && !is_xdp) {
      add_software_nics();
    }
    if (!problem.empty() && is_always) {
      std::fprintf(stderr, "on_cable: without mlx5: %s\n", problem.c_str());
    } else if (!problem.empty()) {
      const char* const name = is_dpdk ? "dpdk" : is_xdp ? "xdp" : "mlx5";
      std::printf("[  SKIPPED ] %s: %s\n", name, problem.c_str());  // ctest searches for this line
      return 0;
    }
  }
  execvp(*command, command);
  std::fprintf(stderr, "on_cable: %s: %s\n", *command, std::strerror(errno));
  return 127;
}
