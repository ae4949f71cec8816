// Requests with deadlines that wait for a worker, and the tasks that take them; copies of messages.
#include "rpc/mailbox.h"

#include <algorithm>
#include <barrier>
#include <cstdlib>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tern/environment.h>

#include "rpc/handlers.h"

namespace tern::rpc {
namespace {

constexpr uint64_t kInTimeNs = UINT64_MAX - 1;

class MailboxTest : public testing::Test {
 protected:
  MailboxTest() {
    auto made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    if (!made.ok()) std::abort();
    mailbox_ = new Mailbox(**made, **made, real_environment());
  }
  /// Returns all requests, so that the mailbox and its arena are destroyed.
  ~MailboxTest() override {
    answered();
    for (Incoming* request : requests_) mailbox_->give_incoming(request);
    mailbox_->close();
  }
  Incoming* make(uint64_t deadline_ns) {
    Incoming* request = mailbox_->take_incoming(nullptr);
    request->deadline_ns = deadline_ns;
    request->handler = &handler_;
    requests_.push_back(request);
    return request;
  }
  Incoming* make_late() { return make(1); }
  Incoming* make_in_time() { return make(kInTimeNs); }
  /// Runs one task as a worker.
  Incoming* run_task(bool has_deadline = true) {
    Incoming* request = nullptr;
    if (!mailbox_->begin_task(has_deadline, request)) std::abort();
    mailbox_->leave_worker();
    return request;
  }
  std::vector<Incoming*> answered() {
    std::vector<detail::InlineFunction<>> posts;
    std::vector<Incoming*> all;
    for (Incoming* at = mailbox_->drain(posts); at != nullptr; at = at->next_free) all.push_back(at);
    return all;
  }

  Mailbox* mailbox_;
  HandlerEntry handler_;
  std::vector<Incoming*> requests_;
};

TEST_F(MailboxTest, close__in_a_worker_handler_ends_the_process) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Incoming* request = make_in_time();
        if (mailbox_->add_waiting(request) && mailbox_->begin_task(true, request)) mailbox_->close();
      },
      "CHECK failed");
}

// It may have the owner's stack, and with it the owner's pthread_self(3).
TEST_F(MailboxTest, is_owner__is_false_in_a_thread_that_begins_after_the_owner_has_ended) {
  for (int i = 0; i < 20; i++) {
    std::thread([&] {
      mailbox_->bind_owner();
      EXPECT_TRUE(mailbox_->is_owner());
    }).join();
    std::thread([&] { EXPECT_FALSE(mailbox_->is_owner()); }).join();
  }
  mailbox_->bind_owner();
}

TEST_F(MailboxTest, request_without_a_task_does_not_wait) {
  Incoming* request = make_in_time();
  ASSERT_TRUE(mailbox_->add_waiting(request));
  EXPECT_EQ(mailbox_->take_back_waiting(request), request);
  EXPECT_FALSE(mailbox_->is_waiting(request));
  EXPECT_FALSE(mailbox_->remove_waiting(request));
}

TEST_F(MailboxTest, request_that_another_task_has_taken_is_not_taken_back) {
  Incoming* late = make_late();
  Incoming* next = make_in_time();
  ASSERT_TRUE(mailbox_->add_waiting(late));
  ASSERT_TRUE(mailbox_->add_waiting(next));
  // The task runs before the owner learns that the workers' queue was full.
  EXPECT_EQ(run_task(), next);
  EXPECT_EQ(mailbox_->take_back_waiting(next), nullptr);
  EXPECT_EQ(answered(), std::vector<Incoming*>{late});
}

TEST_F(MailboxTest, task_of_a_late_request_serves_the_one_without_a_task) {
  Incoming* late = make_late();
  Incoming* in_time = make_in_time();
  Incoming* without_task = make_in_time();
  for (Incoming* request : {late, in_time, without_task}) ASSERT_TRUE(mailbox_->add_waiting(request));
  EXPECT_EQ(run_task(), without_task) << "the newest, because one was late";
  EXPECT_EQ(mailbox_->take_back_waiting(without_task), nullptr);
  EXPECT_EQ(run_task(), in_time);
}

TEST_F(MailboxTest, newest_is_refused_if_its_task_has_taken_the_one_without) {
  Incoming* late = make_late();
  Incoming* oldest = make_in_time();
  Incoming* second = make_in_time();
  for (Incoming* request : {late, oldest, second}) ASSERT_TRUE(mailbox_->add_waiting(request));
  EXPECT_EQ(run_task(), second);
  Incoming* third = make_in_time();
  EXPECT_FALSE(mailbox_->add_waiting(third)) << "the late one's task is left";
  EXPECT_EQ(run_task(), third);
  Incoming* without_task = make_in_time();
  ASSERT_TRUE(mailbox_->add_waiting(without_task));
  EXPECT_EQ(run_task(), without_task);
  EXPECT_EQ(mailbox_->take_back_waiting(without_task), oldest) << "or it would wait for ever";
  EXPECT_FALSE(mailbox_->is_waiting(oldest));
}

// They keep the order of arrival, whatever happens to requests with deadlines.
TEST_F(MailboxTest, requests_without_deadlines_have_tasks_of_their_own) {
  Incoming* late = make_late();
  Incoming* first = make(UINT64_MAX);
  Incoming* in_time = make_in_time();
  Incoming* second = make(UINT64_MAX);
  for (Incoming* request : {late, first, in_time, second}) ASSERT_TRUE(mailbox_->add_waiting(request));
  EXPECT_EQ(run_task(), in_time);
  EXPECT_EQ(run_task(false), first);
  EXPECT_EQ(run_task(false), second);
  EXPECT_EQ(run_task(), nullptr);
}

TEST_F(MailboxTest, request_that_has_ended_leaves_its_task_to_the_next) {
  for (const uint64_t deadline_ns : {kInTimeNs, UINT64_MAX}) {
    Incoming* ended = make(deadline_ns);
    ASSERT_TRUE(mailbox_->add_waiting(ended));
    ASSERT_TRUE(mailbox_->remove_waiting(ended));
    Incoming* next = make(deadline_ns);
    EXPECT_FALSE(mailbox_->add_waiting(next));
    EXPECT_EQ(run_task(deadline_ns != UINT64_MAX), next);
  }
}

TEST_F(MailboxTest, make_empty__leaves_a_message_that_another_thread_has_copied) {
  std::byte received[8] = {std::byte{7}};
  Incoming* request = make_in_time();
  request->data = received;
  request->bytes = sizeof(received);
  ASSERT_TRUE(mailbox_->make_stable(request));  // between the owner's vain make_stable() and its make_empty()
  mailbox_->make_empty(request);
  ASSERT_EQ(request->bytes, sizeof(received));
  ASSERT_NE(request->data, nullptr);
  EXPECT_EQ(request->data[0], std::byte{7});
}

TEST_F(MailboxTest, make_stable__without_memory_leaves_the_message_where_it_is) {
  std::byte received[8] = {std::byte{7}};
  Incoming* request = make_in_time();
  request->data = received;
  request->bytes = UINT32_MAX;  // more than a message may have
  EXPECT_FALSE(mailbox_->make_stable(request));
  EXPECT_FALSE(request->is_stable());
  EXPECT_EQ(request->data, received);
  mailbox_->make_empty(request);
  EXPECT_TRUE(request->is_stable());
  EXPECT_EQ(request->bytes, 0u);
}

TEST_F(MailboxTest, make_stable__waits_for_the_copy_of_another_thread) {
  std::byte received[8] = {std::byte{7}};
  std::byte copied[8] = {std::byte{9}};
  Incoming* request = make_in_time();
  request->data = received;
  request->bytes = sizeof(received);
  request->place = Incoming::Place::kLeaving;
  std::byte seen{0};
  std::thread other([&] {
    if (mailbox_->make_stable(request)) seen = request->data[0];
  });
  while (request->place != Incoming::Place::kAwaited) std::this_thread::yield();
  request->data = copied;
  request->place = Incoming::Place::kStable;
  request->place.notify_all();
  other.join();
  EXPECT_EQ(seen, std::byte{9});
}

// The owner keeps requests while another thread asks for their bytes.
TEST_F(MailboxTest, make_stable__copies_once_if_two_threads_need_the_copy) {
  constexpr size_t kRequests = 200;
  constexpr uint32_t kBytes = 64 << 10;  // long enough for one thread to find the other one copying
  const std::vector<std::byte> received(kBytes, std::byte{7});
  std::vector<Incoming*> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    requests.push_back(make_in_time());
    requests[i]->data = received.data();
    requests[i]->bytes = kBytes;
  }
  std::barrier both(2);
  const auto copy_all = [&](std::vector<const std::byte*>& copies) {
    for (Incoming* request : requests) {
      both.arrive_and_wait();
      copies.push_back(mailbox_->make_stable(request) ? request->data : nullptr);
    }
  };
  std::vector<const std::byte*> mine, others;
  std::thread other([&] { copy_all(others); });
  copy_all(mine);
  other.join();
  EXPECT_EQ(mine, others);
  for (const std::byte* copy : mine) {
    ASSERT_NE(copy, nullptr);
    EXPECT_NE(copy, received.data());
    EXPECT_TRUE(std::equal(received.begin(), received.end(), copy));
  }
}

}  // namespace
}  // namespace tern::rpc
