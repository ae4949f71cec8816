// Random events on several machines over a bad network, after which all machines must agree. For tests.
#pragma once

#include "management_world.h"

namespace tern::nexus::test {

class BadWeather {
 public:
  explicit BadWeather(uint64_t seed) : world_(seed, 2 + seed % 2, options()) {
    hosts_ = 2 + seed % 2;
    for (size_t i = 0; i < hosts_; i++) furnish(i);
    world_.weather = {.drop = world_.chance(0.5) ? 0.3 : 0.05,
                      .duplicate = 0.2,
                      .delay_min = std::chrono::microseconds(20),
                      .delay_max = world_.chance(0.5) ? milliseconds(60) : milliseconds(1)};
  }

  World& world() { return world_; }
  /// World::enter and leave apply only to the phase with faults.
  void run() {
    for (int step = 0; step < 300; step++) {
      act();
      world_.run_for(Duration(world_.random()() % 8'000'000));
      for (size_t i = 0; i < hosts_; i++) {
        if (world_.host(i).is_up) world_.host(i).machine->check_invariants();
      }
    }
    world_.weather = {};
    world_.cut.clear();
    world_.enter = world_.leave = nullptr;
    for (size_t i = 0; i < hosts_; i++) {
      if (!world_.host(i).is_up) restart(i);
    }
    world_.run_for(std::chrono::seconds(4));
    world_.expect_settled();
    // New connections succeed at once now.
    for (size_t i = 0; i < hosts_; i++) {
      world_.endpoint(i, kServer).refuses = 0;
      const uint32_t key = world_.connect((i + 1) % hosts_, kClient, i, kServer);
      world_.run_for(milliseconds(150));  // endpoints take up to 40 ms per event
      EXPECT_TRUE(world_.endpoint((i + 1) % hosts_, kClient).client.contains(key));
      established_ += world_.host(i).machine->census().sessions_established;
    }
    world_.expect_settled();
    // An idle relation is forgotten.
    for (size_t i = 0; i < hosts_; i++) {
      world_.remove_endpoint(i, kServer);
      world_.remove_endpoint(i, kClient);
    }
    world_.run_for(std::chrono::seconds(15));
    for (size_t i = 0; i < hosts_; i++) {
      world_.host(i).machine->check_invariants();
      EXPECT_EQ(world_.host(i).machine->sessions(), 0u);
      EXPECT_EQ(world_.host(i).machine->census().peers, 0u);
    }
  }
  size_t established() const { return established_; }
  size_t gone() const { return gone_; }

 private:
  static constexpr uint16_t kServer = 1, kClient = 2;

  static ManagementOptions options() {
    ManagementOptions o;
    o.liveness_timeout = milliseconds(200);
    o.linger = milliseconds(500);
    return o;
  }
  void furnish(size_t i) {
    for (const uint16_t id : {kServer, kClient}) {
      world_.add_endpoint(i, id);
      world_.endpoint(i, id).lag_max = world_.chance(0.3) ? milliseconds(40) : milliseconds(1);
      world_.endpoint(i, id).refuses = 0.1;
      // Keys of earlier runs do not come again soon, as in the real library (random generation).
      world_.endpoint(i, id).next_key = static_cast<uint32_t>(world_.random()()) | 1;
    }
  }
  void restart(size_t i) {
    world_.boot(i);
    furnish(i);
  }

  void act() {
    const size_t i = world_.random()() % hosts_;
    if (!world_.host(i).is_up) {
      if (world_.chance(0.2)) restart(i);
      return;
    }
    const size_t other = world_.chance(0.1) ? i : (i + 1) % hosts_;  // a host may connect to itself
    ModelEndpoint& client = world_.endpoint(i, kClient);
    ModelEndpoint& server = world_.endpoint(i, kServer);
    const double dice = std::uniform_real_distribution<>(0, 1)(world_.random());
    if (dice < 0.5) {
      world_.connect(i, kClient, other, world_.chance(0.95) ? kServer : 9, milliseconds(world_.random()() % 400));
    } else if (dice < 0.6 && !client.connecting.empty()) {
      world_.disconnect(i, kClient, *client.connecting.begin(), true);
    } else if (dice < 0.75 && !client.client.empty()) {
      world_.disconnect(i, kClient, client.client.begin()->first, true);
    } else if (dice < 0.8 && !server.server.empty()) {
      world_.disconnect(i, kServer, server.server.begin()->first, false);
    } else if (dice < 0.85 && !client.client.empty()) {
      world_.host(i).machine->ask_liveness(client.name, client.client.rbegin()->first, world_.now());
    } else if (dice < 0.87) {
      gone_ += client.gone.size() + server.gone.size();
      world_.crash(i);
      if (world_.chance(0.5)) restart(i);
    } else if (dice < 0.89) {
      const uint16_t id = world_.chance(0.5) ? kServer : kClient;
      world_.remove_endpoint(i, id);
      world_.add_endpoint(i, id);
      world_.endpoint(i, id).next_key = static_cast<uint32_t>(world_.random()()) | 1;
    } else if (dice < 0.92) {
      world_.cut.insert({i, (i + 1) % hosts_});
    } else if (dice < 0.97) {
      world_.cut.clear();
    }
  }

  World world_;
  size_t hosts_;
  size_t established_ = 0, gone_ = 0;
};

}  // namespace tern::nexus::test
