// A branch of the bank: sends money to other branches, one transfer at a time to each, and receives their transfers.
// Its endpoint's thread owns it. It does not depend on the transport, nor on whether the network is simulated.
//
// The rule that it shows: a call that ended with an error may have been executed, and a repeated call is a new call. So
// each transfer has a number, both sides write the transfer to the journal before they send anything about it, and the
// receiver accepts each number once.
#pragma once

#include <tern/environment.h>
#include <tern/rpc.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ledger.h"

namespace bank {

constexpr uint16_t kTransfer = 1;  ///< request type: a Transfer; the empty answer confirms it

/// The bytes on the network, between machines of the same byte order.
struct Transfer {
  uint64_t number;
  int64_t amount;
  uint32_t from;
  uint32_t zero = 0;
};

/// Application codes of Request::fail().
enum Failure : uint16_t { kNotATransfer = 1, kNotItsTurn };

class Branch {
 public:
  /// `uris` has the URI of every branch; `self` is the index of this one. All arguments must outlive the branch's
  /// endpoint.
  Branch(tern::Endpoint& endpoint, tern::Environment& environment, Ledger& ledger, std::vector<std::string> uris,
         uint32_t self)
      : endpoint_(endpoint),
        environment_(environment),
        ledger_(ledger),
        uris_(std::move(uris)),
        self_(self),
        peers_(uris_.size()) {}

  /// Starts to serve, and repeats the transfers that were not settled when the branch died.
  tern::Status open() {
    if (auto status = endpoint_.on_request(kTransfer, [this](tern::Request request) { receive(std::move(request)); });
        !status.ok()) {
      return status;
    }
    for (uint32_t to = 0; to < ledger_.branches(); to++) {
      if (ledger_.account(to).is_on_its_way) send(to);
    }
    return endpoint_.after({}, [this] { begin(); }).status();
  }
  /// Begins no more transfers. Still serves, and settles the transfers that it began.
  void close() { ledger_.write({Entry::Kind::kClosing, self_, 0, 0}); }
  /// The number of repeated calls of transfers.
  uint64_t repeated() const { return repeated_; }

 private:
  static constexpr tern::Duration kPause = std::chrono::milliseconds(1);      ///< between two transfers, on average
  static constexpr tern::Duration kDeadline = std::chrono::milliseconds(10);  ///< of one call
  static constexpr tern::Duration kRetry = std::chrono::milliseconds(5);      ///< after a call that has failed

  struct Peer {
    tern::Session session;
    bool has_session = false;
  };

  uint64_t random(uint64_t below) { return environment_.random() % below; }

  void begin() {
    if (ledger_.is_closing()) return;
    (void)endpoint_.after(tern::Duration(random(2 * kPause.count())), [this] { begin(); });
    const auto to = static_cast<uint32_t>(random(uris_.size()));
    const Ledger::Account& account = ledger_.account(to);
    if (to == self_ || account.is_on_its_way || ledger_.balance() == 0) return;
    const auto amount = 1 + static_cast<int64_t>(random(static_cast<uint64_t>(ledger_.balance())));
    ledger_.write({Entry::Kind::kSent, to, account.sent + 1, amount});
    send(to);
  }

  /// Sends the transfer that `to` has not confirmed, for the first time or again.
  void send(uint32_t to) {
    if (!peers_[to].has_session) {
      auto session = endpoint_.create_session(uris_[to]);
      if (!session.ok()) return send_later(to);
      peers_[to] = {*session, true};
    }
    const Ledger::Account& account = ledger_.account(to);
    const Transfer transfer = {account.sent, account.sent_amount, self_};
    tern::MsgBuf request = endpoint_.alloc_msgbuf(sizeof(transfer));
    tern::MsgBuf response = endpoint_.alloc_msgbuf(0);
    if (!request || !response) return send_later(to);
    std::memcpy(request.bytes().data(), &transfer, sizeof(transfer));
    auto call = endpoint_.enqueue_request(peers_[to].session, kTransfer, std::move(request), std::move(response),
                                          [this, to](const tern::Completion& done) { on_end(to, done.status); },
                                          {.deadline = kDeadline});
    if (!call.ok()) on_end(to, call.status());
  }
  void send_later(uint32_t to) {
    repeated_++;
    (void)endpoint_.after(kRetry, [this, to] { send(to); });
  }

  void on_end(uint32_t to, tern::Status status) {
    if (status.ok()) {
      const Ledger::Account& account = ledger_.account(to);
      return ledger_.write({Entry::Kind::kSettled, to, account.sent, account.sent_amount});
    }
    if (status.code() == tern::Code::kCancelled)
      return;                                      // our endpoint closes; the ledger knows which transfer to
                                                   // repeat
    if (status.code() != tern::Code::kDeadline) {  // a failed session never recovers
      (void)endpoint_.destroy_session(peers_[to].session);
      peers_[to].has_session = false;
    }
    send_later(to);
  }

  void receive(tern::Request request) {
    Transfer transfer;
    const auto bytes = request.bytes();
    if (bytes.size() != sizeof(transfer)) return request.fail(kNotATransfer);
    std::memcpy(&transfer, bytes.data(), sizeof(transfer));
    const int64_t all_money = kOpeningBalance * static_cast<int64_t>(uris_.size());
    if (transfer.from >= uris_.size() || transfer.amount <= 0 || transfer.amount > all_money) {
      return request.fail(kNotATransfer);
    }
    const uint64_t received = ledger_.account(transfer.from).received;
    if (transfer.number > received + 1) return request.fail(kNotItsTurn);
    if (transfer.number == received + 1) {  // otherwise it was received before, and its sender did not get the answer
      ledger_.write({Entry::Kind::kReceived, transfer.from, transfer.number, transfer.amount});
    }
    request.respond();
  }

  tern::Endpoint& endpoint_;
  tern::Environment& environment_;
  Ledger& ledger_;
  const std::vector<std::string> uris_;
  const uint32_t self_;
  std::vector<Peer> peers_;
  uint64_t repeated_ = 0;
};

/// A branch with its Nexus and endpoint, over any transport: the content of a process, or of a simulated host's
/// program.
template <tern::Transport T>
struct Office {
  std::unique_ptr<tern::Nexus> nexus;
  std::unique_ptr<Branch> branch;  ///< outlives the endpoint, whose continuations may run until it is destroyed
  std::unique_ptr<tern::Rpc<T>> rpc;

  tern::Status open(tern::NexusOptions nexus_options, typename T::Options transport, tern::RpcOptions options,
                    Ledger& ledger, std::vector<std::string> uris, uint32_t self) {
    // A dead branch is given up after 50 ms instead of 500 ms.
    nexus_options.liveness_timeout = std::chrono::milliseconds(50);
    auto made_nexus = tern::Nexus::create(uris[self], nexus_options);
    if (!made_nexus.ok()) return made_nexus.status();
    nexus = std::move(*made_nexus);
    auto made = tern::Rpc<T>::create(*nexus, transport, options);
    if (!made.ok()) return made.status();
    rpc = std::move(*made);
    tern::Environment& environment =
        nexus_options.environment != nullptr ? *nexus_options.environment : tern::real_environment();
    branch = std::make_unique<Branch>(*rpc, environment, ledger, std::move(uris), self);
    return branch->open();
  }
};

}  // namespace bank
