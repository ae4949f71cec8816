// Control of the software verbs provider by tests: faults, held completions, counters. Any thread may make all calls.
// They affect only the calling process. control() finds the provider at run time, so that one executable runs over the
// provider and over a real libibverbs.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace software_verbs {

enum class Hold : int {
  kNothing,      ///< a send completes within ibv_post_send()
  kCompletions,  ///< packets leave, but no send completes until it is released
  kSends,        ///< packets also stay in the send queue; a released send reads its memory at its release
};

/// Totals of the process since it started or since reset(). reset() does not change the counts of live objects.
struct Counters {
  uint64_t send_calls;         ///< ibv_post_send() calls that posted at least one request: doorbells
  uint64_t sends;              ///< send requests posted
  uint64_t signalled_sends;    ///< the signalled ones among them
  uint64_t inline_sends;       ///< the inline ones among them
  uint64_t receive_calls;      ///< ibv_post_recv() calls that posted, and changes that an mlx5 device found in doorbell
                               ///< records
  uint64_t receives;           ///< receive requests posted
  uint64_t packets_sent;       ///< handed to the network; without oversized and dropped packets
  uint64_t packets_delivered;  ///< placed in a receive buffer
  uint64_t oversized_sends;    ///< above the path's MTU: completed and lost
  uint64_t dropped_no_receive;
  uint64_t dropped_bad_qkey;
  uint64_t dropped_bad_pkey;
  uint64_t
      dropped_other;  ///< state of the queue pair or port, a packet above the MTU, foreign bytes, dropped on demand
  uint64_t modified_sends;        ///< held sends whose memory changed before they completed
  uint64_t address_handles_gone;  ///< held sends whose address handle was destroyed before they completed
  uint64_t completion_queue_overflows;

  // For mlx5 devices. Their packet counters count frames; dropped_other also counts frames that the interface refused.
  uint64_t frames_looped;        ///< sent and received by queues of this process; they are not on the wire
  uint64_t dropped_no_flow;      ///< arrivals that no steering rule takes, including those for other hosts and for the
                                 ///< kernel
  uint64_t dropped_too_long;     ///< arrivals above the MTU or the strides of a descriptor
  uint64_t receive_descriptors;  ///< descriptors that the device found posted, by doorbell records
  uint64_t strides_used;         ///< fillers included
  uint64_t fillers;              ///< completions for strides at the end of a descriptor that are too few for a frame
  uint64_t completions_written;  ///< completions, including errors, written to the memory of completion queues
  uint64_t completion_events;    ///< raised by armed queues
  uint64_t bad_doorbells;        ///< too many descriptors for the queue, or a doorbell page that differs from the
                                 ///< doorbell record

  uint64_t registered_bytes;  ///< alive now, like all the following
  uint64_t contexts;
  uint64_t protection_domains;
  uint64_t memory_regions;
  uint64_t address_handles;
  uint64_t completion_channels;
  uint64_t completion_queues;
  uint64_t queue_pairs;
  uint64_t receive_queues;
  uint64_t indirection_tables;
  uint64_t steering_rules;
  uint64_t descriptor_bytes;  ///< memory of send and receive queues that an mlx5 device uses
  uint64_t completion_bytes;  ///< memory of completion queues that an mlx5 device uses
  uint64_t doorbell_bytes;    ///< memory of doorbell records that an mlx5 device uses
};

/// A queue pair is named by its number, or 0 for all queue pairs of the process; a device by its index, or -1 for all
/// devices.
struct Control {
  /// Ends all faults, completes the held sends, and sets the totals to 0.
  void (*reset)();
  void (*read_counters)(Counters* counters);

  /// Sets how later sends are held. kNothing also completes the sends that are held.
  void (*hold)(Hold hold);
  /// Completes up to `count` held sends of each queue pair, oldest first.
  void (*release)(uint32_t qp_num, uint64_t count);
  /// The number of sends that are held now.
  uint64_t (*held)(uint32_t qp_num);

  /// Skips `skipped` calls of a verb, such as "ibv_reg_mr". Then the next `count` calls fail with `error`. Returns
  /// false if that verb cannot be made to fail.
  bool (*fail_calls)(const char* verb, uint64_t skipped, uint64_t count, int error);
  /// While true, ibv_create_ah() waits, as RoCE's ibv_create_ah() waits for a neighbour that does not answer.
  void (*block_address_handles)(bool blocked);
  /// The number of ibv_create_ah() calls that wait now.
  uint64_t (*blocked_address_handles)();

  /// Raises an ibv_event_type of a port or a device in every context of the device. PORT_ERR takes the port down and
  /// PORT_ACTIVE brings it back; LID_CHANGE gives the port another LID; GID_CHANGE gives its GIDs the address that
  /// SOFTWARE_VERBS now has; after DEVICE_FATAL no request completes any more.
  void (*raise_event)(int device, int event_type);
  /// Moves queue pairs and their receive queues to the error state, with flush errors. If `raises_event` is true, it
  /// also raises IBV_EVENT_QP_FATAL.
  void (*fail_queue_pair)(uint32_t qp_num, bool raises_event);
  /// Overflows the receive completion queues of queue pairs.
  void (*overflow_completions)(uint32_t qp_num);

  /// While true, mlx5 devices place received frames, but no completion is visible. False makes the held completions
  /// visible.
  void (*hold_receives)(bool held);
  /// Makes up to `count` held completions of each receive queue visible, oldest first. If the queue has fewer entries
  /// than that, it overruns at once.
  void (*release_receives)(uint64_t count);
  uint64_t (*held_receives)();
  /// Completes all receive queues of mlx5 devices with an error, such as MLX5_CQE_SYNDROME_LOCAL_PROT_ERR.
  void (*fail_receive_queues)(uint8_t syndrome);
  /// Delivers a frame to an mlx5 device (soft0 is 0, mlx5_0 is 2), as if from the wire, for queues of this process.
  /// Returns false if no steering rule takes it.
  bool (*inject_frame)(int device, const void* frame, size_t size);

  /// Drops every `period`-th packet that is sent; 0: drops no packets.
  void (*drop_packets)(uint64_t period);
  /// Drops the next `count` packets that are sent.
  void (*drop_next)(uint64_t count);
  /// Flips one bit in each of the next `count` packets that are sent, in the byte at `offset` of the payload or, for an
  /// mlx5 device, of the frame.
  void (*corrupt_next)(uint64_t count, size_t offset);
  /// Sends `size` bytes of payload, even above the MTU, to the queue pair `qp_num` (of any process) at a device.
  bool (*inject)(int device, uint32_t qp_num, uint32_t source_qp_num, uint32_t qkey, const void* payload, size_t size);

  /// Writes the numbers of the process's queue pairs, oldest first, at most `capacity`. Returns the number of queue
  /// pairs.
  size_t (*list_queue_pairs)(uint32_t* qp_nums, size_t capacity);
};

/// Null if the process runs over another libibverbs.
inline const Control* control() {
  using Find = const Control* (*)();
  const auto find = reinterpret_cast<Find>(dlsym(RTLD_DEFAULT, "software_verbs_control"));
  return find != nullptr ? find() : nullptr;
}

}  // namespace software_verbs
