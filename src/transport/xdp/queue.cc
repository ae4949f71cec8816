#include "transport/xdp/queue.h"

#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "base/status_text.h"
#include "transport/xdp/names.h"

namespace tern::transport::xdp {

namespace {

constexpr Status kNoQueueMemory(Code::kNoMemory,
                                "xdp: no memory for a queue: free some, or lower Xdp::Options::receive_buffers");
/// Send buffer of the socket, for frames that the kernel has not freed yet. It is larger than all frames of a queue, so
/// that only their number limits sending.
constexpr int kSendBufferBytes = 32 << 20;

/// A child's mapping of a ring would keep the socket and its queue alive after all its descriptors are closed. The
/// entries are at the end of the mapping, behind the numbers.
template <class Ring>
void leave_out_of_children(const Ring& ring, size_t entry_bytes) {
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  const uintptr_t first = std::min({address(ring.producer), address(ring.consumer), address(ring.flags)});
  const uintptr_t begin = first & ~(static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)) - 1);
  const uintptr_t end = address(ring.ring) + ring.size * entry_bytes;
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTFORK);
}

Status refused(const Queue::Choice& choice, int error, size_t memory_bytes) {
  const std::string queue = std::to_string(choice.number), megabytes = std::to_string((memory_bytes >> 20) + 1);
  switch (error) {
    case EPERM:
    case EACCES:
      return {Code::kUnavailable,
              "xdp: this process may not open AF_XDP sockets (CAP_NET_RAW): run `setcap "
              "cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM`, or run it as root"};
    case ENOBUFS:
      return base::status_of(
          Code::kUnavailable, "xdp: too little memory may be locked for a queue: raise ulimit -l",
          {"xdp: a queue of ", choice.interface, " locks ", megabytes,
           " MB of memory, which is more than this process may lock: raise the limit (ulimit -l), or ",
           "lower Xdp::Options::receive_buffers"});
    case EAFNOSUPPORT:
      return {Code::kUnavailable, "xdp: this kernel has no AF_XDP sockets: use one with CONFIG_XDP_SOCKETS"};
    case EMFILE:
    case ENFILE:
      return kNoDescriptors;
    case ENOMEM:
      return kNoQueueMemory;
    case ENODEV:
      return base::status_of(Code::kUnavailable, "xdp: the network interface is gone",
                             {"xdp: the network interface ", choice.interface, " is gone: see ip link"});
    case ENETDOWN:
      return base::status_of(
          Code::kUnavailable, "xdp: the network interface is down",
          {"xdp: the network interface ", choice.interface, " is down: ip link set ", choice.interface, " up"});
    case EOPNOTSUPP:
    case EINVAL:
      if (!choice.may_copy) {
        return base::status_of(Code::kUnavailable, "xdp: the driver has no zero-copy mode",
                               {"xdp: the driver of ", choice.interface, " has no zero-copy mode for its queue ", queue,
                                ": choose another Xdp::Options::mode, or leave it empty"});
      }
      [[fallthrough]];
    default:
      return base::status_of(Code::kUnavailable, "xdp: the kernel refuses an AF_XDP socket",
                             {"xdp: the kernel refuses an AF_XDP socket at queue ", queue, " of ", choice.interface,
                              " (", std::strerror(error), "): see its log"});
  }
}

}  // namespace

// ---- Beginning and end

Result<std::unique_ptr<Queue>> Queue::open(const Choice& choice, bool* is_taken) {
  *is_taken = false;
  int error = EINVAL;
  // After a refusal, socket and memory are made again, because libxdp keeps the old settings.
  for (const bool has_zero_copy : {true, false}) {
    if (!(has_zero_copy ? choice.may_zero_copy : choice.may_copy)) continue;
    std::unique_ptr<Queue> queue(new (std::nothrow) Queue(choice));
    if (queue == nullptr) return kNoQueueMemory;
    error = queue->open_memory();
    if (error == 0) error = queue->open_socket(has_zero_copy);
    if (error == 0) {
      queue->fill_all();
      return queue;
    }
    *is_taken = error == EBUSY;
    if (error != EOPNOTSUPP && error != EINVAL) break;
  }
  return refused(choice, error, memory_bytes_of(choice));
}

/// Returns 0 or an error number.
int Queue::open_memory() {
  void* const mapped =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return ENOMEM;
  memory_ = static_cast<std::byte*>(mapped);
  (void)madvise(mapped, memory_bytes_, MADV_HUGEPAGE);  // otherwise each frame is in another small page
  (void)madvise(mapped, memory_bytes_,
                MADV_DONTFORK);  // a fork must not give the parent pages that the kernel does not see
  xsk_umem_config config{};
  config.fill_size = 2 * choice_.receive_frames;  // never full
  config.comp_size = kSendFrames;
  config.frame_size = choice_.frame_bytes;
  xsk_umem* umem = nullptr;
  const int error = xsk_umem__create(&umem, mapped, memory_bytes_, &fill_, &completed_, &config);
  umem_.reset(umem);
  if (error == 0) {
    leave_out_of_children(fill_, sizeof(uint64_t));
    leave_out_of_children(completed_, sizeof(uint64_t));
  }
  return -error;
}

int Queue::open_socket(bool has_zero_copy) {
  xsk_socket_config config{};
  config.rx_size = choice_.receive_frames;
  config.tx_size = kSendFrames;
  config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
  config.bind_flags = static_cast<uint16_t>(XDP_USE_NEED_WAKEUP | (has_zero_copy ? XDP_ZEROCOPY : XDP_COPY));
  xsk_socket* socket = nullptr;
  const int error =
      xsk_socket__create(&socket, choice_.interface.c_str(), choice_.number, umem_.get(), &received_, &sent_, &config);
  if (error != 0) return -error;
  socket_.reset(socket);
  // Otherwise the name has gone to another interface, and libxdp may have used that one. The socket does not tell.
  if (if_nametoindex(choice_.interface.c_str()) != choice_.interface_index) return ENODEV;
  leave_out_of_children(received_, sizeof(xdp_desc));
  leave_out_of_children(sent_, sizeof(xdp_desc));
  descriptor_ = xsk_socket__fd(socket);
  is_zero_copy_ = has_zero_copy;
  // Close-on-exec, so that a program that this process starts does not keep the queue.
  if (fcntl(descriptor_, F_SETFD, FD_CLOEXEC) != 0) return errno;
  for (const int option : {SO_SNDBUFFORCE, SO_SNDBUF}) {
    if (setsockopt(descriptor_, SOL_SOCKET, option, &kSendBufferBytes, sizeof(kSendBufferBytes)) == 0) break;
  }
  return 0;
}

void Queue::fill_all() {
  uint32_t at = 0;
  const uint32_t count = xsk_ring_prod__reserve(&fill_, choice_.receive_frames, &at);
  for (uint32_t i = 0; i < count; ++i) {
    *xsk_ring_prod__fill_addr(&fill_, at + i) = uint64_t{kSendFrames + i} * choice_.frame_bytes;
  }
  xsk_ring_prod__submit(&fill_, count);
  wake_driver();
}

Queue::~Queue() {
  socket_.reset();
  umem_.reset();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

void Queue::close_in_child() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

// ---- Receiving

uint32_t Queue::take(std::span<Frame> frames) {
  if (!receiving_.try_lock()) return 0;
  uint32_t at = 0;
  const uint32_t count = xsk_ring_cons__peek(&received_, static_cast<uint32_t>(frames.size()), &at);
  for (uint32_t i = 0; i < count; ++i) {
    const xdp_desc& frame = *xsk_ring_cons__rx_desc(&received_, at + i);
    frames[i] = {this, memory_ + frame.addr, frame.len};
    // Prefetches headers and first packet: two cache lines that another processor has written.
    __builtin_prefetch(frames[i].data);
    __builtin_prefetch(frames[i].data + 64);
  }
  if (count != 0) xsk_ring_cons__release(&received_, count);
  receiving_.unlock();
  return count;
}

void Queue::give_back(std::span<const Frame> frames) {
  {
    const base::MutexLock lock(receiving_);
    add_to_fill_ring(frames);
  }
  if (xsk_ring_prod__needs_wakeup(&fill_) != 0) [[unlikely]]
    wake_driver();
}

void Queue::add_to_fill_ring(std::span<const Frame> frames) {
  const auto count = static_cast<uint32_t>(frames.size());
  uint32_t at = 0;
  (void)xsk_ring_prod__reserve(&fill_, count, &at);  // there is space for all frames that there are
  for (uint32_t i = 0; i < count; ++i) {
    const auto offset = static_cast<uint64_t>(frames[i].data - memory_);
    *xsk_ring_prod__fill_addr(&fill_, at + i) = offset & ~uint64_t{choice_.frame_bytes - 1};
  }
  xsk_ring_prod__submit(&fill_, count);
}

/// Wakes the kernel, which has run out of frames to fill. poll() does so on kernels before 5.11, too, unlike
/// recvfrom().
[[gnu::noinline]] void Queue::wake_driver() const {
  pollfd descriptor{descriptor_, POLLIN, 0};
  (void)poll(&descriptor, 1, 0);
}

// ---- Sending

void Queue::submit(std::span<const Send> frames) {
  const base::MutexLock lock(sending_);
  add_to_send_ring(frames);
}

void Queue::add_to_send_ring(std::span<const Send> frames) {
  const auto count = static_cast<uint32_t>(frames.size());
  uint32_t at = 0;
  (void)xsk_ring_prod__reserve(&sent_, count, &at);  // there is space for all frames that there are
  for (uint32_t i = 0; i < count; ++i) {
    is_busy_[frames[i].index].store(true, std::memory_order_relaxed);
    *xsk_ring_prod__tx_desc(&sent_, at + i) = {uint64_t{frames[i].index} * choice_.frame_bytes, frames[i].bytes, 0};
  }
  xsk_ring_prod__submit(&sent_, count);
}

bool Queue::is_place_done(uint32_t place) const {
  for (uint32_t index = place * kSlots; index < (place + 1) * kSlots; ++index) {
    if (!is_done(index)) return false;
  }
  return true;
}

void Queue::reap() {
  const base::MutexLock lock(sending_);
  empty_completion_ring();
}

void Queue::empty_completion_ring() {
  uint32_t at = 0;
  const uint32_t count = xsk_ring_cons__peek(&completed_, kSendFrames, &at);
  if (count == 0) return;
  const int shift = std::countr_zero(choice_.frame_bytes);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t index = *xsk_ring_cons__comp_addr(&completed_, at + i) >> shift;
    if (index < kSendFrames) is_busy_[index].store(false, std::memory_order_release);
  }
  xsk_ring_cons__release(&completed_, count);
}

Queue::Kicked Queue::kick(uint64_t& system_calls) {
  if (xsk_ring_prod__needs_wakeup(&sent_) == 0) return Kicked::kAll;
  // In copy mode a call moves at most 32 frames, and returns EAGAIN if there are more.
  for (uint32_t calls = 0; calls < kSendFrames; ++calls) {
    const uint32_t before = __atomic_load_n(sent_.consumer, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(sent_.producer, __ATOMIC_RELAXED) == before) break;
    ++system_calls;
    const bool is_sent = sendto(descriptor_, nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0;
    const bool has_moved = __atomic_load_n(sent_.consumer, __ATOMIC_ACQUIRE) != before;
    // In copy mode the kernel skips a queue that is above the interface's send queues without an error. In zero-copy
    // mode the call only wakes the driver.
    if (is_sent) return has_moved || is_zero_copy_ ? Kicked::kAll : Kicked::kDown;
    if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) return Kicked::kDown;
    if (!has_moved) return Kicked::kSome;
  }
  return Kicked::kAll;
}

}  // namespace tern::transport::xdp
