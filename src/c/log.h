// The sink of a program in C, for a Nexus.
// C layer. No state.
#pragma once

#include <tern/log.h>
#include <tern/tern.h>

#include <memory>

namespace tern::c {

/// A sink that calls `function(context, event)`. Throws std::bad_alloc.
std::shared_ptr<LogSink> make_log_sink(tern_log_listener function, void* context);

}  // namespace tern::c
