// Programs written for eRPC compile against tern with this header in place of eRPC's <rpc.h>: the public names of eRPC,
// over one tern::Rpc. docs/erpc-migration.md has the differences, and for each name the equivalent of tern.
#pragma once

#include "msg_buffer.h"
#include "nexus.h"
#include "rpc_class.h"
#include "rpc_impl.h"
#include "sm_types.h"
#include "transport.h"
#include "util/autorun_helpers.h"
#include "util/latency.h"
#include "util/math_utils.h"
#include "util/rand.h"
#include "util/timer.h"
