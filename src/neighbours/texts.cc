#include "neighbours/texts.h"

#include <cerrno>
#include <cstring>

#include "base/status_text.h"

namespace tern::neighbours {

Status unavailable(const char* otherwise, std::initializer_list<std::string_view> parts) {
  return base::status_of(Code::kUnavailable, otherwise, parts);
}

Status no_netlink(int error) {
  if (error == ENOMEM || error == ENOBUFS) return {Code::kNoMemory, "no memory for a netlink socket"};
  return unavailable("the kernel refused a netlink socket",
                     {"the kernel refused a netlink socket (", std::strerror(error),
                      "): a container's seccomp profile or a limit on open files may forbid it"});
}

Status failure_on_link(const Table& table, Id id, const std::string& name) {
  const std::string destination = table.address(id).ip_text();
  switch (table.reason(id)) {
    case Reason::kNotOneHost:
      return unavailable(
          "the destination is not the address of one host",
          {destination, " is not the address of one host on the network of ", name, ": choose another one"});
    case Reason::kNoMemory:
      return {Code::kNoMemory, "no memory for the route to a destination"};
    case Reason::kSilent: {
      const base::SocketAddress* const hop = table.next_hop(id);
      const std::string gateway = hop != nullptr && *hop != table.address(id) ? hop->ip_text() : "";
      if (gateway.empty()) {
        return unavailable(
            "the destination does not answer on the link",
            {destination, " does not answer on the link of ", name, ": check that it is up, and check the cable"});
      }
      return unavailable("the gateway to the destination does not answer",
                         {"the gateway ", gateway, " to ", destination, " does not answer on the link of ", name,
                          ": check that it is up, and check the route"});
    }
    default:
      return {};
  }
}

}  // namespace tern::neighbours
