#define TERN_ERPC_TRANSPORT tern::Shm
#define TERN_ERPC_TRANSPORT_HEADER <tern/transport/shm.h>
#include "erpc_cases.h"
#include "erpc_ends.h"
