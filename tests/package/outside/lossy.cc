// A call over a lossy TRANSPORT, whose header is TRANSPORT_HEADER.
#include TRANSPORT_HEADER
#include <tern/transport/faulty.h>

#include "call.h"

int main() {
  tern::Faulty<TRANSPORT>::Options lossy;
  lossy.drop = 0.02;  // of each 4 KiB over shm, and a path probe is 64 KiB
  return call<tern::Faulty<TRANSPORT>>("lossy", lossy);
}
