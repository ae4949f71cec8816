// fresh_client: "fresh_client shm|udp HOST:PORT" makes one call to a server that is apps/hello, and prints a line when
// the response is there. scripts/bench measures the time from the start of the process to that line. It links tern
// alone, as a user's program over these transports does: to map and relocate the packages of all transports (DPDK,
// rdma-core, libbpf) takes longer than everything else together.
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>

#include <tern/rpc.h>
#include <tern/transport/shm.h>
#include <tern/transport/udp.h>

namespace {

constexpr uint16_t kHello = 1;  // as in apps/hello.cc

template <tern::Transport T>
int call(const std::string& server) {
  auto nexus = tern::Nexus::create("tern://0.0.0.0:0").value();
  auto rpc = tern::Rpc<T>::create(*nexus).value();
  const auto session = rpc->create_session("tern://" + server).value();
  const auto then = [&rpc](tern::Completion& done) {
    done.status.must();
    std::cout << "answered" << std::endl;
    rpc->stop();
  };
  rpc->enqueue_request(session, kHello, rpc->alloc_msgbuf(0), rpc->alloc_msgbuf(1024), then).value();
  rpc->run_event_loop().must();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view transport = argc == 3 ? argv[1] : "";
  if (transport == "shm") return call<tern::Shm>(argv[2]);
  if (transport == "udp") return call<tern::Udp>(argv[2]);
  std::cerr << "usage: fresh_client shm|udp HOST:PORT (the server: apps/hello --role=server)\n";
  return 2;
}
