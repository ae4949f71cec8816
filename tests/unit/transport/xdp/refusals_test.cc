#include "transport/xdp/refusals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>

using namespace tern::transport::xdp;
using tern::Code;
using tern::Status;
using testing::HasSubstr;
using testing::Not;

namespace {

const Facts kFacts{.interface = "eth7", .mtu_bytes = 9000, .may_lack_locked_memory = false, .kernel_words = {}};

std::string text_of(const Status& status) { return std::string(status.message()); }

TEST(XdpRefusals, missing_permission_is_named_with_the_remedy) {
  for (const Step step : {Step::kLoad, Step::kLook, Step::kAttachNative, Step::kAttachGeneric}) {
    const Status status = refusal(step, EPERM, kFacts);
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(text_of(status), HasSubstr("no permission"));
    EXPECT_THAT(text_of(status), HasSubstr("CAP_NET_ADMIN"));
  }
}

/// Kernels before 5.11 count maps as locked memory, and return EPERM at its limit.
TEST(XdpRefusals, locked_memory_of_old_kernels) {
  Facts facts = kFacts;
  facts.may_lack_locked_memory = true;
  const Status status = refusal(Step::kLoad, EPERM, facts);
  EXPECT_EQ(status.code(), Code::kNoMemory);
  EXPECT_THAT(text_of(status), HasSubstr("ulimit -l"));
  EXPECT_THAT(text_of(refusal(Step::kAttachNative, EPERM, facts)), HasSubstr("no permission"));
  EXPECT_EQ(refusal(Step::kLoad, ENOMEM, kFacts).code(), Code::kNoMemory);
}

TEST(XdpRefusals, mtu_is_named_by_number_or_by_kernel) {
  Facts facts = kFacts;
  for (const int error : {ERANGE, EINVAL, EOPNOTSUPP}) {
    facts.kernel_words = error == ERANGE ? "" : "virtio_net: MTU too large to enable XDP";
    const std::string text = text_of(refusal(Step::kAttachNative, error, facts));
    EXPECT_THAT(text, HasSubstr("MTU of eth7, 9000"));
    EXPECT_THAT(text, HasSubstr("mode=generic"));
    EXPECT_THAT(text, HasSubstr(facts.kernel_words));
  }
}

TEST(XdpRefusals, driver_without_native_mode) {
  const std::string text = text_of(refusal(Step::kAttachNative, EOPNOTSUPP, kFacts));
  EXPECT_THAT(text, HasSubstr("driver of eth7 refuses"));
  EXPECT_THAT(text, HasSubstr("mode=generic"));
  EXPECT_THAT(text, Not(HasSubstr("MTU")));
}

TEST(XdpRefusals, interface_that_has_gone) {
  for (const Step step : {Step::kLook, Step::kAttachNative, Step::kAttachGeneric})
    EXPECT_THAT(text_of(refusal(step, ENODEV, kFacts)), HasSubstr("no network interface eth7"));
}

TEST(XdpRefusals, other_errors_name_interface_and_error) {
  EXPECT_THAT(text_of(refusal(Step::kLoad, EINVAL, kFacts)), HasSubstr("Linux 5.3"));
  EXPECT_THAT(text_of(refusal(Step::kLook, EPROTO, kFacts)), HasSubstr("eth7"));
  EXPECT_THAT(text_of(refusal(Step::kAttachGeneric, EOPNOTSUPP, kFacts)), HasSubstr("eth7"));
}

TEST(XdpRefusals, other_programs_and_modes) {
  EXPECT_THAT(text_of(refusal_by_program("eth7", "xdp_dispatcher", 12, true)), HasSubstr("xdp_dispatcher (id 12)"));
  EXPECT_THAT(text_of(refusal_by_program("eth7", "", 12, true)), HasSubstr("without a name (id 12)"));
  EXPECT_THAT(text_of(refusal_by_program("eth7", "", 12, true)), HasSubstr("dev eth7 xdp off"));
  EXPECT_THAT(text_of(refusal_by_program("eth7", "", 12, false)), HasSubstr("dev eth7 xdpgeneric off"));
  EXPECT_THAT(text_of(refusal_by_version("eth7")), HasSubstr("same version"));
  EXPECT_THAT(text_of(refusal_by_mode("eth7", true)), HasSubstr("mode=native"));
  EXPECT_THAT(text_of(refusal_by_mode("eth7", false)), HasSubstr("mode=generic"));
}

}  // namespace
