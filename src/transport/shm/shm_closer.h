// Closes the connections that an endpoint refuses, and its listener, in threads of its own. A stranger may have sent
// descriptors with SCM_RIGHTS, which stay in the connection's queue. The last close of the connection closes them, too,
// and that takes as long as their sender likes: a TCP socket with unsent data and SO_LINGER, for example (socket(7)).
// Transport layer; any thread. The threads are the process's, and each ends with its close.
#pragma once

#include <cstddef>

#include "base/descriptor.h"

namespace tern::transport::shm {

/// An endpoint accepts no connections while more of them than this wait to be closed.
inline constexpr size_t kClosingMax = 64;

/// Connections and listeners of the process that are not closed yet.
size_t connections_to_close();
/// Ends the connection, or the listener with the connections of its backlog, and closes it in another thread. Without
/// memory or threads it closes it in this one, and may wait.
void close_elsewhere(base::Descriptor connection);

}  // namespace tern::transport::shm
