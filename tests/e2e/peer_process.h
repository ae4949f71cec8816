// The peer's side of peer.h: handlers obey orders and write their observations on the board.
// Each endpoint belongs to one thread with its handlers and its traffic.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <deque>
#include <list>

#include "e2e/any_rpc.h"
#include "e2e/peer.h"
#include "e2e/traffic.h"

namespace e2e {

class PeerEndpoint {
 public:
  PeerEndpoint(std::unique_ptr<AnyRpc> rpc, const Settings& settings, Board& board, bool is_first)
      : rpc_(std::move(rpc)), endpoint_(rpc_->endpoint()), settings_(settings), board_(board), is_first_(is_first) {
    add_handlers();
    if (settings.has("backend")) backend_ = create_session(settings.text("backend"));
    if (settings.has("server")) {
      server_ = create_session(settings.text("server"));
      for (uint64_t i = 0; i < settings.number("outstanding", 1); i++) ask();
    }
    tick();
  }

  /// Runs until the board says kClose.
  void run() {
    must(rpc_->run(tern::Duration::max()));
    is_closing_ = true;
    held_.clear();
    must(rpc_->close(std::chrono::milliseconds(board_.drain_ms.load())));
    if (is_first_) write_counters();
  }

 private:
  static void must(tern::Status status) {
    if (status.ok()) return;
    std::fprintf(stderr, "peer: %.*s\n", static_cast<int>(status.message().size()), status.message().data());
    std::abort();
  }
  tern::Session create_session(const std::string& uri) {
    tern::SessionOptions options;
    options.connect_timeout = std::chrono::seconds(20);
    auto session = endpoint_.create_session(uri, options);
    must(session.status());
    return *session;
  }

  void add_handlers() {
    tern::HandlerOptions large;
    large.max_request_bytes = size_t{1} << 30;
    tern::HandlerOptions worker = large;
    worker.worker = true;
    tern::HandlerOptions small;
    small.max_request_bytes = kSmallLimitBytes;
    must(endpoint_.on_request(
        kEcho, [this](tern::Request request) { echo(std::move(request)); }, large));
    must(endpoint_.on_request(
        kSmall, [this](tern::Request request) { echo(std::move(request)); }, small));
    must(endpoint_.on_request(
        kWork, [this](tern::Request request) { work(std::move(request)); }, large));
    if (settings_.number("answer_at_once") != 0) return;
    must(endpoint_.on_request(
        kWorker, [this](tern::Request request) { work_hard(std::move(request)); }, worker));
    must(endpoint_.on_request(
        kNested, [this](tern::Request request) { pass_on(std::move(request)); }, large));
    must(endpoint_.on_request(kDrop, [this](tern::Request) { board_.handled++; }));
    must(endpoint_.on_request(kFail, [this](tern::Request request) {
      Order order;
      take_order(request, &order);
      request.fail(static_cast<uint16_t>(order.reply_bytes));
    }));
    must(endpoint_.on_request(kHold, [this](tern::Request request) {
      board_.handled++;
      board_.time_left_ns = request.time_left().count();
      board_.held++;
      held_.push_back(std::move(request));
    }));
    must(endpoint_.on_request(kSleep, [this](tern::Request request) {
      Order order;
      take_order(request, &order);
      board_.in_sleep++;
      std::this_thread::sleep_for(std::chrono::microseconds(order.delay_us));
      answer(request, order);
    }));
  }

  void echo(tern::Request request) {
    board_.handled++;
    auto room = request.response(request.bytes().size());
    if (!room.ok()) return;
    if (!room->empty()) std::memcpy(room->data(), request.bytes().data(), room->size());
    request.respond();
  }

  void take_order(const tern::Request& request, Order* order) {
    board_.handled++;
    if (!read_order(request.bytes(), order)) board_.damaged++;
    board_.handled_by_id[order->id % Board::kIds]++;
  }
  static void answer(tern::Request& request, const Order& order) {
    auto room = request.response(order.reply_bytes);
    if (!room.ok()) return;
    fill(*room, ~order.id);
    request.respond();
  }
  void work(tern::Request request) {
    Order order;
    take_order(request, &order);
    if (order.delay_us == 0 || settings_.number("answer_at_once") != 0) return answer(request, order);
    must(endpoint_
             .after(std::chrono::microseconds(order.delay_us),
                    [request = std::move(request), order]() mutable { answer(request, order); })
             .status());
  }
  void work_hard(tern::Request request) {
    Order order;
    take_order(request, &order);
    if (order.delay_us == kUntilRelease) {
      wait_for([&] { return board_.release.load() != 0; });
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(order.delay_us));
    }
    answer(request, order);
  }
  void pass_on(tern::Request request) {
    Order order;
    take_order(request, &order);
    tern::MsgBuf query = endpoint_.alloc_msgbuf(request.bytes().size());
    tern::MsgBuf room = endpoint_.alloc_msgbuf(order.reply_bytes);
    if (!query || !room) return request.fail(1);
    std::memcpy(query.bytes().data(), request.bytes().data(), query.bytes().size());
    const tern::Duration left = request.time_left();
    auto call = endpoint_.enqueue_request(backend_, kWork, std::move(query), std::move(room),
                                          [request = std::move(request)](tern::Completion& done) mutable {
                                            if (!done.status.ok())
                                              return request.fail(static_cast<uint16_t>(done.status.code()));
                                            request.respond(std::move(done.response));
                                          },
                                          {.deadline = left});
    (void)call;  // refused: the request was dropped with the continuation
  }

  /// Sends one more request to the server of this peer's client.
  void ask() {
    const size_t request_bytes = std::max(settings_.number("request_bytes", 32), sizeof(Order));
    const auto reply_bytes = static_cast<uint32_t>(settings_.number("reply_bytes", 32));
    tern::MsgBuf request = endpoint_.alloc_msgbuf(request_bytes);
    tern::MsgBuf room = endpoint_.alloc_msgbuf(reply_bytes);
    if (!request || !room) return must({tern::Code::kNoMemory, "no memory for a request"});
    const uint64_t id = asked_++;
    write_order(request.bytes(), {id, reply_bytes, 0});
    auto call = endpoint_.enqueue_request(server_, kWork, std::move(request), std::move(room),
                                          [this, id](tern::Completion& done) { on_answer(done, id); });
    must(call.status());
  }
  void on_answer(tern::Completion& done, uint64_t id) {
    if (!done.status.ok()) {
      board_.failed++;
      return;
    }
    if (!is_filled(done.response.bytes(), ~id)) board_.damaged++;
    board_.completed++;
    if (!is_closing_) ask();
  }

  void write_counters() {
    const tern::EndpointCounters& counters = endpoint_.counters();
#define TERN_COUNTER(name, what) board_.name = counters.name;
#include <tern/detail/counters.inc>
  }

  /// Answers waiting requests and obeys the test's commands.
  void tick() {
    const bool is_released = board_.release.load() != 0;
    std::erase_if(held_, [&](tern::Request& request) {
      if (request.is_cancelled()) {
        board_.cancels_seen++;
      } else if (is_released) {
        echo(std::move(request));
      } else {
        return false;
      }
      board_.held--;
      return true;
    });
    if (is_first_) write_counters();
    if (is_first_ && board_.command.load() == Board::kFork) fork_child();
    if (board_.command.load() == Board::kClose) return endpoint_.stop();
    must(endpoint_.after(std::chrono::milliseconds(settings_.number("tick_ms", 2)), [this] { tick(); }).status());
  }
  void fork_child() {
    board_.command = Board::kRun;
    const pid_t child = fork();
    if (child == 0) {
      // The child outlives the peer on purpose, but not the test.
      for (int i = 0; i < 120; i++) sleep(1);
      _exit(0);
    }
    board_.child_pid = child;
  }

  std::unique_ptr<AnyRpc> rpc_;
  tern::Endpoint& endpoint_;
  const Settings settings_;
  Board& board_;
  const bool is_first_;
  tern::Session backend_, server_;
  uint64_t asked_ = 0;
  bool is_closing_ = false;
  std::list<tern::Request> held_;
};

/// Writes the error on the board. Returns the exit code of the process.
inline int refuse(Board& board, tern::Status status) {
  board.refused_code = static_cast<uint32_t>(status.code());
  std::snprintf(board.refused_text, sizeof(board.refused_text), "%.*s", static_cast<int>(status.message().size()),
                status.message().data());
  board.state = Board::kRefused;
  return 0;
}

/// main() of a peer process.
inline int run_peer(int argc, char** argv) {
  Settings settings;
  for (int i = 2; i < argc; i++) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    settings.set(word.substr(0, equals), word.substr(equals + 1));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != static_cast<pid_t>(settings.number("parent"))) return 1;
  const auto fd = static_cast<int>(settings.number("board"));
  auto* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return 1;
  ::close(fd);
  Board& board = *static_cast<Board*>(memory);
  if (settings.has("netns")) {
    const std::string name = settings.text("netns");
    const int netns = open((name[0] == '/' ? name : "/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
    if (netns < 0 || setns(netns, CLONE_NEWNET) != 0) return 1;
    ::close(netns);
  }

  tern::NexusOptions options;
  options.liveness_timeout = std::chrono::milliseconds(settings.number("liveness_ms", 500));
  options.worker_threads = settings.number("workers", 2);
  options.worker_queue_limit = settings.number("worker_queue", options.worker_queue_limit);
  auto nexus = tern::Nexus::create(settings.text("listen", "tern://127.0.0.1:0"), options);
  if (!nexus.ok()) return refuse(board, nexus.status());
  std::vector<std::unique_ptr<AnyRpc>> rpcs;
  for (uint16_t id = 0; id < settings.number("endpoints", 1); id++) {
    auto rpc = create_rpc(**nexus, settings, id);
    if (!rpc.ok()) return refuse(board, rpc.status());
    rpcs.push_back(std::move(*rpc));
  }
  std::snprintf(board.uri, sizeof(board.uri), "%s", (*nexus)->uri().c_str());
  // Handlers are registered here, in the thread that made the endpoints. Each endpoint has its own thread from its
  // first loop on.
  PeerEndpoint first(std::move(rpcs[0]), settings, board, true);
  std::vector<std::unique_ptr<PeerEndpoint>> others;
  for (size_t i = 1; i < rpcs.size(); i++) {
    others.push_back(std::make_unique<PeerEndpoint>(std::move(rpcs[i]), settings, board, false));
  }
  std::vector<std::thread> threads;
  for (auto& other : others) threads.emplace_back([&other] { other->run(); });
  board.state = Board::kReady;
  first.run();
  for (std::thread& thread : threads) thread.join();
  board.state = Board::kClosed;
  return 0;
}

/// The executable is also the program of every peer of its tests.
inline int run_main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--peer") return run_peer(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace e2e

int main(int argc, char** argv) { return e2e::run_main(argc, argv); }
