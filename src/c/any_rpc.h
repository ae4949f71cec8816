// An Rpc over any transport: the members of Rpc that Endpoint does not have. C layer. Threads are those of Rpc.
#pragma once

#include <tern/rpc.h>

#include <cstddef>
#include <memory>
#include <utility>

namespace tern::c {

class AnyRpc {
 public:
  AnyRpc() = default;
  AnyRpc(const AnyRpc&) = delete;
  AnyRpc& operator=(const AnyRpc&) = delete;
  virtual ~AnyRpc() = default;

  virtual Endpoint& endpoint() = 0;
  virtual Status run(Duration duration) = 0;
  virtual Result<size_t> run_once() = 0;
  virtual Result<int> descriptor() = 0;
  virtual Duration next_due() = 0;
  virtual Status close(Duration drain) = 0;
};

template <Transport T>
class RpcOver final : public AnyRpc {
 public:
  explicit RpcOver(std::unique_ptr<Rpc<T>> rpc) : rpc_(std::move(rpc)) {}

  Endpoint& endpoint() override { return *rpc_; }
  Status run(Duration duration) override { return rpc_->run_event_loop(duration); }
  Result<size_t> run_once() override { return rpc_->run_event_loop_once(); }
  Result<int> descriptor() override { return rpc_->descriptor(); }
  Duration next_due() override { return rpc_->next_due(); }
  Status close(Duration drain) override { return rpc_->close(drain); }

 private:
  std::unique_ptr<Rpc<T>> rpc_;
};

}  // namespace tern::c
