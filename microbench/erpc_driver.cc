// erpc_driver: like instructions_driver, with both endpoints written against <tern/compat/erpc/rpc.h>, over shm. The
// difference is the cost of eRPC's interface (scripts/instructions_per_rpc --transport=erpc).
#define TERN_ERPC_TRANSPORT tern::Shm
#define TERN_ERPC_TRANSPORT_HEADER <tern/transport/shm.h>
#include <tern/compat/erpc/rpc.h>

#include "../apps/common/report.h"
#include "common/driver.h"

// callgrind needs these names; the asm keeps the calls from becoming jumps, as in instructions_driver.
extern "C" [[gnu::noinline]] void client_loop(erpc::Rpc<erpc::CTransport>* rpc) {
  rpc->run_event_loop_once();
  asm volatile("" ::: "memory");
}
extern "C" [[gnu::noinline]] void server_loop(erpc::Rpc<erpc::CTransport>* rpc) {
  rpc->run_event_loop_once();
  asm volatile("" ::: "memory");
}

namespace {

using CRpc = erpc::Rpc<erpc::CTransport>;
constexpr uint8_t kAdd = 1;

struct Call {
  int session;
  erpc::MsgBuffer request, response;
};

/// The context of both Rpcs.
struct Driver {
  CRpc* server = nullptr;
  CRpc* client = nullptr;
  std::vector<Call> calls;
  uint64_t left = 0, completed = 0;
};

void add(erpc::ReqHandle* handle, void* context) {
  const erpc::MsgBuffer* request = handle->get_req_msgbuf();
  const size_t bytes = request->get_data_size();
  CRpc::resize_msg_buffer(&handle->pre_resp_msgbuf_, bytes);
  uint8_t* const out = handle->pre_resp_msgbuf_.buf_;
  microbench::copy_message(out, request->buf_, bytes);
  uint64_t value;
  std::memcpy(&value, request->buf_, sizeof(value));
  ++value;
  std::memcpy(out, &value, sizeof(value));
  static_cast<Driver*>(context)->server->enqueue_response(handle, &handle->pre_resp_msgbuf_);
}

void on_done(void* context, void* tag);
void issue(Driver& driver, Call& call) {
  if (driver.left > 0) --driver.left;
  driver.client->enqueue_request(call.session, kAdd, &call.request, &call.response, on_done, &call);
}

void on_done(void* context, void* tag) {
  auto& driver = *static_cast<Driver*>(context);
  auto& call = *static_cast<Call*>(tag);
  erpc::rt_assert(call.response.get_data_size() == FLAGS_size, "a call has failed");
  std::memcpy(call.request.buf_, call.response.buf_, sizeof(uint64_t));
  ++driver.completed;
  if (driver.left > 0) [[likely]]
    issue(driver, call);
}

int run() {
  auto free_port = tern::Nexus::create("tern://127.0.0.1:0");
  erpc::rt_assert(free_port.ok(), "no free port");
  const std::string uri = (*free_port)->uri().substr(std::string_view("tern://").size());
  free_port->reset();
  erpc::Nexus nexus(uri);
  nexus.register_req_func(kAdd, add);
  Driver driver;
  CRpc server(&nexus, &driver, 0, nullptr), client(&nexus, &driver, 1, nullptr);
  driver.server = &server;
  driver.client = &client;
  driver.calls.resize(std::max(FLAGS_window, FLAGS_sessions));
  for (size_t i = 0; i < driver.calls.size(); ++i) {
    Call& call = driver.calls[i];
    call.session = i < FLAGS_sessions ? client.create_session(uri, 0) : driver.calls[i % FLAGS_sessions].session;
    call.request = client.alloc_msg_buffer_or_die(FLAGS_size);
    call.response = client.alloc_msg_buffer_or_die(FLAGS_size);
    std::memset(call.request.buf_, 0, FLAGS_size);
  }
  // First one call on each session, which is not counted.
  const auto run_until = [&](auto&& is_true) {
    while (!is_true()) {
      client.run_event_loop_once();
      server.run_event_loop_once();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  for (uint64_t i = 0; i < FLAGS_sessions; ++i) {
    run_until([&] { return client.is_connected(driver.calls[i].session); });
    issue(driver, driver.calls[i]);
  }
  run_until([&] { return driver.completed == FLAGS_sessions; });
  driver.completed = 0;
  driver.left = FLAGS_rpcs;
  for (uint64_t i = 0; i < std::min<uint64_t>(FLAGS_window, FLAGS_rpcs); ++i) issue(driver, driver.calls[i]);
  while (driver.completed < FLAGS_rpcs) {
    client_loop(&client);
    server_loop(&server);
  }
  std::printf("%zu RPCs completed\n", static_cast<size_t>(driver.completed));
  return programs::end_output();
}

/// Checks flags that other drivers have. On error it prints a sentence and returns false.
bool check_flags() {
  const auto refuse = [](const char* name) {
    programs::fail("--%s does not work here: eRPC's interface runs over shm, with the defaults of the library", name);
    return false;
  };
  if (programs::is_given("transport") && FLAGS_transport != tern::Shm::kName) return refuse("transport");
  for (const char* name :
       {"transport_options", "server_transport_options", "cc", "wait", "json", "page", "log", "trace", "seconds"}) {
    if (programs::is_given(name)) return refuse(name);
  }
  return microbench::check_driver_flags(erpc::CTransport::kMTU) && microbench::check_no_faults();
}

}  // namespace

int main(int argc, char** argv) {
  if (!programs::parse_flags(argc, argv, "RPCs by eRPC's names, for callgrind to count")) return 1;
  if (!check_flags()) return 1;
  try {
    return run();
  } catch (const std::exception& error) {
    programs::fail("%s", error.what());
    return 1;
  }
}
