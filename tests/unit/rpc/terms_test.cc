// Peers with contradictory terms: more payload than the datagram size in their address permits, or the address of
// another version of the transport.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "rpc/rpc_impl.h"
#include "rpc_world.h"
#include "transport/layer.h"
#include "transport/shm/shm.h"
#include "transport/udp/udp.h"

namespace tern {

namespace transport {

/// A UDP endpoint whose address gives the smallest datagrams, and whose terms offer its own larger size.
class LyingUdpImpl : public Layer<UdpImpl> {
 public:
  using Options = Udp::Options;
  static constexpr uint32_t kSaidDatagramBytes = Udp::Options::kDatagramBytesMin;

  using Sender = PlainSender<LyingUdpImpl>;
  static Result<std::unique_ptr<LyingUdpImpl>> create(const Options& options, const Context& context) {
    auto inner = UdpImpl::create(options, context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<LyingUdpImpl>(new LyingUdpImpl(std::move(*inner)));
  }
  std::span<const std::byte> address() const { return std::span(address_).first(inner_->address().size()); }
  uint32_t payload_bytes_max() const { return inner_->payload_bytes_max(); }
  uint32_t payload_bytes_max(PeerId) const { return inner_->payload_bytes_max(); }

 private:
  explicit LyingUdpImpl(std::unique_ptr<UdpImpl> inner) : Layer(std::move(inner)) {
    const auto truth = inner_->address();
    std::copy(truth.begin(), truth.end(), address_.begin());
    address_[truth.size() - 2] = static_cast<std::byte>(kSaidDatagramBytes & 0xff);
    address_[truth.size() - 1] = static_cast<std::byte>(kSaidDatagramBytes >> 8);
  }
  std::array<std::byte, kAddressBytesMax> address_{};
};

/// A shm endpoint whose address is that of another version.
class OtherShmImpl : public Layer<ShmImpl> {
 public:
  using Options = Shm::Options;
  using Sender = PlainSender<OtherShmImpl>;
  static Result<std::unique_ptr<OtherShmImpl>> create(const Options& options, const Context& context) {
    auto inner = ShmImpl::create(options, context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<OtherShmImpl>(new OtherShmImpl(std::move(*inner)));
  }
  std::span<const std::byte> address() const { return address_; }

 private:
  explicit OtherShmImpl(std::unique_ptr<ShmImpl> inner) : Layer(std::move(inner)) {
    std::copy_n(inner_->address().begin(), address_.size(), address_.begin());
    address_[0] ^= std::byte{1};
  }
  shm::Identity address_{};
};

}  // namespace transport

struct OtherShm {
  static constexpr std::string_view kName = Shm::kName;
  using Impl = transport::OtherShmImpl;
  using Options = Shm::Options;
};
template class Rpc<OtherShm>;

struct LyingUdp {
  static constexpr std::string_view kName = Udp::kName;
  using Impl = transport::LyingUdpImpl;
  using Options = Udp::Options;
};
template class Rpc<LyingUdp>;

namespace rpc_test {
namespace {

struct Ends {
  Ends() {
    for (auto* nexus : {&server_nexus, &client_nexus}) {
      auto made = Nexus::create("tern://127.0.0.1:0", {});
      EXPECT_TRUE(made.ok()) << made.status().message();
      *nexus = std::move(*made);
    }
  }
  template <class T>
  std::unique_ptr<Rpc<T>> make(Nexus& nexus) {
    auto made = Rpc<T>::create(nexus, {}, small_memory());
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(*made) : nullptr;
  }
  std::unique_ptr<Nexus> server_nexus, client_nexus;
};

/// Runs both loops until the call has ended, and returns its status.
template <class Server, class Client>
Status status_of_call(Server& server, Client& client, Session session) {
  Outcome outcome;
  auto called = client.enqueue_request(session, kEcho, message(client, std::string(4000, 'x')),
                                       client.alloc_msgbuf(4000), outcome.then());
  EXPECT_TRUE(called.ok()) << called.status().message();
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (outcome.runs == 0 && std::chrono::steady_clock::now() < until) {
    EXPECT_TRUE(server.run_event_loop_once().ok());
    EXPECT_TRUE(client.run_event_loop_once().ok());
  }
  EXPECT_EQ(outcome.runs, 1);
  return outcome.status;
}

TEST(Terms, server_lowers_a_wish_above_the_datagram_size_of_the_clients_address) {
  Ends ends;
  auto server = ends.make<Udp>(*ends.server_nexus);
  auto client = ends.make<LyingUdp>(*ends.client_nexus);
  ASSERT_TRUE(server->on_request(kEcho, echo).ok());
  auto session = client->create_session(ends.server_nexus->uri(), {});
  ASSERT_TRUE(session.ok()) << session.status().message();
  EXPECT_TRUE(status_of_call(*server, *client, *session).ok());
}

TEST(Terms, client_refuses_a_server_whose_terms_exceed_its_address) {
  Ends ends;
  auto server = ends.make<LyingUdp>(*ends.server_nexus);
  auto client = ends.make<Udp>(*ends.client_nexus);
  auto session = client->create_session(ends.server_nexus->uri(), {});
  ASSERT_TRUE(session.ok()) << session.status().message();
  const Status status = status_of_call(*server, *client, *session);
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_NE(status.message().find("datagram size"), std::string_view::npos) << status.message();
}

TEST(Terms, both_ends_hear_of_another_version_of_the_transport) {
  Ends ends;
  auto server = ends.make<Shm>(*ends.server_nexus);
  auto client = ends.make<OtherShm>(*ends.client_nexus);
  auto refused = client->create_session(ends.server_nexus->uri(), {});
  ASSERT_TRUE(refused.ok());
  const Status at_client = status_of_call(*server, *client, *refused);
  EXPECT_EQ(at_client.message(), std::string_view(wire::refusal_text(wire::Refusal::kTransportMismatch)));
  auto failed = server->create_session(ends.client_nexus->uri(), {});
  ASSERT_TRUE(failed.ok());
  const Status at_server = status_of_call(*client, *server, *failed);
  EXPECT_NE(at_server.message().find("version"), std::string::npos) << at_server.message();
}

}  // namespace
}  // namespace rpc_test
}  // namespace tern
