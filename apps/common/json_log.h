// Prints the events of a Nexus as JSON lines on standard error.
#pragma once

#include <tern/log.h>

#include <memory>

namespace programs {

/// A sink for NexusOptions::log. It writes each event at once, as one line. It leaves out fields without a value.
std::shared_ptr<tern::LogSink> json_log();

}  // namespace programs
