#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

#include "call.h"

int main() { return call<tern::Shm>("shm") | call<tern::Udp>("udp"); }
