#include "rpc/check_options.h"

#include <chrono>

#include "wire/header.h"

namespace tern::rpc {

namespace {

Status misuse(const char* rule) { return {Code::kMisuse, rule}; }

}  // namespace

Status check(const RpcOptions& options) {
  if (options.credit_limit > RpcOptions::kCreditLimitMax) return misuse("RpcOptions::credit_limit must be 0 to 2048");
  if (options.queue_limit == 0) return misuse("RpcOptions::queue_limit must be at least 1");
  if (options.wait > Wait::kBlock) return misuse("RpcOptions::wait must be one of Wait's values");
  if (options.spin < Duration(0)) return misuse("RpcOptions::spin must not be negative");
  if (options.report_delay < Duration(0)) return misuse("RpcOptions::report_delay must not be negative");
  if (options.congestion_control > CongestionControl::kDctcp) {
    return misuse("RpcOptions::congestion_control must be one of CongestionControl's values");
  }
  return {};
}

Status check(const SessionOptions& options) {
  if (options.window < 1 || options.window > wire::kSlotsMax) return misuse("SessionOptions::window must be 1 to 64");
  if (options.connect_timeout <= Duration(0)) return misuse("SessionOptions::connect_timeout must be more than 0");
  if (options.congestion_control > CongestionControl::kDctcp) {
    return misuse("SessionOptions::congestion_control must be one of CongestionControl's values");
  }
  if (!options.reconnect) return {};
  if (options.reconnect_pause < Duration(0)) return misuse("SessionOptions::reconnect_pause must not be negative");
  if (options.reconnect_pause_max < std::chrono::milliseconds(1)) {
    return misuse("SessionOptions::reconnect_pause_max must be at least 1 ms");
  }
  return {};
}

}  // namespace tern::rpc
