// Symbols are hidden unless they are marked; this is the mark. In include/tern it marks what programs call; in src,
// what the library's own further libraries (tern_faults, one per optional transport) take from a shared libtern of the
// same build: nobody else may.
#pragma once
#define TERN_API __attribute__((visibility("default")))
