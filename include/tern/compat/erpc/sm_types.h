// Programs written for eRPC: the arguments of a session-management handler. See docs/erpc-migration.md.
#pragma once

#include <string>

#include "common.h"

namespace erpc {

enum class SmErrType : int {
  kNoError,
  kSrvDisconnected,  ///< the server has died, or the path to it is broken
  kRingExhausted,    ///< the server accepts no more sessions
  kOutOfMemory,
  kRoutingResolutionFailure,  ///< no data path leads to the server
  kInvalidRemoteRpcId,        ///< the server refuses: it has no such Rpc, or another transport
  kInvalidTransport,          ///< does not occur: kInvalidRemoteRpcId
};

enum class SmEventType {
  kConnected,
  kConnectFailed,
  kDisconnected,
  kDisconnectFailed,  ///< does not occur
};

/// Runs in the event loop: session number, event, error, the Rpc's context.
using sm_handler_t = void (*)(int, SmEventType, SmErrType, void*);

inline std::string sm_err_type_str(SmErrType error) {
  switch (error) {
    case SmErrType::kNoError:
      return "[No error]";
    case SmErrType::kSrvDisconnected:
      return "[Server disconnected]";
    case SmErrType::kRingExhausted:
      return "[Ring buffers exhausted]";
    case SmErrType::kOutOfMemory:
      return "[Out of memory]";
    case SmErrType::kRoutingResolutionFailure:
      return "[Routing resolution failure]";
    case SmErrType::kInvalidRemoteRpcId:
      return "[Invalid remote Rpc ID]";
    case SmErrType::kInvalidTransport:
      return "[Invalid transport]";
  }
  throw std::runtime_error("Invalid session management error type");
}

inline std::string sm_event_type_str(SmEventType event) {
  switch (event) {
    case SmEventType::kConnected:
      return "[Connected]";
    case SmEventType::kConnectFailed:
      return "[Connect failed]";
    case SmEventType::kDisconnected:
      return "[Disconnected]";
    case SmEventType::kDisconnectFailed:
      return "[kDisconnect failed]";
  }
  return "[Invalid event type]";
}

}  // namespace erpc
