// Transports, shm and UDP, whose endpoints do without some of the library's shortcuts: Rpc<WithShortcuts<Shm, {...}>>.
#pragma once

#include <memory>
#include <utility>

#include "cc/shortcuts.h"
#include "rpc/rpc_impl.h"
#include "transport/layer.h"
#include "transport/shm/shm.h"
#include "transport/udp/udp.h"

namespace microbench {

template <class Inner, tern::cc::Shortcuts kShortcuts>
class ShortcutsLayer : public tern::transport::Layer<Inner> {
 public:
  using Options = typename Inner::Options;
  static constexpr tern::transport::Traits kTraits = [] {
    tern::transport::Traits traits = Inner::kTraits;
    traits.shortcuts = kShortcuts;
    return traits;
  }();
  struct Sender : Inner::Sender {  // send() is the inner transport's own
    Sender(ShortcutsLayer& layer, tern::transport::PeerId peer) : Inner::Sender(*layer.inner_, peer) {}
  };

  static tern::Result<std::unique_ptr<ShortcutsLayer>> create(Options options,
                                                              const tern::transport::Context& context) {
    auto inner = Inner::create(std::move(options), context);
    if (!inner.ok()) return inner.status();
    return std::unique_ptr<ShortcutsLayer>(new ShortcutsLayer(std::move(*inner)));
  }
  /// Inline like the inner transport's, so that the layer costs nothing.
  [[gnu::always_inline]] bool send(tern::transport::PeerId peer, const tern::wire::Header& header,
                                   const std::byte* data, size_t len, tern::detail::Buffer* buffer) {
    return this->inner_->send(peer, header, data, len, buffer);
  }

 private:
  using tern::transport::Layer<Inner>::Layer;
};

template <class T, tern::cc::Shortcuts kShortcuts>
struct WithShortcuts {
  using Options = typename T::Options;
  using Impl = ShortcutsLayer<typename T::Impl, kShortcuts>;
  static constexpr auto kName = T::kName;
};

}  // namespace microbench
