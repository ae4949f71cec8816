#include <tern/status.h>

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tern {
namespace {

constexpr Code kLast = Code::kUnavailable;

TEST(Code, every_code_prints_as_other_words) {
  std::set<std::string_view> words;
  for (int i = 0; i <= static_cast<int>(kLast); i++) {
    const std::string_view text = to_string(static_cast<Code>(i));
    EXPECT_NE(text, "unknown code") << i;
    EXPECT_EQ(text.data()[text.size()], '\0');
    words.insert(text);
  }
  EXPECT_EQ(words.size(), static_cast<size_t>(kLast) + 1);
  EXPECT_EQ(to_string(static_cast<Code>(static_cast<int>(kLast) + 1)), "unknown code");
  static_assert(to_string(Code::kQueueFull) == "queue full");
}

TEST(Code, prints_to_a_stream_of_any_type) {
  std::ostringstream out;
  out << Code::kDeadline << ", " << Code::kOk;
  EXPECT_EQ(out.str(), "deadline passed, ok");
}

TEST(Status, prints_its_code_and_its_text) {
  std::ostringstream out;
  out << Status(Code::kMisuse, "port 0 names no server") << "; " << Status();
  EXPECT_EQ(out.str(), "misuse: port 0 names no server; ok");
}

TEST(Status, compares_by_code_and_text) {
  const std::string same = "gone";  // the text of `gone` at another address
  const Status gone(Code::kSessionReset, "gone");
  EXPECT_EQ(gone, Status(Code::kSessionReset, same.c_str()));
  EXPECT_NE(gone, Status(Code::kSessionReset, "closed"));
  EXPECT_NE(gone, Status(Code::kCancelled, "gone"));
  EXPECT_EQ(Status(), Status(Code::kOk, "ok"));
  EXPECT_TRUE(gone == Code::kSessionReset);
  EXPECT_TRUE(gone != Code::kOk);
  EXPECT_TRUE(Code::kSessionReset == gone);
}

TEST(Result, converts_to_bool_explicitly) {
  const Result<int> three = 3;
  const Result<int> none = Status(Code::kNoMemory, "no memory");
  EXPECT_TRUE(static_cast<bool>(three));
  EXPECT_FALSE(static_cast<bool>(none));
  static_assert(!std::is_convertible_v<Result<int>, bool>);
  EXPECT_EQ(three.code(), Code::kOk);
  EXPECT_EQ(none.code(), Code::kNoMemory);
}

TEST(Result, value__gives_the_value_and_moves_it_out) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  EXPECT_EQ(*result.value(), 7);
  EXPECT_EQ(*std::as_const(result).value(), 7);
  const std::unique_ptr<int> owned = std::move(result).value();
  EXPECT_EQ(*owned, 7);
  static_assert(std::is_same_v<decltype(std::declval<Result<int>>().value()), int>, "no reference into a temporary");
}

TEST(StatusDeathTest, must__stops_the_process_on_an_error_with_the_text) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Status().must();
  const Status taken(Code::kUnavailable, "the port is taken: choose another one");
  EXPECT_DEATH(taken.must(), "tern: cannot go on: the port is taken: choose another one \\(unavailable\\)");
}

TEST(ResultDeathTest, value__without_one_stops_the_process_with_the_text) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Result<int> none = Status(Code::kUnavailable, "the port is taken: choose another one");
  EXPECT_DEATH((void)none.value(), "tern: cannot go on: the port is taken: choose another one \\(unavailable\\)");
}

}  // namespace
}  // namespace tern
