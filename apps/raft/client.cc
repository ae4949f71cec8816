#include "client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "message.h"

namespace replicated {

Client::Client(tern::Endpoint& endpoint, tern::Environment& environment, ClientOptions options)
    : endpoint_(endpoint), environment_(environment), options_(std::move(options)) {
  for (const std::string& uri : options_.replicas) targets_.push_back({uri, {}, false});
  if (!targets_.empty()) target_ = environment_.random() % targets_.size();
}

void Client::execute(Operation operation, std::string_view key, std::string_view value, Then then,
                     std::string_view expected) {
  if (key.size() > kKeyBytesMax || value.size() > kValueBytesMax || expected.size() > kValueBytesMax) {
    return then({{}, Outcome::kMalformed, {}});
  }
  then_ = std::move(then);
  operation_ = operation;
  begun_ = environment_.now();
  attempts_ = redirects_ = 0;
  last_failure_.clear();
  const Command command = {operation, client_, ++sequence_, key, expected, value};
  command_.resize(encoded_bytes(command));
  encode(command, std::as_writable_bytes(std::span(command_)));
  is_registering_ = client_ == 0;
  begin_attempt();
}

void Client::begin_attempt() {
  Target& target = targets_[target_];
  if (!target.has_session) {
    auto session = endpoint_.create_session(target.uri, {.connect_timeout = options_.attempt});
    if (!session.ok()) {
      last_failure_ = std::string(session.status().message());
      return try_later(true);
    }
    target.session = *session;
    target.has_session = true;
  }
  Command registration;
  registration.operation = Operation::kRegister;
  const size_t bytes = kRequestHeadBytes + (is_registering_ ? encoded_bytes(registration) : command_.size());
  if (request_.capacity() < bytes) request_ = endpoint_.alloc_msgbuf(bytes);
  if (response_.capacity() < response_bytes_) response_ = endpoint_.alloc_msgbuf(response_bytes_);
  if (!request_.resize(bytes) || !response_) return fail("there is no memory for the messages of this client");
  Writer writer(request_.bytes());
  writer.write(options_.cluster)
      .write(configuration_)
      .write(static_cast<uint8_t>(options_.has_lease_reads ? kLeaseRead : 0));
  if (is_registering_) {
    encode(registration, request_.bytes().subspan(kRequestHeadBytes));
  } else {
    writer.write(command_.data(), command_.size());
  }
  attempts_total_++;
  const auto accepted =
      endpoint_.enqueue_request(target.session, kExecute, std::move(request_), std::move(response_),
                                [this](tern::Completion& done) { on_attempt(done); }, {.deadline = options_.attempt});
  if (accepted.ok()) return;
  if (accepted.status().code() == tern::Code::kSessionReset) target.has_session = false;
  last_failure_ = std::string(accepted.status().message());
  try_later(true);
}

void Client::on_attempt(tern::Completion& done) {
  request_ = std::move(done.request);
  response_ = std::move(done.response);
  using tern::Code;
  switch (done.status.code()) {
    case Code::kOk: {
      const auto answer = parse_answer(std::as_const(response_).bytes());
      if (!answer) return fail(targets_[target_].uri + " does not answer as a replica of this version");
      if (answer->configuration != 0) learn(*answer);
      return is_registering_ ? on_registered(*answer) : on_answer(*answer);
    }
    case Code::kCancelled:
      return;  // the endpoint closes
    case Code::kTooLarge:
      if (response_bytes_ >= kAnswerBytesMax) break;
      response_bytes_ = kAnswerBytesMax;
      return begin_attempt();
    case Code::kDeadline:
    case Code::kNoResponse:
    case Code::kQueueFull:
    case Code::kNoMemory:
    case Code::kRefused:
      break;
    default: {  // the session has failed
      Target& target = targets_[target_];
      if (target.has_session) (void)endpoint_.destroy_session(target.session);
      target.has_session = false;
    }
  }
  last_failure_ = std::string(done.status.message());
  try_later(true);
}

/// Sets the targets to the given replicas and those of this configuration.
void Client::learn(const Answer& answer) {
  configuration_ = answer.configuration;
  std::string_view rest = answer.replicas;
  std::vector<std::string_view> uris;
  while (!rest.empty() && uris.size() < 2 * kReplicasMax) {
    uris.push_back(rest.substr(0, rest.find('\n')));
    rest.remove_prefix(std::min(rest.size(), uris.back().size() + 1));
  }
  const std::string now = targets_[target_].uri;
  std::erase_if(targets_, [&](const Target& target) {
    const bool stays =
        target.uri == now || std::find(uris.begin(), uris.end(), target.uri) != uris.end() ||
        std::find(options_.replicas.begin(), options_.replicas.end(), target.uri) != options_.replicas.end();
    if (!stays && target.has_session) (void)endpoint_.destroy_session(target.session);
    return !stays;
  });
  for (const std::string_view uri : uris) (void)target_of(uri);
  target_ = target_of(now);
}

void Client::on_registered(const Answer& answer) {
  if (answer.outcome != Outcome::kDone) return on_answer(answer);
  uint64_t client = 0;
  Reader reader(as_bytes(answer.value));
  if (!reader.read(client)) return fail(targets_[target_].uri + " does not answer as a replica of this version");
  client_ = client;
  is_registering_ = false;
  std::memcpy(command_.data() + 1, &client, sizeof(client));
  begin_attempt();
}

void Client::on_answer(const Answer& answer) {
  switch (answer.outcome) {
    case Outcome::kNotLeader: {
      Reader reader(as_bytes(answer.value));
      uint64_t leader = 0;
      if (!reader.read(leader)) return fail(targets_[target_].uri + " does not answer as a replica of this version");
      last_failure_ = targets_[target_].uri + " is not the leader";
      if (leader == 0) return try_later(true);
      return redirect(as_text(reader.rest()));
    }
    case Outcome::kBusy:
      last_failure_ = targets_[target_].uri + " has too many commands waiting";
      return try_later(false);
    case Outcome::kWrongCluster:
      return fail(targets_[target_].uri +
                  " belongs to another cluster: give this client the --cluster of its replicas");
    case Outcome::kExpired:
      client_ = 0;
      return fail(
          "the cluster has forgotten this client, because many others have used it since: the next command "
          "registers it again");
    default:
      return finish(answer.outcome, answer.value);
  }
}

void Client::redirect(std::string_view to) {
  redirects_total_++;
  if (++redirects_ > options_.redirects_max) {
    return fail("the replicas have sent this client from one to the other " + std::to_string(options_.redirects_max) +
                " times, the last one from " + targets_[target_].uri + " to " + std::string(to) +
                ": they disagree about the leader; look at each with --about");
  }
  const size_t next = target_of(to);
  const bool is_new = next != target_;
  target_ = next;
  // The client follows the first redirections at once, and later ones after a pause.
  if (is_new && redirects_ <= targets_.size()) return begin_attempt();
  try_later(false);
}

size_t Client::target_of(std::string_view uri) {
  const auto found = std::find_if(targets_.begin(), targets_.end(), [&](const Target& t) { return t.uri == uri; });
  if (found != targets_.end()) return static_cast<size_t>(found - targets_.begin());
  targets_.push_back({std::string(uri), {}, false});
  return targets_.size() - 1;
}

tern::Duration Client::pause() {
  const auto most = options_.pause * (1u << std::min(attempts_, 6u));
  const auto half = most.count() / 2;  // random, so that clients do not retry at the same moment
  return tern::Duration(half + static_cast<int64_t>(environment_.random() % static_cast<uint64_t>(half + 1)));
}

void Client::try_later(bool is_other) {
  const tern::Duration waited = environment_.now() - begun_;
  if (waited >= options_.patience) {
    return fail("no leader has answered within " +
                std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(options_.patience).count()) +
                " ms; the last failure: " + last_failure_);
  }
  if (is_other) target_ = (target_ + 1) % targets_.size();
  const auto delay = pause();
  attempts_++;
  const auto code = endpoint_.after(delay, [this] { begin_attempt(); }).status().code();
  if (code == tern::Code::kOk || code == tern::Code::kSessionReset) return;  // kSessionReset: the endpoint closes
  fail("there is no memory for a timer");
}

void Client::finish(Outcome outcome, std::string_view value) {
  const Then then = std::exchange(then_, nullptr);
  // The next command uses the buffer that contains the value.
  const std::string copy(value);
  then({{}, outcome, copy});
}

void Client::fail(std::string problem) {
  const Then then = std::exchange(then_, nullptr);
  then({std::move(problem), Outcome::kDone, {}});
}

}  // namespace replicated
