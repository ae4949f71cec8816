#include "inbox.h"

#include <pthread.h>

#include <atomic>
#include <cstring>
#include <new>
#include <shared_mutex>
#include <unordered_map>

namespace software_verbs {
namespace {

constexpr size_t kBytesMax = 8 << 20;  ///< the limit of a socket; further packets are lost

struct Inboxes {
  std::shared_mutex mutex;
  std::unordered_map<uint32_t, std::shared_ptr<Inbox>> by_number;
};

/// A forked child begins with an empty set, because its parent's queue pairs are now in another process.
std::atomic<Inboxes*> current{nullptr};

Inboxes& inboxes() {
  [[maybe_unused]] static const bool is_ready = [] {
    current.store(new Inboxes);
    pthread_atfork(nullptr, nullptr, [] { current.store(new Inboxes); });
    return true;
  }();
  return *current.load();
}

}  // namespace

std::shared_ptr<Inbox> Inbox::open(uint32_t qp_num, in_addr address) {
  auto inbox = std::make_shared<Inbox>();
  inbox->address_ = address;
  Inboxes& all = inboxes();
  const std::lock_guard lock(all.mutex);
  all.by_number[qp_num] = inbox;
  return inbox;
}

void Inbox::close(uint32_t qp_num) {
  Inboxes& all = inboxes();
  const std::lock_guard lock(all.mutex);
  all.by_number.erase(qp_num);
}

bool Inbox::offer(uint32_t qp_num, in_addr address, std::span<const iovec> packet) {
  Inboxes& all = inboxes();
  const std::shared_lock lock(all.mutex);
  const auto found = all.by_number.find(qp_num);
  return found != all.by_number.end() && found->second->add(address, packet);
}

void Inbox::set_armed(bool is_armed) {
  const std::lock_guard lock(mutex_);
  is_armed_ = is_armed;
}

bool Inbox::add(in_addr address, std::span<const iovec> packet) {
  const std::lock_guard lock(mutex_);
  if (is_armed_ || address.s_addr != address_.s_addr) return false;
  size_t size = 0;
  for (const iovec& part : packet) size += part.iov_len;
  const size_t end = bytes_ + footprint(size);
  if (end > kBytesMax) return true;
  try {
    if (end > packets_.size()) packets_.resize(2 * end);
  } catch (const std::bad_alloc&) {
    return true;  // the packet is lost
  }
  std::byte* to = packets_.data() + bytes_;
  bytes_ = end;
  std::memcpy(to, &size, sizeof(size));
  to += sizeof(size);
  for (const iovec& part : packet) {
    if (part.iov_len > 0) std::memcpy(to, part.iov_base, part.iov_len);
    to += part.iov_len;
  }
  return true;
}

}  // namespace software_verbs
