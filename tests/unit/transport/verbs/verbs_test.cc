// The verbs transport over a device with faults: late completions, errors of queue pairs and ports, failing verbs,
// neighbours that do not answer. Over the software verbs provider.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "unit/transport/verbs/verbs_fixture.h"

namespace tern::transport {
namespace {

using software_verbs::Hold;
using verbs_test::connect;
using verbs_test::counters;
using verbs_test::End;
using verbs_test::is_readable;
using verbs_test::provider;
using verbs_test::run_until;

class VerbsTransport : public verbs_test::VerbsTest {};

uint32_t pair_of(const End& end) {
  VerbsAddress address;
  EXPECT_TRUE(decode_address(end.impl->address(), &address));
  return address.queue_pair;
}

/// Checks the delivery of one packet with this number. Lost packets are sent again.
void expect_delivery(End& from, PeerId peer, End& to, uint32_t number) {
  const size_t before = to.got.size();
  uint32_t turns = 0;
  ASSERT_TRUE(run_until({&from, &to}, [&] {
    if (turns++ % 64 == 0) (void)from.send(peer, number);
    return to.got.size() > before;
  }));
  EXPECT_EQ(to.got.back().number, number);
}

// ---- Sending ----

TEST_F(VerbsTransport, one_doorbell_a_flush__and_one_completion_for_many) {
  End a, b;
  const PeerId peer = connect(a, b);
  provider().reset();
  for (uint32_t i = 0; i < 16; i++) ASSERT_TRUE(a.send(peer, i));
  a->flush();
  EXPECT_EQ(counters().send_calls, 1u);
  EXPECT_EQ(counters().sends, 16u);
  EXPECT_EQ(counters().inline_sends, 16u);
  EXPECT_EQ(counters().signalled_sends, 0u);
  EXPECT_EQ(a->released(), a->ticket()) << "they were copied";
  detail::Buffer* buffer = a.alloc_filled(3000, std::byte{7});
  for (uint32_t i = 0; i < 16; i++) ASSERT_TRUE(a.send(peer, i, buffer, 3000));
  a->flush();
  EXPECT_EQ(counters().send_calls, 2u);
  EXPECT_EQ(counters().signalled_sends, 1u);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 32 && a->released() == a->ticket(); }));
  EXPECT_EQ(b.got.back().payload, std::vector<std::byte>(3000, std::byte{7}));
  memory::Arena::release(buffer);
}

TEST_F(VerbsTransport, tickets__are_released_by_completions__in_order) {
  End a, b;
  const PeerId peer = connect(a, b);
  provider().hold(Hold::kSends);
  detail::Buffer* buffer = a.alloc_filled(2000, std::byte{1});
  std::vector<uint64_t> tickets;
  for (uint32_t i = 0; i < 8; i++) {
    ASSERT_TRUE(a.send(peer, i, buffer, 2000));
    a->flush();
    tickets.push_back(a->ticket());
  }
  for (int i = 0; i < 100; i++) a.turn();
  EXPECT_LT(a->released(), tickets[0]) << "the NIC has read nothing";
  for (size_t i = 0; i < tickets.size(); i++) {
    provider().release(pair_of(a), 1);
    a.turn();
    EXPECT_EQ(a->released(), tickets[i]);
  }
  EXPECT_TRUE(run_until({&b}, [&] { return b.got.size() == 8; }));
  memory::Arena::release(buffer);
}

TEST_F(VerbsTransport, full_queue__refuses__and_sleep_ends_when_there_is_space) {
  End a, b;
  const PeerId peer = connect(a, b);
  provider().hold(Hold::kSends);
  uint32_t taken = 0;
  while (a.send(peer, taken)) taken++;
  EXPECT_EQ(taken, 256u);
  a->flush();
  EXPECT_FALSE(a.send(peer, taken));
  ASSERT_TRUE(a->prepare_wait());
  EXPECT_FALSE(is_readable(a->descriptor()));
  std::thread device([] { provider().hold(Hold::kNothing); });
  a->wait(UINT64_MAX);
  a->end_wait();
  device.join();
  EXPECT_TRUE(run_until({&a}, [&] { return a.send(peer, taken); }));
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 257; }));
}

TEST_F(VerbsTransport, peer_that_ends__keeps_its_handle_until_its_packets_have_left) {
  End a, b, c;
  const PeerId first = connect(a, b), second = connect(a, c);
  provider().hold(Hold::kCompletions);
  detail::Buffer* buffer = a.alloc_filled(1000, std::byte{1});
  ASSERT_TRUE(a.send(first, 1, buffer, 1000));
  a->disconnect(first);
  for (int i = 0; i < 10; i++) a.turn();
  EXPECT_EQ(counters().address_handles, 2u);
  provider().hold(Hold::kNothing);
  ASSERT_TRUE(a.send(second, 2, buffer, 1000));
  EXPECT_TRUE(run_until({&a, &b, &c}, [&] { return counters().address_handles == 1; }));
  EXPECT_EQ(counters().address_handles_gone, 0u);
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
  memory::Arena::release(buffer);
}

TEST_F(VerbsTransport, packet_above_the_peers_length__is_a_counted_loss) {
  Verbs::Options small;
  small.packet_bytes = 1024;
  End a, b(small);
  const PeerId there = connect(a, b), back = connect(b, a);
  EXPECT_EQ(a->payload_bytes_max(), 4096u - 24);
  EXPECT_EQ(a->payload_bytes_max(there), 1000u);
  EXPECT_EQ(b->payload_bytes_max(back), 1000u);
  detail::Buffer* buffer = a.alloc_filled(1001, std::byte{1});
  EXPECT_TRUE(a.send(there, 1, buffer, 1001));
  EXPECT_EQ(a->counters().send_errors, 1u);
  EXPECT_TRUE(a.send(there, 2, buffer, 1000));
  EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 1; }));
  EXPECT_EQ(b.got[0].number, 2u);
  EXPECT_EQ(counters().oversized_sends, 0u);
  memory::Arena::release(buffer);
}

// ---- Errors of the queue pair and the device ----

TEST_F(VerbsTransport, queue_pair_in_error__releases_all_tickets_in_bounded_time__and_goes_on) {
  for (const bool raises_event : {false, true}) {
    End a, b;
    const PeerId peer = connect(a, b), back = connect(b, a);
    provider().hold(Hold::kSends);
    detail::Buffer* buffer = a.alloc_filled(2000, std::byte{1});
    for (uint32_t i = 0; i < 100; i++) ASSERT_TRUE(a.send(peer, i, buffer, 2000));
    a->flush();
    ASSERT_TRUE(a.send(peer, 100, buffer, 2000));  // the NIC does not have this packet yet
    const uint64_t ticket = a->ticket();
    EXPECT_LT(a->released(), ticket);
    provider().fail_queue_pair(pair_of(a), raises_event);
    for (int i = 0; i < 3; i++) a.turn();
    EXPECT_GE(a->released(), ticket);
    provider().hold(Hold::kNothing);
    expect_delivery(a, peer, b, 1000);
    expect_delivery(b, back, a, 1001);
    EXPECT_EQ(a->counters().device_resets, 1u) << "one error, one reset";
    EXPECT_EQ(a->counters().device_events, raises_event ? 1u : 0u);
    EXPECT_TRUE(a->failure().ok());
    memory::Arena::release(buffer);
  }
}

TEST_F(VerbsTransport, queue_pair_in_error__is_found_by_events_alone) {
  End a, b;
  const PeerId peer = connect(a, b), back = connect(b, a);
  for (int i = 0; i < 20; i++) {  // errors with packets between them do not make the endpoint give up
    while (!a->prepare_wait()) {
      a->end_wait();
      a.turn();
    }
    provider().fail_queue_pair(pair_of(a), true);
    a->wait(UINT64_MAX);
    a->end_wait();
    expect_delivery(b, back, a, 1);
    detail::Buffer* buffer = a.alloc_filled(1000, std::byte{1});
    ASSERT_TRUE(a.send(peer, 2, buffer, 1000));
    ASSERT_TRUE(run_until({&a, &b}, [&] { return a->released() == a->ticket(); }));
    memory::Arena::release(buffer);
  }
  EXPECT_EQ(a->counters().device_resets, 20u);
  EXPECT_TRUE(a->failure().ok());
}

/// Checks that the endpoint has failed: it sends nothing, all tickets are released, and calls do not crash.
void expect_failed(End& end, PeerId peer, const char* part) {
  ASSERT_TRUE(run_until({&end}, [&] { return !end->failure().ok(); })) << part;
  EXPECT_EQ(end->failure().code(), Code::kUnavailable);
  EXPECT_NE(std::string(end->failure().message()).find(part), std::string::npos) << end->failure().message();
  EXPECT_EQ(end->released(), end->ticket());
  EXPECT_EQ(end->peer_state(peer), PeerState::kDead);
  detail::Buffer* buffer = end.alloc_filled(1000, std::byte{1});
  for (uint32_t i = 0; i < 300; i++) {
    EXPECT_FALSE(end.send(peer, i, buffer, 1000));
    end.turn();
  }
  EXPECT_EQ(end->released(), end->ticket());
  memory::Arena::release(buffer);
  const auto refused = end->connect(end->address(), "");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), end->failure().message());
  end->disconnect(peer);
}

TEST_F(VerbsTransport, queue_pair_that_fails_again_and_again__ends_the_endpoint) {
  End a, b;
  const PeerId peer = connect(a, b);
  const uint64_t start_ns = a->now();
  ASSERT_TRUE(run_until({&a}, [&] {
    if (a->failure().ok()) provider().fail_queue_pair(pair_of(a), false);
    return !a->failure().ok();
  }));
  EXPECT_GT(a->now() - start_ns, 2'000'000'000u);
  expect_failed(a, peer, "queue pair fails again");
}

TEST_F(VerbsTransport, sends_that_fail_for_a_short_time__do_not_end_the_endpoint) {
  End a, b;
  const PeerId peer = connect(a, b);
  ASSERT_TRUE(provider().fail_calls("ibv_post_send", 0, 20, EIO));
  ASSERT_TRUE(run_until({&a, &b}, [&] {
    (void)a.send(peer, 1);
    return !b.got.empty() || !a->failure().ok();
  }));
  EXPECT_TRUE(a->failure().ok()) << a->failure().message();
  EXPECT_EQ(a->counters().device_resets, 20u);
}

TEST_F(VerbsTransport, device_that_is_gone__ends_the_endpoint) {
  End a, b;
  const PeerId peer = connect(a, b);
  provider().hold(Hold::kSends);
  detail::Buffer* buffer = a.alloc_filled(1000, std::byte{1});
  ASSERT_TRUE(a.send(peer, 1, buffer, 1000));
  a->flush();
  provider().raise_event(0, IBV_EVENT_DEVICE_FATAL);
  expect_failed(a, peer, "device has failed or was removed");
  memory::Arena::release(buffer);
}

TEST_F(VerbsTransport, completion_queue_that_overflows__ends_the_endpoint) {
  End a, b;
  const PeerId peer = connect(a, b);
  provider().overflow_completions(pair_of(a));
  expect_failed(a, peer, "lost a completion queue");
}

TEST_F(VerbsTransport, device_that_dies_in_a_sleep__ends_the_sleep) {
  End a, b;
  const PeerId peer = connect(a, b);
  ASSERT_TRUE(a->prepare_wait());
  provider().raise_event(0, IBV_EVENT_DEVICE_FATAL);
  EXPECT_TRUE(is_readable(a->descriptor()));
  a->wait(UINT64_MAX);
  a->end_wait();
  EXPECT_FALSE(a->failure().ok());
  expect_failed(a, peer, "device has failed or was removed");
}

TEST_F(VerbsTransport, port_that_goes_down_and_comes_back__is_survived_and_counted) {
  End a, b;
  const PeerId peer = connect(a, b);
  const auto sleep = [&] {  // the end of a sleep reads events at once
    ASSERT_TRUE(a->prepare_wait());
    EXPECT_TRUE(is_readable(a->descriptor()));
    a->end_wait();
    EXPECT_FALSE(is_readable(a->descriptor())) << "or a program's own loop never sleeps again";
  };
  provider().raise_event(0, IBV_EVENT_PORT_ERR);
  sleep();
  EXPECT_EQ(a->counters().device_events, 1u);
  ASSERT_TRUE(a.send(peer, 1));
  a->flush();
  b.turn();
  EXPECT_EQ(b.got.size(), 0u);
  provider().raise_event(0, IBV_EVENT_PORT_ACTIVE);
  sleep();
  EXPECT_EQ(a->counters().device_events, 2u);
  expect_delivery(a, peer, b, 2);
  EXPECT_EQ(a->counters().device_resets, 0u);
}

TEST_F(VerbsTransport, other_lid__ends_the_endpoint) {
  set("link=infiniband");
  End a, b;
  const PeerId peer = connect(a, b);
  expect_delivery(a, peer, b, 1);
  provider().raise_event(0, IBV_EVENT_LID_CHANGE);
  ASSERT_TRUE(a->prepare_wait());
  a->wait(UINT64_MAX);
  a->end_wait();
  expect_failed(a, peer, "another address");
}

TEST_F(VerbsTransport, events_of_no_importance__are_counted) {
  End a, b;
  const PeerId peer = connect(a, b);
  for (const ibv_event_type type : {IBV_EVENT_GID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
                                    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_LID_CHANGE}) {
    provider().raise_event(0, type);
    ASSERT_TRUE(a->prepare_wait());
    a->end_wait();
  }
  EXPECT_EQ(a->counters().device_events, 5u);
  expect_delivery(a, peer, b, 1);
  EXPECT_TRUE(a->failure().ok());
}

TEST_F(VerbsTransport, verbs_of_the_data_path_that_fail__are_survived) {
  for (const char* verb : {"ibv_post_send", "ibv_post_recv", "ibv_poll_cq", "ibv_req_notify_cq", "ibv_get_cq_event",
                           "ibv_get_async_event"}) {
    SCOPED_TRACE(verb);
    provider().reset();
    End a, b;
    const PeerId peer = connect(a, b), back = connect(b, a);
    detail::Buffer* buffer = a.alloc_filled(1000, std::byte{1});
    for (uint32_t round = 0; round < 3; round++) {
      ASSERT_TRUE(provider().fail_calls(verb, 1, 1, ENOMEM));
      for (uint32_t i = 0; i < 100; i++) {
        (void)a.send(peer, i, buffer, 1000);
        (void)b.send(back, i, nullptr, 0, nullptr);
        a.turn();
        b.turn();
        if (a->prepare_wait()) a->wait(1);
        a->end_wait();
      }
      ASSERT_TRUE(run_until({&a, &b}, [&] { return a->released() == a->ticket() && b->released() == b->ticket(); }));
      expect_delivery(a, peer, b, 1000);
      expect_delivery(b, back, a, 1001);
    }
    memory::Arena::release(buffer);
  }
}

TEST_F(VerbsTransport, verbs_of_the_data_path_that_always_fail__end_the_endpoint__and_release_all) {
  for (const char* verb : {"ibv_post_send", "ibv_post_recv", "ibv_poll_cq"}) {
    SCOPED_TRACE(verb);
    provider().reset();
    End a, b;
    const PeerId peer = connect(a, b), back = connect(b, a);
    detail::Buffer* buffer = a.alloc_filled(1000, std::byte{1});
    ASSERT_TRUE(provider().fail_calls(verb, 0, UINT64_MAX, EIO));
    ASSERT_TRUE(run_until({&a, &b}, [&] {
      (void)a.send(peer, 1, buffer, 1000);
      (void)b.send(back, 1);
      return !a->failure().ok() || !b->failure().ok();
    }));
    End& failed = a->failure().ok() ? b : a;
    EXPECT_EQ(failed->released(), failed->ticket());
    memory::Arena::release(buffer);
  }
}

TEST_F(VerbsTransport, reset_that_is_refused__ends_the_endpoint) {
  End a, b;
  const PeerId peer = connect(a, b);
  ASSERT_TRUE(provider().fail_calls("ibv_modify_qp", 0, 1, EIO));
  provider().fail_queue_pair(pair_of(a), false);
  expect_failed(a, peer, "device has failed or was removed");
}

// ---- Creation ----

TEST_F(VerbsTransport, each_verb_that_fails_at_creation__is_named__and_nothing_is_left) {
  struct Verb {
    const char* name;
    uint64_t calls;  ///< upper bound of its calls
  };
  for (const Verb& verb :
       {Verb{"ibv_get_device_list", 1}, Verb{"ibv_open_device", 1}, Verb{"ibv_query_device", 1},
        Verb{"ibv_query_port", 1}, Verb{"ibv_query_gid", 8}, Verb{"ibv_query_pkey", 1}, Verb{"ibv_alloc_pd", 1},
        Verb{"ibv_reg_mr", 2}, Verb{"ibv_create_comp_channel", 1}, Verb{"ibv_create_cq", 2}, Verb{"ibv_create_qp", 1},
        Verb{"ibv_modify_qp", 3}, Verb{"ibv_post_recv", 1}}) {
    for (uint64_t skipped = 0; skipped < verb.calls; skipped++) {
      for (const int error : {ENOMEM, EPERM, EINVAL}) {
        SCOPED_TRACE(std::string(verb.name) + " " + std::to_string(skipped) + " " + std::strerror(error));
        ASSERT_TRUE(provider().fail_calls(verb.name, skipped, UINT64_MAX, error));
        Verbs::Options options;
        options.device = "soft0";
        End end(options);
        provider().reset();
        if (end.status.ok()) {
          EXPECT_STREQ(verb.name, "ibv_query_gid") << "of which some are not needed";
          continue;
        }
        const std::string text(end.status.message());
        EXPECT_EQ(end.status.code(), Code::kUnavailable) << text;
        EXPECT_EQ(text.find("verbs: "), 0u) << text;
        EXPECT_NE(text.find(':', 7), std::string::npos) << "it does not say what to do: " << text;
        EXPECT_EQ(counters().contexts, 0u);
        EXPECT_EQ(counters().memory_regions, 0u);
      }
    }
  }
}

TEST_F(VerbsTransport, device_that_has_less_inline_space__is_taken) {
  for (const char* settings : {"max_inline=0", "max_inline=64", "max_inline=100"}) {
    set(settings);
    End a, b;
    ASSERT_TRUE(a.status.ok()) << a.status.message();
    const PeerId peer = connect(a, b);
    expect_delivery(a, peer, b, 1);
    detail::Buffer* buffer = a.alloc_filled(200, std::byte{3});
    ASSERT_TRUE(a.send(peer, 2, buffer, 200));
    EXPECT_TRUE(run_until({&a, &b}, [&] { return b.got.size() == 2; }));
    memory::Arena::release(buffer);
  }
}

TEST_F(VerbsTransport, send_error__is_survived__whatever_state_it_leaves) {
  for (const char* settings : {"send_error=err", "send_error=sqe"}) {
    set(settings);
    End a, b;
    const PeerId peer = connect(a, b);
    End stranger;  // this endpoint's key does not cover its memory
    detail::Buffer* buffer = a.alloc_filled(1000, std::byte{1});
    provider().hold(Hold::kSends);
    ASSERT_TRUE(a.send(peer, 1, buffer, 1000));
    a->flush();
    a.arena->unobserve();  // the region no longer exists when the NIC reads
    provider().hold(Hold::kNothing);
    ASSERT_TRUE(run_until({&a}, [&] { return a->counters().device_resets == 1; }));
    EXPECT_EQ(a->counters().send_errors, 1u);
    EXPECT_EQ(a->released(), a->ticket());
    expect_delivery(a, peer, b, 2);
    memory::Arena::release(buffer);
  }
}

// ---- Address handles ----

TEST_F(VerbsTransport, silent_neighbour__blocks_no_other_peer) {
  End a, b, c;
  provider().block_address_handles(true);
  const auto silent = a->connect(b->address(), "");
  ASSERT_TRUE(silent.ok());
  for (int i = 0; i < 100; i++) {
    a.turn();
    EXPECT_EQ(a->peer_state(*silent), PeerState::kConnecting);
    EXPECT_FALSE(a.send(*silent, 1));
  }
  ASSERT_TRUE(run_until({&a}, [&] { return provider().blocked_address_handles() == 1; }));
  EXPECT_EQ(*a->connect(b->address(), ""), *silent);
  ASSERT_TRUE(a->prepare_wait()) << "a peer that connects is no reason to spin";
  std::thread network([] { provider().block_address_handles(false); });
  a->wait(UINT64_MAX);  // the address handle ends the sleep
  a->end_wait();
  network.join();
  expect_delivery(a, *silent, b, 1);
}

TEST_F(VerbsTransport, peer_that_ends_while_its_neighbour_is_looked_up) {
  End a, b;
  provider().block_address_handles(true);
  const auto first = a->connect(b->address(), "");
  ASSERT_TRUE(first.ok());
  ASSERT_TRUE(run_until({&a}, [&] { return provider().blocked_address_handles() == 1; }));
  a->disconnect(*first);
  const auto second = a->connect(b->address(), "");
  ASSERT_TRUE(second.ok());
  provider().block_address_handles(false);
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(*second) == PeerState::kReady; }));
  expect_delivery(a, *second, b, 1);
  ASSERT_TRUE(run_until({&a}, [&] { return counters().address_handles == 1; }));
}

TEST_F(VerbsTransport, endpoint_that_ends_while_a_neighbour_is_looked_up__waits_for_it) {
  for (int round = 0; round < 20; round++) {
    End b;
    auto a = std::make_unique<End>();
    provider().block_address_handles(true);
    ASSERT_TRUE((*a)->connect(b->address(), "").ok());
    ASSERT_TRUE(run_until({&b}, [&] { return provider().blocked_address_handles() == 1; }));
    std::thread network([round] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 100));
      provider().block_address_handles(false);
    });
    a.reset();
    network.join();
    EXPECT_EQ(counters().address_handles, 0u);
  }
}

TEST_F(VerbsTransport, handle_that_cannot_be_made__is_a_dead_peer) {
  End a, b;
  ASSERT_TRUE(provider().fail_calls("ibv_create_ah", 0, 1, ETIMEDOUT));
  const auto peer = a->connect(b->address(), "");
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(run_until({&a}, [&] { return a->peer_state(*peer) == PeerState::kDead; }));
  EXPECT_FALSE(a.send(*peer, 1));
  a->disconnect(*peer);
  expect_delivery(a, connect(a, b), b, 2);
}

// ---- Sleep ----

TEST_F(VerbsTransport, packet_between_arming_and_the_last_look__is_not_slept_over) {
  End a, b;
  const PeerId peer = connect(a, b);
  for (uint32_t i = 0; i < 200; i++) {
    std::thread sender([&] {
      ASSERT_TRUE(a.send(peer, i));
      a->flush();
    });
    while (b.turn() == 0) {
      if (b->prepare_wait()) b->wait(UINT64_MAX);
      b->end_wait();
    }
    sender.join();
    a.turn();
  }
  EXPECT_EQ(b.got.size(), 200u);
}

TEST_F(VerbsTransport, descriptor__is_silent_after_each_kind_of_event) {
  End a, b;
  const PeerId back = connect(b, a);
  const auto settle = [&] {
    for (int i = 0; i < 3; i++) {
      a.turn();
      (void)a->prepare_wait();
      a->end_wait();
    }
    a.turn();
    ASSERT_TRUE(a->prepare_wait());
    EXPECT_FALSE(is_readable(a->descriptor()));
    a->end_wait();
  };
  settle();
  for (uint32_t i = 0; i < 50; i++) ASSERT_TRUE(b.send(back, i));
  b->flush();
  settle();
  EXPECT_EQ(a.got.size(), 50u);
  a->wake();
  settle();
  provider().fail_queue_pair(pair_of(a), true);
  settle();
  provider().raise_event(0, IBV_EVENT_PORT_ERR);
  provider().raise_event(0, IBV_EVENT_PORT_ACTIVE);
  settle();
  EXPECT_EQ(a->counters().device_events, 3u);
}

// ---- Other ends ----

TEST_F(VerbsTransport, peers_that_cannot_meet__are_refused_with_the_difference) {
  const auto text_of = [](End& from, const End& to) {
    const auto peer = from->connect(to->address(), "");
    EXPECT_FALSE(peer.ok());
    return std::string(peer.ok() ? "" : peer.status().message());
  };
  Verbs::Options options;
  options.gid_index = 2;
  End v1(options), v2;
  EXPECT_EQ(
      text_of(v1, v2),
      "verbs: the peer is on RoCE v2 and this endpoint on RoCE v1: choose Verbs::Options::device and gid_index so "
      "that both have the same");
  EXPECT_EQ(v1->counters().peers_refused, 1u);
  set("link=infiniband");
  End full;
  EXPECT_NE(text_of(full, v2).find("on RoCE v2 and this endpoint on InfiniBand"), std::string::npos);
  Verbs::Options partition;
  partition.partition_index = 2;
  End other(partition);
  EXPECT_EQ(text_of(full, other),
            "verbs: the peer's P_Key is 0x0002 and this endpoint's 0xffff: choose Verbs::Options::partition_index so "
            "that both are in one partition, and one of them a full member");
}

}  // namespace
}  // namespace tern::transport
