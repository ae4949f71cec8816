#include "nexus/uri.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <tuple>

namespace tern::nexus {
namespace {

void expect_refused(std::string_view uri, std::string_view reason) {
  const auto parsed = parse_uri(uri);
  ASSERT_FALSE(parsed.ok()) << uri;
  EXPECT_EQ(parsed.status().code(), Code::kMisuse) << uri;
  const std::string_view message = parsed.status().message();
  EXPECT_TRUE(message.starts_with(reason)) << uri << ": " << message;
  EXPECT_NE(message.find("write \"tern://HOST:PORT/E\""), std::string_view::npos) << uri << ": " << message;
}

TEST(Uri, parse__takes_host_port_and_endpoint_under_both_schemes) {
  for (const std::string scheme : {"tern://", "udp://"}) {
    for (const auto& [rest, host_and_port, port, endpoint] : {
             std::tuple("server:31850", "server:31850", 31850, 0),
             std::tuple("server:31850/0", "server:31850", 31850, 0),
             std::tuple("10.0.0.1:1/65535", "10.0.0.1:1", 1, 65535),
             std::tuple("0.0.0.0:0", "0.0.0.0:0", 0, 0),
             std::tuple("[::]:65535", "[::]:65535", 65535, 0),
             std::tuple("[fe80::1%eth0]:7/3", "[fe80::1%eth0]:7", 7, 3),
         }) {
      auto parsed = parse_uri(scheme + rest);
      ASSERT_TRUE(parsed.ok()) << scheme << rest;
      EXPECT_EQ(parsed->host_and_port, host_and_port);
      EXPECT_EQ(parsed->port, port);
      EXPECT_EQ(parsed->endpoint_id, endpoint);
      EXPECT_EQ(parsed->has_endpoint, std::string_view(rest).find('/') != std::string_view::npos);
    }
  }
}

TEST(Uri, parse__without_a_known_scheme_says_how_to_write_one) {
  for (const char* uri : {"", "127.0.0.1:1", "tcp://127.0.0.1:1", "shm://127.0.0.1:1", "tern:/127.0.0.1:1", "tern",
                          "TERN://127.0.0.1:1", " tern://127.0.0.1:1"}) {
    expect_refused(uri, "not a tern URI");
  }
}

TEST(Uri, parse__names_the_part_that_is_wrong) {
  for (const char* uri :
       {"tern://:1", "tern://::1:5", "tern://[]:5", "tern://a b:5", "udp://[::1:5", "tern://a]:5", "tern://",
        "tern://h", "tern://h:", "tern://h:x", "tern://h:65536", "tern://h:-1", "tern://[::1]", "udp://127.0.0.1"}) {
    expect_refused(uri, "no valid host and port");
  }
  for (const char* uri :
       {"tern://h:1/", "tern://h:1/65536", "tern://h:1/-1", "tern://h:1/2/3", "tern://h:1/x", "udp://h:1/ 1"}) {
    expect_refused(uri, "no valid endpoint id");
  }
}

}  // namespace
}  // namespace tern::nexus
