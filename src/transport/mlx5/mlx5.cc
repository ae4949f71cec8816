#include "transport/mlx5/mlx5.h"

#include <bit>
#include <cerrno>
#include <new>
#include <string>
#include <utility>

#include "ethernet/setup.h"
#include "neighbours/neighbours.h"
#include "transport/options.h"

namespace tern::transport {

static_assert(TransportImpl<Mlx5Impl>);
static_assert(Mlx5::Options::kDatagramBytesMin == ethernet::kDatagramBytesMin);

namespace {

constexpr Status kBadReceiveBuffers(Code::kMisuse,
                                    "mlx5: Mlx5::Options::receive_buffers must be a power of two, 1024 to 65536");
constexpr Status kBadDatagramBytes(Code::kMisuse, "mlx5: Mlx5::Options::datagram_bytes must be 536 to 8142, or 0");
constexpr Status kNoMemory(Code::kNoMemory,
                           "mlx5: no memory for the endpoint's queues: free some, or use fewer endpoints");
constexpr Status kNoDescriptors(Code::kUnavailable, "mlx5: no file descriptors are left: raise the limit (ulimit -n)");

}  // namespace

// ---- Creation ----

Result<std::unique_ptr<Mlx5Impl>> Mlx5Impl::create(Options options, const Context& context) {
  if (!std::has_single_bit(options.receive_buffers)) return kBadReceiveBuffers;
  if (options.datagram_bytes != 0 && options.datagram_bytes < Options::kDatagramBytesMin) return kBadDatagramBytes;
  if (Status status = check_ranges<Mlx5>(options); !status.ok()) return status;
  std::unique_ptr<Mlx5Impl> made(new (std::nothrow) Mlx5Impl(std::move(options), context));
  if (made == nullptr) return kNoMemory;
  if (Status status = made->open(context.listen_host); !status.ok()) return status;
  return made;
}

Mlx5Impl::Mlx5Impl(Options options, const Context& context)
    : frames_(peers_, objects_->sends, counters_.packets_sent, counters_.send_errors),
      arena_(context.arena),
      options_(std::move(options)),
      delay_target_ns_(1000 * options_.delay_target_us) {}

Status Mlx5Impl::open(std::string_view listen_host) {
  const auto vlan = static_cast<uint16_t>(options_.vlan);
  const auto bind = ethernet::parse_bind(kMlx5Names, options_.bind);
  if (!bind.ok()) return bind.status();
  auto opened = open_mlx5_device({options_.device, *bind, listen_host, vlan});
  if (!opened.ok()) return opened.status();
  const Mlx5Device& device = objects_->device = std::move(*opened);
  trusts_checksums_ = device.has_checksums;
  uint32_t datagram_bytes = 0;
  if (Status status = choose_sizes(&datagram_bytes); !status.ok()) return status;
  base::SocketAddress address = device.address;
  auto port = ethernet::reserve_port(kMlx5Names, &address);
  if (!port.ok()) return port.status();
  port_socket_ = std::move(*port);
  auto neighbours = neighbours::Neighbours::create(device.interface.index, address);
  if (!neighbours.ok()) return neighbours.status();
  const frames::MacAddress mac = (*neighbours)->interface().mac;
  peers_.start(std::move(*neighbours),
               {address, mac, datagram_bytes, vlan, static_cast<uint8_t>(options_.traffic_class)});
  address_bytes_ = encode_address(peers_.own_address());
  if (Status status = open_memory(); !status.ok()) return status;
  if (Status status = open_waits(); !status.ok()) return status;
  set_own_mac(mac);
  if (Status status = objects_->receives.start(own_frames()); !status.ok()) return status;
  const Status status = arena_.observe(*objects_->chunks);
  is_observing_ = status.ok();
  return status;
}

/// Computes the size of datagrams from the MTU. Strides can hold the MTU.
Status Mlx5Impl::choose_sizes(uint32_t* datagram_bytes) const {
  const Mlx5Device& device = objects_->device;
  const neighbours::Interface& interface = device.interface;
  if (interface.mtu_bytes + Mlx5Device::kTagsBytes > device.stride_bytes_max) {
    const std::string most = std::to_string(device.stride_bytes_max - Mlx5Device::kTagsBytes);
    return ethernet::status_of(kMlx5Names, Code::kUnavailable, "the network interface's MTU is too large",
                               {"the MTU of ", interface.name, " is ", std::to_string(interface.mtu_bytes),
                                ", and the device's strides hold frames of an MTU of at most ", most, ": ip link set ",
                                interface.name, " mtu ", most});
  }
  const auto chosen = ethernet::choose_datagram_bytes(kMlx5Names, interface.name, interface.mtu_bytes,
                                                      device.address.family(), options_.datagram_bytes,
                                                      {Options::kDatagramBytesMin, Options::kDatagramBytesMax});
  if (chosen.ok()) *datagram_bytes = *chosen;
  return chosen.status();
}

/// Registers the memory of both queues, and message memory.
Status Mlx5Impl::open_memory() {
  const Mlx5Device& device = objects_->device;
  const uint32_t stride_bytes = device.stride_bytes();
  constexpr size_t kPage = 4096;
  const size_t slot_bytes = (Mlx5Send::Queue::kMemoryBytes + kPage - 1) / kPage * kPage;
  const size_t receive_bytes = size_t{options_.receive_buffers} * stride_bytes;
  auto memory = rdma::RegisteredMemory::create(Mlx5::kName, device.domain.get(), slot_bytes + receive_bytes);
  if (!memory.ok()) return memory.status();
  objects_->memory = std::move(*memory);
  std::byte* const base = objects_->memory->base();
  const uint32_t key = objects_->memory->key();
  objects_->chunks.reset(new (std::nothrow) rdma::ChunkRegistration(Mlx5::kName, device.domain.get()));
  if (objects_->chunks == nullptr) return kNoMemory;
  if (Status status = objects_->sends.open(device, base, key, {&arena_, objects_->chunks.get()}); !status.ok()) {
    return status;
  }
  const bool is_open = objects_->receives.open(device.context.get(), device.domain.get(), options_.receive_buffers,
                                               stride_bytes, base + slot_bytes, key);
  return is_open ? Status() : kNoDescriptors;
}

Status Mlx5Impl::open_waits() {
  const ibv_context* const context = objects_->device.context.get();
  if (!waits_.open() || !wake_.open() || !neighbour_timer_.open()) return kNoDescriptors;
  for (const int fd : {objects_->sends.descriptor(), objects_->receives.descriptor(), wake_.descriptor(),
                       context->async_fd, peers_.resolver().descriptor(), neighbour_timer_.descriptor()}) {
    if (!waits_.add(fd, EPOLLIN, static_cast<uint64_t>(fd))) return kNoMemory;
  }
  return {};
}

Mlx5Receive::Frames Mlx5Impl::own_frames() const {
  const ethernet::Peers::Own& own = peers_.own();
  return {objects_->device.port, own.mac, own.vlan, own.address};
}

void Mlx5Impl::set_own_mac(const frames::MacAddress& mac) {
  peers_.set_own_mac(mac);
  parser_ = frames::FrameParser({mac, peers_.own().address, peers_.own().vlan});
}

Mlx5Impl::~Mlx5Impl() {
  if (objects_.is_here()) {
    objects_->sends.stop();
    objects_->receives.stop();  // from now on the NIC reads and writes no memory
    if (is_observing_) arena_.unobserve();
    return;
  }
  objects_->sends.abandon();
  objects_->receives.abandon();
  rdma::abandon(objects_->device.context);
}

// ---- Peers ----

Result<PeerId> Mlx5Impl::connect(std::span<const std::byte> bytes, std::string_view) {
  if (!failure_.ok()) return failure_;
  return peers_.connect(bytes, now(), counters_.peers_refused);
}

PeerState Mlx5Impl::peer_state(PeerId id) {
  if (!peers_.is_ready(id) && !peers_.is_dead(id)) update_peers();
  if (peers_.is_dead(id)) return PeerState::kDead;
  return peers_.is_ready(id) ? PeerState::kReady : PeerState::kConnecting;
}

void Mlx5Impl::disconnect(PeerId id) {
  if (!objects_.is_here()) return;
  if (peers_.is_last(id) && peers_.route(id).has_frame()) flush();
  peers_.disconnect(id);
}

}  // namespace tern::transport
