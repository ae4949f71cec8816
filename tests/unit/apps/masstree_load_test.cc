// The index server and its load on simulated hosts: a correct index passes, and each kind of faulty index is detected.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>

#include "../apps/masstree/backend.h"
#include "../apps/masstree/cluster.h"

using namespace ordered;
using testing::HasSubstr;

namespace {

constexpr uint64_t kKeys = 3000;

ClusterOptions options() {
  ClusterOptions options;
  options.server_threads = 2;
  options.workers = 2;
  options.client_hosts = 2;
  options.client_threads = 2;
  options.keys = kKeys;
  options.load.window = 4;
  options.load.put_share = 0.2;
  options.load.insert_share = 0.2;
  options.load.scan_share = 0.1;
  const std::chrono::nanoseconds index_time(500), scan_time(10'000);
  options.costs = {{index_time, index_time, scan_time}, std::chrono::microseconds(1), std::chrono::microseconds(3)};
  return options;
}

constexpr std::initializer_list<Phase> kAllPhases = {Phase::kPlain, Phase::kScansInWorkers, Phase::kScansInLoops,
                                                     Phase::kNothingInWorker, Phase::kNothingInLoop};

template <class AnyIndex>
std::string run(AnyIndex& index, std::initializer_list<Phase> phases = {Phase::kScansInWorkers, Phase::kScansInLoops}) {
  EXPECT_TRUE(fill(index, kKeys, 1));
  return Cluster<AnyIndex>(index, options()).run(phases, std::chrono::milliseconds(2));
}

enum class Fault {
  kNone,
  kLosesPuts,
  kLosesInserts,
  kWrongKey,
  kScanSkips,
  kScanIncludesFirst,
  kScanIsStale,
  kScanIsShort
};

/// An index with one fault, which shows after 2 * kKeys gets and scans.
class FaultyIndex {
 public:
  static constexpr const char* kName = "faulty";
  explicit FaultyIndex(Fault fault) : fault_(fault) {}
  explicit FaultyIndex(size_t /*keys_max*/) {}  // the concept requires this constructor

  std::optional<uint64_t> get(uint64_t key) {
    uses_++;
    const auto found = map_.find(key);
    if (found == map_.end()) return std::nullopt;
    if (shows(Fault::kWrongKey) && std::next(found) != map_.end()) return std::next(found)->second;
    return found->second;
  }
  Put put(uint64_t key, uint64_t value) {
    const auto found = map_.find(key);
    if (found != map_.end()) {
      if (!shows(Fault::kLosesPuts)) found->second = value;
      return Put::kUpdated;
    }
    if (!shows(Fault::kLosesInserts)) map_.emplace(key, value);
    first_.emplace(key, value);
    return Put::kInserted;
  }
  template <class Visit>
  size_t scan(uint64_t after, size_t limit, Visit&& visit) {
    uses_++;
    const auto& map = fault_ == Fault::kScanIsStale ? first_ : map_;
    size_t visited = 0;
    if (shows(Fault::kScanIsShort)) limit--;
    auto at = shows(Fault::kScanIncludesFirst) ? map.lower_bound(after) : map.upper_bound(after);
    for (; visited < limit && at != map.end(); ++at) {
      if (visited == 5 && shows(Fault::kScanSkips) && ++at == map.end()) break;
      visit(at->first, at->second);
      visited++;
    }
    return visited;
  }

 private:
  /// A fault shows in one use of 100. kLosesInserts shows in each insert, because there are few inserts.
  bool shows(Fault fault) const {
    return fault == fault_ && uses_ > 2 * kKeys && (fault == Fault::kLosesInserts || uses_ % 100 == 0);
  }

  Fault fault_ = Fault::kNone;
  uint64_t uses_ = 0;
  std::map<uint64_t, uint64_t> map_;
  std::map<uint64_t, uint64_t> first_;  ///< the first value of each key
};
static_assert(OrderedIndex<FaultyIndex>);

std::string run(Fault fault) {
  FaultyIndex index(fault);
  return run(index);
}

}  // namespace

TEST(IndexLoad, a_right_index_passes) {
  Index index(2 * kKeys);
  ASSERT_TRUE(fill(index, kKeys, 1));
  Cluster<Index> cluster(index, options());
  ASSERT_EQ(cluster.run(kAllPhases, std::chrono::milliseconds(2)), "");
  for (const Phase phase : {Phase::kPlain, Phase::kScansInWorkers, Phase::kScansInLoops}) {
    const PhaseReport report = cluster.report(phase);
    EXPECT_GT(report.gets.count(), 0u);
    EXPECT_GT(report.puts.count(), 0u);
    EXPECT_EQ(report.scans.count() > 0, phase != Phase::kPlain);
    EXPECT_EQ(report.refused_full, 0u);
    EXPECT_GT(report.seconds, 0.0019);
  }
  const PhaseReport worker = cluster.report(Phase::kNothingInWorker), loop = cluster.report(Phase::kNothingInLoop);
  EXPECT_GT(worker.nothings.quantile_ns(0.5), loop.nothings.quantile_ns(0.5)) << "the hop takes virtual time";
  EXPECT_EQ(cluster.sum(&Load::read_back), kKeys + kKeys / 8);
}

TEST(IndexLoad, a_full_index_refuses_inserts_and_goes_on) {
  Index index(kKeys + 10);
  ASSERT_TRUE(fill(index, kKeys, 1));
  Cluster<Index> cluster(index, options());
  ASSERT_EQ(cluster.run({Phase::kScansInWorkers}, std::chrono::milliseconds(2)), "");
  EXPECT_GT(cluster.report(Phase::kScansInWorkers).refused_full, 0u);
}

TEST(IndexLoad, an_index_without_its_keys) {
  Index index(2 * kKeys);
  ASSERT_TRUE(fill(index, kKeys - 1, 1));
  EXPECT_THAT(Cluster<Index>(index, options()).run({}, {}), HasSubstr("lacks keys"));
}

TEST(IndexLoad, wrong_answers_are_detected) {
  EXPECT_EQ(run(Fault::kNone), "");
  EXPECT_THAT(run(Fault::kLosesPuts),
              testing::AnyOf(HasSubstr("has fallen"), HasSubstr("a sum that its keys never had")));
  EXPECT_THAT(run(Fault::kLosesInserts), testing::AnyOf(HasSubstr("has gone"), HasSubstr("has left out a key")));
  EXPECT_THAT(run(Fault::kWrongKey), HasSubstr("not one of its own"));
  EXPECT_THAT(run(Fault::kScanSkips), HasSubstr("has left out a key"));
  EXPECT_NE(run(Fault::kScanIncludesFirst), "");
  EXPECT_THAT(run(Fault::kScanIsStale), HasSubstr("a sum that its keys never had"));
  EXPECT_THAT(run(Fault::kScanIsShort), HasSubstr("has left out a key"));
}
