// The messages of libbpf and libxdp: they go to syslog(3), and the last one also to the caller. Transport layer; any
// thread.
#pragma once

#include <string>

namespace tern::transport::xdp {

/// From the first call on, libbpf and libxdp print nothing to stderr. A program that needs their messages sets its own
/// functions after that.
void take_messages();
/// The last warning that libbpf or libxdp printed in this thread, without the end of line. Empty: no warning since the
/// last call.
std::string last_warning();

}  // namespace tern::transport::xdp
