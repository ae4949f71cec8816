// kv's server: partitions that share nothing. Each has an endpoint, a store, and one thread that owns both.
#pragma once

#include <tern/endpoint.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../common/endpoint_threads.h"
#include "../common/flags.h"
#include "protocol.h"
#include "store.h"

namespace kv {

struct ServerOptions {
  std::string store;  ///< directory; empty: shared memory without a name
  size_t partitions = 1;
  size_t memory_bytes = 0;  ///< total for all stores
  size_t queue_max = 0;     ///< maximum length of a partition's queue, requests
};

struct ServerCounts {
  uint64_t served = 0;
  uint64_t refused_overloaded = 0;
  uint64_t refused_full = 0;
};

/// One partition. Handlers only admit requests to a queue, and each iteration of the event loop serves a bounded number
/// of them. Therefore an overload shows in the queue's length, and not in rings and socket buffers, which nobody can
/// inspect. A refusal costs no more than a look at that length.
class Partition {
 public:
  Partition(Store& store, const ServerOptions& options, uint32_t number)
      : store_(store), options_(options), number_(number) {}

  /// Registers the handlers. Must be called in the partition's thread, before its loop.
  tern::Status add_handlers(tern::Endpoint& endpoint) {
    endpoint_ = &endpoint;
    for (const RequestType type : {kAbout, kGet, kPut, kMultiGet}) {
      auto status = endpoint.on_request(type, [this, type](tern::Request request) { admit(type, std::move(request)); },
                                        {.max_request_bytes = kPutHeadBytes + kValueBytesMax});
      if (!status.ok()) return status;
    }
    return {};
  }
  const ServerCounts& counts() const { return counts_; }

 private:
  struct Waiting {
    RequestType type;
    tern::Request request;
  };
  /// Requests served in one iteration. The number is small so that the loop also receives and refuses requests while
  /// others wait.
  static constexpr size_t kServedAtOnce = 16;

  void admit(RequestType type, tern::Request request) {
    // If the client would give up before the request's turn, the request is refused now, because serving it would only
    // delay the others.
    const bool is_late = request.time_left() < service_time_ * static_cast<int64_t>(queue_.size());
    if (is_late || queue_.size() >= options_.queue_max) return refuse(std::move(request));
    queue_.push_back({type, std::move(request)});
    if (queue_.size() == 1) serve_soon();
  }

  void refuse(tern::Request request) {
    ++counts_.refused_overloaded;
    request.fail(kOverloaded);
  }

  void serve_soon() {
    if (!endpoint_->post([this] { serve_some(); }).ok())
      queue_.clear();  // the endpoint is closed; the clients get
                       // kNoResponse
  }

  void serve_some() {
    const auto begin = std::chrono::steady_clock::now();
    size_t served = 0;
    for (; served < kServedAtOnce && !queue_.empty(); ++served) {
      Waiting next = std::move(queue_.front());
      queue_.pop_front();
      if (next.request.is_cancelled() || next.request.time_left() <= tern::Duration::zero()) {
        refuse(std::move(next.request));  // its client has given up
        continue;
      }
      serve(next.type, std::move(next.request));
    }
    const tern::Duration each = (std::chrono::steady_clock::now() - begin) / static_cast<int64_t>(served);
    service_time_ += (each - service_time_) / 8;
    if (!queue_.empty()) serve_soon();
  }

  void serve(RequestType type, tern::Request request) {
    ++counts_.served;
    switch (type) {
      case kAbout:
        return answer_integer(std::move(request), static_cast<uint32_t>(options_.partitions));
      case kGet:
        return serve_get(std::move(request));
      case kPut:
        return serve_put(std::move(request));
      case kMultiGet:
        return serve_multi_get(std::move(request));
    }
  }

  bool is_here(uint64_t key) const { return partition_of(key, static_cast<uint32_t>(options_.partitions)) == number_; }

  void serve_get(tern::Request request) {
    const auto key = parse_integer<uint64_t>(request.bytes());
    if (!key || !is_here(*key)) return request.fail(kMalformed);
    Record record;
    if (store_.get(*key, record) != Store::Outcome::kDone) return request.fail(kStoreFailed);
    auto answer = request.response(kGetHeadBytes + record.value.size());
    if (!answer.ok()) return request.fail(kOverloaded);
    Writer(*answer).write(record.version).write(record.value);
    request.respond();
  }

  void serve_put(tern::Request request) {
    const auto put = parse_put(request.bytes());
    if (!put || !is_here(put->key)) return request.fail(kMalformed);
    uint64_t version = 0;
    switch (store_.put(*put, version)) {
      case Store::Outcome::kDone:
        return answer_integer(std::move(request), version);
      case Store::Outcome::kFull:
        ++counts_.refused_full;
        return request.fail(kStoreFull);
      case Store::Outcome::kFailed:
        return request.fail(kStoreFailed);
    }
  }

  void serve_multi_get(tern::Request request) {
    const auto keys = parse_multi_get(request.bytes());
    if (!keys) return request.fail(kMalformed);
    Record records[kMultiGetMax];
    Reader reader(request.bytes());
    size_t len_bytes = 0;
    for (size_t i = 0; i < *keys; ++i) {
      uint64_t key = 0;
      if (!reader.read(key) || !is_here(key)) return request.fail(kMalformed);
      if (store_.get(key, records[i]) != Store::Outcome::kDone) return request.fail(kStoreFailed);
      len_bytes += kRecordHeadBytes + records[i].value.size();
    }
    auto answer = request.response(len_bytes);
    if (!answer.ok()) return request.fail(kOverloaded);
    Writer writer(*answer);
    for (const Record& record : std::span(records, *keys)) {
      writer.write(record.version).write(static_cast<uint32_t>(record.value.size())).write(record.value);
    }
    request.respond();
  }

  template <class Integer>
  static void answer_integer(tern::Request request, Integer value) {
    auto answer = request.response(sizeof(value));
    if (!answer.ok()) return request.fail(kOverloaded);
    Writer(*answer).write(value);
    request.respond();
  }

  Store& store_;
  const ServerOptions& options_;
  const uint32_t number_;
  tern::Endpoint* endpoint_ = nullptr;
  std::deque<Waiting> queue_;                                       ///< if it is not empty, serve_some() will run
  tern::Duration service_time_ = std::chrono::nanoseconds::zero();  ///< time to serve one request, smoothed
  ServerCounts counts_;
};

/// All partitions and their threads. Main thread.
class Server {
 public:
  explicit Server(ServerOptions options) : options_(std::move(options)) {}

  /// Starts all partitions. Returns an empty string when every partition can be reached, otherwise the reason of the
  /// failure.
  std::string start(tern::Nexus& nexus, const std::vector<int>& cpus, tern::RpcOptions rpc) {
    std::string problem = stores_.open(options_.store, options_.partitions, options_.memory_bytes);
    if (!problem.empty()) return problem;
    for (size_t i = 0; i < options_.partitions; ++i) {
      partitions_.push_back(std::make_unique<Partition>(stores_[i], options_, static_cast<uint32_t>(i)));
    }
    return threads_.start(
        nexus, options_.partitions, cpus, programs::Role::kServer, rpc,
        [this](tern::Endpoint& endpoint, size_t i) { return partitions_[i]->add_handlers(endpoint); });
  }
  /// True after a partition's loop has ended.
  bool has_ended() const { return threads_.has_ended(); }
  void stop() { threads_.stop(); }
  /// Why a partition ended by itself; empty if none did. Must be called after stop().
  std::string problem() { return threads_.problem(); }
  /// Must be called after stop().
  ServerCounts counts() const {
    ServerCounts sum;
    for (const auto& partition : partitions_) {
      sum.served += partition->counts().served;
      sum.refused_overloaded += partition->counts().refused_overloaded;
      sum.refused_full += partition->counts().refused_full;
    }
    return sum;
  }

 private:
  const ServerOptions options_;
  Stores stores_;
  std::vector<std::unique_ptr<Partition>> partitions_;
  programs::EndpointThreads threads_;  ///< is destroyed first, because the threads use the other members
};

}  // namespace kv
