// The terms of a client session: the caller's, and the server's from the handshake.
// Session layer: plain values, and the memory of those that sessions share.
#pragma once

#include <cstdint>

#include "base/pool.h"
#include "cc/any_controller.h"
#include "cc/shortcuts.h"

namespace tern::session {

/// The terms that are mostly equal for all sessions of an endpoint, which then share one copy.
struct CommonTerms {
  uint32_t bulk_bytes = 32 * 1024;    ///< most payload of one message in flight; the last packet may exceed it
  bool may_pace_below_packet = true;  ///< a controller may allow less than one packet in a round trip
  uint64_t rto_ns_min = 1'000'000;
  uint64_t liveness_ns = 500'000'000;
  uint64_t report_delay_ns = 100'000'000;
  uint64_t credits_last_ns = UINT64_MAX;      ///< time without an answer until the handshake's credit limit holds again
  uint64_t congestion_lasts_ns = UINT64_MAX;  ///< time without an answer until the controller starts anew
  uint64_t link_bytes_per_sec = cc::kUnlimited;
  cc::Shortcuts shortcuts{};

  friend bool operator==(const CommonTerms&, const CommonTerms&) = default;
};

/// The caller's terms.
struct ClientTerms : CommonTerms {
  uint32_t local_key = 0;
  uint32_t first_number = 1;  ///< random, 24 bits
  uint32_t seed = 1;          ///< seed of the pacer
  uint8_t window = 8;         ///< slots, 1 to 64
  cc::AnyController controller;
};

struct ClientPools;

/// What sessions with equal terms share. Sessions reach the pools by it, so that each needs one pointer only.
struct ClientShared : CommonTerms {
  ClientPools* pools = nullptr;
  ClientShared* next = nullptr;  ///< in SharedTerms
};

/// The different terms of an endpoint's sessions. Sessions with equal terms share one copy. All copies stay until the
/// endpoint ends, because there are only a few.
class SharedTerms {
 public:
  /// `pools`: ClientShared::pools of all copies.
  explicit SharedTerms(ClientPools* pools) { first_.pools = pools; }

  /// Returns the copy that is equal to `terms`. Without memory for a new copy, returns one that has other terms.
  const ClientShared& find_or_add(const CommonTerms& terms) {
    if (!has_first_) static_cast<CommonTerms&>(first_) = terms;
    has_first_ = true;
    for (const ClientShared* copy = &first_; copy != nullptr; copy = copy->next) {
      if (*copy == terms) return *copy;
    }
    ClientShared* copy = pool_.take(ClientShared{terms, first_.pools, first_.next});
    if (copy == nullptr) return first_;
    return *(first_.next = copy);
  }

 private:
  ClientShared first_;  ///< needs no memory of its own
  bool has_first_ = false;
  base::Pool<ClientShared, 4> pool_;
};

/// The server's terms from the handshake.
struct AcceptedTerms {
  uint32_t remote_key = 0;
  uint32_t payload_bytes_max = 0;
  uint8_t window = 8;   ///< at most what the client's terms asked for
  uint8_t credits = 1;  ///< first credit limit, as packets carry it
  uint32_t first_server_number = 1;
  uint32_t path_token = 0;
  uint8_t credit_unit = 0;           ///< wire/credits.h
  uint32_t route_payload_bytes = 0;  ///< what the route may carry beyond payload_bytes_max; 0: nothing to search for
};

}  // namespace tern::session
