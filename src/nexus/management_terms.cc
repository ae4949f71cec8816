#include "nexus/management_terms.h"

#include <algorithm>

namespace tern::nexus {

SessionTerms from_wire(const wire::ManagementTerms& from) {
  SessionTerms to;
  to.transport = from.transport_name();
  to.address.bytes = from.address;
  to.address.size = from.address_bytes;
  to.session_key = from.session_key;
  to.endpoint_id = from.endpoint_id;
  to.payload_bytes_max = from.payload_bytes_max;
  to.window = from.window;
  to.credits = from.credits;
  to.first_number = from.first_number;
  to.path_token = from.path_token;
  to.credit_unit = from.credit_unit;
  return to;
}

bool to_wire(const SessionTerms& from, wire::ManagementTerms& to) {
  if (from.transport.size() > to.transport.size() || from.address.size > to.address.size()) return false;
  std::copy(from.transport.begin(), from.transport.end(), to.transport.begin());
  std::copy_n(from.address.bytes.begin(), from.address.size, to.address.begin());
  to.transport_bytes = static_cast<uint8_t>(from.transport.size());
  to.address_bytes = from.address.size;
  to.session_key = from.session_key;
  to.endpoint_id = from.endpoint_id;
  to.payload_bytes_max = from.payload_bytes_max;
  to.window = from.window;
  to.credits = from.credits;
  to.first_number = from.first_number;
  to.path_token = from.path_token;
  to.credit_unit = from.credit_unit;
  return wire::is_valid(to);
}

}  // namespace tern::nexus
