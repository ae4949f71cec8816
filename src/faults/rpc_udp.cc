// Endpoints over a faulty and over a held-back udp, for programs and tests only.

#include <tern/transport/faulty.h>
#include <tern/transport/held.h>
#include <tern/transport/udp.h>

#include "rpc/rpc_impl.h"
#include "transport/faulty.h"
#include "transport/held.h"
#include "transport/udp.h"

namespace tern {
template class TERN_API Rpc<Faulty<Udp>>;
template class TERN_API Rpc<Held<Udp>>;
template class TERN_API Rpc<Held<Faulty<Udp>>>;
}  // namespace tern
