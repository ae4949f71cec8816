// Changes the configuration of a cluster and queries its replicas (admin.h). Its endpoint's thread owns it. One request
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
  /// All arguments must outlive the endpoint, and so must this object. It uses the options `cluster`, `replicas`,
  /// `attempt`, `patience` and `pause`.
  Administrator(tern::Endpoint& endpoint, tern::Environment& environment, ClientOptions options);
  Administrator(const Administrator&) = delete;
  Administrator& operator=(const Administrator&) = delete;

  /// Adds a replica that runs and waits, or removes a replica. Calls `then` with an empty text when the change is
  /// committed, otherwise with an error message. If the leader's end interrupted the change, it can be requested again.
  /// The id of an addition may then be used up; the message asks for a higher id.
  void change(Action action, uint64_t id, std::string_view address, std::function<void(std::string)> then);
  /// Calls `then` with the JSON object of the replica at `uri`, or with an empty object and the reason. `begins`: the
  /// replica's measurement begins again.
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
  size_t next_ = 0;  ///< index of the next replica in the options' replicas
  tern::Session session_;
  tern::Duration begun_{};
  std::function<void(std::string)> then_;
};

}  // namespace replicated
