#include "memory/arena.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <new>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/try.h"

namespace tern::memory {

using detail::Buffer;

Result<Arena*> Arena::create(const ArenaOptions& options) {
  if (options.limit_bytes < kRunBytes) {
    return Status(Code::kMisuse, "the limit of message memory is below 64 KiB: raise RpcOptions::memory_limit_bytes");
  }
  const Result<int> node = choose_numa_node(options.numa_node);
  if (!node.ok()) return node.status();
  uint32_t first_lease = 0;
  if (!base::fill_random(&first_lease, sizeof(first_lease))) return base::kNoRandom;
  auto* arena = new (std::nothrow) Arena(options, *node, first_lease);
  if (arena == nullptr) return Status(Code::kNoMemory, "no memory to manage message memory: free some memory");
  arena->mutex_.assert_held();  // no other thread can reach the arena yet
  if (Status status = arena->grow(kRunBytes); !status.ok()) {
    delete arena;
    return status;
  }
  return arena;
}

Arena::Arena(const ArenaOptions& options, int numa_node, uint32_t first_lease)
    : owner_(base::thread_id()), options_(options), numa_node_(numa_node), pid_(getpid()), next_lease_(first_lease) {}

Arena::~Arena() {
  for (const Chunk& chunk : chunks_) {
    unpoison(chunk.base, chunk.bytes);
    give_to_system(chunk);
  }
}

void Arena::give_to_system(const Chunk& chunk) {
  if (observer_ != nullptr) observer_->on_chunk_gone(chunk);
  unmap_chunk(chunk);
}

Status Arena::observe(ChunkObserver& observer) {
  base::MutexLock lock(mutex_);
  CHECK(observer_ == nullptr);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    if (Status status = observer.on_chunk_made(chunks_[i]); !status.ok()) {
      while (i-- > 0) observer.on_chunk_gone(chunks_[i]);
      return status;
    }
  }
  observer_ = &observer;
  return {};
}

void Arena::unobserve() {
  if (getpid() != pid_) return;
  base::MutexLock lock(mutex_);
  if (observer_ == nullptr) return;
  for (const Chunk& chunk : chunks_) observer_->on_chunk_gone(chunk);
  observer_ = nullptr;
}

Buffer* Arena::alloc_slow(size_t len_bytes) {
  if (len_bytes > kMessageBytesMax) return nullptr;
  base::MutexLock lock(mutex_);
  if (orphaned_) return nullptr;
  const size_t size_class = len_bytes <= kSmallBytesMax ? class_of(len_bytes) : kLarge;
  const bool from_owner_lists = may_use_owner_lists();
  Buffer* buffer = size_class == kLarge ? take_large(len_bytes) : take_small(size_class, from_owner_lists);
  if (buffer == nullptr) {
    if (!from_owner_lists && len_bytes < options_.limit_bytes) note_shortage(size_class);
    return nullptr;
  }
  buffer->in_use = Buffer::kOwned;
  buffer->length_bytes = static_cast<uint32_t>(len_bytes);
  unpoison(buffer->data(), buffer->capacity_bytes);
  if (is_owner()) {
    count_owner_out(+1);
  } else {
    ++foreign_out_;
  }
  return buffer;
}

void Arena::release_slow(Buffer* buffer) {
  if (buffer->in_use == Buffer::kShared) {
    if (buffer->sharers.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    buffer->end_sharing();
    return release(buffer);
  }
  Arena* arena = buffer->arena;
  bool is_last = false;
  {
    base::MutexLock lock(arena->mutex_);
    CHECK(buffer->in_use, ==, Buffer::kOwned);
    buffer->revoke_lease();
    buffer->in_use = 0;
    arena->hide_data(buffer);
    if (buffer->size_class == kLarge) {
      arena->give_large(buffer);
    } else {
      arena->give_small(buffer);
    }
    if (arena->is_owner()) {
      arena->count_owner_out(-1);
    } else {
      --arena->foreign_out_;
    }
    is_last = arena->orphaned_ && arena->foreign_out_ == 0;
  }
  if (is_last) delete arena;
}

void Arena::bind_owner() {
  base::MutexLock lock(mutex_);
  CHECK(!orphaned_);
  owner_.store(base::thread_id(), std::memory_order_relaxed);
}

void Arena::disown() {
  base::MutexLock lock(mutex_);
  owner_.store(base::kNoThreadId, std::memory_order_relaxed);
  foreign_out_ += owner_out_.exchange(0, std::memory_order_relaxed);
}

void Arena::orphan() {
  if (getpid() != pid_) return abandon();
  bool is_last = false;
  {
    base::MutexLock lock(mutex_);
    CHECK(!orphaned_);
    orphaned_ = true;
    owner_.store(base::kNoThreadId, std::memory_order_relaxed);
    foreign_out_ += owner_out_.exchange(0, std::memory_order_relaxed);
    is_last = foreign_out_ == 0;
  }
  if (is_last) delete this;
}

/// Called in a forked child, which does not have the chunks' memory. Closes the chunks' descriptors, so that the
/// parent's memory does not outlive the parent. Does nothing if another thread held the mutex at the fork.
void Arena::abandon() {
  if (!mutex_.try_lock()) return;
  for (const Chunk& chunk : std::exchange(chunks_, {})) {
    if (chunk.fd >= 0) close(chunk.fd);
  }
  mutex_.unlock();
  delete this;  // no chunks are unmapped, because the child may have mapped other memory at their addresses
}

void Arena::init_block(std::byte* at, uint8_t size_class, uint8_t page_in_run, size_t bytes) {
  auto* buffer = new (at) Buffer;
  buffer->lease.store(next_lease_, std::memory_order_relaxed);
  buffer->size_class = size_class;
  buffer->exposed = false;
  buffer->in_use = 0;
  buffer->page_in_run = page_in_run;
  buffer->length_bytes = 0;
  buffer->capacity_bytes = static_cast<uint32_t>(capacity_of(bytes));
  buffer->arena = this;
  buffer->next = nullptr;
  buffer->sharers.store(0, std::memory_order_relaxed);
  buffer->writable_end = buffer->capacity_bytes + 1;
  buffer->is_held = false;
  buffer->held_until = 0;
}

Buffer* Arena::take_small(size_t size_class, bool from_owner_lists) {
  FreeList& list = from_owner_lists ? owner_free_[size_class] : foreign_free_[size_class];
  FreeList& others = from_owner_lists ? foreign_free_[size_class] : returned_[size_class];
  if (from_owner_lists && list.is_empty()) list = std::exchange(returned_[size_class], {});
  if (list.is_empty() && !carve(size_class, from_owner_lists ? 0 : kForeign, list))
    move_blocks(others, list, kMovedBlocks);
  return list.is_empty() ? nullptr : list.pop();
}

void Arena::give_small(Buffer* buffer) {
  const size_t size_class = buffer->size_class & ~kForeign;
  ((buffer->size_class & kForeign) != 0 ? foreign_free_ : returned_)[size_class].push(buffer);
}

/// Moves up to `count` blocks between a list of the owner's and one of the other threads'.
void Arena::move_blocks(FreeList& from, FreeList& to, size_t count) {
  for (; count != 0 && !from.is_empty(); --count) {
    Buffer* buffer = from.pop();
    buffer->size_class ^= kForeign;
    to.push(buffer);
  }
}

void Arena::note_shortage(size_t size_class) {
  short_classes_ |= 1u << size_class;
  is_short_.store(true, std::memory_order_relaxed);
}

/// The other threads get every other one of the owner's free blocks of each class that they lack. If there is none,
/// they get pages, for which it walks over all free blocks. That holds up the loop, so after a walk in vain it makes no
/// other for as many calls as the arena has runs.
void Arena::share() {
  base::MutexLock lock(mutex_);
  uint32_t without_blocks = 0;
  for (uint32_t classes = std::exchange(short_classes_, 0); classes != 0; classes &= classes - 1) {
    const auto size_class = static_cast<size_t>(std::countr_zero(classes));
    if (size_class == kLarge || owner_free_[size_class].is_empty()) {
      without_blocks |= 1u << size_class;
      continue;
    }
    FreeList& list = owner_free_[size_class];
    FreeList kept;
    for (size_t i = 0; i < kSharedBlocks && !list.is_empty(); ++i) {
      move_blocks(list, foreign_free_[size_class], 1);
      if (!list.is_empty()) kept.push(list.pop());
    }
    while (!kept.is_empty()) list.push(kept.pop());
  }
  if (without_blocks != 0 && share_rest_ > 0) {
    --share_rest_;
    short_classes_ = without_blocks;
  } else if (without_blocks != 0) {
    dissolve_rest_ = 0;  // walks that did not see the owner's list say nothing about it
    if (!dissolve_free_runs()) share_rest_ = bytes_mapped() / kRunBytes;
  }
  is_short_.store(short_classes_ != 0, std::memory_order_relaxed);
}

/// Cuts a run into blocks. `home`: 0 for the owner, or kForeign.
bool Arena::carve(size_t size_class, uint8_t home, FreeList& list) {
  std::byte* run = take_pages(kRunPages);
  if (run == nullptr) return false;
  unpoison(run, kRunBytes);
  const size_t bytes = block_bytes(size_class);
  for (size_t offset = kRunBytes; offset != 0;) {  // backwards: the lowest block ends up first in the list
    offset -= bytes;
    init_block(run + offset, static_cast<uint8_t>(size_class | home),
               static_cast<uint8_t>(offset / Extents::kPageBytes), bytes);
    auto* buffer = reinterpret_cast<Buffer*>(run + offset);
    hide_data(buffer);
    list.push(buffer);
  }
  return true;
}

Buffer* Arena::take_large(size_t len_bytes) {
  const size_t pages = (len_bytes + sizeof(Buffer) + Extents::kPageBytes - 1) / Extents::kPageBytes;
  std::byte* run = take_pages(pages);
  if (run == nullptr) return nullptr;
  unpoison(run, pages * Extents::kPageBytes);
  ++large_out_;
  init_block(run, kLarge, 0, pages * Extents::kPageBytes);
  return reinterpret_cast<Buffer*>(run);
}

void Arena::give_large(Buffer* buffer) {
  see_lease(buffer);
  --large_out_;
  extents_.give(reinterpret_cast<std::byte*>(buffer));
}

/// Called for a block that is dissolved. The lease of a later block at its place must not be below its lease (modulo
/// 2^32), which release() has revoked.
void Arena::see_lease(const Buffer* buffer) {
  const uint32_t lease = buffer->lease.load(std::memory_order_relaxed);
  if (static_cast<int32_t>(lease - next_lease_) > 0) next_lease_ = lease;
}

std::byte* Arena::take_pages(size_t pages) {
  std::byte* run = extents_.take(pages);
  if (run != nullptr) return run;
  if (grow(pages * Extents::kPageBytes).ok()) return extents_.take(pages);
  return dissolve_free_runs() ? extents_.take(pages) : nullptr;
}

Status Arena::grow(size_t needed_bytes) {
  const size_t mapped = bytes_mapped();
  const auto id = static_cast<uint32_t>(chunks_.size());
  // A large arena has few chunks, and at most half of a small arena has never been used. Where the system has less, a
  // chunk has only what is needed.
  const size_t step_bytes = std::clamp(mapped, options_.chunk_bytes, options_.chunk_bytes << options_.doublings);
  const Status no_account(Code::kNoMemory, "no memory to manage message memory: free some memory");
  std::vector<Chunk> news;
  std::vector<std::pair<const std::byte*, size_t>> news_by_base;
  if (!base::try_reserve(chunks_, chunks_.size() + 1) || !base::try_reserve(news, chunks_.size() + 1) ||
      !base::try_reserve(news_by_base, chunks_.size() + 1)) {
    return no_account;
  }
  auto chunk = map_chunk(options_, numa_node_, id, step_bytes, needed_bytes, options_.limit_bytes - mapped);
  if (!chunk.ok() && id > 0) {
    chunk = map_chunk(options_, numa_node_, id, needed_bytes, needed_bytes, options_.limit_bytes - mapped);
  }
  if (!chunk.ok()) return chunk.status();
  if (observer_ != nullptr) {
    if (Status status = observer_->on_chunk_made(*chunk); !status.ok()) {
      unmap_chunk(*chunk);
      return status;
    }
  }
  if (!extents_.add(chunk->base, chunk->bytes)) {
    give_to_system(*chunk);
    return no_account;
  }
  chunks_.push_back(*chunk);
  for (const Chunk& each : chunks_) {
    news.push_back(each);
    news_by_base.emplace_back(each.base, each.id);
  }
  std::sort(news_by_base.begin(), news_by_base.end());
  news_ = std::move(news);
  news_by_base_ = std::move(news_by_base);
  bytes_mapped_.store(mapped + chunk->bytes, std::memory_order_relaxed);
  chunk_count_.store(chunks_.size(), std::memory_order_release);
  return {};
}

/// Called when memory is short: turns runs whose blocks are all free into free pages. Threads other than the owner
/// do not see the owner's lists. After a walk over the lists that found none, the next calls do nothing for a while.
bool Arena::dissolve_free_runs() {
  if (dissolve_rest_ > 0) {
    --dissolve_rest_;
    return false;
  }
  const auto run_of = [](const Buffer* buffer) {
    const auto page = reinterpret_cast<uintptr_t>(buffer) / Extents::kPageBytes - buffer->page_in_run;
    return reinterpret_cast<std::byte*>(page * Extents::kPageBytes);
  };
  size_t walked = 0;
  bool found = false;
  for (size_t size_class = 0; size_class < kClasses; ++size_class) {
    FreeList* const all[] = {&foreign_free_[size_class], &returned_[size_class], &owner_free_[size_class]};
    const std::span<FreeList* const> lists(all, may_use_owner_lists() ? 3 : 2);
    std::unordered_map<std::byte*, size_t> free_blocks;
    const bool is_counted = base::try_grow([&] {
      for (const FreeList* list : lists) {
        for (const Buffer* buffer = list->first; buffer != nullptr; buffer = buffer->next, ++walked)
          ++free_blocks[run_of(buffer)];
      }
    });
    if (!is_counted) continue;
    const size_t blocks_in_run = kRunBytes / block_bytes(size_class);
    std::erase_if(free_blocks, [=](const auto& run) { return run.second != blocks_in_run; });
    if (free_blocks.empty()) continue;
    found = true;
    for (FreeList* list : lists) {
      for (Buffer* buffer = std::exchange(list->first, nullptr); buffer != nullptr;) {
        Buffer* next = buffer->next;
        if (free_blocks.contains(run_of(buffer))) {
          see_lease(buffer);
        } else {
          list->push(buffer);
        }
        buffer = next;
      }
    }
    for (const auto& [run, blocks] : free_blocks) extents_.give(run);
  }
  // This limit keeps the average cost of a failing allocation low, and still finds freed blocks soon.
  if (!found) dissolve_rest_ = std::min<size_t>(walked / 16, 16);
  return found;
}

const std::vector<Chunk>& Arena::chunks() const {
  if (owner_chunks_.size() != chunk_count_.load(std::memory_order_acquire)) {
    base::MutexLock lock(mutex_);
    owner_chunks_ = std::move(news_);
    owner_chunks_by_base_ = std::move(news_by_base_);
  }
  return owner_chunks_;
}

const Chunk& Arena::chunk_of(const Buffer* buffer) {
  const auto* at = reinterpret_cast<const std::byte*>(buffer);
  const auto holds = [at](const Chunk& chunk) { return at >= chunk.base && at < chunk.base + chunk.bytes; };
  const std::vector<Chunk>& all = chunks();
  if (last_chunk_ < all.size() && holds(all[last_chunk_])) [[likely]]
    return all[last_chunk_];
  const auto above = std::upper_bound(owner_chunks_by_base_.begin(), owner_chunks_by_base_.end(), at,
                                      [](const std::byte* a, const auto& entry) { return a < entry.first; });
  CHECK(above - owner_chunks_by_base_.begin(), >, 0);
  last_chunk_ = std::prev(above)->second;
  CHECK(holds(all[last_chunk_]));
  return all[last_chunk_];
}

size_t Arena::buffers_out() const {
  base::MutexLock lock(mutex_);
  return static_cast<size_t>(owner_out_.load(std::memory_order_relaxed) + foreign_out_);
}

void Arena::check_invariants() {
  base::MutexLock lock(mutex_);
  extents_.check_invariants();
  size_t chunk_bytes = 0;
  for (size_t i = 0; i < chunks_.size(); ++i) {
    CHECK(chunks_[i].id, ==, i);
    chunk_bytes += chunks_[i].bytes;
  }
  CHECK(chunk_bytes, ==, bytes_mapped());
  CHECK(chunk_bytes, <=, options_.limit_bytes);

  std::unordered_set<const Buffer*> listed;
  for (const FreeLists* lists : {&owner_free_, &returned_, &foreign_free_}) {
    const size_t home = lists == &foreign_free_ ? kForeign : 0;
    for (size_t size_class = 0; size_class < kClasses; ++size_class) {
      for (const Buffer* buffer = (*lists)[size_class].first; buffer != nullptr; buffer = buffer->next) {
        CHECK(listed.insert(buffer).second);
        CHECK(buffer->size_class, ==, size_class | home);
      }
    }
  }

  size_t free_blocks = 0;
  int64_t out = 0;
  size_t large = 0;
  for (const auto& [run, pages] : extents_.used_runs()) {
    const auto* first = reinterpret_cast<const Buffer*>(run);
    const bool is_large = first->size_class == kLarge;
    if (!is_large) CHECK(pages, ==, kRunPages);
    large += is_large;
    const size_t step = is_large ? pages * Extents::kPageBytes : block_bytes(first->size_class & ~kForeign);
    for (size_t offset = 0; offset < pages * Extents::kPageBytes; offset += step) {
      const auto* buffer = reinterpret_cast<const Buffer*>(run + offset);
      CHECK(buffer->arena == this);
      CHECK(buffer->size_class & ~kForeign, ==, first->size_class & ~kForeign);
      CHECK(buffer->page_in_run, ==, offset / Extents::kPageBytes);
      CHECK(buffer->capacity_bytes, ==, capacity_of(step));
      CHECK(buffer->in_use != 0, ==, !listed.contains(buffer));
      if (buffer->in_use != 0) {
        CHECK(buffer->length_bytes, <=, buffer->capacity_bytes);
        ++out;
      } else {
        CHECK(!buffer->exposed);
        ++free_blocks;
      }
    }
  }
  CHECK(free_blocks, ==, listed.size());
  CHECK(large, ==, large_out_);
  CHECK(out, ==, owner_out_.load(std::memory_order_relaxed) + foreign_out_);
}

}  // namespace tern::memory

void tern::detail::release_buffer(Buffer* buffer) { memory::Arena::release(buffer); }
