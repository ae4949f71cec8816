// hello: a server and a client. README.md shows their functions.
//
//   hello server              serves on port 31850 until SIGINT or SIGTERM
//   hello tern://HOST:31850   asks that server
//   hello                     does both, on a free port
#include <tern/signals.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include <tern/rpc.h>
#include <tern/transport/udp.h>  // or shm.h, and tern::Shm below: the rest is the same

#include <cstdio>
#include <cstring>
#include <string_view>

tern::Status serve(tern::Nexus& nexus) {
  auto rpc = tern::Rpc<tern::Udp>::create(nexus).value();   // on an error, value() prints the reason and aborts
  auto until_signal = tern::stop_on_signals(*rpc).value();  // SIGINT and SIGTERM make run_event_loop() return
  auto status = rpc->on_request(1, [](tern::Request request) {
    auto reply = request.response(5);
    if (!reply.ok()) return request.fail(1);  // no memory
    std::memcpy(reply->data(), "hello", 5);
    request.respond();
  });
  return status.ok() ? rpc->run_event_loop() : status;
}

tern::Status ask(tern::Nexus& nexus, std::string_view server) {
  auto rpc = tern::Rpc<tern::Udp>::create(nexus, {}, {.endpoint_id = 1}).value();
  auto session = rpc->create_session(server).value();
  tern::Status outcome;
  auto then = [&](tern::Completion& done) {  // runs once, whatever happens
    outcome = done.status;
    const auto answer = done.response.bytes();
    if (outcome.ok()) std::printf("%.*s\n", int(answer.size()), reinterpret_cast<const char*>(answer.data()));
    rpc->stop();
  };
  auto call = rpc->enqueue_request(session, 1, rpc->alloc_msgbuf(0), rpc->alloc_msgbuf(64), then);
  if (!call.ok()) return call.status();
  auto status = rpc->run_event_loop();
  return status.ok() ? outcome : status;
}

int main(int argc, char** argv) {
  const std::string_view role = argc == 2 ? argv[1] : "";
  tern::Status served, asked;
  if (role == "server") {
    auto nexus = tern::Nexus::create("tern://0.0.0.0:31850").value();
    served = serve(*nexus);
  } else if (!role.empty()) {
    auto nexus = tern::Nexus::create("tern://0.0.0.0:0").value();
    asked = ask(*nexus, role);
  } else {
    auto nexus = tern::Nexus::create("tern://127.0.0.1:0").value();
    std::thread server([&] { served = serve(*nexus); });
    for (int i = 0; i < 1000 && !(asked = ask(*nexus, nexus->uri())).ok(); i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the server is not there yet
    }
    std::raise(SIGTERM);
    server.join();
  }
  for (const tern::Status& status : {served, asked}) {
    if (!status.ok()) std::fprintf(stderr, "hello: %s\n", status.message().data());
  }
  return served.ok() && asked.ok() ? 0 : 1;
}
