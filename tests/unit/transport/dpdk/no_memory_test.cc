// Lack of memory: an endpoint over DPDK reports it, or works without a peer. It never aborts, and its remains at the
// device do not harm the next attempt.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/threads.h"
#include "base/try.h"
#include "unit/failing_new.h"
#include "unit/transport/dpdk/dpdk_fixture.h"

namespace {

/// The allocations of one thread while `is_short`. Number `fail_at` fails, or all from it on.
struct Shortage {
  bool is_short = false;
  bool fails_on = false;
  uint64_t count = 0;
  uint64_t fail_at = 0;

  bool fails() {
    if (!is_short) return false;
    ++count;
    return fails_on ? count >= fail_at : count == fail_at;
  }
};
constinit thread_local Shortage shortage;

}  // namespace

bool tern::test::allocation_fails() noexcept { return shortage.fails(); }

namespace tern::transport::dpdk_test {
namespace {

#ifdef TERN_IS_SANITIZED
constexpr uint64_t kStep = 7;
#else
constexpr uint64_t kStep = 1;
#endif

/// In its scope the library's allocations may fail.
struct Short {
  Short() { shortage.is_short = true; }
  ~Short() { shortage.is_short = false; }
};

struct ArenaEnd {
  void operator()(memory::Arena* arena) const { arena->orphan(); }
};
using ArenaPointer = std::unique_ptr<memory::Arena, ArenaEnd>;

ArenaPointer make_arena() {
  return ArenaPointer(*memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20}));
}

/// Checks for a lack of memory. A thread that cannot start for lack of memory has its own status.
void expect_shortage(const Status& status) {
  EXPECT_TRUE(status.code() == Code::kNoMemory || status.message() == base::kNoThread.message()) << status.message();
}

std::unique_ptr<DpdkImpl> create(memory::Arena& arena) {
  Dpdk::Options options = options_of(0);
  Result<std::unique_ptr<DpdkImpl>> made(Status(Code::kNoMemory, ""));
  {
    const Short no_memory;
    (void)base::try_grow([&] { made = DpdkImpl::create(std::move(options), Context(arena)); });  // as Rpc::create()
  }
  if (made.ok()) return std::move(*made);
  expect_shortage(made.status());
  return nullptr;
}

std::optional<PeerId> connect_to(DpdkImpl& from, std::span<const std::byte> address) {
  Result<PeerId> peer(Status(Code::kNoMemory, ""));
  {
    const Short no_memory;
    peer = from.connect(address, "");
  }
  if (peer.ok()) return *peer;
  expect_shortage(peer.status());
  return std::nullopt;
}

/// Runs two endpoints of a port, and opens and closes the device. True: everything worked.
bool live() {
  const ArenaPointer one_arena = make_arena(), other_arena = make_arena();
  std::unique_ptr<DpdkImpl> one = create(*one_arena), other = create(*other_arena);
  bool works = one != nullptr && other != nullptr;
  if (works) {
    const auto far = ethernet::encode_address({*base::SocketAddress::parse("10.78.0.2:4001"), 1472});
    const std::optional<PeerId> peer = connect_to(*one, other->address()), stranger = connect_to(*one, far);
    works = peer && stranger;
    if (peer) {
      uint32_t got = 0;
      EXPECT_TRUE(run_until({}, [&] {
        const Short no_memory;
        if (one->peer_state(*peer) != PeerState::kReady) return false;
        (void)one->send(*peer, header_of(1, 0), nullptr, 0, nullptr);
        one->flush();
        (void)one->prepare_wait();
        one->end_wait();
        got += static_cast<uint32_t>(other->receive([](const wire::Header&, const Payload&) {}));
        return got > 0;
      }));
    }
    const Short no_memory;
    if (peer) one->disconnect(*peer);
    if (stranger) one->disconnect(*stranger);
  }
  const Short no_memory;
  other.reset();
  one.reset();
  return works;
}

/// Runs one life after the other, each with the next allocation failing, until a life needs fewer allocations.
void live_on(bool fails_on) {
  ASSERT_TRUE(live()) << "EAL and its drivers are there from now on";
  uint64_t lives = 0;
  for (uint64_t at = 1;; at += kStep, ++lives) {
    SCOPED_TRACE("allocation " + std::to_string(at));
    shortage = {};
    shortage.fails_on = fails_on;
    shortage.fail_at = at;
    (void)live();
    const uint64_t count = shortage.count;
    shortage = {};
    if (::testing::Test::HasFailure()) return;
    if (count < at) break;
  }
  EXPECT_TRUE(live());
  EXPECT_GT(lives, 20u / kStep);
}

TEST(DpdkNoMemory, endpoint_survives_each_single_failed_allocation) { live_on(false); }
TEST(DpdkNoMemory, endpoint_survives_when_each_allocation_and_all_later_ones_fail) { live_on(true); }

}  // namespace
}  // namespace tern::transport::dpdk_test
