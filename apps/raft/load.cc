#include "load.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "bytes.h"
#include "message.h"

namespace replicated {

namespace {

enum class Stage { kLoading, kRunning, kReadingBack, kDone };

/// A text that depends on all arguments. The load checks it when it reads the value.
std::string value_of(uint64_t key, uint64_t version, size_t bytes) {
  std::string value(bytes, static_cast<char>('a' + (key + version) % 26));
  std::memcpy(value.data(), &key, sizeof(key));
  std::memcpy(value.data() + sizeof(key), &version, sizeof(version));
  return value;
}

}  // namespace

struct Load::Worker {
  Worker(tern::Endpoint& endpoint, tern::Environment& environment, const LoadOptions& options, size_t index)
      : client(endpoint, environment, options.client), place(index) {}
  Client client;
  const size_t place;
  Stage stage = Stage::kLoading;
  uint64_t cursor = 0;            ///< kLoading, kReadingBack
  std::vector<uint32_t> issued;   ///< by own key: the highest version that was sent
  std::vector<uint32_t> settled;  ///< by own key: the highest version that was acknowledged
  tern::Duration begun{};
  tern::MsgBuf echo_request, echo_response;
  tern::Session echo_session;
  bool has_echo_session = false;
};

Load::Load(tern::Endpoint& endpoint, tern::Environment& environment, LoadOptions options)
    : endpoint_(endpoint), environment_(environment), options_(std::move(options)) {
  for (size_t i = 0; i < options_.clients; i++) {
    workers_.push_back(std::make_unique<Worker>(endpoint, environment, options_, i));
    workers_.back()->issued.resize(own_keys(*workers_.back()));
    workers_.back()->settled.resize(own_keys(*workers_.back()));
  }
}

Load::~Load() = default;

const std::string& Load::leader() const { return workers_.front()->client.leader(); }

uint64_t Load::own_keys(const Worker& worker) const {
  return options_.keys / options_.clients + (worker.place < options_.keys % options_.clients ? 1 : 0);
}

void Load::begin() {
  for (auto& worker : workers_) next(*worker);
}

LoadReport Load::report() const {
  LoadReport report = report_;
  report.seconds = std::chrono::duration<double>(run_ended_ - run_begun_).count();
  for (const auto& worker : workers_) {
    report.redirects += worker->client.redirects();
    report.attempts += worker->client.attempts();
  }
  return report;
}

void Load::fail(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

void Load::next(Worker& worker) {
  if (!problem_.empty()) return;
  const uint64_t own = own_keys(worker);
  switch (worker.stage) {
    case Stage::kLoading:
      if (options_.loads_all_keys && worker.cursor < own && !is_stopped_) return put(worker, worker.cursor++);
      worker.stage = Stage::kRunning;
      if (running_++ == 0) run_begun_ = environment_.now();
      worker.begun = environment_.now();
      [[fallthrough]];
    case Stage::kRunning: {
      const bool is_over = is_stopped_ || environment_.now() - worker.begun >= options_.length ||
                           (options_.operations > 0 && operations_ >= options_.operations);
      if (!is_over) return run(worker);
      run_ended_ = std::max(run_ended_, environment_.now());
      worker.stage = Stage::kReadingBack;
      worker.cursor = 0;
      [[fallthrough]];
    }
    case Stage::kReadingBack: {
      // A sample of the keys that were put, spread evenly.
      const uint64_t step = std::max<uint64_t>(1, own / std::max<uint64_t>(options_.read_back_max, 1));
      while (worker.cursor < own && worker.issued[worker.cursor] == 0) worker.cursor++;
      if (worker.cursor < own && options_.read_back_max > 0) {
        const uint64_t key = worker.cursor;
        worker.cursor += step;
        return get(worker, key);
      }
      worker.stage = Stage::kDone;
      running_--;
      done_++;
      return;
    }
    case Stage::kDone:
      return;
  }
}

void Load::run(Worker& worker) {
  operations_++;
  const uint64_t key = random(own_keys(worker));
  const bool is_get = options_.get_share > 0 && static_cast<double>(random(1u << 20)) < options_.get_share * (1u << 20);
  is_get ? get(worker, key) : put(worker, key);
}

namespace {

std::string key_text(uint64_t key, size_t clients, size_t place, size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(key * clients + place));
  std::string all(text);
  all.resize(bytes, 'k');
  return all;
}

}  // namespace

void Load::put(Worker& worker, uint64_t key) {
  const uint32_t version = ++worker.issued[key];
  const tern::Duration begun = environment_.now();
  const bool is_measured = worker.stage == Stage::kRunning;
  worker.client.put(key_text(key, options_.clients, worker.place, options_.key_bytes),
                    value_of(key, version, options_.value_bytes),
                    [this, &worker, key, version, begun, is_measured](const Reply& reply) {
                      if (!reply.problem.empty()) {
                        report_.unknown++;
                        if (is_stopped_ || worker.stage == Stage::kLoading) return fail(reply.problem);
                        return next(worker);
                      }
                      if (reply.outcome != Outcome::kDone) return fail("a PUT was refused: the store is full");
                      worker.settled[key] = version;
                      report_.acknowledged++;
                      if (is_measured) report_.puts.add(environment_.now() - begun);
                      worker.place == 0 && options_.has_echoes&& is_measured ? echo(worker) : next(worker);
                    });
}

void Load::get(Worker& worker, uint64_t key) {
  const tern::Duration begun = environment_.now();
  worker.client.get(key_text(key, options_.clients, worker.place, options_.key_bytes),
                    [this, &worker, key, begun](const Reply& reply) {
                      if (!reply.problem.empty()) {
                        report_.unknown++;
                        if (worker.stage == Stage::kReadingBack)
                          return fail("nothing can be read back: " + reply.problem);
                        return next(worker);
                      }
                      check(worker, key, reply);
                      if (worker.stage == Stage::kRunning) report_.gets.add(environment_.now() - begun);
                      if (worker.stage == Stage::kReadingBack) report_.read_back++;
                      next(worker);
                    });
}

void Load::check(Worker& worker, uint64_t key, const Reply& reply) {
  uint64_t version = 0;
  if (reply.outcome == Outcome::kDone) {
    if (reply.value.size() != options_.value_bytes) return fail("a value has another length than was put");
    std::memcpy(&version, reply.value.data() + sizeof(key), sizeof(version));
    if (reply.value != value_of(key, version, options_.value_bytes)) return fail("a value is not one that was put");
  }
  if (version < worker.settled[key]) {
    return fail("a PUT was acknowledged, and is lost: version " + std::to_string(version) + " is there instead of " +
                std::to_string(worker.settled[key]));
  }
  if (version > worker.issued[key]) return fail("a value is newer than any that was put");
  worker.settled[key] = static_cast<uint32_t>(version);
}

void Load::echo(Worker& worker) {
  const size_t bytes = kRequestHeadBytes + kCommandHeadBytes + options_.key_bytes + options_.value_bytes;
  if (!worker.has_echo_session) {
    auto session = endpoint_.create_session(worker.client.leader());
    if (!session.ok()) return fail("no session for echoes: " + std::string(session.status().message()));
    worker.echo_session = *session;
    worker.has_echo_session = true;
    worker.echo_request = endpoint_.alloc_msgbuf(bytes);
    worker.echo_response = endpoint_.alloc_msgbuf(512);
  }
  const tern::Duration begun = environment_.now();
  if (!worker.echo_request.resize(bytes)) return fail("there is no memory for echoes");
  const auto accepted =
      endpoint_.enqueue_request(worker.echo_session, kEcho, std::move(worker.echo_request),
                                std::move(worker.echo_response), [this, &worker, begun](tern::Completion& done) {
                                  worker.echo_request = std::move(done.request);
                                  worker.echo_response = std::move(done.response);
                                  if (done.status.code() == tern::Code::kCancelled) return;
                                  if (!done.status.ok())
                                    return fail("an echo has failed: " + std::string(done.status.message()));
                                  report_.echoes.add(environment_.now() - begun);
                                  next(worker);
                                });
  if (!accepted.ok()) fail("no echo: " + std::string(accepted.status().message()));
}

}  // namespace replicated
