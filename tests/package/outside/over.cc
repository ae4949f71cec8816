// A call over the transport that the compiler's command line names: TRANSPORT is the type, TRANSPORT_HEADER its header.
#include TRANSPORT_HEADER

#include "call.h"

int main() { return call<TRANSPORT>(TRANSPORT::kName); }
