#include "transport/twin/twin.h"

#include <new>
#include <utility>

namespace tern::transport {

Result<std::unique_ptr<TwinImpl>> TwinImpl::create(const Options& options, const Context& context) {
  auto inner = UdpImpl::create(options, context);
  if (!inner.ok()) return inner.status();
  std::unique_ptr<TwinImpl> twin(new (std::nothrow) TwinImpl(std::move(*inner)));
  if (twin == nullptr) return Status(Code::kNoMemory, "twin: no memory for the endpoint");
  return twin;
}

}  // namespace tern::transport
