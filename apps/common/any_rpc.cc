#include "any_rpc.h"

#include <tern/rpc.h>

#include <utility>

namespace programs {

namespace {

template <tern::Transport T>
class RpcOver final : public AnyRpc {
 public:
  explicit RpcOver(std::unique_ptr<tern::Rpc<T>> rpc) : rpc_(std::move(rpc)) {}
  tern::Endpoint& endpoint() override { return *rpc_; }
  tern::Status run_event_loop(tern::Duration duration) override { return rpc_->run_event_loop(duration); }

 private:
  std::unique_ptr<tern::Rpc<T>> rpc_;
};

}  // namespace

tern::Result<std::unique_ptr<AnyRpc>> create_rpc(tern::Nexus& nexus, const tern::RpcOptions& options, Role role) {
  return with_transport([&]<class T>() -> tern::Result<std::unique_ptr<AnyRpc>> {
    auto rpc = tern::Rpc<T>::create(nexus, transport_options<T>(role), options);
    if (!rpc.ok()) return rpc.status();
    return std::unique_ptr<AnyRpc>(std::make_unique<RpcOver<T>>(std::move(*rpc)));
  });
}

}  // namespace programs
