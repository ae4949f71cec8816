// EndpointCore: prefetches sessions before their packets are handled, for endpoints with many sessions. One packet
// after the other would wait for its own cache misses; here the misses of a whole burst overlap.

#include <algorithm>

#include "rpc/endpoint_core.h"

namespace tern::rpc {

void EndpointCore::look_ahead(std::span<const uint64_t> first_words) const {
  const size_t count = std::min(first_words.size(), transport::kAheadMax);
  for (size_t i = 0; i < count; i++) {
    const wire::Header header{first_words[i]};
    if (wire::is_from_client(header.kind())) {
      server_sessions_.prefetch_place(header.session_key());
    } else {
      client_sessions_.prefetch_place(header.session_key());
    }
  }
  // The places have arrived, or are on their way.
  const Server* servers[transport::kAheadMax];
  size_t servers_count = 0;
  for (size_t i = 0; i < count; i++) {
    const wire::Header header{first_words[i]};
    if (!wire::is_from_client(header.kind())) {
      if (const Client* client = client_sessions_.find(header.session_key())) client->session.prefetch();
    } else if (const Server* server = server_sessions_.find(header.session_key())) {
      server->session.prefetch_all();
      servers[servers_count++] = server;
    }
  }
  for (size_t i = 0; i < servers_count; i++) {
    const detail::Buffer* response = servers[i]->session.first_response();
    if (response == nullptr) continue;
    __builtin_prefetch(response);
    __builtin_prefetch(response->data(), 1);
  }
}

}  // namespace tern::rpc
