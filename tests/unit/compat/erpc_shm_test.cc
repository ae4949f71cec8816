#define TERN_ERPC_TRANSPORT tern::Shm
#define TERN_ERPC_TRANSPORT_HEADER <tern/transport/shm.h>
#include "erpc_cases.h"
#include "erpc_ends.h"

#ifndef TERN_IS_SANITIZED  // a sanitizer's copy of 1 GB of memory may not be there
namespace {

// Over shm only, where it takes little time.
TEST_F(Erpc, request_above_the_receive_budget_of_tern_arrives_whole) {
  ASSERT_NO_FATAL_FAILURE(start());
  const int session = open();
  const size_t bytes = tern::RpcOptions().receive_budget_bytes + 1;
  erpc::MsgBuffer request = client->alloc_msg_buffer_or_die(bytes);
  erpc::MsgBuffer response = client->alloc_msg_buffer_or_die(sizeof(bytes));
  ask(session, kCount, request, response);
  ASSERT_EQ(response.get_data_size(), sizeof(bytes));
  EXPECT_EQ(std::memcmp(response.buf_, &bytes, sizeof(bytes)), 0);
}

}  // namespace
#endif
