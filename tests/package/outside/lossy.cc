// A call over a lossy TRANSPORT, whose header is TRANSPORT_HEADER.
#include TRANSPORT_HEADER
#include <tern/transport/faulty.h>

#include "call.h"

int main() {
  tern::Faulty<TRANSPORT>::Options lossy;
  lossy.drop = 0.02;  // the probability for each 4 KiB over shm; a path probe has 64 KiB
  return call<tern::Faulty<TRANSPORT>>("lossy", lossy);
}
