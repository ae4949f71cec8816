// tern-top's table: names of any length and of any bytes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "../apps/top/views.h"

using testing::HasSubstr;

namespace {

/// A page of one endpoint in this file.
top::Reading reading_of(const std::string& file) {
  top::Reading reading;
  reading.pages.emplace_back();
  reading.pages[0].file = file;
  reading.pages[0].endpoints.emplace_back();
  return reading;
}

}  // namespace

TEST(TopTable, control_characters_of_names_become_question_marks) {
  top::Reading reading = reading_of("/a\033]0;title\a\033[2J\n1 fake\x7f\xc2\x9b\x9b");
  reading.unreadable.push_back({"/b\033[2J\n2 fake", "cannot read /b\033[2J\n2 fake: \xff"});
  const std::string table = top::as_table(reading, {}, 20);
  EXPECT_THAT(table, HasSubstr("  /a?]0;title??[2J?1 fake???\n"));
  EXPECT_THAT(table, HasSubstr("\n/b?[2J?2 fake: cannot read /b?[2J?2 fake: ?\n"));
}

TEST(TopTable, names_keep_letters_of_any_script) {
  const std::string name = "/käse, 奶酪, \U0001f9c0";
  EXPECT_THAT(top::as_table(reading_of(name), {}, 20), HasSubstr("  " + name + "\n"));
}

TEST(TopTable, long_names_are_whole) {
  const std::string name = '/' + std::string(2000, 'x') + "/end";
  top::Reading reading = reading_of(name);
  reading.unreadable.push_back({name, "cannot read " + name + ": why"});
  const std::string table = top::as_table(reading, {}, 20);
  EXPECT_THAT(table, HasSubstr("  " + name + "\n  endpoint"));
  EXPECT_THAT(table, HasSubstr('\n' + name + ": cannot read " + name + ": why\n"));
}
