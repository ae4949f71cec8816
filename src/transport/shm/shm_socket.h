// The sockets by which endpoints of one host find each other and hand over memory: SOCK_SEQPACKET with abstract names.
// Transport layer; any thread, no state. Knows only the numbers of rings that are in a Hello.
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

#include "transport/shm/shm_memory.h"

namespace tern::transport::shm {

/// The version of these messages and of the ring's records. 2: records have up to 32 cells, 16 before.
inline constexpr uint8_t kProtocolVersion = 2;

/// The name of an endpoint, unique for all time: the protocol's version, and 15 random bytes. The socket's name is made
/// from it.
using Identity = std::array<std::byte, 16>;

enum class MessageType : uint8_t {
  kHello = 1,    ///< from the connecting side; the other side answers with a hello
  kChunk = 2,    ///< a chunk of the message arena that descriptors will name
  kWake = 3,     ///< the sender saw the receiver asleep; has no content
  kHold = 4,     ///< the sender refers to the receiver (again)
  kRelease = 5,  ///< the sender does not refer to the receiver any more
  kBye = 6,      ///< the sender closes the connection because neither side needs it; it has not died
};

struct Hello {
  Identity identity{};
  uint64_t ring_start = 0;  ///< first position of the ring that the sender of this hello writes
  uint32_t ring_cells = 0;
  bool holds = false;  ///< true: as kHold; false: as kRelease
};

struct Message {
  MessageType type = MessageType::kWake;
  Hello hello;
  uint32_t chunk_id = 0;
  uint64_t chunk_bytes = 0;
  Descriptor descriptors[2];  ///< as many as the type has
};

enum class SendResult {
  kSent,
  kFull,   ///< the receiver has not read earlier messages, so that its socket is readable
  kShort,  ///< the system is short of memory or another resource; the caller tries again later
  kGone,
};
enum class ReceiveResult {
  kMessage,
  kNothing,    ///< there is no message now
  kHangUp,     ///< the other side has closed
  kMalformed,  ///< not a message of this protocol and version, or this process has no descriptors left
};

SendResult send_hello(int socket, const Hello& hello, int ring_fd, int doorbell_fd);
SendResult send_chunk(int socket, uint32_t chunk_id, uint64_t chunk_bytes, int chunk_fd);
SendResult send_plain(int socket, MessageType type);
/// Never blocks. `message` owns the received descriptors. Surplus descriptors are closed.
ReceiveResult receive_message(int socket, Message& message);

Result<Identity> make_identity();
/// False: the endpoint has another version of this transport.
bool is_of_this_version(const Identity& identity);
/// Most connections that wait to be accepted. Beyond this number connect_to() returns kQueueFull.
inline constexpr int kListenBacklog = 1024;
Result<Descriptor> listen_as(const Identity& identity);
/// Never blocks. Code::kQueueFull: the caller tries again later.
Result<Descriptor> connect_to(const Identity& identity);

/// The process at the other end, according to the kernel. `pid` is 0 if it is not visible in this namespace.
struct PeerProcess {
  pid_t pid = 0;
  uid_t uid = 0;

  friend bool operator==(const PeerProcess&, const PeerProcess&) = default;
};
bool peer_process(int socket, PeerProcess& process);
/// True if the process is of this process's user. Endpoints of other users, including root, may not exchange memory
/// with this endpoint unless its options allow it.
bool is_own_user(const PeerProcess& process);
/// Returns a descriptor that is readable when the process at the other end is gone. An empty result with `is_dead`
/// false means that the process cannot be watched.
Descriptor watch_process(int socket, const PeerProcess& process, bool& is_dead);

}  // namespace tern::transport::shm
