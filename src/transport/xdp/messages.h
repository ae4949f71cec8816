// What libbpf and libxdp print: to syslog(3), and the last line also to the caller. Transport layer; any thread.
#pragma once

#include <string>

namespace tern::transport::xdp {

/// From the first call on, libbpf and libxdp print nothing to stderr. A program that wants their messages sets its own
/// functions afterwards.
void take_messages();
/// The last warning that libbpf or libxdp printed in this thread, without the end of line. Empty: none since the last
/// call.
std::string last_warning();

}  // namespace tern::transport::xdp
