#include <tern/transport/shm.h>

#include "rpc/rpc_impl.h"
#include "transport/shm.h"

namespace tern {
template class TERN_API Rpc<Shm>;
}
