#include <tern/transport/faulty.h>
#include <tern/transport/held.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include "call.h"

int main() {
  tern::Faulty<tern::Udp>::Options lossy;
  lossy.drop = 0.2;
  return call<tern::Faulty<tern::Udp>>("faulty udp", lossy) | call<tern::Held<tern::Shm>>("held shm");
}
