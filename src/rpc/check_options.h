// Options of endpoints and sessions that are out of range. Stateless.
#pragma once

#include <tern/endpoint.h>
#include <tern/status.h>

namespace tern::rpc {

/// kMisuse names the first option that is out of range.
Status check(const RpcOptions& options);
Status check(const SessionOptions& options);

}  // namespace tern::rpc
