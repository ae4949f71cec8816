// A netlink socket of the family NETLINK_ROUTE. Neighbours layer; one thread, and no call waits for a message.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>

#include "base/descriptor.h"
#include "neighbours/messages.h"

namespace tern::neighbours {

class Netlink {
 public:
  /// Opens the socket and joins the multicast groups (RTNLGRP_*). Returns 0 or an error number.
  int open(std::initializer_list<int> groups = {});
  int descriptor() const { return socket_.get(); }

  /// What the kernel has sent at one time, valid until the next call. `error` is 0 or an error number: EAGAIN, there is
  /// nothing; ENOBUFS, messages were lost; EBADMSG, a message of another process was dropped.
  struct Received {
    std::span<const std::byte> bytes;
    int error = 0;
  };
  Received receive();

  /// Sends the request and reads its answer, which is there when the request's system call returns. Calls
  /// `on_message(const nlmsghdr&)` for each message of the answer. Returns 0 or an error number: the kernel's, EPROTO
  /// if the answer is incomplete, EINTR if the list that it has changed meanwhile.
  template <class F>
  int ask(Request request, F&& on_message);

 private:
  int send(std::span<const std::byte> bytes);

  base::Descriptor socket_;
  std::unique_ptr<std::byte[]> buffer_;
  uint32_t sequence_ = 0;
};

template <class F>
int Netlink::ask(Request request, F&& on_message) {
  request.set_sequence(++sequence_);
  if (const int error = send(request.bytes()); error != 0) return error;
  std::optional<int> end;
  bool is_interrupted = false;
  while (!end) {
    const Received received = receive();
    if (received.error == EBADMSG) continue;
    if (received.error != 0) return received.error == EAGAIN ? EPROTO : received.error;
    for_each_message(received.bytes, [&](const nlmsghdr& message) {
      if (message.nlmsg_seq != sequence_ || end) return;
      is_interrupted = is_interrupted || (message.nlmsg_flags & NLM_F_DUMP_INTR) != 0;
      end = read_end(message);
      if (end) return;
      on_message(message);
      if ((message.nlmsg_flags & NLM_F_MULTI) == 0) end = 0;
    });
  }
  return *end == 0 && is_interrupted ? EINTR : *end;
}

}  // namespace tern::neighbours
