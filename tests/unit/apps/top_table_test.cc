// tern-top's table: names of any length and of any bytes, and rates of sessions.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

/// A page that was written at this second. Its endpoint has this number of sessions, and the page lists some of them.
top::Reading reading_of(int64_t published_s, uint64_t sessions, std::vector<tern::PageSession> listed) {
  top::Reading reading = reading_of("/dev/shm/page");
  tern::PageEndpoint& endpoint = reading.pages[0].endpoints[0];
  endpoint.published = std::chrono::seconds(published_s);
  endpoint.client_sessions = sessions;
  endpoint.sessions = std::move(listed);
  return reading;
}

tern::PageSession session_of(uint64_t name, uint64_t packets) {
  tern::PageSession session;
  session.name = name;
  session.peer = "peer-" + std::to_string(name);
  session.info.is_client = true;
  session.info.packets_sent = packets;
  session.info.packets_received = packets;
  session.info.retransmissions = packets;
  return session;
}

/// The line of session 2, which has 5000 packets 10 s after `before`.
std::string line_of_session_2(const top::Reading& before) {
  const top::Reading now = reading_of(20, 2, {session_of(2, 5000), session_of(1, 3000)});
  const std::string table = top::as_table(now, before, 20);
  const size_t at = table.find("    to     peer-2 ");
  return at == std::string::npos ? "" : table.substr(at, table.find('\n', at) - at);
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

TEST(TopTable, session_of_both_readings_has_a_rate) {
  EXPECT_THAT(line_of_session_2(reading_of(10, 2, {session_of(1, 2000), session_of(2, 1000)})), HasSubstr(" 400 "));
}

TEST(TopTable, session_that_began_after_the_older_reading_has_a_rate) {
  EXPECT_THAT(line_of_session_2(reading_of(10, 1, {session_of(1, 2000)})), HasSubstr(" 500 "));
}

TEST(TopTable, session_that_the_older_reading_left_out_has_no_rate) {
  const std::string line = line_of_session_2(reading_of(10, 2, {session_of(1, 2000)}));
  EXPECT_THAT(line, HasSubstr("connecting         -         - ")) << "packets sent and received";
  EXPECT_THAT(line, testing::EndsWith("        -")) << "sent again";
}

TEST(TopTable, session_has_totals_without_an_older_reading) { EXPECT_THAT(line_of_session_2({}), HasSubstr(" 5000 ")); }
