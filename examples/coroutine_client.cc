// coroutine_client: calls that read as if they blocked, in a client and in a handler.
//
// The rule: a coroutine is resumed inside the event loop when its answer has come. It is always resumed: the Completion
// of a failed or refused call has the reason. Parameters by value move into the coroutine's frame and live as long as
// the frame. A span into a request must be taken again after each co_await. There are three endpoints: the client calls
// the front, whose handler is a coroutine that calls the store twice.
#include <tern/coroutine.h>
#include <tern/rpc.h>
#include <tern/transport/shm.h>

#include <cstdio>
#include <map>
#include <string>
#include <thread>

#include "common.h"

constexpr uint16_t kGet = 1, kPut = 2, kCopy = 3;
constexpr uint16_t kNoSuchKey = 7, kStoreFailed = 8;

/// "FROM TO": the handler of kCopy.
tern::Detached copy(tern::Endpoint& front, tern::Session store, tern::Request request) {
  const std::string keys(text_of(request.bytes()));
  const std::string from = keys.substr(0, keys.find(' ')), to = keys.substr(keys.find(' ') + 1);

  tern::Completion got = co_await front.call(store, kGet, message(front, from), front.alloc_msgbuf(64));
  if (got.status.code() == tern::Code::kRefused) co_return request.fail(got.app_code);
  if (!got.status.ok()) co_return request.fail(kStoreFailed);

  const std::string entry = to + " " + std::string(text_of(got.response.bytes()));
  // The call has returned both buffers. The answer's buffer is used again.
  tern::Completion put = co_await front.call(store, kPut, message(front, entry), std::move(got.response));
  if (!put.status.ok()) co_return request.fail(kStoreFailed);
  request.respond();
}

/// The client: copies along the chain, one after the other.
tern::Detached copy_all(tern::Endpoint& client, tern::Session front, int& copied, uint16_t& refusal) {
  for (const char* keys : {"a b", "b c", "c d", "nothing e"}) {
    tern::Completion done = co_await client.call(front, kCopy, message(client, keys), client.alloc_msgbuf(0));
    std::printf("copy %s: %s\n", keys, done.status.message().data());
    if (done.status.ok()) copied++;
    refusal = done.app_code;
  }
  client.stop();
}

void add_store(tern::Endpoint& store, std::map<std::string, std::string, std::less<>>& values) {
  must(store.on_request(kGet, [&](tern::Request request) {
    const auto found = values.find(text_of(request.bytes()));
    if (found == values.end()) return request.fail(kNoSuchKey);
    reply(std::move(request), found->second);
  }));
  must(store.on_request(kPut, [&](tern::Request request) {
    const std::string_view entry = text_of(request.bytes());
    values.insert_or_assign(std::string(entry.substr(0, entry.find(' '))), entry.substr(entry.find(' ') + 1));
    request.respond();
  }));
}

int main() {
  std::map<std::string, std::string, std::less<>> values = {{"a", "42"}};
  auto nexus = must(tern::Nexus::create("tern://127.0.0.1:0"));
  auto store = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 0}));
  auto front = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 1}));
  auto client = must(tern::Rpc<tern::Shm>::create(*nexus, {}, {.endpoint_id = 2}));
  add_store(*store, values);
  const tern::Session to_store = must(front->create_session(nexus->uri() + "/0"));
  must(front->on_request(kCopy, [&](tern::Request request) { copy(*front, to_store, std::move(request)); }));
  std::thread store_thread([&] { must(store->run_event_loop()); });
  std::thread front_thread([&] { must(front->run_event_loop()); });

  int copied = 0;
  uint16_t refusal = 0;
  copy_all(*client, must(client->create_session(nexus->uri() + "/1")), copied, refusal);  // returns at its first wait
  must(client->run_event_loop());

  front->stop();
  store->stop();
  front_thread.join();
  store_thread.join();
  std::printf("d is %s\n", values["d"].c_str());
  return copied == 3 && refusal == kNoSuchKey && values["d"] == "42" ? 0 : 1;
}
