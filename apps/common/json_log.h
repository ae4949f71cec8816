// The events of a Nexus as JSON lines on standard error.
#pragma once

#include <tern/log.h>

#include <memory>

namespace programs {

/// A sink for NexusOptions::log. Each event is one line, written at once. Fields without a value are left out.
std::shared_ptr<tern::LogSink> json_log();

}  // namespace programs
