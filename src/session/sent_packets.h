// The unanswered packets of a client, and the credits that they hold (clauses 3.4, 4.1).
// Session layer: a data structure without I/O or a clock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tern/detail/export.h>

#include "wire/header.h"

namespace tern::session {

/// The record of one packet that was sent.
struct SentPacket {
  enum class Kind : uint8_t {
    kNone,   ///< the packet was answered, counts as lost, or takes no credit
    kShort,  ///< a request of one packet, which costs one credit
    kWide,   ///< a request of one packet, which costs more than one credit or has named a size (clause 5.3.3)
    kPart,   ///< a packet of a longer request
    kRfr,
    kRfrArrived,    ///< an RFR that the server has acknowledged; `time_ns` is the time of the acknowledgement
    kRfrOvertaken,  ///< an RFR whose last packet has arrived, so that the missing ones were overtaken
  };
  uint64_t time_ns = 0;  ///< time of the send; for an RFR, time of its newest answer
  /// kPart: index of the packet in its message. kShort and kWide: the request number. RFR: first index of the range.
  uint32_t index = 0;
  uint8_t count = 0;    ///< RFR: packets asked for; kWide and kPart: credits that the packet costs
  uint8_t missing = 0;  ///< RFR: packets asked for that have not arrived
  uint8_t slot = 0;     ///< kShort: not set; slot_index() has it for each kind
  Kind kind = Kind::kNone;

  bool holds_credit() const { return kind != Kind::kNone; }
  bool is_request() const { return kind >= Kind::kShort && kind <= Kind::kPart; }
  uint32_t credits() const { return kind == Kind::kWide || kind == Kind::kPart ? count : holds_credit() ? 1 : 0; }
  bool is_rfr() const { return kind >= Kind::kRfr; }
  uint32_t slot_index() const { return kind == Kind::kShort ? index & (wire::kSlotsMax - 1) : slot; }
  /// True if the RFR's range has the response packet with this index.
  bool asks_for(uint32_t slot_index, uint32_t packet_index) const {
    return is_rfr() && slot == slot_index && packet_index - index < count;
  }
};
static_assert(sizeof(SentPacket) == 16);
/// A record without a packet.
inline constexpr SentPacket kNothingSent;

/// A ring of records by packet number. It has the numbers from oldest() to next_number() - 1, those without a credit
/// included. The first kEmbedded records lie in the owner's memory; a longer ring is allocated.
class TERN_API SentPackets {
 public:
  static constexpr size_t kEmbedded = 4;
  using Embedded = SentPacket[kEmbedded];
  /// The largest ring: numbers from the oldest unanswered packet to the next one. It has space for the packets of all
  /// credits and for almost as many packets that were answered meanwhile.
  static constexpr uint64_t kSizeMax = 4096;

  /// A ring without memory. start() must be called before all other members.
  SentPackets() : entries_(nothing()), mask_(0), size_(0) {}
  /// `embedded` must outlive this object. start() must be called before all other members.
  explicit SentPackets(Embedded& embedded) : entries_(embedded) {}
  ~SentPackets() { release(); }
  SentPackets(const SentPackets&) = delete;
  SentPackets& operator=(const SentPackets&) = delete;

  /// Removes all records. The next number is `first`.
  void start(uint64_t first) {
    next_number_ = oldest_ = first;
    largest_answered_ = first - 1;
    in_flight_ = 0;
  }
  /// Frees the allocated ring. Must be called without records.
  void shrink(Embedded& embedded) {
    release();
    std::fill_n(embedded, kEmbedded, SentPacket());  // they may be older than the ring
    wake(embedded);
  }
  /// Only for a ring without allocated memory. `embedded` must have no records.
  void wake(Embedded& embedded) {
    entries_ = embedded;
    size_ = kEmbedded;
    mask_ = kEmbedded - 1;
  }
  /// Gives up the ring's memory. Must be called without records. wake() must be called before add().
  void rest() {
    release();
    entries_ = nothing();
    size_ = mask_ = 0;
  }
  /// Counts a packet without a record, which needs no credit and no memory. is_empty() must be true.
  void skip() { oldest_ = ++next_number_; }
  /// Enlarges the ring. False: it has its largest size, or there is no memory.
  bool grow();

  uint64_t next_number() const { return next_number_; }
  /// Number of the oldest packet of the ring. Every packet before it is answered or counts as lost.
  uint64_t oldest() const { return oldest_; }
  bool contains(uint64_t number) const { return number >= oldest_ && number < next_number_; }
  bool is_empty() const { return oldest_ == next_number_; }
  bool is_full() const { return next_number_ - oldest_ == size_; }
  uint64_t size() const { return size_; }
  /// The record of a number. contains(number) must be true.
  SentPacket& operator[](uint64_t number) { return entries_[number & mask_]; }
  const SentPacket& operator[](uint64_t number) const { return entries_[number & mask_]; }

  /// Records the next packet. is_full() must be false.
  void add(const SentPacket& packet) {
    entries_[next_number_ & mask_] = packet;
    next_number_++;
    in_flight_ += packet.credits();
  }
  /// Removes a packet that was answered or counts as lost, and frees its credits.
  void remove(SentPacket& packet) {
    in_flight_ -= packet.credits();
    packet.kind = SentPacket::Kind::kNone;
  }
  void advance_oldest() {
    while (oldest_ < next_number_ && !entries_[oldest_ & mask_].holds_credit()) oldest_++;
  }

  /// For a burst of packets that each hold one credit. The caller writes the records [next_number(), burst_end())
  /// itself, with entries in a variable of its own, and tells on_burst() how many it has written. It may name a record
  /// by the low half of its number, because a burst is shorter than 2^32 packets.
  class Burst {
   public:
    SentPacket& operator[](uint32_t number) const { return entries_[number & mask_]; }

   private:
    friend class SentPackets;
    Burst(SentPacket* entries, uint32_t mask) : entries_(entries), mask_(mask) {}
    SentPacket* const entries_;
    const uint32_t mask_;
  };
  Burst burst() { return {entries_, mask_}; }
  /// End of the numbers for which there are credits and space.
  uint64_t burst_end() const {
    return std::min(next_number_ + (credit_limit_ > in_flight_ ? credit_limit_ - in_flight_ : 0), oldest_ + size_);
  }
  void on_burst(uint32_t packets) {
    in_flight_ += packets;
    next_number_ += packets;
  }
  /// Removes the oldest packet, which must hold one credit.
  void remove_oldest(SentPacket& packet) {
    packet.kind = SentPacket::Kind::kNone;
    oldest_++;
    in_flight_--;
  }

  /// The largest number of a packet that was answered.
  uint64_t largest_answered() const { return largest_answered_; }
  void note_answered(uint64_t number) { largest_answered_ = std::max(largest_answered_, number); }

  /// Credits that packets hold.
  uint32_t in_flight() const { return in_flight_; }
  /// The smaller of the server's limit and the congestion controller's, in credits.
  uint32_t credit_limit() const { return credit_limit_; }
  void set_credit_limit(uint32_t credits) { credit_limit_ = credits; }
  /// True if one more packet may be sent, whatever it costs. If long packets had to stay within the limit, a stream of
  /// short packets could keep them waiting for ever.
  bool has_credit() const { return in_flight_ < credit_limit_; }

 private:
  void release() {
    if (size_ > kEmbedded) delete[] entries_;
  }
  /// What `entries_` points to without a ring, because operator[](oldest()) may be read then, too. Never written.
  static SentPacket* nothing() { return const_cast<SentPacket*>(&kNothingSent); }

  SentPacket* entries_;  ///< without a ring: nothing()
  uint32_t mask_ = kEmbedded - 1;
  uint32_t size_ = kEmbedded;
  uint64_t next_number_ = 1;
  uint64_t oldest_ = 1;
  uint64_t largest_answered_ = 0;
  uint32_t in_flight_ = 0;
  uint32_t credit_limit_ = 1;
};
static_assert(sizeof(SentPackets) == 48, "a part of the session's first cache lines");

}  // namespace tern::session
