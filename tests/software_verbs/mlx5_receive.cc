// Receiving: placing frames in strides, and writing completions.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "mlx5.h"

namespace software_verbs {
namespace {

constexpr uint32_t kFillerBit = 1u << 31;  ///< in mlx5_cqe64::byte_cnt, like kStridesShift
constexpr uint32_t kStridesShift = 16;
constexpr size_t kLastWord = 15;
constexpr uint8_t kUdpHeader = 2 << 4;  ///< in mlx5_cqe64::l4_hdr_type_etc

/// Entries are written in order, and the last 32 bits of an entry (wqe_counter, signature, op_own) after the rest of
/// it. So a program that reads these bits also sees the rest, and the frame's data. All accesses are atomic, because
/// the program may read while an entry is overwritten.
void store_entry(CompletionRing& ring, const EntryWords& words) {
  const auto index = static_cast<uint32_t>(ring.written & (ring.entry_count - 1));
  std::byte* const end = ring.entries.data() + size_t{index + 1} * ring.entry_bytes;
  auto* const entry = reinterpret_cast<uint32_t*>(end - sizeof(EntryWords));
  for (size_t at = 0; at < kLastWord; at++) std::atomic_ref(entry[at]).store(words[at], std::memory_order_release);
  std::atomic_ref(entry[kLastWord]).store(words[kLastWord]);
  ring.written++;
  count(totals.completions_written);
}

/// In mlx5 the program arms with the sequence number of the next event. If `is_error`, a queue that is armed for
/// solicited completions counts as armed, too.
bool is_armed(CompletionRing& ring, bool is_error) {
  const auto* const doorbell = reinterpret_cast<const uint64_t*>(ring.uar() + MLX5_CQ_DOORBELL);
  const uint64_t rung = std::atomic_ref(const_cast<uint64_t&>(*doorbell)).load();
  const uint32_t command = be32toh(static_cast<uint32_t>(rung));
  if (be32toh(static_cast<uint32_t>(rung >> 32)) != ring.number || command >> 28 != (ring.events & 3)) return false;
  if ((command & MLX5_CQ_DB_REQ_NOT_SOL) != 0 && !is_error) return false;
  const uint32_t recorded = std::atomic_ref(ring.record()[1]).load(std::memory_order_relaxed);
  if (be32toh(recorded) == command) return true;
  count(totals.bad_doorbells);
  return false;
}

void write_visibly(ReceiveQueue& queue, EntryWords words) {
  CompletionRing& ring = queue.ring();
  // The owner bit changes with each round.
  if ((ring.written & ring.entry_count) != 0) words[kLastWord] |= uint32_t{MLX5_CQE_OWNER_MASK} << 24;
  store_entry(ring, words);
  const bool is_error = words[kLastWord] >> 28 == MLX5_CQE_RESP_ERR;
  if (queue.cq->channel == nullptr || !is_armed(ring, is_error)) return;
  ring.events++;
  count(totals.completion_events);
  raise_completion_event(static_cast<CompletionQueue&>(*queue.cq));
}

void write_completion(ReceiveQueue& queue, const mlx5_cqe64& entry) {
  EntryWords words;
  static_assert(sizeof(words) == sizeof(entry));
  memcpy(words.data(), &entry, sizeof(words));
  if (are_receives_held.load() || !queue.ring().held.empty())
    queue.ring().held.push_back(words);
  else
    write_visibly(queue, words);
}

mlx5_cqe64 describe(const ReceiveQueue& queue, uint32_t strides) {
  mlx5_cqe64 entry{};
  entry.wqe_id = htobe16(static_cast<uint16_t>(queue.done));
  entry.wqe_counter = htobe16(static_cast<uint16_t>(queue.stride));
  entry.flags_rqpn = htobe32(queue.wq_num);
  entry.byte_cnt = htobe32(strides << kStridesShift);
  entry.op_own = MLX5_CQE_RESP_SEND << 4;
  return entry;
}

void use_strides(ReceiveQueue& queue, uint32_t strides) {
  count(totals.strides_used, strides);
  queue.stride += strides;
  if (queue.stride < queue.strides()) return;
  queue.stride = 0;
  queue.done++;
}

void fill_descriptor(ReceiveQueue& queue) {
  const uint32_t strides = queue.strides() - queue.stride;
  mlx5_cqe64 entry = describe(queue, strides);
  entry.byte_cnt |= htobe32(kFillerBit);
  write_completion(queue, entry);
  count(totals.fillers);
  use_strides(queue, strides);
}

/// The memory of all strides of the descriptor in use. Null if the device may not write to it.
std::byte* find_memory(ReceiveQueue& queue) {
  const auto at = static_cast<size_t>(queue.done & (queue.descriptor_count - 1)) * kDescriptorBytes;
  mlx5_mprq_wqe descriptor;
  memcpy(&descriptor, queue.descriptors.data() + at, sizeof(descriptor));
  const ibv_sge memory{be64toh(descriptor.dseg.addr), be32toh(descriptor.dseg.byte_count),
                       be32toh(descriptor.dseg.lkey)};
  if (memory.length < queue.strides() * queue.stride_bytes()) return nullptr;
  if (!may_access(context_of(&queue), queue.pd, memory, IBV_ACCESS_LOCAL_WRITE)) return nullptr;
  return reinterpret_cast<std::byte*>(memory.addr);
}

}  // namespace

void read_doorbell(ReceiveQueue& queue) {
  const uint32_t record = be32toh(std::atomic_ref(queue.record()[MLX5_RCV_DBR]).load(std::memory_order_acquire));
  const auto posted = static_cast<uint16_t>(record - queue.head);
  if (posted == 0) return;
  if (posted > queue.descriptor_count - (queue.head - queue.done)) {
    count(totals.bad_doorbells);
    return;
  }
  queue.head += posted;
  count(totals.receive_calls);
  count(totals.receive_descriptors, posted);
}

void place(ReceiveQueue& queue, FrameView frame, const Headers& headers) {
  const Context& context = context_of(&queue);
  if (queue.device_state != IBV_WQS_RDY || context.is_dead) {
    count(totals.dropped_other);
    return;
  }
  read_doorbell(queue);
  const size_t shift = queue.striding.two_byte_shift_en != 0 ? 2 : 0;
  const size_t needed = (shift + frame.size() + queue.stride_bytes() - 1) / queue.stride_bytes();
  if (needed > queue.strides()) {
    count(totals.dropped_too_long);
    return;
  }
  const auto strides = static_cast<uint32_t>(needed);
  if (strides > queue.strides() - queue.stride) fill_descriptor(queue);
  if (queue.done == queue.head) {
    count(totals.dropped_no_receive);
    return;
  }
  std::byte* const memory = find_memory(queue);
  if (memory == nullptr) {
    end_receive_queue(queue, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
    return;
  }
  memcpy(memory + queue.stride * queue.stride_bytes() + shift, frame.data(), frame.size());
  mlx5_cqe64 entry = describe(queue, strides);
  entry.byte_cnt |= htobe32(static_cast<uint32_t>(shift + frame.size()));
  if (context.settings.has_receive_checksums) entry.hds_ip_ext = check_frame(frame, headers);
  if (headers.is_ip) {
    entry.l4_hdr_type_etc = (headers.is_ipv4() ? MLX5_CQE_L3_HDR_TYPE_IPV4 : MLX5_CQE_L3_HDR_TYPE_IPV6) << 2;
    if (headers.transport != 0 && headers.protocol == kProtocolUdp) entry.l4_hdr_type_etc |= kUdpHeader;
  }
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  entry.timestamp = htobe64(static_cast<uint64_t>(now.count()));
  count(totals.packets_delivered);
  write_completion(queue, entry);
  use_strides(queue, strides);
}

void write_error(ReceiveQueue& queue, uint8_t syndrome) {
  mlx5_err_cqe entry{};
  entry.syndrome = syndrome;
  entry.s_wqe_opcode_qpn = htobe32(queue.wq_num);
  entry.wqe_counter = htobe16(static_cast<uint16_t>(queue.done));
  entry.op_own = MLX5_CQE_RESP_ERR << 4;
  mlx5_cqe64 written;
  static_assert(sizeof(written) == sizeof(entry));
  memcpy(&written, &entry, sizeof(written));
  write_completion(queue, written);
  queue.stride = 0;
  if (queue.done != queue.head) queue.done++;
}

void end_receive_queue(ReceiveQueue& queue, uint8_t syndrome) {
  if (queue.device_state != IBV_WQS_RDY) return;
  queue.device_state = IBV_WQS_ERR;
  read_doorbell(queue);
  if (syndrome != MLX5_CQE_SYNDROME_WR_FLUSH_ERR) write_error(queue, syndrome);
  while (queue.done != queue.head) write_error(queue, MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
}

void release_completions(ReceiveQueue& queue, uint64_t limit) {
  auto& held = queue.ring().held;
  for (; limit > 0 && !held.empty(); limit--) {
    write_visibly(queue, held.front());
    held.pop_front();
  }
}

}  // namespace software_verbs
