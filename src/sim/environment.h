// The Environment of a Nexus on a simulated host: the host's clock and random sequence, a management channel through
// the simulated network, and worker threads whose tasks take declared times.
// Sim layer. All hosts run in one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tern/environment.h>

namespace tern::sim {

class HostCore;

/// The IPv4 address of a simulated host, as text. All hosts are in 10.0.0.0/8.
std::string address_of(uint32_t host);
/// Parses "10.X.Y.Z:PORT". Returns false if the text has another form; `host` and `port` then have any value.
bool parse_address(std::string_view text, uint32_t& host, uint32_t& port);

class HostEnvironment final : public Environment {
 public:
  explicit HostEnvironment(HostCore& host) : host_(host) {}
  Duration now() override;
  uint64_t random() override;
  Result<std::unique_ptr<ManagementChannel>> listen(std::string_view address, ManagementSink& sink) override;
  Result<std::string> resolve(std::string_view host_and_port) override;
  Result<std::unique_ptr<WorkerPool>> start_workers(size_t threads, size_t queue_limit) override;

 private:
  HostCore& host_;
};

}  // namespace tern::sim
