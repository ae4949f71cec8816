#include "views.h"

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>

namespace top {

const char* life_of(const tern::Page& page) {
  if (page.is_closed) return "closed";
  switch (page.life) {
    case tern::PageLife::kAlive:
      return "alive";
    case tern::PageLife::kDead:
      return "dead";
    default:
      return "unknown";
  }
}

const char* state_of(const tern::PageSession& session) {
  return session.info.state == tern::SessionState::kOpen ? "open" : "connecting";
}

double age_s(const tern::PageEndpoint& endpoint) {
  if (endpoint.published.count() == 0) return -1;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();  // CLOCK_MONOTONIC, as in pages
  return std::chrono::duration<double>(now - endpoint.published).count();
}

uint64_t counter_of(const tern::Page& page, const tern::PageEndpoint& endpoint, const char* name) {
  const auto found = std::find(page.counter_names.begin(), page.counter_names.end(), name);
  const auto index = static_cast<size_t>(found - page.counter_names.begin());
  return index < endpoint.counters.size() ? endpoint.counters[index] : 0;
}

void add(std::string& to, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  const int bytes = std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  to.append(text, std::min(static_cast<size_t>(std::max(bytes, 0)), sizeof(text) - 1));
}

}  // namespace top
