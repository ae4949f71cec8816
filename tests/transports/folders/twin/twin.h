#pragma once

#include <memory>

#include <tern/transport/twin.h>

#include "transport/layer.h"
#include "transport/udp/udp.h"

namespace tern::transport {

class TwinImpl : public Layer<UdpImpl> {
 public:
  using Options = Twin::Options;
  using Sender = PlainSender<TwinImpl>;
  static Result<std::unique_ptr<TwinImpl>> create(const Options& options, const Context& context);

 private:
  using Layer<UdpImpl>::Layer;
};

}  // namespace tern::transport
