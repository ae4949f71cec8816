// A receive queue of a network interface, with the send queue of the same number: an AF_XDP socket, its memory (UMEM)
// and its four rings. Transport layer; the endpoints of a process share it, in any threads.
//
// The memory is an array of frames of one size. The first frames are for sending: each endpoint has a place of kSlots
// frames, and fills them without a lock. The other frames are for receiving, and circulate: the kernel takes an empty
// frame from the fill ring, and puts it with its data into the receive ring. An endpoint reads the frame and returns it
// to the fill ring, which has space for all frames.
//
//   lock        guards
//   receiving_  the receive ring and the fill ring
//   sending_    the send ring and the completion ring
//
// The kernel takes neither lock. Each is held for some hundred nanoseconds, and never during a system call.
#pragma once

#include <xdp/xsk.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <tern/detail/export.h>
#include <tern/status.h>

#include "base/thread_safety.h"
#include "transport/xdp/frame.h"

namespace tern::transport::xdp {

class TERN_API Queue {
 public:
  static constexpr uint32_t kSlots =
      128;  ///< frames of an endpoint in transmission at a time: four bursts of the kernel
  static constexpr uint32_t kPlaces = 16;  ///< endpoints at a queue
  static constexpr uint32_t kSendFrames = kSlots * kPlaces;
  static constexpr uint32_t kHeadroomBytes = 256;  ///< XDP's own, in front of each received frame

  struct Choice {
    std::string interface;  ///< name in the calling thread's network namespace
    uint32_t interface_index = 0;
    uint32_t number = 0;
    uint32_t frame_bytes = 2048;     ///< 2048 or 4096; a received frame has kHeadroomBytes less
    uint32_t receive_frames = 2048;  ///< a power of two
    bool may_copy = true, may_zero_copy = true;
  };
  /// kUnavailable: no permission, too little locked memory, the driver refuses, no such queue, the name is not that of
  /// the interface with the index; or another socket has the queue, in which case `*is_taken` is set. kNoMemory.
  static Result<std::unique_ptr<Queue>> open(const Choice& choice, bool* is_taken);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  uint32_t number() const { return choice_.number; }
  /// Readable when frames have arrived, for poll() and epoll.
  int descriptor() const { return descriptor_; }
  bool is_zero_copy() const { return is_zero_copy_; }
  /// In a forked child, which must call nothing else: closes the child's copy, because the queue is free only after
  /// parent and children have closed it.
  void close_in_child();

  // ---- Receiving

  /// Polls without a lock.
  bool has_received() const {
    return __atomic_load_n(received_.producer, __ATOMIC_ACQUIRE) !=
           __atomic_load_n(received_.consumer, __ATOMIC_RELAXED);
  }
  /// Returns the next frames, which the caller gives back. 0: there are no frames, or another thread is taking them.
  uint32_t take(std::span<Frame> frames);
  /// Gives frames back. All must be of this queue.
  void give_back(std::span<const Frame> frames);

  // ---- Sending

  /// The memory of a frame for sending.
  std::byte* send_frame(uint32_t index) const { return memory_ + size_t{index} * choice_.frame_bytes; }
  struct Send {
    uint32_t index;
    uint32_t bytes;
  };
  /// Puts complete frames into the kernel's ring, which always has space.
  void submit(std::span<const Send> frames);
  /// False: the kernel may still read the frame.
  bool is_done(uint32_t index) const { return !is_busy_[index].load(std::memory_order_acquire); }
  /// Of all frames of an endpoint's place.
  bool is_place_done(uint32_t place) const;
  /// Records which frames of all endpoints the kernel has sent.
  void reap();

  enum class Kicked : uint8_t {
    kAll,   ///< the kernel has taken all frames, or will take them without another call
    kSome,  ///< the kernel is short of memory, or busy: kick() again
    kDown,  ///< the interface is down, or has no such send queue now; the ring keeps the frames until this is over
  };
  /// Makes the kernel send what is in the ring. Counts system calls.
  Kicked kick(uint64_t& system_calls);

 private:
  struct SocketDeleter {
    void operator()(xsk_socket* socket) const { xsk_socket__delete(socket); }
  };
  struct UmemDeleter {
    void operator()(xsk_umem* umem) const { (void)xsk_umem__delete(umem); }
  };

  explicit Queue(const Choice& choice) : choice_(choice), memory_bytes_(memory_bytes_of(choice)) {}
  static size_t memory_bytes_of(const Choice& choice) {
    return size_t{kSendFrames + choice.receive_frames} * choice.frame_bytes;
  }
  int open_memory();
  int open_socket(bool has_zero_copy);
  void fill_all();
  void add_to_fill_ring(std::span<const Frame> frames) REQUIRES(receiving_);
  void add_to_send_ring(std::span<const Send> frames) REQUIRES(sending_);
  void empty_completion_ring() REQUIRES(sending_);
  void wake_driver() const;

  const Choice choice_;
  const size_t memory_bytes_;
  int descriptor_ = -1;
  bool is_zero_copy_ = false;
  std::byte* memory_ = nullptr;
  // libxdp fills these in; the kernel's rings are elsewhere.
  xsk_ring_cons received_{};
  xsk_ring_prod sent_{};
  xsk_ring_prod fill_{};
  xsk_ring_cons completed_{};
  base::Mutex receiving_;
  base::Mutex sending_;
  std::array<std::atomic<bool>, kSendFrames> is_busy_{};
  // Destroyed in reverse order.
  std::unique_ptr<xsk_umem, UmemDeleter> umem_;
  std::unique_ptr<xsk_socket, SocketDeleter> socket_;
};

}  // namespace tern::transport::xdp
