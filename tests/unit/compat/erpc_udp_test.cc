#include "erpc_cases.h"
