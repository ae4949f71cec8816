#include "rpc/life_signs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/try.h"
#include "rpc/client.h"
#include "rpc/server.h"

namespace tern::rpc {

namespace {

/// Most iterations for which a question waits for packets in the receive queue. A socket's buffer has some thousand.
constexpr uint32_t kIterationsMax = 256;
/// While the endpoint never reads all packets, read_until_ns() advances at 1/kReadParts of the clock's speed. It stays
/// behind by at most kReadTimeouts liveness timeouts, so that a silent peer is noticed under any load.
constexpr uint64_t kReadParts = 8;
constexpr uint64_t kReadTimeouts = 8;

}  // namespace

void LifeSigns::on_question(nexus::ControlEvent& event) {
  Run* run = peers_.find_run(event.peer.boot_id);
  if (run == nullptr) return;
  const Signs signs = signs_of(*run);
  const bool is_alive = note_sign(event, *run, signs);
  run->life_asked_ns = context_.now_ns;
  run->life_packets = signs.packets;
  if (is_alive || !base::try_reserve(questions_, questions_.size() + 1)) return;
  questions_.push_back({std::move(event), 0});
  context_.agenda.at_latest(context_.now_ns);
}

LifeSigns::Signs LifeSigns::signs_of(const Run& run) {
  Signs signs;
  for (const Client* client = run.clients.first(); client != nullptr; client = run.clients.after(client)) {
    signs.heard_ns = std::max(signs.heard_ns, client->session.last_answer_ns());
  }
  for (const Server* server = run.servers.first(); server != nullptr; server = run.servers.after(server)) {
    if (server->is_pathless) continue;
    signs.heard_ns = std::max(signs.heard_ns, server->heard_ns);
    signs.packets += server->session.packets_received();
  }
  return signs;
}

/// Returns true if there was a sign of the peer's life since `since_ns`. A server session notes no time of a packet of
/// the common case. Such a packet is a sign if an earlier question was asked since `since_ns`, and the packet came
/// after that question.
bool LifeSigns::note_sign(const nexus::ControlEvent& question, const Run& run, const Signs& signs) {
  const bool has_news = run.life_asked_ns >= question.since_ns && signs.packets > run.life_packets;
  const uint64_t heard_ns = has_news ? context_.now_ns : signs.heard_ns;
  if (heard_ns <= question.since_ns) return false;
  nexus::EndpointPort::note_life(question, heard_ns);
  return true;
}

void LifeSigns::answer(bool has_read_all) {
  if (questions_.empty()) return;
  std::erase_if(questions_, [&](Question& question) {
    const bool is_last = has_read_all || ++question.iterations == kIterationsMax;
    // A look visits all sessions of the peer. At fewer and fewer iterations it does not delay other peers.
    if (!is_last && !std::has_single_bit(question.iterations)) return false;
    const Run* run = peers_.find_run(question.event.peer.boot_id);
    return run == nullptr || note_sign(question.event, *run, signs_of(*run)) || is_last;
  });
  if (!questions_.empty()) context_.agenda.at_latest(context_.now_ns);
}

/// An iteration that received nothing has read all packets that came before it.
void LifeSigns::note_what_is_read(bool has_read_all, uint32_t idle_iterations) {
  const uint64_t now_ns = context_.now_ns;
  if (has_read_all) {
    read_until_ns_ = now_ns;
  } else if (idle_iterations != idle_iterations_) {
    read_until_ns_ = noted_ns_;
  } else {
    const uint64_t oldest_ns = kReadTimeouts * to_ns(context_.nexus.options().liveness_timeout);
    read_until_ns_ += (now_ns - noted_ns_) / kReadParts;
    read_until_ns_ = std::max(read_until_ns_, now_ns - std::min(now_ns, oldest_ns));
  }
  idle_iterations_ = idle_iterations;
  noted_ns_ = now_ns;
}

}  // namespace tern::rpc
