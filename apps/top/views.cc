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

size_t character_length(std::string_view text) {
  const auto byte = [text](size_t i) -> uint32_t { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const uint32_t lead = byte(0);
  if (lead < 0x80) return lead >= ' ' && lead <= '~' ? 1 : 0;
  if (lead < 0xc0 || lead > 0xf7) return 0;
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint32_t code = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if (byte(i) >> 6 != 2) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code >= least && code <= 0x10ffff && !is_surrogate ? length : 0;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = character_length(text);
    // U+0080 to U+009F are control characters, too.
    const bool is_control = length == 2 && text[0] == '\xc2' && static_cast<unsigned char>(text[1]) < 0xa0;
    if (length == 0 || is_control) {
      out += '?';
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max(length, size_t{1}));
  }
  return out;
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
