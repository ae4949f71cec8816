// Owners of verbs objects. RDMA layer; each object belongs to one thread.
//
// A forked child has the descriptors of its parent's objects, and each call of verbs would act on the parent's objects.
// The child must release() the owners and close the descriptors instead.
#pragma once

#include <infiniband/verbs.h>
#include <unistd.h>

#include <memory>

namespace tern::rdma {

template <auto kDestroy>
struct Destroyer {
  template <class Object>
  void operator()(Object* object) const {
    (void)kDestroy(object);  // a device that is gone refuses, and has already forgotten the object
  }
};

/// The list of ibv_get_device_list(3). An opened device does not need the list.
using DeviceList = std::unique_ptr<ibv_device*, Destroyer<ibv_free_device_list>>;
using Context = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using ProtectionDomain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using CompletionChannel = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using CompletionQueue = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using QueuePair = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using MemoryRegion = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using AddressHandle = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;

/// In a forked child: closes the descriptors, and leaves the parent's object alone.
inline void abandon(const Context& context) {
  if (context == nullptr) return;
  close(context->async_fd);
  close(context->cmd_fd);
}

}  // namespace tern::rdma
