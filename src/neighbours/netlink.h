// A netlink socket of the family NETLINK_ROUTE. Neighbours layer; one thread; no call waits for a message.
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

  /// The data that the kernel has sent at one time, valid until the next call. `error` is 0 or an error number. EAGAIN:
  /// there is nothing to receive. ENOBUFS: messages were lost. EBADMSG: a message of another process was dropped.
  struct Received {
    std::span<const std::byte> bytes;
    int error = 0;
  };
  Received receive();

  /// Sends the request and reads its answer, which is complete when the system call that sends the request returns.
  /// Calls `on_message(const nlmsghdr&)` for each message of the answer. Returns 0 or an error number: the kernel's
  /// error, EPROTO if the answer is incomplete, or EINTR if the list in the answer changed while it was read.
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
