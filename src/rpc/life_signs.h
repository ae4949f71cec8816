// The endpoint's evidence that its peers live. Data is also a sign of life (docs/protocol.md, 7.5.2).
// Owner thread only.
#pragma once

#include <cstdint>
#include <vector>

#include <tern/detail/export.h>

#include "rpc/endpoint_context.h"
#include "rpc/peers.h"

namespace tern::rpc {

/// Answers the Nexus's questions whether packets of a peer have come. A packet that has arrived may still be unread, so
/// a question that finds no sign of life waits until all packets have been read.
class TERN_API LifeSigns {
 public:
  LifeSigns(EndpointContext& context, Peers& peers) : context_(context), peers_(peers) {}

  /// Takes a question of the Nexus (ControlEvent::Kind::kAskLife).
  void on_question(nexus::ControlEvent& event);
  /// Tries to answer the questions that wait. `has_read_all`: this iteration has found nothing to receive.
  void answer(bool has_read_all);
  /// Called in each run_due() that checks everything. `idle_iterations`: iterations so far that received nothing.
  void note_what_is_read(bool has_read_all, uint32_t idle_iterations);
  /// All packets that arrived before this time have been read, ns.
  uint64_t read_until_ns() const { return read_until_ns_; }
  void clear() { questions_.clear(); }

 private:
  /// A question that waits until all packets that have arrived are read, or for many iterations.
  struct Question {
    nexus::ControlEvent event;
    uint32_t iterations;  ///< that it has waited
  };
  struct Signs {
    uint64_t heard_ns = 0;  ///< latest time of a packet whose time was noted
    uint64_t packets = 0;   ///< packets that the server sessions have received
  };
  static Signs signs_of(const Run& run);
  bool note_sign(const nexus::ControlEvent& question, const Run& run, const Signs& signs);

  EndpointContext& context_;
  Peers& peers_;
  std::vector<Question> questions_;
  uint64_t read_until_ns_ = 0;
  uint64_t noted_ns_ = 0;         ///< time of the last note_what_is_read()
  uint32_t idle_iterations_ = 0;  ///< the count at noted_ns_
};

}  // namespace tern::rpc
