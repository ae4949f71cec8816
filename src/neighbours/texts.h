// Texts of failures that several classes of this layer share. Neighbours layer; for control events.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include <tern/status.h>

#include "neighbours/table.h"

namespace tern::neighbours {

/// Returns a kUnavailable Status; see base::status_of().
Status unavailable(const char* otherwise, std::initializer_list<std::string_view> parts);
/// The reason why Netlink::open() has failed. kUnavailable, kNoMemory.
Status no_netlink(int error);
/// The text for Reason::kNotOneHost, kNoMemory and kSilent; ok for all other reasons. `name`: the name of the interface
/// or port.
Status failure_on_link(const Table& table, Id id, const std::string& name);

}  // namespace tern::neighbours
