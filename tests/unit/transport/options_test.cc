// Named options of transports: values that set_options() sets and refuses, and the list of existing options in its
// errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include <tern/transport_options.h>

#include "transport/options.h"
#include "transport_list.h"

namespace tern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Options {
  std::string name = "none";
  bool is_on = false;
  uint32_t count = 7;
  size_t bytes = 1000;

  static constexpr auto fields() {
    return std::tuple(OptionField{"name", &Options::name}, OptionField{"is_on", &Options::is_on},
                      OptionField{"count", &Options::count, 1}, OptionField{"bytes", &Options::bytes, 500, 2000});
  }
};
struct Bare {
  int value = 3;
};

TEST(SetOptions, named_options_are_set_and_no_others) {
  Options options;
  EXPECT_EQ(set_options(options, "bytes=2000,name=[::1]:5,is_on=true"), "");
  EXPECT_EQ(options_text(options), "name=[::1]:5,is_on=true,count=7,bytes=2000");
  EXPECT_EQ(set_options(options, "is_on=false,name=,bytes=500"), "");
  EXPECT_EQ(options_text(options), "name=,is_on=false,count=7,bytes=500");
}

TEST(SetOptions, empty_text_sets_nothing) {
  Options options;
  EXPECT_EQ(set_options(options, ""), "");
  EXPECT_EQ(options_text(options), options_text(Options()));
}

TEST(SetOptions, unknown_name_lists_the_known_ones) {
  Options options;
  EXPECT_THAT(set_options(options, "bites=600"), AllOf(HasSubstr("'bites'"), HasSubstr("name, is_on, count, bytes")));
  for (const char* wrong : {"=1", ",bytes=600", "Bytes=600", " bytes=600"}) {
    EXPECT_THAT(set_options(options, wrong), HasSubstr("is not an option")) << wrong;
  }
  Bare bare;
  EXPECT_THAT(set_options(bare, "value=4"), HasSubstr("it has none"));
  EXPECT_EQ(bare.value, 3);
}

TEST(SetOptions, value_out_of_range_is_refused_and_not_set) {
  Options options;
  for (const char* wrong : {"bytes=499", "bytes=2001", "bytes=-1", "bytes=", "bytes=6e2", "bytes=600 ", "bytes=0x300",
                            "bytes=18446744073709551616"}) {
    EXPECT_THAT(set_options(options, wrong), HasSubstr("is not a number from 500 to 2000")) << wrong;
  }
  // An option without its own range has the range of its type.
  for (const char* wrong : {"count=0", "count=4294967296"}) {
    EXPECT_THAT(set_options(options, wrong), HasSubstr("is not a number from 1 to 4294967295")) << wrong;
  }
  for (const char* wrong : {"is_on=1", "is_on=True", "is_on="}) {
    EXPECT_THAT(set_options(options, wrong), HasSubstr("neither true nor false")) << wrong;
  }
  EXPECT_THAT(set_options(options, "bytes"), HasSubstr("has no value"));
  EXPECT_EQ(options_text(options), options_text(Options()));
}

struct Fake {
  static constexpr std::string_view kName = "fake";
  using Options = tern::Options;
};

TEST(CheckRanges, value_out_of_range_is_refused_with_its_name_and_range) {
  const auto text_of = [](size_t bytes, uint32_t count) {
    const Status status = transport::check_ranges<Fake>({.count = count, .bytes = bytes});
    EXPECT_EQ(status.code(), status.ok() ? Code::kOk : Code::kMisuse);
    return std::string(status.message());
  };
  for (const size_t bytes : {500, 1000, 2000}) EXPECT_EQ(text_of(bytes, UINT32_MAX), "ok") << bytes;
  for (const size_t bytes : {0, 499, 2001}) {
    EXPECT_EQ(text_of(bytes, 1), "fake: Options::bytes must be 500 to 2000") << bytes;
  }
  EXPECT_EQ(text_of(1000, 0), "fake: Options::count must be at least 1");
  EXPECT_EQ(text_of(0, 0), "fake: Options::count must be at least 1") << "the first of them";
}

template <class T>
class OptionsOf : public ::testing::Test {};
using All = transports::All::As<::testing::Types>;
struct Names {
  template <class T>
  static std::string GetName(int) {
    return std::string(T::kName);
  }
};
TYPED_TEST_SUITE(OptionsOf, All, Names);

TYPED_TEST(OptionsOf, defaults_are_within_their_ranges) {
  typename TypeParam::Options options;
  const std::string defaults = options_text(options);
  EXPECT_EQ(set_options(options, defaults), "");
  EXPECT_EQ(options_text(options), defaults);
}

TYPED_TEST(OptionsOf, list_finds_the_type_by_its_name) {
  const auto has_type = transports::with_transport(transports::All(), TypeParam::kName,
                                                   []<class T>() { return std::is_same_v<T, TypeParam>; });
  EXPECT_EQ(has_type, true);
  EXPECT_FALSE(transports::with_transport(transports::All(), "pigeon", []<class T>() { return true; }));
}

}  // namespace
}  // namespace tern
