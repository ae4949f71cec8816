// Endpoints over a faulty and over a held-back shm, for programs and tests only.

#include <tern/transport/faulty.h>
#include <tern/transport/held.h>
#include <tern/transport/shm.h>

#include "rpc/rpc_impl.h"
#include "transport/faulty.h"
#include "transport/held.h"
#include "transport/shm.h"

namespace tern {
template class TERN_API Rpc<Faulty<Shm>>;
template class TERN_API Rpc<Held<Shm>>;
template class TERN_API Rpc<Held<Faulty<Shm>>>;
}  // namespace tern
