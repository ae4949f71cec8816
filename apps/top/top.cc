// tern-top: shows the endpoints of this user's processes, read from their pages (NexusOptions::page).
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "views.h"

namespace {

constexpr char kUsage[] =
    "usage: tern-top [--once] [--json|--prometheus] [--interval=1] [--sessions=20] [FILE...]\n"
    "Shows the endpoints and sessions of all processes of this user whose NexusOptions::page is \"shm\", or those of "
    "the\n"
    "named pages. The page of a killed process keeps its last state.\n"
    "  --once        print once, and end\n"
    "  --json        one line of JSON a reading: the whole content of the pages\n"
    "  --prometheus  the text format that Prometheus scrapes; once; reasons for unreadable pages on standard error\n"
    "  --interval    seconds between two readings, 0.1 to 3600\n"
    "  --sessions    number of sessions shown for each endpoint, in the table and for Prometheus; the busiest\n";

struct Options {
  bool once = false, json = false, prometheus = false;
  double interval_s = 1;
  size_t sessions = 20;
  std::vector<std::string> files;
};

[[noreturn]] void fail(const std::string& sentence) {
  std::fprintf(stderr, "tern-top: %s\n%s", sentence.c_str(), kUsage);
  std::exit(2);
}

/// The number after "--name=". Ends the program if the text is not a number within these bounds.
template <class Number>
Number number_of(std::string_view argument, Number least, Number most) {
  const std::string_view text = argument.substr(argument.find('=') + 1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !(number >= least && number <= most)) {
    fail(std::string(argument) + " is out of range");
  }
  return number;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i++) {
    const std::string_view argument = argv[i];
    if (argument == "--once") {
      options.once = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "--prometheus") {
      options.prometheus = options.once = true;
    } else if (argument.starts_with("--interval=")) {
      options.interval_s = number_of(argument, 0.1, 3600.0);
    } else if (argument.starts_with("--sessions=")) {
      options.sessions = number_of<size_t>(argument, 0, 1000);
    } else if (argument == "-h" || argument == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else if (argument.starts_with("-")) {
      fail("unknown option " + std::string(argument));
    } else {
      options.files.emplace_back(argument);
    }
  }
  if (options.json && options.prometheus) fail("give --json or --prometheus, not both");
  return options;
}

top::Reading read(const Options& options) {
  top::Reading reading;
  for (const std::string& file : options.files.empty() ? tern::find_pages() : options.files) {
    auto page = tern::read_page(file);
    if (page.ok()) {
      reading.pages.push_back(std::move(*page));
    } else {
      reading.unreadable.push_back({file, std::string(page.status().message())});
    }
  }
  return reading;
}

/// For the format of Prometheus, which has no place for reasons.
void report_unreadable(const top::Reading& reading) {
  for (const top::Unreadable& file : reading.unreadable) {
    std::fprintf(stderr, "tern-top: %s: %s\n", top::printable(file.file).c_str(), top::printable(file.reason).c_str());
  }
}

bool print(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  top::Reading before;
  while (true) {
    top::Reading reading = read(options);
    std::string text;
    if (options.json) {
      text = top::as_json(reading);
    } else if (options.prometheus) {
      text = top::as_prometheus(reading, options.sessions);
      report_unreadable(reading);
    } else {
      // Moves the cursor home, clears the rest of each line, and then the rest of the screen, so that the output does
      // not flicker.
      const char* const clear_line = options.once ? "" : "\033[K";
      if (!options.once) text = "\033[H";
      for (const char c : top::as_table(reading, before, options.sessions)) {
        if (c == '\n') text += clear_line;
        text += c;
      }
      if (!options.once) text += "\033[J";
    }
    if (!print(text)) return 1;
    // A file named by the user must be a page. A page in shared memory may have been removed since the listing.
    if (options.once) return options.files.empty() || reading.unreadable.empty() ? 0 : 1;
    before = std::move(reading);
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_s));
  }
}
