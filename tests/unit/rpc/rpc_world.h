// Two Nexuses and two endpoints in one process for the tests of the rpc layer: a server and a client. One thread runs
// both loops in turn unless a test gives one of them a thread of its own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tern/rpc.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include "cable/xdp_ends.h"
#if __has_include(<tern/transport/dpdk.h>)  // it is built
#define TERN_TEST_HAS_DPDK
#include "memif_ports.h"
#endif
#include "transport_list.h"

namespace tern::rpc_test {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Request types of the handlers that make_world() registers.
inline constexpr uint16_t kEcho = 1;

/// Longer than any event here takes, even under a sanitizer on a busy machine. Only a hanging test waits that long.
inline constexpr auto kPatience = seconds(60);

inline RpcOptions small_memory(RpcOptions options = {}) {
  options.huge_pages = false;
  return options;
}

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline MsgBuf message(Endpoint& endpoint, std::string_view text) {
  MsgBuf buffer = endpoint.alloc_msgbuf(text.size());
  if (buffer && !text.empty()) std::memcpy(buffer.bytes().data(), text.data(), text.size());
  return buffer;
}

inline void echo(Request request) {
  auto room = request.response(request.bytes().size());
  ASSERT_TRUE(room.ok()) << room.status().message();
  if (!room->empty()) std::memcpy(room->data(), request.bytes().data(), room->size());
  request.respond();
}

inline void reply(Request request, std::string_view text) {
  auto room = request.response(text.size());
  ASSERT_TRUE(room.ok()) << room.status().message();
  if (!text.empty()) std::memcpy(room->data(), text.data(), text.size());
  request.respond();
}

/// The outcome of a call. It must outlive the call.
struct Outcome {
  int runs = 0;
  Status status;
  uint16_t app_code = 0;
  std::string response;
  bool has_buffers = false;
  MsgBuf request, room;

  /// Returns a continuation that stores the outcome here and keeps both buffers.
  auto then() {
    return [this](Completion& done) {
      runs++;
      status = done.status;
      app_code = done.app_code;
      has_buffers = done.request && done.response;
      if (done.status.ok()) response = text_of(done.response.bytes());
      request = std::move(done.request);
      room = std::move(done.response);
    };
  }
  Code code() const { return status.code(); }
};

/// Congestion control that ignores delays of a loop that has lost its CPU for some milliseconds.
template <class Options>
Options patient(Options options = {}) {
  if constexpr (requires { options.delay_target_us; }) options.delay_target_us = 10'000;
  return options;
}

template <class Options>
void set_end([[maybe_unused]] Options& options, [[maybe_unused]] uint32_t end) {
#ifdef TERN_TEST_HAS_XDP
  if constexpr (std::is_same_v<Options, Xdp::Options>) {
    const Xdp::Options interface = test::xdp_options(end);
    options.interface = interface.interface;
    options.netns = interface.netns;
  }
#endif
#ifdef TERN_TEST_HAS_DPDK
  if constexpr (std::is_same_v<Options, Dpdk::Options>) {
    const Dpdk::Options port = test::memif_options(end);
    options.device = port.device;
    options.eal = port.eal;
    options.address = port.address;
  }
#endif
  if constexpr (requires { options.inner; }) set_end(options.inner, end);
}
/// Adds the options that an endpoint needs besides the defaults: over DPDK a port, which is one of the two ends of a
/// cable, and over AF_XDP an interface. End 0, the server's, is opened first.
template <class Options>
Options at_end(uint32_t end, Options options = {}) {
  set_end(options, end);
  return options;
}

template <class T>
struct World {
  using Options = typename T::Options;

  std::unique_ptr<Nexus> server_nexus, client_nexus;  ///< outlive the endpoints
  std::unique_ptr<Rpc<T>> server, client;

  /// Call it within ASSERT_NO_FATAL_FAILURE.
  void make(NexusOptions nexus = {}, RpcOptions server_options = {}, RpcOptions client_options = {},
            const Options& server_transport = patient<Options>(),
            const Options& client_transport = patient<Options>()) {
    auto a = Nexus::create("tern://127.0.0.1:0", nexus);
    ASSERT_TRUE(a.ok()) << a.status().message();
    server_nexus = std::move(*a);
    auto b = Nexus::create("tern://127.0.0.1:0", nexus);
    ASSERT_TRUE(b.ok()) << b.status().message();
    client_nexus = std::move(*b);
    auto s = Rpc<T>::create(*server_nexus, at_end(0, server_transport), small_memory(server_options));
    ASSERT_TRUE(s.ok()) << s.status().message();
    server = std::move(*s);
    auto c = Rpc<T>::create(*client_nexus, at_end(1, client_transport), small_memory(client_options));
    ASSERT_TRUE(c.ok()) << c.status().message();
    client = std::move(*c);
    ASSERT_TRUE(server->on_request(kEcho, echo).ok());
  }

  /// Runs one turn of each existing endpoint.
  void turn() {
    for (Rpc<T>* rpc : {server.get(), client.get()}) {
      if (rpc == nullptr) continue;
      auto packets = rpc->run_event_loop_once();
      ASSERT_TRUE(packets.ok() || packets.status().code() == Code::kSessionReset) << packets.status().message();
    }
  }
  /// Runs both loops until the condition holds. False: it did not hold within kPatience, and the test has failed.
  template <class F>
  bool run_until(F&& is_true) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!is_true()) {
      turn();
      if (::testing::Test::HasFatalFailure()) return false;
      if (std::chrono::steady_clock::now() > until) {
        ADD_FAILURE() << "timed out";
        return false;
      }
    }
    return true;
  }
  void turns(int count) {
    for (int i = 0; i < count; i++) turn();
  }

  /// Opens a session of the client with the server.
  Session open(SessionOptions options = {}) {
    options.connect_timeout = kPatience;
    auto session = client->create_session(server_nexus->uri(), options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    if (!session.ok()) return {};
    run_until([&] { return client->is_open(*session); });
    return *session;
  }
  Result<CallId> call(Session session, uint16_t type, std::string_view text, Outcome& outcome, size_t room_bytes = 256,
                      CallOptions options = {}) {
    return client->enqueue_request(session, type, message(*client, text), client->alloc_msgbuf(room_bytes),
                                   outcome.then(), options);
  }
  /// Makes a call and waits for its end.
  Outcome ask(Session session, uint16_t type, std::string_view text, size_t room_bytes = 256,
              CallOptions options = {}) {
    Outcome outcome;
    auto id = call(session, type, text, outcome, room_bytes, options);
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (id.ok()) run_until([&] { return outcome.runs > 0; });
    return outcome;
  }
};

/// The transports of this build except the simulated one. Sanitizers see the endpoints' code over two of them, because
/// it is the same over all: ownership_test.cc and tests/conformance look at what differs.
#ifdef TERN_IS_SANITIZED
using Transports = ::testing::Types<Shm, Udp>;
#else
using Transports = transports::Real::As<::testing::Types>;
#endif

template <class T, class First, class Second, class... Rest>
std::conditional_t<std::is_same_v<T, First>, Second, First> other_than(transports::List<First, Second, Rest...>);
/// A transport of this build that is not T.
template <class T>
using OtherTransport = decltype(other_than<T>(transports::Real()));

struct TransportNames {
  template <class T>
  static std::string GetName(int) {
    return std::string(T::kName);
  }
};

}  // namespace tern::rpc_test
