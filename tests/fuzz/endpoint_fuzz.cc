// Hostile packets into live endpoints. Two endpoints in one thread, over an in-memory transport and in virtual time,
// with an open session between them. The input says what happens: honest calls of every kind, time, and packets that
// are made up, carry valid session keys, or are honest ones with flipped bits. Afterwards every call must have ended
// exactly once, and a new session must work as if nothing had happened.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tern/environment.h>
#include <tern/rpc.h>

#include "base/check.h"
#include "rpc/rpc_impl.h"
#include "transport/layer.h"
#include "unit/transport/fake_transport.h"
#include "wire/header.h"

namespace {

using std::chrono::milliseconds;
using tern::Duration;

/// The bytes of the input; zeros when they are used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : bytes_(data, size) {}
  bool is_empty() const { return bytes_.empty(); }
  uint8_t u8() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  uint16_t u16() { return static_cast<uint16_t>(u8() | u8() << 8); }
  void fill(void* to, size_t len) {
    for (size_t i = 0; i < len; i++) static_cast<uint8_t*>(to)[i] = u8();
  }

 private:
  std::span<const uint8_t> bytes_;
};

struct Packet {
  tern::wire::Header header;
  std::vector<std::byte> data;
};

/// What an endpoint has received lately.
struct Recorder {
  static constexpr size_t kPackets = 32;
  std::deque<Packet> packets;
};

}  // namespace

namespace tern::transport {

/// The fake transport, with a record of what arrives.
class RecordedImpl : public Layer<FakeImpl> {
 public:
  struct Options {
    Fake::Options fake;
    Recorder* recorder = nullptr;
  };
  static Result<std::unique_ptr<RecordedImpl>> create(const Options& options, memory::Arena& arena) {
    auto inner = FakeImpl::create(options.fake, arena);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<RecordedImpl>(new RecordedImpl(std::move(*inner), options.recorder));
  }
  template <class Visit>
  size_t receive(Visit&& visit) {
    return inner_->receive([&](const wire::Header& header, const Payload& payload) {
      recorder_.packets.push_back({header, {payload.data, payload.data + payload.bytes}});
      if (recorder_.packets.size() > Recorder::kPackets) recorder_.packets.pop_front();
      Payload visited = payload;  // real transports point somewhere even if there are no bytes
      if (visited.data == nullptr) visited.data = reinterpret_cast<const std::byte*>(this);
      visit(header, static_cast<const Payload&>(visited));
    });
  }

 private:
  RecordedImpl(std::unique_ptr<FakeImpl> inner, Recorder* recorder)
      : Layer<FakeImpl>(std::move(inner)), recorder_(*recorder) {}
  Recorder& recorder_;
};

}  // namespace tern::transport

namespace tern {

struct Recorded {
  static constexpr std::string_view kName = "fake";
  using Impl = transport::RecordedImpl;
  using Options = Impl::Options;
};
template class Rpc<Recorded>;

}  // namespace tern

namespace {

/// One thread, virtual time, management datagrams in queues.
class VirtualEnvironment final : public tern::Environment {
 public:
  explicit VirtualEnvironment(uint64_t& now_ns) : now_ns_(now_ns) {}

  Duration now() override { return Duration(static_cast<int64_t>(now_ns_)); }
  uint64_t random() override {  // splitmix64
    uint64_t z = random_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  tern::Result<std::unique_ptr<tern::ManagementChannel>> listen(std::string_view, tern::ManagementSink& sink) override {
    return std::unique_ptr<tern::ManagementChannel>(std::make_unique<Channel>(*this, sink));
  }
  tern::Result<std::string> resolve(std::string_view host_and_port) override { return std::string(host_and_port); }
  tern::Result<std::unique_ptr<tern::WorkerPool>> start_workers(size_t, size_t) override {
    return tern::Status(tern::Code::kUnavailable, "no workers here");
  }

  /// Everything that is due now.
  void run() {
    for (bool has_more = true; has_more;) {
      has_more = false;
      for (Channel* channel : channels_) has_more |= channel->run();
    }
  }

 private:
  struct Datagram {
    std::string from;
    std::vector<std::byte> bytes;
  };
  class Channel final : public tern::ManagementChannel {
   public:
    Channel(VirtualEnvironment& world, tern::ManagementSink& sink)
        : world_(world), sink_(sink), address_("10.0.0." + std::to_string(world.channels_.size() + 1) + ":1") {
      world_.channels_.push_back(this);
    }
    ~Channel() override { std::erase(world_.channels_, this); }
    void send(std::string_view to, std::span<const std::byte> bytes) override {
      for (Channel* channel : world_.channels_) {
        if (channel->address_ == to) channel->queue_.push_back({address_, {bytes.begin(), bytes.end()}});
      }
    }
    void wake() override { is_woken_ = true; }
    std::string local_address() const override { return address_; }

    bool run() {
      if (!is_woken_ && queue_.empty() && world_.now() < next_turn_) return false;
      is_woken_ = false;
      for (const Datagram& datagram : std::exchange(queue_, {})) sink_.on_datagram(datagram.from, datagram.bytes);
      next_turn_ = sink_.on_turn(world_.now());
      return next_turn_ > world_.now();  // one that wants to be called at once has to wait for time to pass
    }

   private:
    VirtualEnvironment& world_;
    tern::ManagementSink& sink_;
    const std::string address_;
    std::vector<Datagram> queue_;
    bool is_woken_ = true;
    Duration next_turn_{0};
  };

  uint64_t& now_ns_;
  uint64_t random_ = 1;
  std::vector<Channel*> channels_;
};

constexpr uint16_t kEcho = 1, kKeep = 2, kLong = 3, kDrop = 4, kFail = 5;
constexpr uint32_t kPayloadBytes = 512;
constexpr size_t kLongBytes = 20 * kPayloadBytes + 3;
constexpr uint64_t kTurnNs = 20'000;

class World {
 public:
  World() : environment_(network_.now_ns) {
    tern::NexusOptions nexus;
    nexus.environment = &environment_;
    nexus.liveness_timeout = milliseconds(20);
    server_nexus_ = must(tern::Nexus::create("udp://10.0.0.1:1", nexus));
    client_nexus_ = must(tern::Nexus::create("udp://10.0.0.2:1", nexus));
    tern::RpcOptions options;
    options.huge_pages = false;
    options.memory_limit_bytes = 4u << 20;
    options.receive_budget_bytes = 1u << 20;
    options.report_delay = milliseconds(2);
    tern::Recorded::Options transport;
    transport.fake.network = &network_;
    transport.fake.payload_bytes_max = kPayloadBytes;
    transport.recorder = &recorders_[0];
    server_ = must(tern::Rpc<tern::Recorded>::create(*server_nexus_, transport, options));
    transport.recorder = &recorders_[1];
    client_ = must(tern::Rpc<tern::Recorded>::create(*client_nexus_, transport, options));
    handle(kEcho, [](tern::Request request) { answer(std::move(request), 0); });
    handle(kKeep, [this](tern::Request request) { kept_.push_back(std::move(request)); });
    handle(kLong, [](tern::Request request) { answer(std::move(request), kLongBytes); });
    handle(kDrop, [](tern::Request) {});
    handle(kFail, [](tern::Request request) { request.fail(1); });
    open();
    for (int i = 0; i < 2; i++) {
      CHECK(recorders_[i].packets.empty(), ==, false);
      keys_[i] = recorders_[i].packets.back().header.session_key();
    }
    endpoints_[0] = network_.endpoints.begin()->second;
    endpoints_[1] = network_.endpoints.rbegin()->second;
  }
  ~World() {
    client_.reset();
    server_.reset();
    kept_.clear();
    CHECK(calls_ended_, ==, calls_begun_);
  }

  void play(Input& input) {
    while (!input.is_empty()) {
      const uint8_t op = input.u8();
      const size_t to = op & 1;
      switch (op >> 1 & 7) {
        case 0:
          made_up(to, input, true);
          break;
        case 1:
          made_up(to, input, op >> 4 != 0);
          break;
        case 2:
        case 3:
          tampered(to, input);
          break;
        case 4:
          call(static_cast<uint16_t>(1 + (op >> 4) % 6), input);
          break;
        case 5:
          turns(1 + (op >> 4));
          break;
        case 6:
          network_.now_ns += uint64_t{kTurnNs} << (op >> 4);
          turns(1);
          break;
        default:
          control(op >> 4, input);
          break;
      }
    }
  }

  /// All calls end, and a new session works.
  void expect_health() {
    for (int i = 0; calls_ended_ != calls_begun_; i++) {
      CHECK(i, <, 20'000);
      turns(1);
      kept_.clear();
    }
    (void)client_->destroy_session(session_);
    for (int i = 0; calls_ended_ != calls_begun_; i++) {
      CHECK(i, <, 10);
      turns(1);
    }
    open();
    const uint64_t before = calls_ok_;
    for (const uint16_t type : {kEcho, kLong, kEcho})
      CHECK(begin_call(type, 3 * kPayloadBytes, Duration::max()), ==, true);
    for (int i = 0; calls_ended_ != calls_begun_; i++) {
      CHECK(i, <, 10'000);
      turns(1);
    }
    CHECK(calls_ok_ - before, ==, 3u);
  }

 private:
  template <class T>
  static T must(tern::Result<T> result) {
    CHECK(result.ok(), ==, true);
    return std::move(*result);
  }
  template <class F>
  void handle(uint16_t type, F f) {
    CHECK(server_->on_request(type, std::move(f), {.max_request_bytes = 300'000}).ok(), ==, true);
  }
  /// Echoes the message, or as much as there is of it and then zeros.
  static void answer(tern::Request request, size_t bytes) {
    const auto in = request.bytes();
    auto out = request.response(std::max(bytes, in.size()));
    if (!out.ok()) return request.fail(2);
    if (!in.empty()) std::memcpy(out->data(), in.data(), in.size());
    std::memset(out->data() + in.size(), 0, out->size() - in.size());
    request.respond();
  }
  void turns(int count) {
    for (int i = 0; i < count; i++) {
      CHECK(server_->run_event_loop_once().ok(), ==, true);
      CHECK(client_->run_event_loop_once().ok(), ==, true);
      network_.now_ns += kTurnNs;
      environment_.run();
    }
  }
  void open() {
    session_ = must(client_->create_session(server_nexus_->uri()));
    for (int i = 0; !client_->is_open(session_); i++) {
      CHECK(i, <, 10'000);
      turns(1);
    }
  }
  /// After a failure the arena rests for some allocations before it looks again for what has become free.
  tern::MsgBuf alloc(size_t bytes) {
    tern::MsgBuf buffer;
    for (int i = 0; i < 1000 && !buffer; i++) buffer = client_->alloc_msgbuf(bytes);
    return buffer;
  }
  bool begin_call(uint16_t type, size_t bytes, Duration deadline) {
    tern::MsgBuf request = alloc(bytes), room = alloc(std::max(bytes, kLongBytes));
    if (!request || !room) return false;
    std::memset(request.bytes().data(), 'q', bytes);
    auto id = client_->enqueue_request(session_, type, std::move(request), std::move(room),
                                       [this](tern::Completion& done) {
                                         calls_ended_++;
                                         calls_ok_ += done.status.ok();
                                         CHECK(done.request && done.response, ==, true);
                                         std::memset(done.request.bytes().data(), 0xee, done.request.bytes().size());
                                         std::memset(done.response.bytes().data(), 0xdd, done.response.bytes().size());
                                       },
                                       {.deadline = deadline});
    if (!id.ok()) return false;
    calls_begun_++;
    last_call_ = *id;
    return true;
  }
  void call(uint16_t type, Input& input) {
    const uint8_t size = input.u8();
    const size_t bytes = size < 200 ? size : size_t{size - 199u} * 1'000;
    const uint8_t deadline = input.u8();
    begin_call(type, bytes, deadline < 128 ? Duration::max() : Duration(int64_t{deadline} * 10'000));
  }
  void control(int what, Input& input) {
    switch (what % 5) {
      case 0:
        (void)client_->cancel(last_call_);
        break;
      case 1:
        for (tern::Request& request : kept_) answer(std::move(request), 0);
        kept_.clear();
        break;
      case 2:
        kept_.clear();
        break;
      case 3:
        endpoints_[input.u8() & 1]->refuse_sends ^= true;
        turns(2);
        endpoints_[0]->refuse_sends = endpoints_[1]->refuse_sends = false;
        break;
      default:
        endpoints_[input.u8() & 1]->hold_tickets ^= true;
        turns(2);
        endpoints_[0]->hold_tickets = endpoints_[1]->hold_tickets = false;
        break;
    }
  }

  void made_up(size_t to, Input& input, bool has_valid_key) {
    uint64_t words[3];
    input.fill(words, sizeof(words));
    tern::wire::Header header{words[0], words[1], words[2]};
    if (has_valid_key) header.w0 = (header.w0 & 0xffffffff) | uint64_t{keys_[to]} << 32;
    // Something that is dropped at once for its kind or version teaches nothing.
    header.w0 = (header.w0 & ~uint64_t{0xf0}) | uint64_t{tern::wire::kVersion} << 4;
    const uint8_t size = input.u8();
    std::vector<std::byte> data(size < 128 ? size : std::min<size_t>((size - 127u) * 8, kPayloadBytes));
    input.fill(data.data(), std::min<size_t>(data.size(), 32));
    inject(to, header, data);
  }
  /// One of the packets that have arrived lately, again, with some bytes changed (or none).
  void tampered(size_t to, Input& input) {
    const auto& packets = recorders_[to].packets;
    if (packets.empty()) return;
    Packet packet = packets[packets.size() - 1 - input.u8() % packets.size()];
    const uint8_t what = input.u8();
    // Its number has been seen: a new one gets it further.
    if ((what & 0x80) != 0)
      packet.header.w1 =
          (packet.header.w1 & ~uint64_t{0xffffff}) | ((packet.header.w1 + (what >> 4 & 7) + 1) & 0xffffff);
    auto* header_bytes = reinterpret_cast<uint8_t*>(&packet.header);
    for (int i = 0; i < (what & 7); i++) {
      const uint8_t at = input.u8();
      if (at < 192) {
        header_bytes[at % sizeof(packet.header)] ^= input.u8();
      } else if (!packet.data.empty()) {
        packet.data[(at - 192u) % packet.data.size()] ^= static_cast<std::byte>(input.u8());
      }
    }
    if ((what & 8) != 0) packet.data.resize(std::min<size_t>(input.u16(), kPayloadBytes));
    inject(to, packet.header, packet.data);
  }
  void inject(size_t to, tern::wire::Header header, std::span<const std::byte> data) {
    header.w0 = (header.w0 & ~uint64_t{0xffff0000}) | uint64_t{tern::wire::kHeaderBytes + data.size()} << 16;
    endpoints_[to]->inject(header, data);
  }

  tern::transport::FakeNetwork network_;
  VirtualEnvironment environment_;
  std::array<Recorder, 2> recorders_;  ///< of the server, of the client
  std::unique_ptr<tern::Nexus> server_nexus_, client_nexus_;
  std::vector<tern::Request> kept_;
  std::unique_ptr<tern::Rpc<tern::Recorded>> server_, client_;
  std::array<tern::transport::FakeImpl*, 2> endpoints_{};
  std::array<uint32_t, 2> keys_{};
  tern::Session session_;
  tern::CallId last_call_;
  uint64_t calls_begun_ = 0, calls_ended_ = 0, calls_ok_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4096) return 0;
  World world;
  Input input(data, size);
  world.play(input);
  world.expect_health();
  return 0;
}
