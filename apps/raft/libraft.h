// libraft's header, which does not say itself that it is C.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdio>

extern "C" {
#include <raft.h>
}
