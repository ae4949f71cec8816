#include "rpc/agenda.h"

#include <gtest/gtest.h>

namespace tern::rpc {
namespace {

/// Counts wake-ups. An Agenda asks its transport for nothing else.
class WakeCounter final : public TransportPort {
 public:
  void wake() override { wakes++; }
  Result<transport::PeerId> connect(const nexus::AddressBytes&, std::string_view) override { return kNotHere; }
  wire::Refusal refusal_of(const nexus::AddressBytes&) const override { return wire::Refusal::kNone; }
  const transport::Remedies& remedies() const override { return remedies_; }
  const cc::Shortcuts& shortcuts() const override { return shortcuts_; }
  bool can_pair() const override { return false; }
  Result<transport::PeerId> connect_paired(const nexus::AddressBytes&, std::string_view) override { return kNotHere; }
  Result<transport::PeerId> connect_back(transport::PeerId) override { return kNotHere; }
  Status peer_failure(transport::PeerId) const override { return {}; }
  transport::PathError take_path_error(transport::PeerId) override { return transport::PathError::kNone; }
  uint16_t port_of(transport::PeerId) const override { return 0; }
  transport::PeerState peer_state(transport::PeerId) override { return transport::PeerState::kReady; }
  void disconnect(transport::PeerId) override {}
  nexus::AddressBytes address() const override { return {}; }
  uint32_t payload_bytes_max() const override { return 0; }
  uint32_t payload_bytes_max(transport::PeerId) const override { return 0; }
  uint32_t large_payload_bytes() const override { return 0; }
  uint32_t large_payload_bytes(transport::PeerId) override { return 0; }
  uint32_t receive_queue_packets() const override { return 0; }
  uint32_t credit_bytes() const override { return 0; }
  uint64_t link_bytes_per_sec() const override { return 0; }
  uint64_t downlink_bytes_per_sec() const override { return 0; }
  uint64_t downlink_bytes() const override { return 0; }
  transport::DelayTarget delay_target() const override { return {}; }
  const TransportCounters& counters() const override { return counters_; }
  const NetworkCounters* network_counters() const override { return nullptr; }
  const FaultCounters* fault_counters() const override { return nullptr; }
  uint64_t now() override { return 0; }

  int wakes = 0;

 private:
  transport::Remedies remedies_;
  cc::Shortcuts shortcuts_;
  TransportCounters counters_;
  static constexpr Status kNotHere{Code::kUnavailable, "not in this test"};
};

TEST(agenda, earliest_time_counts) {
  WakeCounter transport;
  Agenda agenda(transport);
  EXPECT_EQ(agenda.next_ns(), UINT64_MAX);
  agenda.at_latest(20);
  agenda.at_latest(30);
  EXPECT_EQ(agenda.next_ns(), 20u);
  agenda.at_latest(10);
  EXPECT_EQ(agenda.next_ns(), 10u);
  agenda.start_over();
  EXPECT_EQ(agenda.next_ns(), UINT64_MAX);
  EXPECT_EQ(transport.wakes, 0) << "no program waits";
}

TEST(agenda, armed_endpoint_is_woken_once_by_an_earlier_time) {
  WakeCounter transport;
  Agenda agenda(transport);
  agenda.at_latest(20);
  agenda.arm();
  agenda.at_latest(30);
  EXPECT_EQ(transport.wakes, 0) << "the program comes back before";
  agenda.at_latest(10);
  EXPECT_EQ(transport.wakes, 1);
  agenda.at_latest(5);
  agenda.disarm();
  EXPECT_EQ(transport.wakes, 1) << "it has been told";
}

TEST(agenda, running_loop_is_not_woken) {
  WakeCounter transport;
  Agenda agenda(transport);
  agenda.arm();
  agenda.leave_armed();
  agenda.at_latest(1);
  agenda.disarm();
  EXPECT_EQ(transport.wakes, 0);
}

}  // namespace
}  // namespace tern::rpc
