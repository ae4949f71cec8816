#include "transport/xdp/messages.h"

#include <bpf/libbpf.h>
#include <syslog.h>
#include <xdp/libxdp.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace tern::transport::xdp {

namespace {

constexpr size_t kLineBytes = 256;
thread_local std::array<char, kLineBytes> warning{};

void take(bool is_warning, const char* format, va_list arguments) {
  std::array<char, kLineBytes> line{};
  std::vsnprintf(line.data(), line.size(), format, arguments);
  line[std::strcspn(line.data(), "\n")] = '\0';
  if (line[0] == '\0') return;
  syslog(is_warning ? LOG_WARNING : LOG_INFO, "%s", line.data());
  if (is_warning) warning = line;
}

int print_libbpf(libbpf_print_level level, const char* format, va_list arguments) {
  if (level != LIBBPF_DEBUG) take(level == LIBBPF_WARN, format, arguments);
  return 0;
}

int print_libxdp(libxdp_print_level level, const char* format, va_list arguments) {
  if (level != LIBXDP_DEBUG) take(level == LIBXDP_WARN, format, arguments);
  return 0;
}

}  // namespace

void take_messages() {
  static const bool are_taken = [] {
    libbpf_set_print(print_libbpf);
    libxdp_set_print(print_libxdp);
    return true;
  }();
  (void)are_taken;
}

std::string last_warning() {
  std::string text = warning.data();
  warning.fill('\0');
  return text;
}

}  // namespace tern::transport::xdp
