// hello: a server and its client. README.md shows the program.
#include <tern/rpc.h>
#include <tern/transport/udp.h>  // or shm.h, and tern::Shm below: the rest is the same

#include <cstring>
#include <iostream>

int main(int argc, char** argv) {  // "hello" is a server, "hello tern://HOST:31850" is its client
  auto nexus = tern::Nexus::create(argc < 2 ? "tern://0.0.0.0:31850" : "tern://0.0.0.0:0").value();
  auto rpc = tern::Rpc<tern::Udp>::create(*nexus).value();  // on an error, value() and must() print it and abort
  auto answer = [](tern::Request request) {
    std::memcpy(request.response(6).value().data(), "hello\n", 6);
    request.respond();
  };
  rpc->on_request(1, answer).must();
  if (argc < 2) return rpc->run_event_loop().ok() ? 0 : 1;  // the server runs until it is killed

  auto then = [&](tern::Completion& done) {  // runs once: with the answer, or with the reason why there is none
    done.status.must();
    std::cout << done.response.text();
    rpc->stop();
  };
  auto session = rpc->create_session(argv[1]).value();
  rpc->enqueue_request(session, 1, rpc->alloc_msgbuf(0), rpc->alloc_msgbuf(64), then).value();
  rpc->run_event_loop().must();
}
