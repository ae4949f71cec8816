// One call from an endpoint to another endpoint of the same thread, over any transport.
#pragma once

#include <tern/rpc.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

/// Returns 0, or 1 with the reason on stderr.
template <tern::Transport T>
int call(std::string_view label, typename T::Options transport_options = {}) {
  const auto fail = [label](tern::Status status) {
    std::fprintf(stderr, "%s: %s\n", label.data(), status.message().data());
    return 1;
  };
  auto nexus = tern::Nexus::create("tern://127.0.0.1:0");
  if (!nexus.ok()) return fail(nexus.status());
  tern::RpcOptions options;
  options.endpoint_id = 1;
  auto server = tern::Rpc<T>::create(**nexus, transport_options, options);
  if (!server.ok()) return fail(server.status());
  options.endpoint_id = 2;
  auto client = tern::Rpc<T>::create(**nexus, transport_options, options);
  if (!client.ok()) return fail(client.status());

  const auto reverse = [](tern::Request request) {
    const auto question = request.bytes();
    auto reply = request.response(question.size());
    if (!reply.ok()) return request.fail(1);
    for (size_t i = 0; i < question.size(); i++) (*reply)[i] = question[question.size() - 1 - i];
    request.respond();
  };
  if (auto status = (*server)->on_request(7, reverse); !status.ok()) return fail(status);

  auto session = (*client)->create_session((*nexus)->uri() + "/1");
  if (!session.ok()) return fail(session.status());
  auto question = (*client)->alloc_msgbuf(6);
  std::memcpy(question.bytes().data(), "pocket", 6);
  std::string answer;
  tern::Status outcome;
  bool is_over = false;
  const auto then = [&](tern::Completion& done) {
    outcome = done.status;
    const auto bytes = done.response.bytes();
    answer.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    is_over = true;
  };
  auto sent = (*client)->enqueue_request(*session, 7, std::move(question), (*client)->alloc_msgbuf(64), then);
  if (!sent.ok()) return fail(sent.status());
  while (!is_over) {  // the session's timeouts bound the loop
    if (auto turn = (*server)->run_event_loop_once(); !turn.ok()) return fail(turn.status());
    if (auto turn = (*client)->run_event_loop_once(); !turn.ok()) return fail(turn.status());
  }
  if (!outcome.ok()) return fail(outcome);
  std::printf("%s: %s\n", label.data(), answer.c_str());
  return answer == "tekcop" ? 0 : 1;
}
