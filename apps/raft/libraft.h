// Includes libraft's header, which does not declare itself as C.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdio>

extern "C" {
#include <raft.h>
}
