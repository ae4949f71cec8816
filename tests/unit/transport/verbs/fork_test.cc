// A forked child that destroys its inherited verbs endpoints disturbs neither itself nor its parent. The software verbs
// provider ends a process that calls verbs with its parent's objects.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "unit/transport/verbs/verbs_fixture.h"

namespace tern::transport {
namespace {

using verbs_test::connect;
using verbs_test::End;
using verbs_test::provider;
using verbs_test::run_until;

class VerbsFork : public verbs_test::VerbsTest {};

int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST_F(VerbsFork, child_destroys_the_endpoints_and_the_parent_goes_on) {
  auto a = std::make_unique<End>();
  auto b = std::make_unique<End>();
  const PeerId peer = connect(*a, *b);
  detail::Buffer* buffer = a->alloc_filled(3000, std::byte{3});
  provider().block_address_handles(true);
  End silent;
  ASSERT_TRUE((*a)->connect(silent->address(), "").ok());
  ASSERT_TRUE(run_until({a.get()}, [] { return provider().blocked_address_handles() == 1; }));
  ASSERT_TRUE(a->send(peer, 1, buffer, 3000));  // queued at the time of the fork

  const pid_t child = ::fork();
  if (child == 0) {
    (*a)->disconnect(peer);
    a.reset();
    b.reset();
    ::_exit(0);
  }
  EXPECT_EQ(exit_code_of(child), 0);

  provider().block_address_handles(false);
  ASSERT_TRUE(run_until({a.get(), b.get()}, [&] { return b->got.size() == 1; }));
  EXPECT_EQ(b->got[0].payload, std::vector<std::byte>(3000, std::byte{3}));
  EXPECT_EQ((*a)->peer_state(peer), PeerState::kReady);
  // Events still end a sleep.
  while (!(*b)->prepare_wait()) {
    (*b)->end_wait();
    b->turn();
  }
  ASSERT_TRUE(a->send(peer, 2));
  (*a)->flush();
  (*b)->wait(UINT64_MAX);
  (*b)->end_wait();
  ASSERT_TRUE(run_until({b.get()}, [&] { return b->got.size() == 2; }));
  ASSERT_TRUE((*b)->prepare_wait());
  (*b)->wake();
  (*b)->wait(UINT64_MAX);
  (*b)->end_wait();
  provider().fail_queue_pair(0, true);
  ASSERT_TRUE(run_until({a.get(), b.get()}, [&] {
    (void)a->send(peer, 3);
    return b->got.size() > 2;
  }));
  memory::Arena::release(buffer);
}

}  // namespace
}  // namespace tern::transport
