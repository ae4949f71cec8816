// A network with a port on each host. The ports record departures and arrivals with their times.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sim/network/network.h"

namespace tern::sim {

using namespace std::chrono_literals;

inline constexpr Node host(uint32_t index) { return {Node::Kind::kHost, index}; }
inline constexpr Node switch_at(uint32_t index) { return {Node::Kind::kSwitch, index}; }

/// SimPacket::source is the address of one of these after the departure, and tells packets apart.
inline std::byte tickets_of_packets[1 << 16];

struct Arrival {
  Picoseconds at;
  uint32_t from_host;
  uint64_t ticket;
  bool is_marked;
  std::string content;
};

class RecordingPort final : public SimPort {
 public:
  RecordingPort(Network& network, uint32_t host, uint32_t number = 0) : network_(&network), host_(host) {
    number_ = network.open_port(host, this, number);
  }
  void close() { network_->close_port(host_, number_); }

  uint32_t number() const { return number_; }
  uint32_t host() const { return host_; }
  const std::vector<Arrival>& arrivals() const { return arrivals_; }
  const std::vector<Picoseconds>& departures() const { return departures_; }
  void clear() {
    arrivals_.clear();
    departures_.clear();
  }
  /// A packet's ticket is its place among the port's packets, which depart in order.
  void send(const RecordingPort& to, uint32_t frame_bytes, std::string_view content = "content") {
    send(to.host_, to.number_, frame_bytes, content);
  }
  void send(uint32_t to_host, uint32_t to_port, uint32_t frame_bytes, std::string_view content = "content") {
    network_->send(packet_to(to_host, to_port, frame_bytes, content));
  }
  SimPacket* packet_to(uint32_t to_host, uint32_t to_port, uint32_t frame_bytes, std::string_view content = "content") {
    SimPacket* packet = network_->take_packet();
    packet->from_host = host_;
    packet->from_port = number_;
    packet->to_host = to_host;
    packet->to_port = to_port;
    packet->frame_bytes = frame_bytes;
    packet->content_bytes = static_cast<uint32_t>(content.size());
    packet->source = reinterpret_cast<const std::byte*>(content.data());
    return packet;
  }

  void on_departure(SimPacket& packet) override {
    departures_.push_back(network_->events().now());
    std::memcpy(packet.content, packet.source, packet.content_bytes);
    packet.source = tickets_of_packets + ticket_++ % std::size(tickets_of_packets);
  }
  void on_arrival(SimPacket* packet) override {
    const auto ticket = static_cast<uint64_t>(packet->source - tickets_of_packets);
    arrivals_.push_back({network_->events().now(), packet->from_host, ticket, packet->is_marked,
                         std::string(reinterpret_cast<const char*>(packet->content), packet->content_bytes)});
    network_->give_packet(packet);
  }

 private:
  Network* network_;
  uint32_t host_;
  uint32_t number_ = 0;
  uint64_t ticket_ = 0;
  std::vector<Picoseconds> departures_;
  std::vector<Arrival> arrivals_;
};

class NetworkTest : public testing::Test {
 protected:
  void make(const Topology& topology, uint64_t seed = 1) {
    ASSERT_TRUE(topology.check().ok()) << topology.check().message();
    ports_.clear();
    network_ = std::make_unique<Network>(topology, seed, kFrameBytesMax);
    for (uint32_t i = 0; i < topology.hosts(); i++) ports_.push_back(std::make_unique<RecordingPort>(*network_, i));
  }
  Network& network() { return *network_; }
  RecordingPort& port(uint32_t host) { return *ports_[host]; }
  const NetworkCounters& counters() const { return network_->counters(); }
  Picoseconds now() const { return network_->events().now(); }

  void run() {
    while (!network_->events().empty()) network_->events().step(UINT64_MAX);
  }
  void run_until(Picoseconds until) {
    while (network_->events().step(until)) {
    }
  }
  std::vector<uint64_t> tickets(uint32_t host) {
    std::vector<uint64_t> tickets;
    for (const Arrival& arrival : port(host).arrivals()) tickets.push_back(arrival.ticket);
    return tickets;
  }
  /// Checks that every sent packet has arrived or is counted as dropped. Duplicates arrive in addition.
  void expect_all_counted(uint64_t duplicates = 0) {
    EXPECT_EQ(counters().packets_sent + duplicates,
              counters().packets_delivered + counters().dropped_buffer_full + counters().dropped_receive_full +
                  counters().dropped_no_receiver + counters().dropped_fault + counters().dropped_too_long);
  }

  static constexpr size_t kFrameBytesMax = 1514;

 private:
  std::unique_ptr<Network> network_;
  std::vector<std::unique_ptr<RecordingPort>> ports_;
};

}  // namespace tern::sim
