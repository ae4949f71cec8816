// erpc_driver: as instructions_driver, with both endpoints written against <tern/compat/erpc/rpc.h>, over shm. The
// difference is what eRPC's names cost (scripts/instructions_per_rpc --transport=erpc).
#define TERN_ERPC_TRANSPORT tern::Shm
#define TERN_ERPC_TRANSPORT_HEADER <tern/transport/shm.h>
#include <tern/compat/erpc/rpc.h>

#include "../apps/common/flags.h"

DEFINE_uint64(rpcs, 100000, "RPCs to complete");
DEFINE_uint64(window, 60, "requests in flight, at most 8 a session");
DEFINE_uint64(sessions, 8, "sessions; the window is dealt out to them in turn");
DEFINE_uint64(size, 32, "bytes of a request and of its response, at least 8");

// Named for callgrind, and kept from becoming jumps, as in instructions_driver.
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
constexpr size_t kCommonBytes = 32;

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

/// An application knows how large its messages mostly are.
void copy_message(uint8_t* to, const uint8_t* from, size_t bytes) {
  if (bytes == kCommonBytes) [[likely]] {
    std::memcpy(to, from, kCommonBytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

void add(erpc::ReqHandle* handle, void* context) {
  const erpc::MsgBuffer* request = handle->get_req_msgbuf();
  const size_t bytes = request->get_data_size();
  CRpc::resize_msg_buffer(&handle->pre_resp_msgbuf_, bytes);
  uint8_t* const out = handle->pre_resp_msgbuf_.buf_;
  copy_message(out, request->buf_, bytes);
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
  // One call on each session first, outside of the count.
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
  return 0;
}

/// False: the sentence has been printed.
bool check_flags() {
  const char* problem = nullptr;
  if (FLAGS_role != "both" || FLAGS_processes || !FLAGS_server.empty() || !FLAGS_listen.empty() ||
      !FLAGS_cpus.empty()) {
    problem = "both sides are in one thread here: no --role, --processes, --server, --listen or --cpus";
  } else if (FLAGS_rpcs < 1 || FLAGS_rpcs > 1'000'000'000) {
    problem = "--rpcs is between 1 and 1000000000";
  } else if (FLAGS_sessions < 1 || FLAGS_sessions > 65536) {
    problem = "--sessions is between 1 and 65536";
  } else if (FLAGS_window < 1 || FLAGS_window > 8 * FLAGS_sessions) {
    problem = "--window is between 1 and 8 times --sessions";
  } else if (FLAGS_size < sizeof(uint64_t) || FLAGS_size > erpc::CTransport::kMTU) {
    problem = "--size is between 8 and 1024";
  }
  if (problem != nullptr) programs::fail("%s", problem);
  return problem == nullptr;
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
