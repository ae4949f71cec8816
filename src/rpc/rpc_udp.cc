#include <tern/transport/udp.h>

#include "rpc/rpc_impl.h"
#include "transport/udp.h"

namespace tern {
template class TERN_API Rpc<Udp>;
}
