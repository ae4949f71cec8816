// Any bytes as a received buffer. The target reads packet by packet, as receive does (clauses 2.3, 2.5), and every
// field.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "wire/header.h"

namespace {

using namespace tern::wire;

void require(bool is_true) {
  if (!is_true) std::abort();
}

void check_header(const std::byte* bytes, const Header& h) {
  std::byte back[kHeaderBytes];
  store_header(back, h);
  require(std::memcmp(bytes, back, kHeaderBytes) == 0);
  require(h.number() <= kNumberMask && h.echo() <= kNumberMask);
  require(h.index() <= kIndexMask && h.request_type() < kRequestTypes && h.message_bytes() <= 0x7fffffffu);
  require(h.size_or_index() <= 0x7fffffffu);
  const uint64_t left_ns = decode_time_left(h.deadline_code());
  if (h.deadline_code() != kNoDeadline) require(decode_time_left(encode_time_left(left_ns)) == left_ns);
  if (h.hold_code() != kHoldTooLong) require(encode_hold(decode_hold(h.hold_code())) == h.hold_code());
  if (is_from_client(h.kind())) {
    const uint32_t index = (h.flags() & kFirst) != 0 ? h.deadline_code() : h.index();
    Header again = client_header(h.kind(), h.flags(), h.session_key(), h.number(), h.request_number(), index,
                                 h.request_type(), h.message_bytes());
    again.set_length_and_flags(h.length(), 0);
    require(again.w0 == h.w0 && again.w2 == h.w2);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* at = reinterpret_cast<const std::byte*>(data);
  const std::byte* end = at + size;
  while (at != end) {
    if (*at == std::byte{0}) {
      at++;
      continue;
    }
    const auto rest = static_cast<size_t>(end - at);
    if (rest < kHeaderBytes) break;
    const Header header = load_header(at);
    if (!is_plausible(header, rest)) break;
    check_header(at, header);
    require(header.length() >= kHeaderBytes && header.length() <= rest);
    at += header.length();
  }
  return 0;
}
