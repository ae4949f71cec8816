// raft_client: sends one command to a cluster of raft_servers, or changes its replicas, or runs a load that is measured
// and checked. All code runs in the main thread.
#include <gflags/gflags.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "../common/any_rpc.h"
#include "../common/flags.h"
#include "../common/report.h"
#include "../common/sides.h"
#include "administrator.h"
#include "client.h"
#include "load.h"
#include "setup.h"

DEFINE_string(get, "", "prints the value of this key");
DEFINE_string(put, "", "KEY=VALUE: stores it");
DEFINE_string(erase, "", "removes this key");
DEFINE_string(swap, "", "KEY=OLD=NEW: stores NEW if OLD is there");
DEFINE_string(add, "", "ID=HOST:PORT: adds this replica, which runs with --join");
DEFINE_uint64(remove, 0, "removes the replica with this id");
DEFINE_bool(about, false, "prints a JSON object of each replica");
DEFINE_bool(load, false, "runs a load, and checks that no acknowledged PUT is lost");

namespace {

using replicated::Operation;
using replicated::Outcome;

/// True if `text` is a key that is not empty, and `values` times '=' and a value. Only the last value may contain '='.
bool has_form(const std::string& text, ptrdiff_t values) {
  return !text.empty() && text[0] != '=' && std::count(text.begin(), text.end(), '=') >= values;
}

/// Returns an empty string if the flags have one command, and it has its form; otherwise the error message.
std::string problem_of_command() {
  using programs::is_given;
  constexpr std::array kWithText = {"get", "put", "erase", "swap", "add", "remove"};
  if (std::count_if(kWithText.begin(), kWithText.end(), is_given) + FLAGS_about + FLAGS_load != 1) {
    return "give exactly one command: --get, --put, --erase, --swap, --add, --remove, --about or --load";
  }
  if (is_given("get") && FLAGS_get.empty()) return "--get must be a KEY that is not empty";
  if (is_given("erase") && FLAGS_erase.empty()) return "--erase must be a KEY that is not empty";
  if (is_given("put") && !has_form(FLAGS_put, 1)) return "--put must be KEY=VALUE, with a KEY that is not empty";
  if (is_given("swap") && !has_form(FLAGS_swap, 2)) return "--swap must be KEY=OLD=NEW, with a KEY that is not empty";
  if (is_given("remove") && FLAGS_remove == 0) return "--remove must be an id above 0";
  return "";
}

/// One request of the user, and its exit code.
class Asking {
 public:
  Asking(tern::Endpoint& endpoint, const replicated::Members& members)
      : members_(members),
        client_(endpoint, tern::real_environment(), replicated::client_options(members)),
        administrator_(endpoint, tern::real_environment(), replicated::client_options(members)) {}

  /// Sends the command, which problem_of_command() has checked.
  void begin() {
    const auto first = [](std::string& text) {
      const size_t equals = text.find('=');
      std::string head = text.substr(0, equals);
      text.erase(0, equals + 1);
      return head;
    };
    if (!FLAGS_get.empty()) return execute(Operation::kGet, FLAGS_get, {}, {});
    if (!FLAGS_erase.empty()) return execute(Operation::kErase, FLAGS_erase, {}, {});
    if (std::string text = FLAGS_put; !text.empty()) {
      const std::string key = first(text);
      return execute(Operation::kPut, key, text, {});
    }
    if (std::string text = FLAGS_swap; !text.empty()) {
      const std::string key = first(text), expected = first(text);
      return execute(Operation::kSwap, key, text, expected);
    }
    const auto changed = [this](const std::string& problem) {
      exit_code_ = problem.empty() ? 0 : programs::fail("%s", problem.c_str());
    };
    if (FLAGS_remove != 0) return administrator_.change(replicated::Action::kRemove, FLAGS_remove, {}, changed);
    if (FLAGS_about) return tell(0);
    const auto member = replicated::parse_members(FLAGS_add);
    if (!member || member->size() != 1) return end(programs::fail("--add is ID=HOST:PORT"));
    administrator_.change(replicated::Action::kAdd, member->front().first, member->front().second, changed);
  }
  int exit_code() const { return exit_code_; }  ///< -1: the request has not ended

 private:
  void end(int code) { exit_code_ = code; }

  void execute(Operation operation, const std::string& key, const std::string& value, const std::string& expected) {
    client_.execute(
        operation, key, value, [this](const replicated::Reply& reply) { end(on_reply(reply)); }, expected);
  }
  static int on_reply(const replicated::Reply& reply) {
    if (!reply.problem.empty()) return programs::fail("%s", reply.problem.c_str());
    switch (reply.outcome) {
      case Outcome::kDone:
        if (FLAGS_get.empty()) return 0;
        std::printf("%.*s\n", static_cast<int>(reply.value.size()), reply.value.data());
        return programs::end_output();
      case Outcome::kNotFound:
        return programs::fail("there is no such key");
      case Outcome::kDifferent:
        return programs::fail("another value is there");
      case Outcome::kFull:
        return programs::fail("the store is full: erase something");
      case Outcome::kMalformed:
        return programs::fail("a key is at most 1024 bytes long, a value 1 MiB");
      default:
        return programs::fail("the replicas answer in a way that this version does not know");
    }
  }
  void tell(size_t member) {
    if (member == members_.size()) return end(has_failed_ ? 1 : programs::end_output());
    administrator_.about(members_[member].second, [this, member](const std::string& json, const std::string& problem) {
      if (problem.empty()) {
        std::printf("%s\n", json.c_str());
      } else {
        has_failed_ = true;
        programs::fail("replica %ju: %s", members_[member].first, problem.c_str());
      }
      tell(member + 1);
    });
  }

  const replicated::Members& members_;
  replicated::Client client_;
  replicated::Administrator administrator_;
  int exit_code_ = -1;
  bool has_failed_ = false;
};

int run(const replicated::Members& members) {
  programs::catch_interrupts();
  const std::string listen = programs::client_listen_uri(members.front().second);
  auto nexus = tern::Nexus::create(listen, programs::nexus_options());
  if (!nexus.ok()) return programs::fail_with("no Nexus at " + listen, nexus.status());
  std::unique_ptr<Asking> asking;  // these outlive the endpoint
  std::unique_ptr<replicated::Load> load;
  auto rpc = programs::create_rpc(**nexus, programs::rpc_options(0));
  if (!rpc.ok()) return programs::fail_with("no endpoint", rpc.status());
  if (FLAGS_load) {
    load = std::make_unique<replicated::Load>((*rpc)->endpoint(), tern::real_environment(),
                                              replicated::load_options(replicated::client_options(members)));
    load->begin();
  } else {
    asking = std::make_unique<Asking>((*rpc)->endpoint(), members);
    asking->begin();
  }
  while (load != nullptr ? !load->is_done() : asking->exit_code() < 0) {
    if (programs::interrupted) return programs::kInterruptedExit;
    const auto status = (*rpc)->run_event_loop(std::chrono::milliseconds(1));
    if (!status.ok()) return programs::fail_with("the event loop has ended", status);
  }
  if (load == nullptr) return asking->exit_code();
  if (!load->problem().empty()) return programs::fail("%s", load->problem().c_str());
  programs::Report report;
  report.bench = "raft";
  report.params = programs::common_params();
  report.params["replicas"] = members.size();
  replicated::add_parameters(report.params);
  replicated::add_metrics(load->report(), report.metrics);
  return programs::print(report);
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetCommandLineOptionWithMode("wait", "adaptive", gflags::SET_FLAGS_DEFAULT);
  if (!programs::parse_flags(argc, argv,
                             "Asks a cluster of raft_servers. Example: raft_client --put=colour=blue "
                             "--replicas=1=10.0.0.1:31850,2=10.0.0.2:31850,3=10.0.0.3:31850"))
    return 1;
  if (!replicated::check_load_flags()) return 1;
  const auto members = replicated::parse_members(FLAGS_replicas);
  if (!members) return 1;
  if (members->empty()) return programs::fail("--replicas is missing: one at least, as in 1=10.0.0.1:31850");
  if (const std::string problem = problem_of_command(); !problem.empty()) return programs::fail("%s", problem.c_str());
  return run(*members);
}
