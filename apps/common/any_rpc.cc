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
  std::unique_ptr<AnyRpc> made;
  tern::Status status;
  with_transport([&]<class T>() {
    auto rpc = tern::Rpc<T>::create(nexus, transport_options<T>(role), options);
    status = rpc.status();
    if (rpc.ok()) made = std::make_unique<RpcOver<T>>(std::move(*rpc));
    return 0;
  });
  if (made == nullptr) return status;
  return made;
}

}  // namespace programs
