// The state that must survive the death of a branch: its money, and its last transfer to and from each other branch.
// The branch's thread owns it. It does not depend on messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bank {

/// The money of each branch at the start.
constexpr int64_t kOpeningBalance = 1'000'000;

/// A line of the journal. The entries, in their order, determine the whole state of a branch.
struct Entry {
  enum class Kind : uint32_t {
    kSent,      ///< this branch sends money to `branch`, as transfer `number` between the two
    kSettled,   ///< `branch` has confirmed the transfer
    kReceived,  ///< this branch has received the money of transfer `number` of `branch`
    kClosing,   ///< this branch begins no more transfers; `branch` is this branch
  };
  Kind kind;
  uint32_t branch;
  uint64_t number;
  int64_t amount;
};

class Ledger {
 public:
  /// The state of the transfers with one other branch, in each direction.
  struct Account {
    uint64_t sent = 0;           ///< number of the last transfer sent; the next one waits until this one is settled
    int64_t sent_amount = 0;     ///< amount of the last transfer sent
    bool is_on_its_way = false;  ///< the last transfer sent is not settled yet
    uint64_t received = 0;       ///< number of the last transfer received
  };

  /// `past` is the journal so far. `keep` appends an entry to it, and returns when the entry will survive a crash.
  Ledger(uint32_t branches, const std::vector<Entry>& past, std::function<void(const Entry&)> keep)
      : keep_(std::move(keep)), accounts_(branches) {
    for (const Entry& entry : past) apply(entry);
  }
  void write(const Entry& entry) {
    keep_(entry);
    apply(entry);
  }

  int64_t balance() const { return balance_; }
  const Account& account(uint32_t branch) const { return accounts_[branch]; }
  uint32_t branches() const { return static_cast<uint32_t>(accounts_.size()); }
  uint64_t settled() const { return settled_; }
  bool is_closing() const { return is_closing_; }

 private:
  void apply(const Entry& entry) {
    Account& account = accounts_[entry.branch];
    switch (entry.kind) {
      case Entry::Kind::kSent:
        balance_ -= entry.amount;
        account.sent = entry.number;
        account.sent_amount = entry.amount;
        account.is_on_its_way = true;
        break;
      case Entry::Kind::kSettled:
        account.is_on_its_way = false;
        settled_++;
        break;
      case Entry::Kind::kReceived:
        balance_ += entry.amount;
        account.received = entry.number;
        break;
      case Entry::Kind::kClosing:
        is_closing_ = true;
        break;
    }
  }

  std::function<void(const Entry&)> keep_;
  int64_t balance_ = kOpeningBalance;
  std::vector<Account> accounts_;
  uint64_t settled_ = 0;  ///< transfers sent by this branch
  bool is_closing_ = false;
};

/// The state of the whole bank at one moment.
struct Audit {
  uint64_t settled = 0;     ///< transfers
  uint64_t on_its_way = 0;  ///< transfers that are not settled
  bool is_closing = true;   ///< no branch begins more transfers
  std::string problem;      ///< empty: the sum of all money is right

  bool is_over() const { return is_closing && on_its_way == 0; }
};

/// `ledgers` has the ledger of every branch, in order.
inline Audit audit(const std::vector<Ledger*>& ledgers) {
  Audit result;
  int64_t total = 0;
  for (uint32_t from = 0; from < ledgers.size(); from++) {
    total += ledgers[from]->balance();
    result.settled += ledgers[from]->settled();
    result.is_closing &= ledgers[from]->is_closing();
    for (uint32_t to = 0; to < ledgers.size(); to++) {
      const Ledger::Account& sender = ledgers[from]->account(to);
      const uint64_t received = ledgers[to]->account(from).received;
      const bool is_between = received != sender.sent;  // the sender has subtracted the amount, and the receiver has
                                                        // not added it yet
      if (is_between) total += sender.sent_amount;
      result.on_its_way += sender.is_on_its_way ? 1 : 0;
      if (is_between && (!sender.is_on_its_way || received + 1 != sender.sent)) {
        result.problem = "branch " + std::to_string(to) + " has transfer " + std::to_string(received) + " of branch " +
                         std::to_string(from) + ", whose last one is " + std::to_string(sender.sent) +
                         (sender.is_on_its_way ? ", on its way" : ", settled");
      }
    }
  }
  const int64_t expected = kOpeningBalance * static_cast<int64_t>(ledgers.size());
  if (result.problem.empty() && total != expected) {
    result.problem = "the total is " + std::to_string(total) + " and must be " + std::to_string(expected);
  }
  return result;
}

}  // namespace bank
