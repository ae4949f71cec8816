#include "erpc_cases.h"
#include "erpc_ends.h"
