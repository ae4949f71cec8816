// Memory for libraft, which asks for some ten small pieces for each command and mostly gives them back soon.
#pragma once

namespace replicated {

/// From now on libraft's small pieces of memory come from lists of free ones, a list for each size and thread, in place
/// of malloc()'s, which costs a third of a follower's step. What the lists have got they keep until the process ends.
/// Once, before libraft is used. Without effect where AddressSanitizer is to see each piece.
void use_own_heap();

}  // namespace replicated
