#include "administrator.h"

#include <memory>
#include <utility>

namespace replicated {

Administrator::Administrator(tern::Endpoint& endpoint, tern::Environment& environment, ClientOptions options)
    : endpoint_(endpoint), environment_(environment), options_(std::move(options)) {}

void Administrator::change(Action action, uint64_t id, std::string_view address,
                           std::function<void(std::string)> then) {
  if (address.size() > kAddressBytesMax) return then("the address is longer than 256 bytes");
  action_ = action;
  id_ = id;
  address_ = address;
  then_ = std::move(then);
  begun_ = environment_.now();
  target_ = options_.replicas[next_ % options_.replicas.size()];
  ask();
}

void Administrator::ask() {
  tern::MsgBuf request = endpoint_.alloc_msgbuf(kChangeHeadBytes + address_.size());
  tern::MsgBuf response = endpoint_.alloc_msgbuf(kChangeAnswerBytesMax);
  if (!request || !response) return end("there is no memory for the messages");
  const auto session = endpoint_.create_session(target_, {.connect_timeout = options_.attempt});
  if (!session.ok()) return later(std::string(session.status().message()));
  session_ = *session;
  Writer(request.bytes()).write(options_.cluster).write(action_).write(id_).write_text<uint16_t>(address_);
  // The answer may have to wait until a new replica has received a snapshot. The library notices a dead leader earlier.
  const auto accepted =
      endpoint_.enqueue_request(session_, kChange, std::move(request), std::move(response),
                                [this](tern::Completion& done) { on_answer(done); }, {.deadline = options_.patience});
  if (accepted.ok()) return;
  (void)endpoint_.destroy_session(session_);
  later(std::string(accepted.status().message()));
}

void Administrator::on_answer(tern::Completion& done) {
  if (done.status.code() == tern::Code::kCancelled) return;
  (void)endpoint_.destroy_session(session_);
  if (!done.status.ok()) {
    next_++;
    target_ = options_.replicas[next_ % options_.replicas.size()];
    return later(std::string(done.status.message()));
  }
  Reader reader(std::as_const(done.response).bytes());
  ChangeOutcome outcome;
  uint64_t leader = 0;
  if (!reader.read(outcome)) return end(target_ + " does not answer as a replica of this version");
  switch (outcome) {
    case ChangeOutcome::kDone:
      return end({});
    case ChangeOutcome::kLater:
      return later("another change is under way");
    case ChangeOutcome::kOtherLeader:
      if (!reader.read(leader)) return end(target_ + " does not answer as a replica of this version");
      next_++;
      target_ = leader != 0 ? std::string(as_text(reader.rest())) : options_.replicas[next_ % options_.replicas.size()];
      return later("there is no leader");
    default:
      return end(std::string(as_text(reader.rest())));
  }
}

void Administrator::later(std::string why) {
  if (environment_.now() - begun_ >= options_.patience) return end("the change is not committed yet: " + why);
  if (!endpoint_.after(options_.pause * 16, [this] { ask(); }).ok()) end("there is no memory for a timer");
}

void Administrator::end(std::string problem) { std::exchange(then_, nullptr)(std::move(problem)); }

void Administrator::about(const std::string& uri, std::function<void(std::string, std::string)> then, bool begins) {
  tern::MsgBuf request = endpoint_.alloc_msgbuf(begins ? 1 : 0);
  tern::MsgBuf response = endpoint_.alloc_msgbuf(kAboutBytesMax);
  if (!request || !response) return then({}, "there is no memory for the messages");
  const auto session = endpoint_.create_session(uri, {.connect_timeout = options_.attempt});
  if (!session.ok()) return then({}, std::string(session.status().message()));
  for (std::byte& byte : request.bytes()) byte = std::byte{1};
  const auto shared = std::make_shared<std::function<void(std::string, std::string)>>(std::move(then));
  const auto accepted =
      endpoint_.enqueue_request(*session, kAbout, std::move(request), std::move(response),
                                [this, session = *session, shared](tern::Completion& done) {
                                  if (done.status.code() == tern::Code::kCancelled) return;
                                  (void)endpoint_.destroy_session(session);
                                  if (!done.status.ok()) return (*shared)({}, std::string(done.status.message()));
                                  (*shared)(std::string(as_text(std::as_const(done.response).bytes())), {});
                                },
                                {.deadline = options_.attempt});
  if (accepted.ok()) return;
  (void)endpoint_.destroy_session(*session);
  (*shared)({}, std::string(accepted.status().message()));
}

}  // namespace replicated
