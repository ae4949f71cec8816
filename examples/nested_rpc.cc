// nested_rpc: a handler that calls another server, and answers its own client when that server has answered.
//
// The rule: a handler may return without an answer. Its Request moves into the continuation of the nested call, which
// owns it from then on. The continuation answers it; if it is dropped instead, its client gets kNoResponse. There are
// three endpoints: the client calls the front, and the front calls the back.
#include <tern/rpc.h>
#include <tern/transport/shm.h>

#include <cstdio>
#include <string>
#include <thread>

#include "common.h"

constexpr uint16_t kGreet = 1, kFullName = 2;          // request types of the front and of the back
constexpr uint16_t kUnknownName = 7, kBackFailed = 8;  // reasons that the two give to Request::fail

void add_front(tern::Endpoint& front, tern::Session back) {
  must(front.on_request(kGreet, [&front, back](tern::Request request) {
    tern::MsgBuf query = message(front, text_of(request.bytes()));
    tern::MsgBuf room = front.alloc_msgbuf(64);
    // The client waits no longer than this for our answer, so the nested call need not wait longer either.
    const tern::CallOptions options{.deadline = request.time_left()};
    auto then = [request = std::move(request)](tern::Completion& done) mutable {
      if (done.status.code() == tern::Code::kRefused) return request.fail(done.app_code);
      if (!done.status.ok()) return request.fail(kBackFailed);
      request.respond(std::move(done.response));  // sent from the buffer in which it arrived
    };
    // A refused call destroys `then`, and with it the request.
    auto call = front.enqueue_request(back, kFullName, std::move(query), std::move(room), std::move(then), options);
    if (!call.ok()) std::fprintf(stderr, "the back was not asked: %s\n", call.status().message().data());
  }));
}

void add_back(tern::Endpoint& back) {
  must(back.on_request(kFullName, [](tern::Request request) {
    if (text_of(request.bytes()) != "tern") return request.fail(kUnknownName);
    reply(std::move(request), "Sterna paradisaea");
  }));
}

int main() {
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto back = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 0}));
  auto front = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 1}));
  auto client = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 2}));
  add_back(*back);
  add_front(*front, must(front->create_session(nexus->uri() + "/0")));
  std::thread back_thread([&] { must(back->run_event_loop()); });
  std::thread front_thread([&] { must(front->run_event_loop()); });

  const tern::Session session = must(client->create_session(nexus->uri() + "/1"));
  const tern::Completion known = ask(*client, session, kGreet, "tern");
  const std::string name(text_of(known.response.bytes()));
  std::printf("tern: %s\n", known.status.ok() ? name.c_str() : known.status.message().data());
  const tern::Completion unknown = ask(*client, session, kGreet, "unicorn");
  std::printf("unicorn: refused for reason %d\n", unknown.app_code);

  front->stop();
  back->stop();
  front_thread.join();
  back_thread.join();
  return known.status.ok() && name == "Sterna paradisaea" && unknown.app_code == kUnknownName ? 0 : 1;
}
