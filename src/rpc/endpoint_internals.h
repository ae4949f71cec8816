// The private types of tern::Endpoint that the endpoint's parts need.
#pragma once

#include <tern/endpoint.h>

namespace tern::rpc {

/// The one friend of tern::Endpoint.
struct EndpointInternals {
  using Handler = Endpoint::Handler;
  using Listener = Endpoint::Listener;
  using Started = Endpoint::Started;
  static EndpointCore& core_of(Endpoint& endpoint) { return *endpoint.core_; }
};

/// A program's function for one request type.
using RequestHandler = EndpointInternals::Handler;
/// A program's function for session events.
using SessionListener = EndpointInternals::Listener;
/// The place for the continuation of an accepted call, and the call's id. Null continuation: the call was refused.
using StartedCall = EndpointInternals::Started;

}  // namespace tern::rpc
