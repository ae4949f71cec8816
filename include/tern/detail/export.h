// TERN_API exports a symbol from a shared libtern; all other symbols are hidden. In include/tern it marks functions for
// programs. In src it marks functions that only the project's other libraries (tern_faults, one per optional transport)
// of the same build may use.
#pragma once
#define TERN_API __attribute__((visibility("default")))
