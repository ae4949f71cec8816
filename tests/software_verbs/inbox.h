// The short way for packets between queue pairs of one process: bytes appended to the receiver's inbox. Sockets carry
// the packets of other processes, and all packets while the receiver's queue is armed, because a socket makes its
// channel readable.
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
  /// An inbox that offer() finds, until it is closed.
  static std::shared_ptr<Inbox> open(uint32_t qp_num, in_addr address);
  static void close(uint32_t qp_num);
  /// False: no inbox of this process takes the packet, so that it has to go by socket.
  static bool offer(uint32_t qp_num, in_addr address, std::span<const iovec> packet);

  void set_armed(bool is_armed);
  /// Calls receive(bytes, size) for each packet. False: there was none. One thread at a time.
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
  /// Of a packet: its size in front, and the whole aligned.
  static size_t footprint(size_t size) { return (2 * sizeof(size_t) + size - 1) & ~(sizeof(size_t) - 1); }
  bool add(in_addr address, std::span<const iovec> packet);

  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<std::byte> packets_;
  size_t bytes_ = 0;  ///< of packets_ in use
  bool is_armed_ = false;
  in_addr address_{};

  std::vector<std::byte> taken_;
};

}  // namespace software_verbs
