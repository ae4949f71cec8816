// The members of Rpc<T>, for the code that instantiates it: the library for its own transports, programs for theirs.
#pragma once

#include <new>
#include <string>
#include <utility>

#include <tern/rpc.h>

#include "base/try.h"
#include "memory/arena.h"
#include "nexus/nexus_core.h"
#include "rpc/rpc_core.h"

namespace tern {

template <Transport T>
Rpc<T>::Rpc(std::unique_ptr<rpc::RpcCore<typename T::Impl>> core)
    : Endpoint(&core->endpoint()), owned_(std::move(core)) {}

template <Transport T>
Rpc<T>::~Rpc() {
  if (owned_ != nullptr && owned_->is_forked()) rpc::RpcCore<typename T::Impl>::abandon(std::move(owned_));
}

template <Transport T>
Result<std::unique_ptr<Rpc<T>>> Rpc<T>::create(Nexus& nexus, typename T::Options transport_options,
                                               RpcOptions options) {
  Result<std::unique_ptr<Rpc>> made(Status(Code::kNoMemory, "no memory for an endpoint"));
  (void)base::try_grow([&] { made = make(nexus, std::move(transport_options), options); });
  return made;
}

/// May throw std::bad_alloc.
template <Transport T>
Result<std::unique_ptr<Rpc<T>>> Rpc<T>::make(Nexus& nexus, typename T::Options transport_options,
                                             const RpcOptions& options) {
  using Impl = typename T::Impl;
  /// Deletes an arena that no endpoint has taken over yet.
  struct Orphaned {
    void operator()(memory::Arena* arena) const { arena->orphan(); }
  };
  using OwnArena = std::unique_ptr<memory::Arena, Orphaned>;
  memory::ArenaOptions arena_options;
  arena_options.shared = Impl::kTraits.has_shared_memory;
  // All pages of shared chunks are touched when the chunks are made, so that a lack of memory is an error there, and
  // does not kill the process later. This takes 0.3 to 0.6 ms a megabyte, so a small first chunk keeps create() short.
  if (Impl::kTraits.has_shared_memory) {
    arena_options.chunk_bytes = 2u << 20;
    arena_options.doublings = 4;
  }
  arena_options.huge_pages = options.huge_pages;
  arena_options.giant_pages = options.giant_pages;
  arena_options.limit_bytes = options.memory_limit_bytes;
  auto arena = memory::Arena::create(arena_options);
  if (!arena.ok()) return arena.status();
  OwnArena sent(*arena);
  // Peers need not read requests that have arrived, so they have an arena of their own, which can have transparent huge
  // pages. A memory limit holds for all message memory, so that there is only one arena then.
  OwnArena received;
  if (Impl::kTraits.has_shared_memory && options.memory_limit_bytes == SIZE_MAX) {
    arena_options.shared = false;
    auto second = memory::Arena::create(arena_options);
    if (!second.ok()) return second.status();
    received.reset(*second);
  }
  const std::string listen_host = nexus.core().listen_host();
  auto transport = Impl::create(std::move(transport_options), transport::Context(*sent, listen_host));
  if (!transport.ok()) return transport.status();
  auto core = std::make_unique<rpc::RpcCore<Impl>>(nexus.core(), *sent, received != nullptr ? *received : *sent,
                                                   options, T::kName, std::move(*transport));
  (void)sent.release();
  (void)received.release();
  if (Status status = core->start(); !status.ok()) return status;
  return std::unique_ptr<Rpc>(new Rpc(std::move(core)));
}

template <Transport T>
Status Rpc<T>::run_event_loop(Duration duration) {
  return owned_->run(duration);
}

template <Transport T>
Result<size_t> Rpc<T>::run_event_loop_once() {
  return owned_->run_once();
}

template <Transport T>
Result<int> Rpc<T>::descriptor() {
  return owned_->descriptor();
}

template <Transport T>
Duration Rpc<T>::next_due() {
  return owned_->next_due();
}

template <Transport T>
Status Rpc<T>::close(Duration drain) {
  return owned_->close(drain);
}

}  // namespace tern
