// Symbols are hidden unless they are marked; this is the mark.
#pragma once
#define TERN_API __attribute__((visibility("default")))
