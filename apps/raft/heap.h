// Memory for libraft, which allocates about ten small pieces for each command and soon frees most of them.
#pragma once

namespace replicated {

/// After this call, libraft's small pieces of memory come from free lists, one list for each size and thread. They
/// replace malloc(), which costs a third of a follower's step. The lists keep their memory until the process ends. Must
/// be called once, before libraft is used. Has no effect under AddressSanitizer, which must see each piece.
void use_own_heap();

}  // namespace replicated
