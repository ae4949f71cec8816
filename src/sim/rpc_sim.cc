#include <tern/transport/sim.h>

#include "rpc/rpc_impl.h"
#include "transport/sim/sim_transport.h"

namespace tern {
template class TERN_API Rpc<Sim>;
}
