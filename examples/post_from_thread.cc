// post_from_thread: threads that have no endpoint of their own make calls through one that another thread runs.
//
// The rule: other threads use only post() and stop() of an Endpoint. If a posted function never runs, because the
// endpoint was closed first, it is destroyed with its captures. So is the continuation of a refused call. A
// std::promise among the captures is then broken, so that the waiting thread does not wait for ever.
#include <tern/rpc.h>
#include <tern/transport/shm.h>

#include <cctype>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common.h"

constexpr uint16_t kUpper = 1;

/// Any thread. If the call gets no answer, the future throws std::future_error (broken promise).
std::future<std::string> ask_through(tern::Endpoint& endpoint, tern::Session session, std::string text) {
  struct Job {
    std::string text;
    std::promise<std::string> answer;
  };
  auto job = std::make_unique<Job>(Job{std::move(text), {}});
  std::future<std::string> answer = job->answer.get_future();
  // This function runs in the thread of the event loop.
  auto call = [&endpoint, session, job = std::move(job)]() mutable {
    tern::MsgBuf request = message(endpoint, job->text);
    auto then = [job = std::move(job)](tern::Completion& done) {
      if (done.status.ok()) job->answer.set_value(std::string(text_of(done.response.bytes())));
    };
    auto id = endpoint.enqueue_request(session, kUpper, std::move(request), endpoint.alloc_msgbuf(64), std::move(then));
    if (!id.ok()) std::fprintf(stderr, "refused: %s\n", id.status().message().data());
  };
  tern::Status posted = endpoint.post(std::move(call));
  if (!posted.ok()) std::fprintf(stderr, "not posted: %s\n", posted.message().data());
  return answer;
}

int main() {
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto server = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 0}));
  must(server->on_request(kUpper, [](tern::Request request) {
    std::string text(text_of(request.bytes()));
    for (char& letter : text) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    reply(std::move(request), text);
  }));
  auto client = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 1}));
  const tern::Session session = must(client->create_session(nexus->uri() + "/0"));
  std::thread server_thread([&] { must(server->run_event_loop()); });
  std::thread client_thread([&] { must(client->run_event_loop()); });  // owns the client from here on

  std::vector<std::string> answers(4);
  std::vector<std::thread> others;
  for (std::string& answer : answers) {
    const std::string text = "thread " + std::to_string(&answer - answers.data());
    others.emplace_back([&, text] { answer = ask_through(*client, session, text).get(); });
  }
  for (std::thread& other : others) other.join();
  for (const std::string& answer : answers) std::printf("%s\n", answer.c_str());

  client->stop();
  server->stop();
  client_thread.join();
  server_thread.join();
  return answers == std::vector<std::string>{"THREAD 0", "THREAD 1", "THREAD 2", "THREAD 3"} ? 0 : 1;
}
