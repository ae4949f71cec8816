// Memory that is registered with a NIC, over the software verbs provider.
#include "rdma/registration.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cerrno>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rdma/port.h"
#include "software_verbs/provider_fixture.h"

namespace tern::rdma {
namespace {

using software_verbs::provider;

class Registration : public software_verbs::ProviderTest {
 protected:
  void SetUp() override {
    ProviderTest::SetUp();
    if (IsSkipped()) return;
    auto made = open_port("verbs", {});
    ASSERT_TRUE(made.ok()) << made.status().message();
    port = std::move(*made);
    auto arena_made = memory::Arena::create({.huge_pages = false, .chunk_bytes = 1u << 20});
    ASSERT_TRUE(arena_made.ok());
    arena = *arena_made;
  }
  void TearDown() override {
    if (arena != nullptr) arena->orphan();
    { const OpenedPort closed = std::move(port); }
    ProviderTest::TearDown();
  }
  static uint64_t regions() { return counters().memory_regions; }

  OpenedPort port;
  memory::Arena* arena = nullptr;
};

TEST_F(Registration, every_chunk_has_a_key_of_its_own__until_it_is_gone) {
  ChunkRegistration chunks("verbs", port.domain.get());
  ASSERT_TRUE(arena->observe(chunks).ok());
  EXPECT_EQ(regions(), 1u);
  std::vector<detail::Buffer*> buffers;
  for (int i = 0; i < 4; i++) buffers.push_back(arena->alloc(3u << 20));
  ASSERT_NE(buffers.back(), nullptr);
  EXPECT_EQ(regions(), arena->chunks().size());
  EXPECT_GT(regions(), 1u);
  std::vector<uint32_t> keys;
  for (const memory::Chunk& chunk : arena->chunks()) keys.push_back(chunks.key_of(chunk.id));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(std::adjacent_find(keys.begin(), keys.end()), keys.end());
  arena->unobserve();
  EXPECT_EQ(regions(), 0u);
  for (detail::Buffer* buffer : buffers) memory::Arena::release(buffer);
}

TEST_F(Registration, chunk_that_is_refused__fails_that_allocation_only) {
  ChunkRegistration chunks("verbs", port.domain.get());
  ASSERT_TRUE(arena->observe(chunks).ok());
  const size_t before = arena->bytes_mapped();
  ASSERT_TRUE(provider().fail_calls("ibv_reg_mr", 0, 1, ENOMEM));
  EXPECT_EQ(arena->alloc(3u << 20), nullptr);
  EXPECT_EQ(arena->bytes_mapped(), before) << "the chunk was given back";
  EXPECT_EQ(regions(), 1u);
  detail::Buffer* small = arena->alloc(100);
  EXPECT_NE(small, nullptr);
  detail::Buffer* large = arena->alloc(3u << 20);
  EXPECT_NE(large, nullptr);
  memory::Arena::release(small);
  memory::Arena::release(large);
  arena->unobserve();
}

TEST_F(Registration, chunks_are_made_by_other_threads) {
  ChunkRegistration chunks("verbs", port.domain.get());
  ASSERT_TRUE(arena->observe(chunks).ok());
  std::vector<detail::Buffer*> buffers(8);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < buffers.size(); i++) {
    threads.emplace_back([this, &buffers, i] { buffers[i] = arena->alloc(2u << 20); });
  }
  for (std::thread& thread : threads) thread.join();
  for (detail::Buffer* buffer : buffers) {
    ASSERT_NE(buffer, nullptr);
    EXPECT_NE(chunks.key_of(arena->chunk_of(buffer).id), 0u);
    memory::Arena::release(buffer);
  }
  arena->unobserve();
}

TEST_F(Registration, more_chunks_than_keys__fail_with_the_reason) {
  ChunkRegistration chunks("verbs", port.domain.get());
  memory::Chunk chunk{};
  chunk.id = ChunkRegistration::kChunksMax;
  const Status status = chunks.on_chunk_made(chunk);
  EXPECT_EQ(status.code(), Code::kNoMemory);
  EXPECT_NE(std::string(status.message()).find("256 chunks"), std::string::npos) << status.message();
}

TEST_F(Registration, limit_of_locked_memory__is_named_with_its_size_and_the_command) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small{64u << 10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  ASSERT_TRUE(provider().fail_calls("ibv_reg_mr", 0, 1, ENOMEM));
  const auto refused = RegisteredMemory::create("verbs", port.domain.get(), 6u << 20);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  const std::string text(refused.status().message());
  for (const char* part : {"verbs: 6 MB cannot be registered", "may lock 64 KB", "RLIMIT_MEMLOCK",
                           "ulimit -l unlimited", "LimitMEMLOCK"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST_F(Registration, other_errors__are_named) {
  ASSERT_TRUE(provider().fail_calls("ibv_reg_mr", 0, 1, EIO));
  const auto refused = RegisteredMemory::create("verbs", port.domain.get(), 1u << 20);
  ASSERT_FALSE(refused.ok());
  const std::string text(refused.status().message());
  EXPECT_NE(text.find("Input/output error"), std::string::npos) << text;
  EXPECT_EQ(text.find("ulimit"), std::string::npos) << text;
}

}  // namespace
}  // namespace tern::rdma
