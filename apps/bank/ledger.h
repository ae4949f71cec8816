// What a branch must not forget when it dies: the money that it has, and how far it has come with each other branch.
// Owned by the branch's thread. Knows nothing of messages.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace bank {

/// What every branch has at first.
constexpr int64_t kOpeningBalance = 1'000'000;

/// A line of the journal. All that a branch knows follows from these, in their order.
struct Entry {
  enum class Kind : uint32_t {
    kSent,      ///< our money is on its way to `branch`, as transfer `number` between us
    kSettled,   ///< `branch` has it
    kReceived,  ///< the money of `branch`'s transfer `number` is ours
    kClosing,   ///< we begin no transfers any more; `branch` is our own
  };
  Kind kind;
  uint32_t branch;
  uint64_t number;
  int64_t amount;
};

class Ledger {
 public:
  /// Of how far we have come with one other branch, in each direction.
  struct Account {
    uint64_t sent = 0;           ///< number of the last transfer; the next one waits until it is settled
    int64_t sent_amount = 0;     ///< likewise
    bool is_on_its_way = false;  ///< likewise: not settled yet
    uint64_t received = 0;       ///< number of the last transfer that came
  };

  /// `past` is the journal so far; `keep` adds to it, and returns when the entry will be there whatever happens.
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
  uint64_t settled_ = 0;  ///< transfers of ours
  bool is_closing_ = false;
};

/// The bank as a whole, at one moment.
struct Audit {
  uint64_t settled = 0;     ///< transfers
  uint64_t on_its_way = 0;  ///< transfers that are not settled
  bool is_closing = true;   ///< no branch begins transfers any more
  std::string problem;      ///< empty: no money was made or lost

  bool is_over() const { return is_closing && on_its_way == 0; }
};

/// `ledgers` has every branch's, in order.
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
      const bool is_between = received != sender.sent;  // neither here nor there
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
    result.problem = std::to_string(std::abs(total - expected)) + (total > expected ? " were made" : " were lost") +
                     " of " + std::to_string(expected);
  }
  return result;
}

}  // namespace bank
