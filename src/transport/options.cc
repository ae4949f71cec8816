#include "transport/options.h"

#include <array>
#include <charconv>

#include "base/status_text.h"

namespace tern::transport {

namespace {
/// An integer as text, without an allocation.
class Decimal {
 public:
  explicit Decimal(uint64_t value) : end_(std::to_chars(bytes_.data(), bytes_.data() + bytes_.size(), value).ptr) {}
  Decimal(const Decimal&) = delete;
  Decimal& operator=(const Decimal&) = delete;
  std::string_view view() const { return {bytes_.data(), end_}; }

 private:
  std::array<char, 20> bytes_;
  const char* end_;
};
}  // namespace

Status out_of_range(std::string_view transport, std::string_view option, uint64_t min, uint64_t max) noexcept {
  constexpr const char* kOtherwise = "an option of the transport is out of the range that its Options state";
  const Decimal least(min), most(max);
  if (max == UINT64_MAX) {
    return base::status_of(Code::kMisuse, kOtherwise,
                           {transport, ": Options::", option, " must be at least ", least.view()});
  }
  return base::status_of(Code::kMisuse, kOtherwise,
                         {transport, ": Options::", option, " must be ", least.view(), " to ", most.view()});
}

}  // namespace tern::transport
