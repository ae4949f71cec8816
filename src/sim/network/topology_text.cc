// The parser of a topology's text form. Each line is one item; '#' begins a comment.
//
//     switch NAME [buffer=12MiB] [alpha=8] [ecn=65kB|never] [latency=300ns]
//     hosts COUNT SWITCH [rate=25G] [delay=500ns] [LIMIT]
//     link SWITCH SWITCH [rate=25G] [delay=500ns] [count=1] [LIMIT]
//
// LIMIT is longest=1400B [longest-from=20ms] [longest-way=both|there|back].
// Hosts are numbered in the order of the lines. Sim layer, network part. Any thread.

#include <tern/sim/network.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "base/thread_safety.h"
#include "sim/network/option_ranges.h"

namespace tern::sim {

namespace {

constexpr double kHostsMax = 1 << 20;
constexpr double kParallelMax = 1024;

/// Keeps a copy of `text` for ever, because a Status points to its message. Equal texts share a copy. The copies are
/// few, because topologies are text of the program itself.
const char* kept(std::string text) {
  static base::Mutex mutex;
  static auto* const texts GUARDED_BY(mutex) = new std::set<std::string>;
  base::MutexLock lock(mutex);
  return texts->insert(std::move(text)).first->c_str();
}

struct Unit {
  std::string_view name;
  double factor;
};
constexpr Unit kBytes[] = {{"B", 1},         {"kB", 1e3},      {"MB", 1e6},     {"GB", 1e9},
                           {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
constexpr Unit kTimes[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}};
constexpr Unit kRates[] = {{"M", 1e6}, {"G", 1e9}, {"T", 1e12}};
constexpr Unit kPlain[] = {{"", 1}};

std::string quoted(std::string_view text) { return std::string("'").append(text) + "'"; }

/// The words and options of a line, and the first error in them.
class Line {
 public:
  explicit Line(std::string_view text) {
    text = text.substr(0, text.find('#'));
    constexpr std::string_view kSpaces = " \t\r";
    for (size_t begin = 0; (begin = text.find_first_not_of(kSpaces, begin)) != text.npos;) {
      const size_t end = std::min(text.find_first_of(kSpaces, begin), text.size());
      const std::string_view word = text.substr(begin, end - begin);
      const size_t equals = word.find('=');
      if (equals == word.npos) {
        words_.push_back(word);
      } else if (!options_.emplace(word.substr(0, equals), word.substr(equals + 1)).second) {
        fail(quoted(word.substr(0, equals)) + " appears twice");
      }
      begin = end;
    }
  }

  const std::vector<std::string_view>& words() const { return words_; }
  const std::string& error() const { return error_; }
  void fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
  }
  void require(Status status) {
    if (!status.ok()) fail(std::string(status.message()));
  }

  /// Removes the option and returns its value. Returns `otherwise` if the line does not have the option.
  double take(std::string_view name, std::span<const Unit> units, double otherwise) {
    const auto option = options_.find(name);
    if (option == options_.end()) return otherwise;
    const std::string_view text = option->second;
    options_.erase(option);
    return number(name, text, units);
  }
  bool take_if(std::string_view name, std::string_view value) {
    const auto option = options_.find(name);
    if (option == options_.end() || option->second != value) return false;
    options_.erase(option);
    return true;
  }
  bool has(std::string_view name) const { return options_.contains(name); }
  std::string_view text_of(std::string_view name) const { return options_.at(name); }
  double number(std::string_view name, std::string_view text, std::span<const Unit> units) {
    double value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
    const std::string_view suffix(rest, static_cast<size_t>(end - rest));
    const auto unit = std::find_if(units.begin(), units.end(), [&](const Unit& u) { return u.name == suffix; });
    // A double holds whole numbers up to 2^53 exactly, which is more than check() allows for any option.
    if (error == std::errc() && unit != units.end() && value >= 0 && value * unit->factor <= 0x1p53) {
      return value * unit->factor;
    }
    std::string known;
    for (const Unit& each : units) known += (known.empty() ? " with " : ", ") + std::string(each.name);
    fail(std::string(name) + ": " + quoted(text) + " is not a number" + (units.size() > 1 ? known : ""));
    return 0;
  }
  /// Called after the last take(). An option that is left is an error.
  void finish() {
    if (!options_.empty()) fail(quoted(options_.begin()->first) + " is not an option of this item");
  }

 private:
  std::vector<std::string_view> words_;
  std::map<std::string_view, std::string_view> options_;
  std::string error_;
};

class Parser {
 public:
  void parse(Line& line) {
    const auto& words = line.words();
    const std::string_view item = words.empty() ? "" : words[0];
    if (item == "switch") {
      if (words.size() != 2) return line.fail("write: switch NAME OPTIONS");
      parse_switch(line, words[1]);
    } else if (item == "hosts") {
      if (words.size() != 3) return line.fail("write: hosts COUNT SWITCH OPTIONS");
      parse_hosts(line, words[1], words[2]);
    } else if (item == "link") {
      if (words.size() != 3) return line.fail("write: link SWITCH SWITCH OPTIONS");
      parse_link(line, words[1], words[2]);
    } else if (!item.empty()) {
      line.fail(quoted(item) + " is not an item: write switch, hosts or link");
    }
    line.finish();
  }
  Topology& topology() { return topology_; }

 private:
  static Duration take_time(Line& line, std::string_view name, Duration otherwise) {
    return Duration(std::llround(line.take(name, kTimes, static_cast<double>(otherwise.count()))));
  }
  static FrameLimitWay take_way(Line& line) {
    if (line.take_if("longest-way", "there")) return FrameLimitWay::kThere;
    if (line.take_if("longest-way", "back")) return FrameLimitWay::kBack;
    if (!line.take_if("longest-way", "both") && line.has("longest-way")) {
      line.fail("longest-way: " + quoted(line.text_of("longest-way")) + " must be both, there or back");
    }
    return FrameLimitWay::kBoth;
  }
  static LinkOptions take_link_options(Line& line) {
    LinkOptions options;
    const double bits_per_sec = line.take("rate", kRates, static_cast<double>(options.bits_per_sec));
    options.bits_per_sec = static_cast<uint64_t>(std::llround(bits_per_sec));
    options.delay = take_time(line, "delay", options.delay);
    if (!line.has("longest") && (line.has("longest-from") || line.has("longest-way"))) {
      line.fail("longest-from and longest-way need longest");
    }
    const double bytes_max = line.take("longest", kBytes, -1);
    if (bytes_max >= 0) options.frame_bytes_max = static_cast<size_t>(std::llround(bytes_max));
    options.frame_limit_from = take_time(line, "longest-from", options.frame_limit_from);
    options.frame_limit_way = take_way(line);
    line.require(check_range(options));
    return options;
  }
  Node find(Line& line, std::string_view name) const {
    const auto found = switches_.find(name);
    if (found != switches_.end()) return found->second;
    line.fail("there is no switch " + quoted(name) + " above");
    return {};
  }

  void parse_switch(Line& line, std::string_view name) {
    SwitchOptions options;
    options.buffer_bytes =
        static_cast<size_t>(std::llround(line.take("buffer", kBytes, static_cast<double>(options.buffer_bytes))));
    options.alpha = line.take("alpha", kPlain, options.alpha);
    if (!line.take_if("ecn", "never")) {
      const double ecn_bytes = line.take("ecn", kBytes, -1);
      if (ecn_bytes >= 0) options.ecn_threshold_bytes = static_cast<size_t>(std::llround(ecn_bytes));
    }
    options.latency = take_time(line, "latency", options.latency);
    line.require(check_range(options));
    if (!switches_.emplace(name, topology_.add_switch(options)).second) {
      line.fail("there is a switch " + quoted(name) + " already");
    }
  }

  void parse_hosts(Line& line, std::string_view count_text, std::string_view name) {
    const double count = line.number("COUNT", count_text, kPlain);
    if (count < 1 || count > kHostsMax || count != std::floor(count)) line.fail("COUNT must be 1 to 1048576");
    const Node at = find(line, name);
    const LinkOptions options = take_link_options(line);
    if (topology_.hosts() + count > kHostsMax) line.fail("there are more than 1048576 hosts");
    if (!line.error().empty()) return;
    for (double i = 0; i < count; i++) topology_.connect(topology_.add_host(), at, options);
  }

  void parse_link(Line& line, std::string_view a_name, std::string_view b_name) {
    const Node a = find(line, a_name);
    const Node b = find(line, b_name);
    const LinkOptions options = take_link_options(line);
    const double count = line.take("count", kPlain, 1);
    if (count < 1 || count > kParallelMax || count != std::floor(count)) line.fail("count must be 1 to 1024");
    if (!line.error().empty()) return;
    for (double i = 0; i < count; i++) topology_.connect(a, b, options);
  }

  Topology topology_;
  std::map<std::string_view, Node> switches_;
};

}  // namespace

Result<Topology> Topology::parse(std::string_view text) {
  Parser parser;
  for (size_t number = 1; !text.empty(); number++) {
    const size_t end = std::min(text.find('\n'), text.size());
    Line line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    parser.parse(line);
    if (!line.error().empty()) {
      return Status(Code::kMisuse, kept("line " + std::to_string(number) + ": " + line.error()));
    }
  }
  if (Status status = parser.topology().check(); !status.ok()) return status;
  return std::move(parser.topology());
}

}  // namespace tern::sim
