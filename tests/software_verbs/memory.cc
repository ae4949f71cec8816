// Protection domains, memory regions and address handles.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "mlx5.h"

namespace software_verbs {
namespace {

struct ProtectionDomain : ibv_pd {
  std::atomic<uint32_t> users{0};
};

ProtectionDomain& domain_of(ibv_pd* pd) { return static_cast<ProtectionDomain&>(*pd); }

/// True if all pages are mapped, because registration pins them.
bool is_mapped(uintptr_t address, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  std::array<unsigned char, 4096> resident;
  const uintptr_t end = address + bytes;
  for (uintptr_t at = address & ~(page - 1); at < end;) {
    const size_t part = std::min(end - at, resident.size() * page);
    if (mincore(reinterpret_cast<void*>(at), part, resident.data()) != 0) return false;
    at += (part + page - 1) & ~(page - 1);
  }
  return true;
}

/// Returns an error code, as ibv_reg_mr() does.
int check_registration(const Context& context, void* address, size_t bytes, unsigned access) {
  constexpr unsigned kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if (context.is_dead) return EIO;
  if (bytes == 0 || ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0)) return EINVAL;
  if (totals.registered_bytes.load() + bytes > context.settings.memlock) return ENOMEM;
  if (!is_mapped(reinterpret_cast<uintptr_t>(address), bytes)) return EFAULT;
  return 0;
}

int check_address(const Context& context, const ibv_ah_attr& attr) {
  if (context.is_dead) return EIO;
  if (attr.port_num != kPort) return EINVAL;
  if (context.settings.is_infiniband) return attr.is_global == 0 && attr.dlid == 0 ? EINVAL : 0;
  ibv_gid source;
  ibv_gid_type type;
  if (attr.is_global == 0 || !find_gid(context, attr.grh.sgid_index, &source, &type)) return EINVAL;
  // The source and the destination must both be IPv4, or both be link-local.
  return memcmp(source.raw, attr.grh.dgid.raw, 8) == 0 ? 0 : EINVAL;
}

}  // namespace

void use_domain(ibv_pd* pd) { domain_of(pd).users++; }
void leave_domain(ibv_pd* pd) { domain_of(pd).users--; }

bool may_access(const Context& context, const ibv_pd* domain, const ibv_sge& sge, unsigned access) {
  if (sge.length == 0) return true;
  const auto found = context.regions.find(sge.lkey);
  if (found == context.regions.end()) return false;
  const MemoryRegion& region = *found->second;
  const auto first = reinterpret_cast<uintptr_t>(region.addr);
  return region.pd == domain && (region.access & access) == access && sge.addr >= first &&
         sge.addr - first <= region.length && sge.length <= region.length - (sge.addr - first);
}

}  // namespace software_verbs

using namespace software_verbs;

SOFTWARE_VERBS_EXPORT ibv_pd* ibv_alloc_pd(ibv_context* base) {
  if (const int error = injected_error(Verb::kAllocPd)) return fail(error);
  auto* domain = new ProtectionDomain;
  domain->context = base;
  domain->handle = 0;
  context_of(base).objects++;
  count(totals.protection_domains);
  return domain;
}

SOFTWARE_VERBS_EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  ProtectionDomain& domain = domain_of(pd);
  check_process(context_of(pd));
  if (domain.users.load() > 0) return EBUSY;
  context_of(pd).objects--;
  delete &domain;
  uncount(totals.protection_domains);
  return 0;
}

SOFTWARE_VERBS_EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t bytes, uint64_t iova,
                                               unsigned access) {
  if (const int error = injected_error(Verb::kRegMr)) return fail(error);
  Context& context = context_of(pd);
  const std::lock_guard lock(context.mutex);
  if (iova != reinterpret_cast<uintptr_t>(address)) return fail(EOPNOTSUPP);
  if (const int error = check_registration(context, address, bytes, access)) return fail(error);
  auto* region = new MemoryRegion;
  region->context = pd->context;
  region->pd = pd;
  region->addr = address;
  region->length = bytes;
  region->lkey = region->rkey = region->handle = context.last_key += 0x101;  // an old key does not soon become valid
                                                                             // again
  region->access = access;
  {
    const std::lock_guard network_lock(network().mutex);
    context.regions.emplace(region->lkey, region);
  }
  context.objects++;
  use_domain(pd);
  count(totals.memory_regions);
  count(totals.registered_bytes, bytes);
  return region;
}

SOFTWARE_VERBS_EXPORT ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t bytes, uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, iova, static_cast<unsigned>(access));
}

SOFTWARE_VERBS_EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t bytes, int access) {
  return ibv_reg_mr_iova2(pd, address, bytes, reinterpret_cast<uintptr_t>(address), static_cast<unsigned>(access));
}

SOFTWARE_VERBS_EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  Context& context = context_of(mr);
  check_process(context);
  const std::lock_guard lock(context.mutex);
  {
    const std::lock_guard network_lock(network().mutex);
    context.regions.erase(mr->lkey);
  }
  context.objects--;
  leave_domain(mr->pd);
  uncount(totals.memory_regions);
  uncount(totals.registered_bytes, mr->length);
  delete static_cast<MemoryRegion*>(mr);
  return 0;
}

SOFTWARE_VERBS_EXPORT ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  wait_while_blocked();
  if (const int error = injected_error(Verb::kCreateAh)) return fail(error);
  Context& context = context_of(pd);
  const std::lock_guard lock(context.mutex);
  if (context.port != nullptr) return fail(EOPNOTSUPP);
  if (const int error = check_address(context, *attr)) return fail(error);
  if (context.handles.size() >= context.settings.max_ah) return fail(ENOMEM);
  in_addr address;
  if (!resolve(context, *attr, &address)) return fail(ETIMEDOUT);
  auto* handle = new AddressHandle;
  handle->context = pd->context;
  handle->pd = pd;
  handle->handle = ++context.last_handle;
  handle->attr = *attr;
  handle->destination.sin_family = AF_INET;
  handle->destination.sin_addr = address;
  context.handles.insert(handle->handle);
  context.objects++;
  use_domain(pd);
  count(totals.address_handles);
  return handle;
}

SOFTWARE_VERBS_EXPORT int ibv_destroy_ah(ibv_ah* ah) {
  Context& context = context_of(ah);
  check_process(context);
  const std::lock_guard lock(context.mutex);
  context.handles.erase(ah->handle);
  context.objects--;
  leave_domain(ah->pd);
  uncount(totals.address_handles);
  delete static_cast<AddressHandle*>(ah);
  return 0;
}
