// Programs written for eRPC: the transport, which the build chooses, and its members that programs read. See
// docs/erpc-migration.md.
//
// TERN_ERPC_TRANSPORT is a type of tern, and TERN_ERPC_TRANSPORT_HEADER the header that declares it; both are
// tern::Udp's unless the build defines them.
#pragma once

#ifndef TERN_ERPC_TRANSPORT
#define TERN_ERPC_TRANSPORT tern::Udp
#define TERN_ERPC_TRANSPORT_HEADER <tern/transport/udp.h>
#endif
#include TERN_ERPC_TRANSPORT_HEADER

#include <tern/session.h>

#include "common.h"

namespace erpc {

enum class TransportType { kInfiniBand, kRaw, kDPDK, kFake, kInvalid };

/// The common members of eRPC's transports.
struct Transport {
  static constexpr size_t kNumRxRingEntries = size_t{1} << 20;  ///< sessions are not limited by it
};

struct CTransport : Transport {
  using Type = TERN_ERPC_TRANSPORT;  ///< tern's transport
  /// A type whose processes may be on one host, which is what eRPC's programs test with it.
  static constexpr TransportType kTransportType = TransportType::kInfiniBand;
  static constexpr size_t kMTU = 1024;            ///< eRPC's value; the real size of packets is negotiated
  static constexpr size_t kMaxDataPerPkt = kMTU;  ///< the largest preallocated response
};

/// The state of a session's congestion control that programs read, as of Rpc::get_timely().
class Timely {
 public:
  /// In bytes per second. tern fixes a session's rate at its creation; an assignment throws.
  class Rate {
   public:
    operator double() const { return value_; }  // NOLINT(google-explicit-constructor): as the double that it was
    double operator=(double) {                  // NOLINT(misc-unconventional-assign-operator)
      throw std::runtime_error("tern sets a session's rate at its creation: see docs/erpc-migration.md, get_timely");
    }

   private:
    friend class Timely;
    double value_ = 0;
  };

  Timely() : rate_() {}
  union {
    Rate rate_;
    Rate rate;  ///< the name in older programs
  };

  /// The smoothed round trip of packets in microseconds, for every `share`.
  double get_rtt_perc(double share) const {
    _unused(share);
    return round_trip_us_;
  }
  void reset_rtt_stats() {}
  double get_rate_gbps() const { return rate_ * 8 / 1e9; }

 private:
  template <class T>
  friend class Rpc;
  void set(const tern::SessionInfo& info, uint64_t link_bytes_per_sec) {
    const bool is_limited = info.rate_bytes_per_sec < link_bytes_per_sec;
    rate_.value_ = static_cast<double>(is_limited ? info.rate_bytes_per_sec : link_bytes_per_sec);
    round_trip_us_ = static_cast<double>(info.round_trip.count()) / 1e3;
  }
  double round_trip_us_ = 0;
};

/// The number of retransmitted packets. It is updated when the event loop returns. Programs set it to 0.
struct PacketLoss {
  union {
    size_t num_re_tx_ = 0;
    size_t num_re_tx;  ///< the name in older programs
  };
  union {
    size_t still_in_wheel_during_retx_ = 0;  ///< not counted
    size_t still_in_wheel_during_retx;       ///< the name in older programs
  };
};

/// Only for declarations: Rpc::get_wheel() returns null.
struct TimingWheel {
  struct Record {
    std::string to_string(size_t, double) const { return {}; }
  };
  std::vector<Record> record_vec_;
};

}  // namespace erpc
