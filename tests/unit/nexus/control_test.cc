#include "nexus/control.h"

#include <memory>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace tern::nexus {
namespace {

ControlEvent question_of(const std::shared_ptr<PeerLife>& life) {
  ControlEvent event;
  event.kind = ControlEvent::Kind::kAskLife;
  event.life = PeerLife::ask(life);
  return event;
}

TEST(PeerLife, question_waits_until_its_last_copy_is_gone) {
  const auto life = std::make_shared<PeerLife>();
  EXPECT_FALSE(life->is_asked());
  std::optional<ControlEvent> event(question_of(life));
  ControlEvent copy = *event;
  event.reset();
  EXPECT_TRUE(life->is_asked());
  EndpointPort::note_life(copy, 5);
  copy.life.reset();
  EXPECT_FALSE(life->is_asked());
  EXPECT_EQ(life->heard_at_ns(), 5u);
}

TEST(PeerLife, answer_is_seen_once_no_question_waits) {
  for (uint64_t round = 1; round <= 1000; round++) {
    const auto life = std::make_shared<PeerLife>();
    std::thread endpoint([question = question_of(life), round]() mutable {
      EndpointPort::note_life(question, round);
      question.life.reset();
    });
    while (life->is_asked()) std::this_thread::yield();
    EXPECT_EQ(life->heard_at_ns(), round);
    endpoint.join();
  }
}

TEST(PeerLife, question_may_outlive_the_asking_nexus) {
  auto life = std::make_shared<PeerLife>();
  ControlEvent event = question_of(life);
  const std::weak_ptr<PeerLife> seen = life;
  life.reset();
  EndpointPort::note_life(event, 1);
  event.life.reset();
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace tern::nexus
