// Nexuses and endpoints of several addresses in one process and one thread, in virtual time, over the fake transport. A
// filter at each endpoint sees its packets and may drop them, which makes a hostile or a deaf client.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/environment.h>
#include <tern/log.h>
#include <tern/rpc.h>

#include "rpc/endpoint_core.h"
#include "rpc/rpc_impl.h"
#include "transport/layer.h"
#include "unit/transport/fake_transport.h"
#include "wire/management.h"

namespace tern::rpc_test {

/// False: the packet is lost.
using Filter = std::function<bool(const wire::Header&, size_t payload_bytes)>;

class FilteredImpl : public transport::Layer<transport::FakeImpl> {
 public:
  struct Options {
    Fake::Options fake;
    Filter filter;
  };
  using Sender = transport::PlainSender<FilteredImpl>;
  static Result<std::unique_ptr<FilteredImpl>> create(const Options& options, const transport::Context& context) {
    auto inner = transport::FakeImpl::create(options.fake, context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<FilteredImpl>(new FilteredImpl(std::move(*inner), options.filter));
  }
  bool send(transport::PeerId peer, const wire::Header& header, const std::byte* data, size_t len,
            detail::Buffer* buffer) {
    return (filter_ && !filter_(header, len)) || inner_->send(peer, header, data, len, buffer);
  }
  transport::FakeImpl& fake() { return *inner_; }

 private:
  FilteredImpl(std::unique_ptr<transport::FakeImpl> inner, Filter filter)
      : Layer<transport::FakeImpl>(std::move(inner)), filter_(std::move(filter)) {}
  Filter filter_;
};

struct Filtered {
  static constexpr std::string_view kName = "fake";
  using Impl = FilteredImpl;
  using Options = Impl::Options;
};

/// Management datagrams in queues, by address.
class VirtualEnvironment final : public Environment {
 public:
  explicit VirtualEnvironment(uint64_t& now_ns) : now_ns_(now_ns) {}

  Duration now() override { return Duration(static_cast<int64_t>(now_ns_)); }
  uint64_t random() override {  // splitmix64
    uint64_t z = random_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) override {
    return std::unique_ptr<ManagementChannel>(std::make_unique<Channel>(*this, sink, std::string(address)));
  }
  Result<std::string> resolve(std::string_view host_and_port) override { return std::string(host_and_port); }
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t, size_t) override {
    return Status(Code::kUnavailable, "no workers here");
  }
  /// Drops all datagrams to and from this address from now on.
  void cut_off(std::string_view address) { cut_off_ = address; }
  /// Drops these datagrams to that address from now on.
  using Lost = std::function<bool(const wire::ManagementMessage&)>;
  void lose(std::string_view to, Lost lost) {
    lost_to_ = to;
    lost_ = std::move(lost);
  }
  /// Changes the messages to `to` on their way.
  using Change = std::function<void(wire::ManagementMessage&)>;
  void change(std::string_view to, Change change) {
    changed_to_ = to;
    change_ = std::move(change);
  }
  /// Runs everything that is due now.
  void run() {
    for (bool has_more = true; has_more;) {
      has_more = false;
      for (Channel* channel : channels_) has_more |= channel->run();
    }
  }

 private:
  bool is_lost(std::string_view to, std::span<const std::byte> bytes) const {
    wire::ManagementMessage message;
    return to == lost_to_ && lost_ && wire::parse_management(bytes, message) == wire::ManagementDrop::kNone &&
           lost_(message);
  }
  std::vector<std::byte> changed(std::string_view to, std::span<const std::byte> bytes) const {
    wire::ManagementMessage message;
    if (to != changed_to_ || !change_ || wire::parse_management(bytes, message) != wire::ManagementDrop::kNone) {
      return {bytes.begin(), bytes.end()};
    }
    change_(message);
    wire::ManagementBytes out;
    wire::encode_management(message, out);
    return {out.view().begin(), out.view().end()};
  }
  struct Datagram {
    std::string from;
    std::vector<std::byte> bytes;
  };
  class Channel final : public ManagementChannel {
   public:
    Channel(VirtualEnvironment& world, ManagementSink& sink, std::string address)
        : world_(world), sink_(sink), address_(std::move(address)) {
      world_.channels_.push_back(this);
    }
    ~Channel() override { std::erase(world_.channels_, this); }
    void send(std::string_view to, std::span<const std::byte> bytes) override {
      if (to == world_.cut_off_ || address_ == world_.cut_off_ || world_.is_lost(to, bytes)) return;
      const std::vector<std::byte> sent = world_.changed(to, bytes);
      for (Channel* channel : world_.channels_) {
        if (channel->address_ == to) channel->queue_.push_back({address_, sent});
      }
    }
    void wake() override { is_woken_ = true; }
    std::string local_address() const override { return address_; }
    bool run() {
      if (!is_woken_ && queue_.empty() && world_.now() < next_turn_) return false;
      is_woken_ = false;
      for (const Datagram& datagram : std::exchange(queue_, {})) sink_.on_datagram(datagram.from, datagram.bytes);
      next_turn_ = sink_.on_turn(world_.now());
      return next_turn_ > world_.now();  // so that a sink that always asks for a turn waits for time to pass
    }

   private:
    VirtualEnvironment& world_;
    ManagementSink& sink_;
    const std::string address_;
    std::vector<Datagram> queue_;
    bool is_woken_ = true;
    Duration next_turn_{0};
  };

  uint64_t& now_ns_;
  uint64_t random_ = 1;
  std::string cut_off_, lost_to_, changed_to_;
  Lost lost_;
  Change change_;
  std::vector<Channel*> channels_;
};

/// A Nexus with one endpoint.
struct VirtualHost {
  std::unique_ptr<Nexus> nexus;
  std::unique_ptr<Rpc<Filtered>> rpc;
  tern::rpc::EndpointCore& core() const { return tern::rpc::EndpointCore::of(*rpc); }
};

class VirtualWorld : public ::testing::Test {
 protected:
  static constexpr uint32_t kPayloadBytes = 512;
  static constexpr uint64_t kTurnNs = 20'000;

  /// `address`: "IP:PORT". The first one is the server of the others.
  VirtualHost& add(const std::string& address, RpcOptions options = {}, Filter filter = {}) {
    NexusOptions nexus_options;
    nexus_options.environment = &environment_;
    nexus_options.log = log_;
    auto nexus = Nexus::create("tern://" + address, nexus_options);
    EXPECT_TRUE(nexus.ok()) << nexus.status().message();
    options.huge_pages = false;
    Filtered::Options transport;
    transport.fake.network = &network_;
    transport.fake.payload_bytes_max = payload_bytes_;
    transport.fake.credit_bytes = credit_bytes_;
    transport.fake.receive_burst = receive_burst_;
    transport.filter = std::move(filter);
    auto endpoint = Rpc<Filtered>::create(**nexus, transport, options);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status().message();
    hosts_.push_back(std::make_unique<VirtualHost>());
    hosts_.back()->nexus = std::move(*nexus);
    hosts_.back()->rpc = std::move(*endpoint);
    return *hosts_.back();
  }
  VirtualHost& server() { return *hosts_.front(); }

  void turn(uint64_t ns = kTurnNs) {
    for (const auto& host : hosts_) {
      if (host->rpc == nullptr) continue;
      ASSERT_TRUE(host->rpc->run_event_loop_once().ok());
      if (turns_ % turns_a_check_ == 0) host->core().check_invariants();
    }
    turns_++;
    network_.now_ns += ns;
    environment_.run();
  }
  /// Runs in virtual time until the condition holds. The test fails if it does not hold within `limit_ns`.
  template <class F>
  bool run_until(F&& is_true, uint64_t limit_ns = 10'000'000'000, uint64_t turn_ns = kTurnNs) {
    const uint64_t until_ns = network_.now_ns + limit_ns;
    while (!is_true()) {
      if (network_.now_ns >= until_ns) {
        ADD_FAILURE() << "timed out";
        return false;
      }
      turn(turn_ns);
      if (HasFatalFailure()) return false;
    }
    return true;
  }
  void run_for(uint64_t ns, uint64_t turn_ns = kTurnNs) {
    for (const uint64_t until_ns = network_.now_ns + ns; network_.now_ns < until_ns;) turn(turn_ns);
  }
  Session begin_session(VirtualHost& client, SessionOptions options = {}) {
    auto session = client.rpc->create_session(server().nexus->uri(), options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return session.ok() ? *session : Session{};
  }
  Session open(VirtualHost& client, SessionOptions options = {}) {
    const Session session = begin_session(client, options);
    run_until([&] { return client.rpc->is_open(session); });
    return session;
  }

  std::shared_ptr<LogSink> log_;                            ///< log of hosts added later
  uint32_t receive_burst_ = Fake::Options{}.receive_burst;  ///< option of endpoints added later
  uint32_t payload_bytes_ = kPayloadBytes;                  ///< option of endpoints added later
  uint32_t credit_bytes_ = 0;                               ///< option of endpoints added later
  uint64_t turns_a_check_ = 1;  ///< turns for each check of all invariants, which looks at all sessions
  uint64_t turns_ = 0;
  transport::FakeNetwork network_;
  VirtualEnvironment environment_{network_.now_ns};
  std::vector<std::unique_ptr<VirtualHost>> hosts_;
};

}  // namespace tern::rpc_test

namespace tern {
template class Rpc<rpc_test::Filtered>;
}
