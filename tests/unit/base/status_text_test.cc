#include "base/status_text.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

namespace tern::base {
namespace {

TEST(StatusText, status_of__joins_the_parts) {
  const Status status = status_of(Code::kPeerUnreachable, "nothing there", {"nothing listens at port ", "31850", ""});
  EXPECT_EQ(status.code(), Code::kPeerUnreachable);
  EXPECT_EQ(status.message(), "nothing listens at port 31850");
  EXPECT_EQ(status.message().data()[status.message().size()], '\0');
}

TEST(StatusText, status_of__keeps_one_copy_of_a_text) {
  const Status first = status_of(Code::kRefused, "", {"a text ", "twice"});
  const Status second = status_of(Code::kMisuse, "", {"a ", "text twice"});
  EXPECT_EQ(first.message().data(), second.message().data());
}

TEST(StatusText, status_of__has_the_other_text_when_it_is_too_long) {
  const std::string full(kStatusTextBytesMax, 'x');
  EXPECT_EQ(status_of(Code::kMisuse, "too long", {full}).message(), full);
  EXPECT_EQ(status_of(Code::kMisuse, "too long", {full, "x"}).message(), "too long");
}

// Must run last in this process, because it fills the table.
TEST(StatusText, status_of__keeps_a_bounded_number_of_texts_whatever_the_threads) {
  std::vector<std::thread> threads;
  std::vector<std::vector<const char*>> seen(4);
  for (auto& texts : seen) {
    threads.emplace_back([&texts] {
      for (size_t i = 0; i < 2 * kStatusTextsMax; i++) {
        texts.push_back(status_of(Code::kMisuse, "otherwise", {"text ", std::to_string(i)}).message().data());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::set<const char*> kept;
  for (size_t i = 0; i < 2 * kStatusTextsMax; i++) {
    for (const auto& texts : seen) {
      const std::string_view text = texts[i];
      EXPECT_TRUE(text == "otherwise" || text == "text " + std::to_string(i)) << text;
      if (text != "otherwise") kept.insert(texts[i]);
    }
  }
  EXPECT_LE(kept.size(), kStatusTextsMax);
  EXPECT_GE(kept.size(), kStatusTextsMax / 2);
  EXPECT_EQ(status_of(Code::kMisuse, "otherwise", {"one more"}).message(), "otherwise");
}

}  // namespace
}  // namespace tern::base
