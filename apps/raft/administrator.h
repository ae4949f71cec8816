// Changes the configuration of a cluster and looks at its replicas (admin.h). Owned by its endpoint's thread. One thing
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <tern/endpoint.h>
#include <tern/environment.h>

#include "admin.h"
#include "client.h"

namespace replicated {

class Administrator {
 public:
  /// All arguments outlive the endpoint, and this outlives it too. Of the options, `cluster`, `replicas`, `attempt`,
  /// `patience` and `pause` are used.
  Administrator(tern::Endpoint& endpoint, tern::Environment& environment, ClientOptions options);
  Administrator(const Administrator&) = delete;
  Administrator& operator=(const Administrator&) = delete;

  /// Adds a replica that runs and waits, or removes one. `then` gets an empty text when that is committed, or a
  /// sentence. A change that was interrupted by the leader's end can be asked for again; the id of an addition may be
  /// used up then, and the sentence asks for a higher one.
  void change(Action action, uint64_t id, std::string_view address, std::function<void(std::string)> then);
  /// The JSON object of the replica at `uri`; or empty, and why. `begins`: its measurement begins again.
  void about(const std::string& uri, std::function<void(std::string json, std::string problem)> then,
             bool begins = false);

 private:
  void ask();
  void on_answer(tern::Completion& done);
  void later(std::string why);
  void end(std::string problem);

  tern::Endpoint& endpoint_;
  tern::Environment& environment_;
  const ClientOptions options_;
  Action action_ = Action::kAdd;
  uint64_t id_ = 0;
  std::string address_, target_;
  size_t next_ = 0;  ///< of the options' replicas
  tern::Session session_;
  tern::Duration begun_{};
  std::function<void(std::string)> then_;
};

}  // namespace replicated
