// How endpoints of one host find each other and hand over memory: SOCK_SEQPACKET sockets with abstract names.
// Transport room; any thread, no state. Knows nothing of rings beyond the numbers in a Hello.
//
// Messages of the transport's control connection, each one datagram, integers in the host's own order:
//
//   hello    type, version, flags, identity 16, ring start 8, ring cells 4   with two descriptors: ring, doorbell
//   chunk    type, version, chunk id 4, bytes 8                              with one descriptor: the chunk
//   wake, hold, release, bye: type, version
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tern/status.h>

#include "transport/shm_memory.h"

namespace tern::transport::shm {

/// Random name of an endpoint, unique for all time; the socket's name follows from it.
using Identity = std::array<std::byte, 16>;

enum class MessageType : uint8_t {
  kHello = 1,    ///< from the connecting side; answered by a hello
  kChunk = 2,    ///< a chunk of the message arena that descriptors will name
  kWake = 3,     ///< the receiver was seen asleep; nothing else
  kHold = 4,     ///< somebody here refers to you (again)
  kRelease = 5,  ///< nobody here refers to you any more
  kBye = 6,      ///< the connection is closed because nobody needs it: no death
};

struct Hello {
  Identity identity{};
  uint64_t ring_start = 0;  ///< first position of the ring that the sender of this hello writes
  uint32_t ring_cells = 0;
  bool holds = false;  ///< as kHold or kRelease would say
};

struct Message {
  MessageType type = MessageType::kWake;
  Hello hello;
  uint32_t chunk_id = 0;
  uint64_t chunk_bytes = 0;
  Descriptor descriptors[2];  ///< as many as the type demands
};

enum class SendResult {
  kSent,
  kFull,   ///< the receiver has not read what it was sent before: its socket is readable
  kShort,  ///< the system is short of something, of memory mostly: to be tried again
  kGone,
};
enum class ReceiveResult {
  kMessage,
  kNothing,    ///< nothing there now
  kHangUp,     ///< the other side has closed
  kMalformed,  ///< not a message of this protocol and version; also: we have no descriptors left to receive with
};

SendResult send_hello(int socket, const Hello& hello, int ring_fd, int doorbell_fd);
SendResult send_chunk(int socket, uint32_t chunk_id, uint64_t chunk_bytes, int chunk_fd);
SendResult send_plain(int socket, MessageType type);
/// Never blocks. Received descriptors are owned by `message`; surplus ones are closed.
ReceiveResult receive_message(int socket, Message& message);

Result<Identity> make_identity();
/// Connections that wait to be accepted; beyond them connect_to() says kQueueFull.
inline constexpr int kListenBacklog = 1024;
Result<Descriptor> listen_as(const Identity& identity);
/// Never blocks. Code::kQueueFull: try again later.
Result<Descriptor> connect_to(const Identity& identity);

/// Who is at the other end, as the kernel knows it; `pid` is 0 when it cannot be seen from here.
struct PeerProcess {
  pid_t pid = 0;
  uid_t uid = 0;

  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};
bool peer_process(int socket, PeerProcess& process);
/// No other user may hand us memory or have ours, root included, unless the endpoint's options allow it.
bool is_own_user(const PeerProcess& process);
/// Readable when the process at the other end is gone. Empty with `is_dead` false: it cannot be watched from here.
Descriptor watch_process(int socket, const PeerProcess& process, bool& is_dead);

}  // namespace tern::transport::shm
