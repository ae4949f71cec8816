#include "transport/xdp/refusals.h"

#include <sys/resource.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "base/status_text.h"

namespace tern::transport::xdp {

namespace {

Status refuse(const char* otherwise, std::initializer_list<std::string_view> parts) {
  return base::status_of(Code::kUnavailable, otherwise, parts);
}

bool names_mtu(const std::string& words) {
  std::string lower = words;
  std::ranges::transform(lower, lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return lower.find("mtu") != std::string::npos || lower.find("too large") != std::string::npos;
}

Status no_permission(std::string_view what, int error) {
  return refuse("xdp: no permission to use XDP",
                {"xdp: no permission to ", what, " (", std::strerror(error),
                 "): run as root, or with the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN, which many ",
                 "containers lack"});
}

Status no_native_mode(int error, const Facts& facts) {
  const std::string reason = facts.kernel_words.empty() ? std::strerror(error) : facts.kernel_words;
  if (error == ERANGE || names_mtu(facts.kernel_words)) {
    return refuse(
        "xdp: the interface's MTU is above the limit of its driver in native mode",
        {"xdp: the MTU of ", facts.interface, ", ", std::to_string(facts.mtu_bytes),
         ", is above the limit of its driver in native mode (", reason,
         "): lower it at both ends, as with ip link set ", facts.interface, " mtu 3498, or choose mode=generic"});
  }
  return refuse(
      "xdp: the interface's driver refuses XDP in native mode",
      {"xdp: the driver of ", facts.interface, " refuses XDP in native mode (", reason, "): choose mode=generic"});
}

}  // namespace

Status refusal(Step step, int error, const Facts& facts) {
  const bool is_permission = error == EPERM || error == EACCES;
  if (error == ENODEV) {
    return refuse("xdp: there is no such network interface",
                  {"xdp: there is no network interface ", facts.interface, ": ip link lists those of this machine"});
  }
  if (is_permission && step == Step::kLoad && facts.may_lack_locked_memory) {
    return {
        Code::kNoMemory,
        "xdp: too little locked memory for the maps of the XDP program: raise the limit with ulimit -l unlimited, or "
        "LimitMEMLOCK=infinity in the service's unit"};
  }
  if (is_permission) {
    switch (step) {
      case Step::kLoad:
        return no_permission("load an XDP program", error);
      case Step::kLook:
        return no_permission("look at the XDP program of other processes", error);
      default:
        return no_permission("attach an XDP program", error);
    }
  }
  if (error == ENOMEM || error == ENOBUFS)
    return {Code::kNoMemory, "xdp: no memory for the XDP program and its maps: free some"};
  const char* const text = std::strerror(error);
  switch (step) {
    case Step::kAttachNative:
      return no_native_mode(error, facts);
    case Step::kAttachGeneric:
      return refuse("xdp: the kernel refuses XDP on the interface",
                    {"xdp: the kernel refuses XDP on ", facts.interface, " in generic mode (", text,
                     "): see the kernel's log, or use another interface"});
    case Step::kLook:
      return refuse("xdp: the kernel does not say which XDP program the interface has",
                    {"xdp: the kernel does not say which XDP program ", facts.interface, " has (", text,
                     "): netlink sockets and bpf(2) may be forbidden here, as by a container's seccomp profile"});
    case Step::kLoad:
      break;
  }
  return refuse("xdp: the kernel refused to load the XDP program",
                {"xdp: the kernel refused to load the XDP program (", text,
                 "): it needs Linux 5.3 or newer with CONFIG_BPF_SYSCALL and CONFIG_XDP_SOCKETS"});
}

Status refusal_by_program(std::string_view interface, std::string_view program, uint32_t id, bool is_native) {
  return refuse(
      "xdp: another XDP program is attached to the interface",
      {"xdp: another XDP program, ", program.empty() ? "without a name" : program, " (id ", std::to_string(id),
       "), is attached to ", interface, ": end its process, or detach it with ip link set dev ", interface,
       is_native ? " xdp off" : " xdpgeneric off"});
}

Status refusal_by_version(std::string_view interface) {
  return refuse("xdp: processes of another version of tern use the interface",
                {"xdp: processes of another version of tern use ", interface,
                 ": end them first, or build all programs with the same version"});
}

Status refusal_by_mode(std::string_view interface, bool is_native) {
  return refuse("xdp: other processes of tern use the interface in another mode",
                {"xdp: other processes of tern use ", interface, " in ", is_native ? "native" : "generic",
                 " mode: choose mode=", is_native ? "native" : "generic", " here, or end them first"});
}

bool may_lack_locked_memory() {
  rlimit limit{};
  utsname kernel{};
  int major = 0, minor = 0;
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  if (uname(&kernel) != 0 || std::sscanf(kernel.release, "%d.%d", &major, &minor) != 2) return false;
  return major < 5 || (major == 5 && minor < 11);
}

}  // namespace tern::transport::xdp
