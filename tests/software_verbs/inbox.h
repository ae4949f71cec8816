// The fast path for packets between queue pairs of one process: their bytes are appended to the receiver's inbox.
// Sockets carry the packets of other processes, and all packets while the receiver's queue is armed, because a socket
// makes its channel readable.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace software_verbs {

class Inbox {
 public:
  /// Creates an inbox. offer() finds it until it is closed.
  static std::shared_ptr<Inbox> open(uint32_t qp_num, in_addr address);
  static void close(uint32_t qp_num);
  /// Returns false if no inbox of this process takes the packet; it must then be sent by socket.
  static bool offer(uint32_t qp_num, in_addr address, std::span<const iovec> packet);

  void set_armed(bool is_armed);
  /// Calls receive(bytes, size) for each packet. Returns false if there was no packet. One thread at a time.
  template <class Receive>
  bool take(Receive receive) {
    size_t end;
    {
      const std::lock_guard lock(mutex_);
      taken_.swap(packets_);
      end = std::exchange(bytes_, 0);
    }
    if (end == 0) return false;
    for (size_t at = 0; at < end;) {
      const size_t size = *reinterpret_cast<const size_t*>(taken_.data() + at);
      receive(taken_.data() + at + sizeof(size_t), size);
      at += footprint(size);
    }
    return true;
  }

 private:
  /// The space of a packet: its size field and its bytes, aligned.
  static size_t footprint(size_t size) { return (2 * sizeof(size_t) + size - 1) & ~(sizeof(size_t) - 1); }
  bool add(in_addr address, std::span<const iovec> packet);

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<std::byte> packets_;
  size_t bytes_ = 0;  ///< bytes of packets_ in use
  bool is_armed_ = false;
  in_addr address_{};

  std::vector<std::byte> taken_;
};

}  // namespace software_verbs
