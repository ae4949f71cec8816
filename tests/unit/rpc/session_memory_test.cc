// The memory of thousands of sessions at rest. It is measured in a process that has done nothing else: memory that
// other tests have freed would serve sessions. No sanitizer, because it uses additional memory for each allocation.
#include <malloc.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include "rpc/endpoint_core.h"
#include "unit/rpc/many_sessions.h"

namespace tern::rpc_test {
namespace {

constexpr size_t kSessions = 5000;  ///< slabs that are partly used are then a small part of the memory

/// Returns the memory of the process, without its files: the share of a library's pages grows when another process that
/// uses the library ends. Each page counts once, however often it is mapped. malloc returns its free memory first.
size_t memory_bytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  size_t all = 0, files = 0;  // the second one is known since Linux 5.9
  for (std::string word; file >> word;) {
    if (word == "Pss:") file >> all;
    if (word == "Pss_File:") file >> files;
  }
  return (all - files) * 1024;
}

template <class T>
using SessionMemoryTest = ManySessions<T>;
TYPED_TEST_SUITE(SessionMemoryTest, Transports, TransportNames);

/// The limit is 2.25 KiB a session, both ends together.
TYPED_TEST(SessionMemoryTest, is_little_and_used_again) {
  constexpr size_t kBytesMax = 2304;
  this->open_and_use(kSessions);  // allocates the memory that does not depend on the number of later sessions
  this->rest();
  const size_t before = memory_bytes();
  if (before == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup here";
  const std::vector<Session> sessions = this->open_and_use(kSessions);
  this->rest();
  const size_t grown = memory_bytes() - before;
  EXPECT_LE(grown, kSessions * kBytesMax);
  EXPECT_GE(grown, kSessions * (sizeof(rpc::Client) + sizeof(rpc::Server)) * 3 / 4) << "not what this test measures";

  for (const Session session : sessions) ASSERT_TRUE(this->world_.client->destroy_session(session).ok());
  ASSERT_TRUE(this->world_.run_until([&] {
    return rpc::EndpointCore::of(*this->world_.client).census().client_sessions == kSessions &&
           rpc::EndpointCore::of(*this->world_.server).census().server_sessions == kSessions;
  }));
  this->open_and_use(kSessions);
  this->rest();
  // The Nexuses remember ended sessions for some seconds, in less than half the memory of a session.
  const size_t grown_again = memory_bytes() - before;
  EXPECT_LE(grown_again, grown + kSessions * 1024);
}

}  // namespace
}  // namespace tern::rpc_test
