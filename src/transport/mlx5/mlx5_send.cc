#include "transport/mlx5/mlx5_send.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace tern::transport {

static_assert(ethernet::GatheringQueue<Mlx5Send>);

namespace {

/// Longest frame sent inline. The driver copies it into the NIC's queue, which is cheaper than a gather up to about
/// this length.
constexpr uint32_t kInlineBytes = 256;

Status refuse(const Mlx5Device& device, const char* what) {
  return ethernet::status_of(kMlx5Names, Code::kUnavailable, "the device has no queues for another endpoint",
                             {ibv_get_device_name(device.context->device), " did not create a ", what, " (",
                              std::strerror(errno), "): use fewer endpoints, or see the kernel's log"});
}

}  // namespace

/// The completion queue has space for twice the possible completions, because completions from before a restart may be
/// in it.
Status Mlx5Send::open(const Mlx5Device& device, std::byte* memory, uint32_t key, const Messages& messages) {
  messages_ = messages;
  port_ = device.port;
  makes_checksums_ = device.has_checksums;
  queue_.create(memory, key, makes_checksums_ ? unsigned{IBV_SEND_IP_CSUM} : 0u);
  ibv_context* const context = device.context.get();
  if (!events_.open(context)) return refuse(device, "completion channel");
  completions_ = events_.make_queue(context, 2 * kSlots);
  if (completions_ == nullptr) return refuse(device, "completion queue");
  return make_pair(device);
}

Status Mlx5Send::make_pair(const Mlx5Device& device) {
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = completions_.get();
  attributes.qp_type = IBV_QPT_RAW_PACKET;
  for (const uint32_t inline_bytes : {kInlineBytes, kInlineBytes / 2, kInlineBytes / 4, 0u}) {
    attributes.cap = {
        .max_send_wr = kSlots, .max_recv_wr = 0, .max_send_sge = 2, .max_recv_sge = 0, .max_inline_data = inline_bytes};
    pair_.reset(ibv_create_qp(device.domain.get(), &attributes));
    if (pair_ != nullptr) {
      inline_bytes_max_ = std::min(inline_bytes, attributes.cap.max_inline_data);
      return start() ? Status() : refuse(device, "queue pair for raw packets ready");
    }
    if (errno == EPERM) {
      return {Code::kUnavailable,
              "mlx5: this process may not send raw packets (CAP_NET_RAW): run `setcap cap_net_raw+ep PROGRAM`, or run "
              "it as root"};
    }
  }
  return refuse(device, "queue pair for raw packets");
}

/// From reset to ready. False: errno says why.
bool Mlx5Send::start() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = port_;
  errno = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE | IBV_QP_PORT);
  for (const ibv_qp_state state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
    attributes.qp_state = state;
    if (errno == 0) errno = ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE);
  }
  return errno == 0;
}

bool Mlx5Send::restart() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  if (ibv_modify_qp(pair_.get(), &attributes, IBV_QP_STATE) != 0) return false;
  // Completions from before the restart belong to no frame any more; polling removes them.
  queue_.reset();
  poll();
  report_.has_failed = !start();  // it may have failed again meanwhile
  return true;
}

void Mlx5Send::stop() {
  pair_.reset();
  queue_.reset();
}

void Mlx5Send::close(Slot& slot, const frames::FrameTemplate& headers, size_t bytes) {
  const size_t header_bytes = headers.header_bytes();
  headers.write(slot.head, bytes);
  if (!makes_checksums_) headers.complete_udp_checksum(slot.head, {slot.head + header_bytes, bytes});
  slot.ranges[0].length = static_cast<uint32_t>(header_bytes + bytes);
  slot.request.num_sge = 1;
  if (slot.ranges[0].length <= inline_bytes_max_) slot.request.send_flags |= IBV_SEND_INLINE;
}

void Mlx5Send::add(Slot& slot, const frames::FrameTemplate& headers, const wire::Header& header, const std::byte* data,
                   size_t len, const detail::Buffer* buffer) {
  CHECK(buffer != nullptr);
  const size_t header_bytes = headers.header_bytes();
  headers.write(slot.head, wire::kHeaderBytes + len);
  ethernet::put_header(slot.head + header_bytes, header, wire::kHeaderBytes + len);
  if (!makes_checksums_) {
    headers.complete_udp_checksum(slot.head, {slot.head + header_bytes, wire::kHeaderBytes}, {data, len});
  }
  slot.ranges[0].length = static_cast<uint32_t>(header_bytes + wire::kHeaderBytes);
  const uint32_t key = messages_.chunks->key_of(messages_.arena->chunk_of(buffer).id);
  slot.ranges[1] = {reinterpret_cast<uint64_t>(data), static_cast<uint32_t>(len), key};
  slot.request.num_sge = 2;
  queue_.add(slot, rdma::Reading::kGathered);
}

void Mlx5Send::poll() {
  const Queue::Polled polled = queue_.poll(completions_.get());
  report_.has_sent |= polled.has_sent;
  report_.has_failed |= polled.has_failed;
  report_.errors += polled.errors;
}

}  // namespace tern::transport
