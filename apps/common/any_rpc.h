// An endpoint over a transport that is chosen at run time.
#pragma once

#include <tern/endpoint.h>
#include <tern/nexus.h>

#include <memory>

#include "flags.h"

namespace programs {

/// A tern::Rpc<T> behind an interface without T, so that a program is compiled once, and not for each transport. Only
/// endpoint() and the loop are virtual: the endpoint's own functions do not depend on T.
class AnyRpc {
 public:
  AnyRpc() = default;
  AnyRpc(const AnyRpc&) = delete;
  AnyRpc& operator=(const AnyRpc&) = delete;
  virtual ~AnyRpc() = default;
  virtual tern::Endpoint& endpoint() = 0;
  virtual tern::Status run_event_loop(tern::Duration duration = tern::Duration::max()) = 0;
};

/// Rpc<T>::create() for the transport of --transport, which must be one between processes, with the options and the
/// fault layer that the flags select for this side.
tern::Result<std::unique_ptr<AnyRpc>> create_rpc(tern::Nexus& nexus, const tern::RpcOptions& options,
                                                 Role role = Role::kClient);

}  // namespace programs
