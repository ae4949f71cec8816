// MeshThread: its calls to a simulated server that answers well or wrongly.
#include "../microbench/common/mesh_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "unit/sim/sim_program.h"

namespace programs {
namespace {

using std::chrono::milliseconds;
using tern::sim::SimProgram;

using Answer = void (*)(tern::Request&);

struct Server : SimProgram {
  Server(tern::sim::Host& host, Answer answer) : SimProgram(host) {
    const auto handler = [answer](tern::Request request) { answer(request); };
    EXPECT_TRUE(rpc->on_request(MeshThread::kEcho, handler).ok());
  }
};

class MeshThreadTest : public testing::Test {
 protected:
  /// Runs a thread of host 0, whose peer is host 1, for 1 ms.
  void run(Answer answer) {
    simulation_ = tern::sim::simulate<Server>(tern::sim::Topology::star(2), {}, answer);
    const auto fail = [this](const std::string&, tern::Status status) { failures_.push_back(status.code()); };
    thread_.emplace(*tern::sim::program_of<Server>(*simulation_, 0).rpc, MeshLoad{}, 1, fail);
    ASSERT_TRUE(thread_->prepare().ok());
    ASSERT_TRUE(thread_->connect(simulation_->host(1).uri() + "/0", std::chrono::seconds(1)).ok());
    ASSERT_TRUE(simulation_->run_until([this] { return thread_->is_open(); }, milliseconds(50)));
    ASSERT_TRUE(thread_->start().ok());
    simulation_->run_for(milliseconds(1));
  }

  std::vector<tern::Code> failures_;
  std::optional<MeshThread> thread_;
  std::unique_ptr<tern::sim::Simulation> simulation_;  ///< is destroyed first, because its callbacks use the others
};

TEST_F(MeshThreadTest, echoed_requests_are_counted_until_the_thread_stops) {
  run([](tern::Request& request) { tern::sim::echo(request); });
  EXPECT_GT(thread_->totals().completed, 60u);
  ASSERT_TRUE(thread_->stop().ok());
  EXPECT_TRUE(simulation_->run_until([this] { return thread_->has_stopped(); }, milliseconds(1)));
  EXPECT_TRUE(failures_.empty());
}

TEST_F(MeshThreadTest, answer_that_is_always_the_same_is_a_failure) {
  run([](tern::Request& request) {
    auto out = request.response(request.bytes().size());
    ASSERT_TRUE(out.ok());
    std::fill(out->begin(), out->end(), std::byte{0x5a});
    request.respond();
  });
  EXPECT_EQ(thread_->totals().completed, 0u);
  ASSERT_FALSE(failures_.empty());
  EXPECT_EQ(failures_.front(), tern::Code::kUnavailable);
}

TEST_F(MeshThreadTest, answer_of_another_length_is_a_failure) {
  run([](tern::Request& request) { tern::sim::echo(request, request.bytes().size() - 1); });
  EXPECT_EQ(thread_->totals().completed, 0u);
  ASSERT_FALSE(failures_.empty());
  EXPECT_EQ(failures_.front(), tern::Code::kUnavailable);
}

}  // namespace
}  // namespace programs
