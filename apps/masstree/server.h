// The index server: GETs and PUTs run in the event loop, SCANs in workers and, for comparison, also in the event loop.
// The server does not depend on the transport, nor on whether the network is simulated.
#pragma once

#include <tern/endpoint.h>
#include <tern/request.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "keys.h"
#include "ordered_index.h"
#include "protocol.h"

namespace ordered {

/// The operation of a handler on the index, for callers that measure it or charge time for it.
enum class Step : uint8_t { kGet, kPut, kScan };
constexpr size_t kSteps = 3;

struct ServerOptions {
  About about = {};  ///< must describe an index that was filled with fill()
  /// Called in a worker before its first request. A worker inherits the CPU set of the event-loop thread that started
  /// it.
  std::function<void()> begin_worker;
  /// Called in the handler before a step (true) and after it (false).
  std::function<void(Step, bool)> on_step;
};

/// Puts keys 0 to `keys` - 1 of the seed into the index, in random order, each with version 1. Ends early once `stop`
/// is true. Returns false if the index is full.
template <OrderedIndex Index>
[[nodiscard]] bool fill(Index& index, uint64_t keys, uint64_t seed, const std::atomic<bool>& stop = false) {
  for (uint64_t i = 0; i < keys && !stop; i++) {
    if (const uint64_t key = key_of(seed, i); index.put(key, value_of(key, 1)) == Put::kFull) return false;
  }
  return true;
}

/// The handlers of all endpoints that serve one index. Any thread.
template <OrderedIndex Index>
class Server {
 public:
  /// `index` and this object must outlive the endpoints.
  Server(Index& index, ServerOptions options) : index_(index), options_(std::move(options)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Must be called in the endpoint's thread, before its loop.
  tern::Status add_handlers(tern::Endpoint& endpoint) {
    tern::Status status;
    const auto add = [&](RequestType type, bool worker, auto handler) {
      if (!status.ok()) return;
      status = endpoint.on_request(type, handler, {.worker = worker, .max_request_bytes = kRequestBytesMax});
    };
    add(kAbout, false, [this](tern::Request request) { tell(std::move(request)); });
    add(kGet, false, [this](tern::Request request) { get(std::move(request)); });
    add(kPut, false, [this](tern::Request request) { put(std::move(request)); });
    add(kScanHere, false, [this](tern::Request request) { scan(std::move(request)); });
    add(kScan, true, [this](tern::Request request) {
      begin_worker();
      scan(std::move(request));
    });
    add(kNothingHere, false, [](tern::Request request) { request.respond(); });
    add(kNothing, true, [this](tern::Request request) {
      begin_worker();
      request.respond();
    });
    return status;
  }

 private:
  void begin_worker() {
    static thread_local bool has_begun = false;
    if (!std::exchange(has_begun, true) && options_.begin_worker) options_.begin_worker();
  }
  template <class F>
  auto step(Step step, F f) {
    if (!options_.on_step) [[likely]]
      return f();
    options_.on_step(step, true);
    auto result = f();
    options_.on_step(step, false);
    return result;
  }

  void tell(tern::Request request) {
    auto answer = request.response(kAboutBytes);
    if (!answer.ok()) return request.fail(kNoMemory);
    programs::Writer(*answer).write(options_.about.keys).write(options_.about.seed).write(options_.about.endpoints);
    request.respond();
  }
  void get(tern::Request request) {
    const auto key = programs::parse_integer<uint64_t>(request.bytes());
    if (!key) return request.fail(kMalformed);
    const auto value = step(Step::kGet, [&] { return index_.get(*key); });
    auto answer = request.response(value ? sizeof(*value) : 0);
    if (!answer.ok()) return request.fail(kNoMemory);
    if (value) programs::Writer(*answer).write(*value);
    request.respond();
  }
  void put(tern::Request request) {
    const auto put = parse_put(request.bytes());
    if (!put) return request.fail(kMalformed);
    if (step(Step::kPut, [&] { return index_.put(put->key, put->value); }) == Put::kFull) return request.fail(kIsFull);
    request.respond();
  }
  void scan(tern::Request request) {
    const auto asked = parse_scan(request.bytes());
    if (!asked) return request.fail(kMalformed);
    uint64_t last = asked->after, sum = 0;
    const size_t count = step(Step::kScan, [&] {
      return index_.scan(asked->after, asked->limit, [&](uint64_t key, uint64_t value) {
        last = key;
        sum += value;
      });
    });
    auto answer = request.response(kScanAnswerBytes);
    if (!answer.ok()) return request.fail(kNoMemory);
    programs::Writer(*answer).write(static_cast<uint32_t>(count)).write(last).write(sum);
    request.respond();
  }

  Index& index_;
  const ServerOptions options_;
};

}  // namespace ordered
