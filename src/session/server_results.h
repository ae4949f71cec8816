// What a server session asks of its endpoint, and what comes out of it: the effects of received packets, and packets.
// Session layer: plain values, and one interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tern/detail/buffer.h>

#include "session/drop.h"
#include "session/server_slot.h"
#include "session/windows.h"
#include "wire/header.h"

namespace tern::session {

/// Services of the endpoint for a session that receives a packet.
class ServerOffers {
 public:
  /// `pools`: the endpoint's. All calls for a session must offer the same pools.
  explicit ServerOffers(ServerPools& pools) : pools_(pools) {}
  ServerPools& pools() const { return pools_; }

  struct RequestBuffer {
    detail::Buffer* buffer = nullptr;  ///< null: the request is refused
    wire::FailureCode refusal = {};    ///< the reason, if `buffer` is null
    void* claim = nullptr;             ///< for Assembly::claim
  };
  /// Returns a buffer for `request`, whose bytes cannot stay where they are. `is_long`: the request arrives in several
  /// packets, and the buffer counts as arriving until take_back_buffer() or ServerVerdict::was_assembled.
  virtual RequestBuffer buffer_for(const wire::Header& request, bool is_long) = 0;
  /// Takes back the buffer, from buffer_for(), of a request that will not run.
  virtual void take_back_buffer(detail::Buffer* buffer, uint32_t request_bytes, bool is_long) = 0;
  /// Takes back a response that the client has received or given up. Packets up to `ticket` may still refer to it.
  virtual void take_back_response(detail::Buffer* response, uint64_t ticket) = 0;
  /// Abandons a running request that the client has given up. Its answer will not be sent.
  virtual void abandon(void* call) = 0;
  /// False: the application has too many requests already that their client gave up. The slot keeps this request until
  /// it is answered (clause 6.2.4).
  virtual bool may_abandon(void*) { return true; }

 protected:
  ~ServerOffers() = default;

 private:
  ServerPools& pools_;
};

/// The effects of a received packet for the endpoint.
struct ServerVerdict {
  ServerSlot* started = nullptr;  ///< its request is complete (kRunning): the caller runs the handler or calls fail()
  detail::Buffer* message = nullptr;  ///< that request's bytes, now owned by the endpoint; null: the payload has them
  bool was_assembled = false;         ///< `message` does not count as arriving any more
  bool is_part = false;               ///< the packet is a part, missing so far, of a request of several packets
  bool is_about_a_call = false;       ///< the client has an unanswered request (clause 4.5.5)
  bool has_opened = false;            ///< the client proved its path for the first time
  bool wants_pair = false;            ///< the caller must call owe_pair_reply() for the packet's source address
  bool has_paired = false;            ///< the client receives at the address of the last pair reply
  Drop drop = Drop::kNone;
};

/// A packet to be sent, in the general case.
struct ServerPacket {
  wire::Header header;
  const std::byte* payload;  ///< null: any content of `payload_bytes`
  uint32_t payload_bytes;
  detail::Buffer* buffer;  ///< buffer that `payload` lies in; null: `scratch`, or any content
  ServerSlot* slot;        ///< null: concerns the session
  uint32_t slot_index;
  bool is_range;  ///< an RFR asked for the packet
  std::byte scratch[8 * NumberWindow::kWords];
};

}  // namespace tern::session
