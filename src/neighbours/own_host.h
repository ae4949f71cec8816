// A host of the link that the kernel does not know. It has an IP address of the process, on an interface that the
// process drives by itself. Neighbours layer; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tern/status.h>

#include "base/address.h"
#include "base/thread_safety.h"
#include "base/wait.h"
#include "frames/mac_address.h"
#include "frames/neighbour_frame.h"
#include "neighbours/address_claim.h"
#include "neighbours/budget.h"
#include "neighbours/group_reports.h"
#include "neighbours/host.h"
#include "neighbours/messages.h"
#include "neighbours/neighbour_cache.h"
#include "neighbours/own_address.h"

namespace tern::neighbours {

/// Has one address. The first host on the link that has the address keeps it: this host sends AddressClaim::kProbes
/// probes, and only then answers, asks and announces itself. Therefore the host is settled only after kProbes *
/// probe_interval_ns; before that time resolvers find no neighbours. With IPv6 it reports the group to which
/// solicitations for its address go, and answers queries about groups.
class OwnHost : public Host {
 public:
  struct Options {
    std::string name;  ///< the port's name, for texts
    frames::MacAddress mac;
    OwnAddress address;
    uint32_t mtu_bytes = 1500;
    uint16_t vlan = 0;  ///< the tag of all frames, 1 to frames::kVlanMax; 0: no tag
    /// RFC 5227 waits one to two seconds, because hosts and switches may be slow. Linux answers within a millisecond.
    uint64_t probe_interval_ns = 100'000'000;
  };
  /// Answers to other hosts. If all hosts of a large network start at one time, all get an answer within three seconds.
  static constexpr uint32_t kAnswersPerSecondMax = 10'000;
  /// Unsolicited announcements of neighbours. The host ignores more than this, so that a flood of them does not disturb
  /// endpoints.
  static constexpr uint32_t kNewsPerSecondMax = 100;

  /// Sends the first probe. kUnavailable: the system gives no random numbers. kNoMemory.
  static Result<std::unique_ptr<OwnHost>> create(const Options& options, Send send, uint64_t now_ns);

  Result<std::unique_ptr<Resolver>> resolver(const base::SocketAddress& source) override;
  bool wants(std::span<const std::byte> frame) const override;
  void on_frame(std::span<const std::byte> frame, uint64_t now_ns) override;
  void tick(uint64_t now_ns) override;
  uint64_t next_tick_ns() const override;
  void on_link(bool is_up, uint64_t now_ns) override;
  std::vector<frames::MacAddress> groups() const override;

  /// True if probing is over: the address is in use, or failure() is not ok.
  bool is_settled() const;
  /// kUnavailable: another host has the address; the text names both. The failure is permanent.
  Status failure() const;

  // ---- For OwnNeighbours

  const Options& options() const { return options_; }

  /// The events since a resolver looked last. The resolver owns the Listener.
  struct Listener {
    static constexpr size_t kChangesMax = 64;
    struct News {
      std::array<base::SocketAddress, kChangesMax> changed;  ///< neighbours, from the front
      size_t changes = 0;
      bool is_overrun = false;  ///< more neighbours have changed
      bool is_own = false;      ///< the link or failure() has changed
    };
    base::WakeEvent event;
    News news;  ///< guarded by the host's mutex
  };
  /// The event must be open. The listener begins with news of the link and failure(). kNoMemory.
  Status add(Listener* listener);
  void remove(Listener* listener);
  /// Clears the event, and takes the news out of the listener.
  Listener::News take_news(Listener* listener);
  bool is_link_up() const;
  /// The entry of a neighbour; nothing if there is no entry.
  std::optional<NeighbourMessage> neighbour(const base::SocketAddress& ip) const;
  /// Asks for a neighbour, or confirms a stale one. Returns false if too many are asked for at this time.
  bool ask(const base::SocketAddress& ip, uint64_t now_ns);

  /// For tests.
  size_t neighbours() const;
  void check_invariants() const;

 private:
  using Frame = frames::NeighbourFrame;

  OwnHost(const Options& options, Send send, uint64_t salt, uint64_t now_ns);

  void flush(uint64_t now_ns) EXCLUDES(mutex_);
  void on_query(std::span<const std::byte> bytes, uint64_t now_ns) EXCLUDES(mutex_);
  void send_reports(uint64_t now_ns) EXCLUDES(mutex_);
  std::optional<Frame> next_frame(uint64_t now_ns) REQUIRES(mutex_);
  std::optional<Frame> handle(const Frame& frame, uint64_t now_ns) REQUIRES(mutex_);
  void learn(const Frame& frame, uint64_t now_ns) REQUIRES(mutex_);
  void report() REQUIRES(mutex_);
  void report_own() REQUIRES(mutex_);

  const Options options_;
  const Send send_;
  mutable base::Mutex mutex_;
  AddressClaim claim_ GUARDED_BY(mutex_);
  GroupReports reports_ GUARDED_BY(mutex_);
  NeighbourCache cache_ GUARDED_BY(mutex_);
  Budget answers_ GUARDED_BY(mutex_){kAnswersPerSecondMax};
  Budget news_ GUARDED_BY(mutex_){kNewsPerSecondMax};
  bool is_link_up_ GUARDED_BY(mutex_) = true;
  std::vector<Listener*> listeners_ GUARDED_BY(mutex_);
};

}  // namespace tern::neighbours
