// Any bytes as a page. The reader must refuse the page, or return only the sizes and texts that it promises.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "page/read.h"

namespace {

void require(bool is_true) {
  if (!is_true) std::abort();
}

void require_printable(const std::string& text) {
  for (const char c : text) require(c >= ' ' && c <= '~');
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto read = [data, size](uint64_t offset, std::span<std::byte> space) -> size_t {
    if (offset >= size) return 0;
    const size_t bytes = std::min<uint64_t>(space.size(), size - offset);
    std::memcpy(space.data(), data + offset, bytes);
    return bytes;
  };
  tern::page::Header header;
  tern::Page page;
  if (!tern::page::read_page(read, header, page).ok()) return 0;
  require_printable(page.program);
  require_printable(page.uri);
  for (const std::string& name : page.counter_names) require_printable(name);
  for (const tern::PageEndpoint& endpoint : page.endpoints) {
    require_printable(endpoint.transport);
    require(endpoint.counters.size() == page.counter_names.size());
    for (const tern::PageSession& session : endpoint.sessions) {
      require_printable(session.peer);
      require(session.info.round_trip.count() >= 0 && session.info.peer.empty());
    }
    for (const tern::PageEnd& end : endpoint.ends) require_printable(end.reason);
  }
  return 0;
}
