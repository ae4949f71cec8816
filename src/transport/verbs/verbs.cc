#include "transport/verbs/verbs.h"

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/random.h"
#include "base/status_text.h"
#include "transport/options.h"

namespace tern::transport {

static_assert(TransportImpl<VerbsImpl>);

namespace {

constexpr Status kBadReceiveBuffers(Code::kMisuse,
                                    "verbs: Verbs::Options::receive_buffers must be a power of two, 64 to 16384");
constexpr Status kBadPacketBytes(Code::kMisuse, "verbs: Verbs::Options::packet_bytes must be 536 to 4096, or 0");
constexpr Status kNoMemory(Code::kNoMemory,
                           "verbs: no memory for the endpoint's queues: free some, or use fewer endpoints");
constexpr Status kNoDescriptors(Code::kUnavailable, "verbs: no file descriptors are left: raise the limit (ulimit -n)");
constexpr Status kNoRandom(
    Code::kUnavailable, "verbs: the system gives no random numbers: allow getrandom(2) or /dev/urandom in the sandbox");
constexpr Status kDeviceGone(Code::kUnavailable,
                             "verbs: the RDMA device has failed or was removed: make a new endpoint when it is back");
constexpr Status kQueueLost(Code::kUnavailable, "verbs: the device has lost a completion queue: make a new endpoint");
constexpr Status kPairLost(Code::kUnavailable,
                           "verbs: the queue pair fails again after each reset: see the kernel's log, and make a new "
                           "endpoint");
constexpr Status kMoved(
    Code::kUnavailable,
    "verbs: the port has another address now, or another partition, so that no peer can reach this endpoint: create a "
    "new one");

}  // namespace

// ---- Creation ----

Result<std::unique_ptr<VerbsImpl>> VerbsImpl::create(Options options, const Context& context) {
  if (!std::has_single_bit(options.receive_buffers)) return kBadReceiveBuffers;
  if (options.packet_bytes != 0 && options.packet_bytes < kPacketBytesMin) return kBadPacketBytes;
  if (Status status = check_ranges<Verbs>(options); !status.ok()) return status;
  std::unique_ptr<VerbsImpl> made(new (std::nothrow) VerbsImpl(std::move(options), context));
  if (made == nullptr) return kNoMemory;
  if (Status status = made->open(context.listen_host); !status.ok()) return status;
  return made;
}

VerbsImpl::VerbsImpl(Options options, const Context& context)
    : arena_(context.arena), options_(std::move(options)), delay_target_ns_(1000 * options_.delay_target_us) {}

Status VerbsImpl::open(std::string_view listen_host) {
  const rdma::PortChoice choice{options_.device, options_.port, options_.gid_index, options_.partition_index,
                                listen_host};
  static_assert(Options::kAny == rdma::PortChoice::kAny);
  auto opened = rdma::open_port(Verbs::kName, choice);
  if (!opened.ok()) return opened.status();
  objects_->opened = std::move(*opened);
  const rdma::Port& port = objects_->opened.port;
  packet_bytes_ = options_.packet_bytes == 0 ? port.mtu_bytes : options_.packet_bytes;
  if (packet_bytes_ < kPacketBytesMin || packet_bytes_ > port.mtu_bytes) {
    const std::string mtu = std::to_string(port.mtu_bytes), wanted = std::to_string(packet_bytes_);
    return base::status_of(Code::kUnavailable, "verbs: the port's MTU does not allow packets of this size",
                           {"verbs: packets of ", wanted, " bytes do not fit the port, whose MTU is ", mtu,
                            ": it takes 536 bytes to its MTU; change Verbs::Options::packet_bytes"});
  }
  if (Status status = open_queues(); !status.ok()) return status;
  if (!base::fill_random(&own_key_, sizeof(own_key_))) return kNoRandom;
  own_key_ &= VerbsAddress::kKeyMax;
  if (start_queue_pair() != 0) {
    return base::status_of(Code::kUnavailable, "verbs: the device refused to start a queue pair",
                           {"verbs: the device refused to start a queue pair (", std::strerror(errno),
                            "): see the kernel's log, or use fewer endpoints"});
  }
  address_bytes_ = encode_address({.fabric = port.fabric,
                                   .lid = port.lid,
                                   .queue_pair = objects_->pair->qp_num,
                                   .key = own_key_,
                                   .partition = port.partition,
                                   .packet_bytes = static_cast<uint16_t>(packet_bytes_),
                                   .gid = port.gid});
  const Status status = arena_.observe(*objects_->chunks);
  is_observing_ = status.ok();
  return status;
}

/// Makes the queue pair and the objects that it needs.
Status VerbsImpl::open_queues() {
  const rdma::OpenedPort& opened = objects_->opened;
  // The longest packet that the port receives, so that no peer can send one for which a buffer is too short.
  const uint32_t buffer_bytes = (kRouteBytes + opened.port.mtu_bytes + 63) / 64 * 64;
  const size_t slot_bytes = SendQueue::kMemoryBytes;
  const size_t receive_bytes = size_t{options_.receive_buffers} * buffer_bytes;
  auto memory = rdma::RegisteredMemory::create(Verbs::kName, opened.domain.get(), slot_bytes + receive_bytes);
  if (!memory.ok()) return memory.status();
  objects_->memory = std::move(*memory);
  std::byte* const base = objects_->memory->base();
  const uint32_t key = objects_->memory->key();
  sends_.create(base, key);
  objects_->chunks.reset(new (std::nothrow) rdma::ChunkRegistration(Verbs::kName, opened.domain.get()));
  objects_->resolver.reset(new (std::nothrow) VerbsResolver(opened.domain.get(), [this] { wake_.wake(); }));
  if (objects_->chunks == nullptr || objects_->resolver == nullptr ||
      !receives_.create(options_.receive_buffers, base + slot_bytes, buffer_bytes, key)) {
    return kNoMemory;
  }
  ibv_context* const context = opened.context.get();
  if (!waits_.open() || !wake_.open() || !objects_->events.open(context)) return kNoDescriptors;
  for (const int fd : {objects_->events.descriptor(), wake_.descriptor(), context->async_fd}) {
    if (!waits_.add(fd, EPOLLIN, static_cast<uint64_t>(fd))) return kNoMemory;
  }
  return make_queue_pair();
}

/// Completion queues have space for twice the possible completions, because completions from before a reset may be in
/// them.
Status VerbsImpl::make_queue_pair() {
  const rdma::OpenedPort& opened = objects_->opened;
  const std::string_view device = ibv_get_device_name(opened.context->device);
  const auto refuse = [&](const char* what) {
    return base::status_of(Code::kUnavailable, "verbs: the device has no queues for another endpoint",
                           {"verbs: ", device, " did not create a ", what, " (", std::strerror(errno),
                            "): lower Verbs::Options::receive_buffers, or use fewer endpoints"});
  };
  objects_->send_completions = objects_->events.make_queue(opened.context.get(), 2 * kSendSlots);
  objects_->receive_completions = objects_->events.make_queue(opened.context.get(), 2 * options_.receive_buffers);
  if (objects_->send_completions == nullptr || objects_->receive_completions == nullptr) {
    return refuse("completion queue");
  }
  ibv_qp_init_attr attributes{};
  attributes.send_cq = objects_->send_completions.get();
  attributes.recv_cq = objects_->receive_completions.get();
  attributes.qp_type = IBV_QPT_UD;
  for (const uint32_t inline_bytes : {kInlineBytes, kInlineBytes / 2, kInlineBytes / 4, 0u}) {
    attributes.cap = {.max_send_wr = kSendSlots,
                      .max_recv_wr = options_.receive_buffers,
                      .max_send_sge = 2,
                      .max_recv_sge = 1,
                      .max_inline_data = inline_bytes};
    objects_->pair.reset(ibv_create_qp(opened.domain.get(), &attributes));
    if (objects_->pair != nullptr) {
      inline_bytes_max_ = std::min(inline_bytes, attributes.cap.max_inline_data);
      return {};
    }
  }
  if (errno == EOPNOTSUPP || errno == ENOSYS) {
    return base::status_of(Code::kUnavailable, "verbs: the device has no unreliable datagrams",
                           {"verbs: ", device, " has no unreliable datagrams: use another device"});
  }
  return refuse("queue pair for unreliable datagrams");
}

/// From reset to ready. Returns 0, or an errno, and sets errno.
int VerbsImpl::start_queue_pair() {
  ibv_qp* const pair = objects_->pair.get();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.pkey_index = objects_->opened.port.partition_index;
  attributes.port_num = objects_->opened.port.number;
  attributes.qkey = own_key_;
  int error = ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  if (error == 0) error = receives_.post(pair);
  attributes.qp_state = IBV_QPS_RTR;
  if (error == 0) error = ibv_modify_qp(pair, &attributes, IBV_QP_STATE);
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = 0;
  if (error == 0) error = ibv_modify_qp(pair, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN);
  errno = error;
  return error;
}

VerbsImpl::~VerbsImpl() {
  if (objects_.is_here()) {
    objects_->resolver.reset();  // its threads wake this object
    objects_->pair.reset();      // from now on the NIC reads and writes no memory
    if (is_observing_) arena_.unobserve();
    return;
  }
  objects_->events.abandon();
  rdma::abandon(objects_->opened.context);
}

// ---- The queue pair ----

/// Sends a packet that the NIC gathers or that is copied, and handles one that is too long or cannot be sent now.
[[gnu::noinline]] bool VerbsImpl::send_slow(PeerId id, const wire::Header& header, const std::byte* data, size_t len,
                                            detail::Buffer* buffer) {
  if (!may_send(id)) return false;
  const Route& route = routes_[id];
  const size_t bytes = kHeaderBytes + len;
  if (bytes > route.packet_bytes) {
    ++counters_.send_errors;
    return true;  // a loss: it would not fit later either
  }
  SendQueue::Slot& slot = begin_packet(route, header, bytes);
  const bool is_inline = bytes <= inline_bytes_max_;
  slot.ranges[0].length = kHeaderBytes;
  slot.request.num_sge = 1;
  rdma::Reading reading = is_inline ? rdma::Reading::kInline : rdma::Reading::kCopied;
  if (buffer == nullptr) {
    if (len != 0) std::memcpy(slot.head + kHeaderBytes, data, len);
    slot.ranges[0].length = static_cast<uint32_t>(bytes);
  } else if (len != 0) {
    slot.ranges[1] = {reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(len), is_inline ? 0 : key_of(buffer)};
    slot.request.num_sge = 2;
    if (!is_inline) reading = rdma::Reading::kGathered;
  }
  sends_.add(slot, reading);
  return true;
}

[[gnu::noinline]] void VerbsImpl::post_sends() {
  counters_.packets_sent += sends_.queued();
  if (sends_.post(objects_->pair.get()) != 0) is_troubled_ = true;
}

[[gnu::noinline]] void VerbsImpl::post_receives() {
  if (receives_.post(objects_->pair.get()) != 0) is_troubled_ = true;
}

[[gnu::noinline]] void VerbsImpl::poll_sends() {
  const auto polled = sends_.poll(objects_->send_completions.get());
  if (polled.has_sent) resets_ = 0;
  counters_.send_errors += polled.errors;
  if (polled.has_failed) is_troubled_ = true;
  if (!objects_->retired.empty()) [[unlikely]]
    bury_retired();
}

[[gnu::noinline]] void VerbsImpl::count_bad(const wire::Header& header, uint32_t bytes) {
  if ((header.flags() & wire::kByReference) != 0 && wire::is_plausible(header, bytes)) {
    ++counters_.dropped_bad_reference;
  } else if (bytes > packet_bytes_ && wire::is_plausible(header, bytes)) {
    ++counters_.dropped_oversize;
  } else {
    ++counters_.dropped_unparsable;
  }
}

/// Resets a failed queue pair. False: it has failed for good.
[[gnu::noinline]] bool VerbsImpl::recover() {
  if (!failure_.ok()) return false;
  read_events();  // reads the events of this error, so that they are not taken for another error later
  if (!failure_.ok()) return false;
  is_troubled_ = false;
  arrived_ = 0;
  ++counters_.device_resets;
  const uint64_t now_ns = now();
  if (now_ns - reset_ns_ > kRowNs) resets_ = 0;
  reset_ns_ = now_ns;
  if (resets_ == 0) row_ns_ = now_ns;
  if (++resets_ > kResetsMax && now_ns - row_ns_ > kRowNs) {
    fail(kPairLost);
    return false;
  }
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  if (ibv_modify_qp(objects_->pair.get(), &attributes, IBV_QP_STATE) != 0) {
    fail(kDeviceGone);
    return false;
  }
  // Completions from before the reset belong to no packet any more; polling removes them.
  sends_.reset();
  receives_.reset();
  for (ibv_cq* queue : {objects_->send_completions.get(), objects_->receive_completions.get()}) {
    while (ibv_poll_cq(queue, kBurst, completions_.data()) > 0) {
    }
  }
  bury_retired();
  is_troubled_ = start_queue_pair() != 0;  // it may have failed again meanwhile
  return !is_troubled_;
}

/// Ends the transport for good: the NIC no longer reads or writes memory, and all peers are dead.
void VerbsImpl::fail(Status why) {
  if (!failure_.ok()) return;
  failure_ = why;
  is_troubled_ = true;
  arrived_ = 0;
  for (Route& route : routes_) route.quick_bytes = 0;  // send() takes the slow path, and refuses
  objects_->pair.reset();
  sends_.reset();
  receives_.reset();
}

[[gnu::noinline]] void VerbsImpl::read_events() {
  ibv_context* const context = objects_->opened.context.get();
  ibv_async_event event;
  Status failure;
  while (ibv_get_async_event(context, &event) == 0) {
    ++counters_.device_events;
    switch (event.event_type) {
      case IBV_EVENT_DEVICE_FATAL:
        failure = kDeviceGone;
        break;
      case IBV_EVENT_CQ_ERR:
        failure = kQueueLost;
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        is_troubled_ = true;
        break;
      case IBV_EVENT_PORT_ACTIVE:
      case IBV_EVENT_LID_CHANGE:
      case IBV_EVENT_GID_CHANGE:
      case IBV_EVENT_PKEY_CHANGE:
        if (rdma::has_other_address(context, objects_->opened.port)) failure = kMoved;
        break;
      default:  // a port that is down loses packets until it is back, or fails their sends (Soft-RoCE)
        break;
    }
    ibv_ack_async_event(&event);
  }
  if (!failure.ok()) fail(failure);
}

// ---- Sleep ----

bool VerbsImpl::prepare_wait() {
  if (arrived_ != 0 || is_troubled_) return false;
  if (is_refused_) {
    poll_sends();
    is_refused_ = sends_.is_full();
    if (!is_refused_) return false;
  }
  is_armed_ = true;
  // Completions from before the arming do not end a wait, so poll once more.
  if (!rdma::CompletionEvents::arm(objects_->receive_completions.get())) return false;
  if (is_refused_) {
    if (!rdma::CompletionEvents::arm(objects_->send_completions.get())) return false;
    poll_sends();
    if (!sends_.is_full()) return false;
  }
  return poll_receives() == 0 && !is_troubled_;
}

void VerbsImpl::end_wait() {
  if (is_armed_) {
    is_armed_ = false;
    std::array<epoll_event, 3> events;
    const size_t count = waits_.wait(events, 0);
    for (size_t i = 0; i < count; ++i) {
      if (events[i].data.u64 == static_cast<uint64_t>(objects_->events.descriptor())) objects_->events.drain();
      if (events[i].data.u64 == static_cast<uint64_t>(objects_->opened.context->async_fd)) read_events();
    }
  }
  wake_.clear();
}

}  // namespace tern::transport
