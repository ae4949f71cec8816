// libfabric as a peer: reliable datagram endpoints (FI_EP_RDM) with messages, one completion queue a side, which is
// polled. Small messages are injected, so that they have no completion at the sender. A receive is posted for each
// request in flight.
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>

#include "peer.h"

namespace {

using peers::Bytes;
using peers::die;

constexpr uint32_t kVersion = FI_VERSION(1, 14);

void check(ssize_t error, const char* what) {
  if (error != 0) die("%s: %s", what, fi_strerror(static_cast<int>(-error)));
}

/// The provider of a transport, which fi_freeinfo() frees. Some versions have two for TCP: `net` has such endpoints
/// itself, `tcp` by a layer above it.
fi_info* provider_of(const std::string& transport) {
  const bool is_tcp = transport == "tcp";
  fi_info* info = nullptr;
  int error = -FI_ENODATA;
  for (const char* name : is_tcp ? std::vector{"net", "tcp"} : std::vector{"shm"}) {
    fi_info* hints = fi_allocinfo();
    if (hints == nullptr) die("no memory");
    hints->caps = FI_MSG;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(name);  // fi_freeinfo() frees it
    error = fi_getinfo(kVersion, is_tcp ? "127.0.0.1" : nullptr, nullptr, is_tcp ? FI_SOURCE : 0, hints, &info);
    fi_freeinfo(hints);
    if (error == 0) break;
  }
  check(error, "no such provider");
  return info;
}

/// An endpoint that talks to one other one, with a receive of `bytes` for each of `count` messages.
class Endpoint {
 public:
  static constexpr size_t kAddressBytesMax = 256;

  Endpoint(const std::string& transport, size_t count, size_t bytes)
      : bytes_(bytes), memory_(count * bytes), info_(provider_of(transport)), completions_(2 * count + kBurst) {
    check(fi_fabric(info_->fabric_attr, &fabric_, nullptr), "no fabric");
    check(fi_domain(fabric_, info_, &domain_, nullptr), "no domain");
    check(fi_endpoint(domain_, info_, &endpoint_, nullptr), "no endpoint");
    fi_cq_attr queue = {};
    queue.format = FI_CQ_FORMAT_MSG;
    queue.wait_obj = FI_WAIT_NONE;
    queue.size = completions_.size();
    check(fi_cq_open(domain_, &queue, &queue_, nullptr), "no completion queue");
    fi_av_attr addresses = {};
    addresses.type = FI_AV_TABLE;
    addresses.count = 1;
    check(fi_av_open(domain_, &addresses, &addresses_, nullptr), "no address vector");
    check(fi_ep_bind(endpoint_, &queue_->fid, FI_TRANSMIT | FI_RECV), "no completion queue of the endpoint");
    check(fi_ep_bind(endpoint_, &addresses_->fid, 0), "no address vector of the endpoint");
    check(fi_enable(endpoint_), "no endpoint");
    // A provider that takes fewer receives leaves the other messages where they are.
    for (size_t i = 0; i < std::min(count, info_->rx_attr->size); ++i) post(memory_.data() + i * bytes);
  }
  ~Endpoint() {
    fi_close(&endpoint_->fid);
    fi_close(&addresses_->fid);
    fi_close(&queue_->fid);
    fi_close(&domain_->fid);
    fi_close(&fabric_->fid);
    fi_freeinfo(info_);
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  /// Bytes, not text.
  std::string address() const {
    char bytes[kAddressBytesMax];
    size_t size = sizeof bytes;
    check(fi_getname(&endpoint_->fid, bytes, &size), "no address");
    return {bytes, size};
  }
  void connect(std::string_view address) {
    const std::string copy(address);
    if (fi_av_insert(addresses_, copy.data(), 1, &other_, 0, nullptr) != 1) die("no such address");
  }

  /// The memory stays as it is until the other side has answered.
  void send(Bytes message) {
    const bool is_small = message.size() <= info_->tx_attr->inject_size;
    while (true) {
      const ssize_t error = is_small ? fi_inject(endpoint_, message.data(), message.size(), other_)
                                     : fi_send(endpoint_, message.data(), message.size(), nullptr, other_, nullptr);
      if (error == 0) return;
      if (error != -FI_EAGAIN) check(error, "a message was refused");
      progress();
    }
  }

  /// Polls once, and hands over the messages that are there.
  template <class OnMessage>
  void poll(const OnMessage& on_message) {
    if (found_ == 0) progress();
    const size_t found = found_;
    for (size_t i = 0; i < found; ++i) {
      const fi_cq_msg_entry& entry = completions_[i];
      if ((entry.flags & FI_RECV) == 0) continue;  // a large message has been sent
      auto* bytes = static_cast<std::byte*>(entry.op_context);
      on_message(Bytes(bytes, entry.len));
      post(bytes);
    }
    std::copy(completions_.begin() + static_cast<ptrdiff_t>(found),
              completions_.begin() + static_cast<ptrdiff_t>(found_), completions_.begin());
    found_ -= found;
  }

 private:
  static constexpr size_t kBurst = 64;

  void post(std::byte* bytes) {
    while (true) {
      const ssize_t error = fi_recv(endpoint_, bytes, bytes_, nullptr, FI_ADDR_UNSPEC, bytes);
      if (error == 0) return;
      if (error != -FI_EAGAIN) check(error, "no receive");
      progress();
    }
  }
  /// Reads completions, of which poll() hands over those of messages.
  void progress() {
    const size_t room = std::min(completions_.size() - found_, kBurst);
    const ssize_t got = fi_cq_read(queue_, completions_.data() + found_, room);
    if (got > 0) {
      found_ += static_cast<size_t>(got);
    } else if (got == -FI_EAVAIL) {
      fi_cq_err_entry error = {};
      fi_cq_readerr(queue_, &error, 0);
      die("a message failed: %s", fi_strerror(error.err));
    } else if (got != -FI_EAGAIN) {
      check(got, "no completions");
    }
  }

  const size_t bytes_;
  std::vector<std::byte> memory_;
  fi_info* info_;
  fid_fabric* fabric_ = nullptr;
  fid_domain* domain_ = nullptr;
  fid_ep* endpoint_ = nullptr;
  fid_cq* queue_ = nullptr;
  fid_av* addresses_ = nullptr;
  fi_addr_t other_ = FI_ADDR_UNSPEC;
  std::vector<fi_cq_msg_entry> completions_;  ///< room for a send and a receive of each message
  size_t found_ = 0;                          ///< of completions_
};

class Libfabric {
 public:
  static constexpr const char* kName = "libfabric";
  static constexpr std::array kTransports = {"shm", "tcp"};
  static constexpr std::array kWaits = {"poll"};

  /// The first message is the client's address.
  template <class Ready>
  static void serve(const std::string& transport, const Ready& ready) {
    Endpoint endpoint(transport, FLAGS_window + 1, std::max(FLAGS_size, Endpoint::kAddressBytesMax));
    ready(endpoint.address());
    std::vector<peers::Head> answers(2 * FLAGS_window);
    size_t answered = 0;
    bool is_connected = false;
    const auto on_message = [&](Bytes request) {
      if (!is_connected) {
        endpoint.connect({reinterpret_cast<const char*>(request.data()), request.size()});
        is_connected = true;
        endpoint.send({});
        return;
      }
      peers::Head& head = answers[answered++ % answers.size()];
      head = peers::answer(request);
      endpoint.send(std::as_bytes(std::span(&head, 1)));
    };
    while (true) endpoint.poll(on_message);
  }

  Libfabric(const std::string& transport, const std::string& address)
      : endpoint_(transport, FLAGS_window + 1, peers::kHeadBytes) {
    endpoint_.connect(address);
    const std::string own = endpoint_.address();
    endpoint_.send(std::as_bytes(std::span(own)));
    for (bool is_connected = false; !is_connected;) {
      endpoint_.poll([&](Bytes) { is_connected = true; });
    }
    if (transport != "shm") return;
    // Both sides have mapped both regions. Their names go now, because a process that is killed would leave its own.
    for (const std::string& name : {address, own}) shm_unlink(name.c_str() + name.find("://") + 3);
  }

  void send(Bytes request) { endpoint_.send(request); }

  template <class OnResponse>
  void receive(const OnResponse& on_response) {
    bool has_any = false;
    while (!has_any) {
      endpoint_.poll([&](Bytes response) {
        has_any = true;
        on_response(response);
      });
    }
  }

 private:
  Endpoint endpoint_;
};

}  // namespace

int main(int argc, char** argv) { return peers::run_main<Libfabric>(argc, argv); }
