// Completion queues and channels, and asynchronous events.
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "mlx5.h"

namespace software_verbs {
namespace {

CompletionQueue& queue_of(ibv_cq* cq) { return static_cast<CompletionQueue&>(*cq); }
CompletionChannel* channel_of(const CompletionQueue& queue) { return static_cast<CompletionChannel*>(queue.channel); }

void add_to_semaphore(int semaphore) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(semaphore, &one, sizeof(one));
}

/// Takes one from the semaphore. The read may block, but never for long, because the semaphore is the count of a queue
/// that has an entry.
void take_from_semaphore(int semaphore) {
  uint64_t one;
  [[maybe_unused]] const ssize_t taken = read(semaphore, &one, sizeof(one));
}

bool does_block(int descriptor) { return (fcntl(descriptor, F_GETFL) & O_NONBLOCK) == 0; }

void disarm(CompletionQueue& queue) {
  queue.armed = Armed::kNo;
  for (const QueuePair* receiver : queue.receivers) unwatch(queue, *receiver);
}

void receive_all(CompletionQueue& queue) {
  // A loop by index, because a packet can end its queue pair, but does not remove it.
  for (size_t i = 0; i < queue.receivers.size(); i++) receive_arrivals(*queue.receivers[i]);
}

/// The counter of the events that the program has taken from an object; null for ports and devices.
uint32_t* reported_of(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      return &queue_of(event.element.cq).async_events_reported;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_SQ_DRAINED:
      return &static_cast<QueuePair*>(event.element.qp)->async_events_reported;
    default:
      return nullptr;
  }
}

}  // namespace

void complete(CompletionQueue& queue, const Completion& completion, bool is_solicited) {
  if (queue.is_dead) return;
  if (queue.entries.size() >= static_cast<size_t>(queue.cqe)) {
    overflow(queue);
    return;
  }
  queue.entries.push_back(completion);
  const bool fires = queue.armed == Armed::kNext ||
                     (queue.armed == Armed::kSolicited && (is_solicited || completion.wc.status != IBV_WC_SUCCESS));
  if (!fires) return;
  disarm(queue);
  raise_completion_event(queue);
}

void raise_completion_event(CompletionQueue& queue) {
  CompletionChannel* channel = channel_of(queue);
  const std::lock_guard lock(channel->events_mutex);
  channel->events.push_back(&queue);
  add_to_semaphore(channel->ready);
}

void overflow(CompletionQueue& queue) {
  if (queue.is_dead) return;
  queue.is_dead = true;
  count(totals.completion_queue_overflows);
  Context& context = context_of(&queue);
  ibv_async_event event{};
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = &queue;
  raise_async(context, event);
  for (QueuePair* queue_pair : context.queue_pairs) {
    if ((queue_pair->send_cq != &queue && queue_pair->recv_cq != &queue) || queue_pair->state == IBV_QPS_ERR) continue;
    end_queue_pair(*queue_pair);
    event.event_type = IBV_EVENT_QP_FATAL;
    event.element.qp = queue_pair;
    raise_async(context, event);
  }
}

void remove_completions(CompletionQueue& queue, const QueuePair& queue_pair) {
  std::erase_if(queue.entries, [&](const Completion& entry) { return entry.queue_pair == &queue_pair; });
}

void watch(CompletionQueue& queue, const QueuePair& receiver) {
  receiver.inbox->set_armed(true);
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(queue.channel->fd, EPOLL_CTL_ADD, receiver.socket, &event);
}

void unwatch(CompletionQueue& queue, const QueuePair& receiver) {
  receiver.inbox->set_armed(false);
  epoll_ctl(queue.channel->fd, EPOLL_CTL_DEL, receiver.socket, nullptr);
}

void raise_async(Context& context, const ibv_async_event& event) {
  context.async_events.push_back(event);
  add_to_semaphore(context.context.async_fd);
}

void forget_async(Context& context, const void* object) {
  const size_t forgotten = std::erase_if(context.async_events, [object](ibv_async_event& event) {
    return reported_of(event) != nullptr && event.element.cq == object;
  });
  for (size_t i = 0; i < forgotten; i++) take_from_semaphore(context.context.async_fd);
}

}  // namespace software_verbs

using namespace software_verbs;

extern "C" int software_verbs_poll_cq(ibv_cq* cq, int entries, ibv_wc* wc) {
  if (injected_error(Verb::kPollCq) != 0) return -1;
  CompletionQueue& queue = queue_of(cq);
  Context& context = context_of(cq);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return 0;
  for (size_t i = 0; i < queue.receivers.size(); i++) receive_some(*queue.receivers[i]);
  int polled = 0;
  for (; polled < entries && !queue.entries.empty(); polled++) {
    const Completion& completion = queue.entries.front();
    wc[polled] = completion.wc;
    uint64_t& tail = completion.is_send ? completion.queue_pair->sends.tail : completion.queue_pair->receives.tail;
    tail = completion.position + 1;
    queue.entries.pop_front();
  }
  return polled;
}

extern "C" int software_verbs_req_notify_cq(ibv_cq* cq, int solicited_only) {
  if (const int error = injected_error(Verb::kReqNotifyCq)) return error;
  CompletionQueue& queue = queue_of(cq);
  const std::lock_guard lock(context_of(cq).mutex);
  if (queue.channel == nullptr) return 0;
  if (queue.armed != Armed::kNo) receive_all(queue);  // an arrival disarms the queue
  if (queue.armed == Armed::kNo) {
    for (const QueuePair* receiver : queue.receivers) watch(queue, *receiver);
    receive_all(queue);  // packets that arrived before the arming raise no event
  }
  if (solicited_only == 0)
    queue.armed = Armed::kNext;
  else if (queue.armed == Armed::kNo)
    queue.armed = Armed::kSolicited;
  return 0;
}

SOFTWARE_VERBS_EXPORT ibv_comp_channel* ibv_create_comp_channel(ibv_context* base) {
  if (const int error = injected_error(Verb::kCreateCompChannel)) return fail(error);
  auto* channel = new CompletionChannel;
  channel->context = base;
  channel->refcnt = 0;
  channel->fd = epoll_create1(EPOLL_CLOEXEC);
  channel->ready = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_event event{};
  event.events = EPOLLIN;
  if (channel->fd == -1 || channel->ready == -1 || epoll_ctl(channel->fd, EPOLL_CTL_ADD, channel->ready, &event) != 0) {
    const int error = errno;
    if (channel->fd != -1) close(channel->fd);
    if (channel->ready != -1) close(channel->ready);
    delete channel;
    return fail(error);
  }
  context_of(base).objects++;
  count(totals.completion_channels);
  return channel;
}

SOFTWARE_VERBS_EXPORT int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  auto* channel = static_cast<CompletionChannel*>(base);
  Context& context = context_of(base);
  check_process(context);
  const std::lock_guard lock(context.mutex);
  if (channel->refcnt > 0) return EBUSY;
  close(channel->fd);
  close(channel->ready);
  context.objects--;
  delete channel;
  uncount(totals.completion_channels);
  return 0;
}

namespace software_verbs {

CompletionQueue* create_completion_queue(ibv_context* base, int cqe, void* cq_context, ibv_comp_channel* channel,
                                         int comp_vector) {
  Context& context = context_of(base);
  const std::lock_guard lock(context.mutex);
  if (context.is_dead) return fail(EIO);
  if (cqe < 1 || static_cast<uint32_t>(cqe) > context.settings.max_cqe) return fail(EINVAL);
  if (comp_vector != 0) return fail(EINVAL);
  auto* queue = new CompletionQueue;
  queue->context = base;
  queue->channel = channel;
  queue->cq_context = cq_context;
  queue->handle = 0;
  queue->cqe = cqe;
  if (context.port != nullptr) {  // like mlx5: one entry is never used
    const uint32_t entries = std::bit_ceil(static_cast<uint32_t>(cqe) + 1);
    queue->ring = std::make_unique<CompletionRing>(entries, context.settings.entry_bytes);
    queue->cqe = static_cast<int>(entries) - 1;
  }
  pthread_mutex_init(&queue->mutex, nullptr);
  pthread_cond_init(&queue->cond, nullptr);
  queue->comp_events_completed = 0;
  queue->async_events_completed = 0;
  if (channel != nullptr) {
    channel->refcnt++;
    static_cast<CompletionChannel*>(channel)->queues.push_back(queue);
  }
  context.objects++;
  count(totals.completion_queues);
  return queue;
}

}  // namespace software_verbs

SOFTWARE_VERBS_EXPORT ibv_cq* ibv_create_cq(ibv_context* base, int cqe, void* cq_context, ibv_comp_channel* channel,
                                            int comp_vector) {
  if (const int error = injected_error(Verb::kCreateCq)) return fail(error);
  return create_completion_queue(base, cqe, cq_context, channel, comp_vector);
}

SOFTWARE_VERBS_EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  CompletionQueue& queue = queue_of(cq);
  Context& context = context_of(cq);
  check_process(context);
  uint32_t comp_events, async_events;
  {
    const std::lock_guard lock(context.mutex);
    if (!queue.receivers.empty() || !queue.senders.empty()) return EBUSY;
    if (queue.ring != nullptr && queue.ring->receive_queues > 0) return EBUSY;
    forget_async(context, cq);
    if (CompletionChannel* channel = channel_of(queue)) {
      const std::lock_guard events_lock(channel->events_mutex);
      const size_t forgotten = std::erase(channel->events, &queue);
      for (size_t i = 0; i < forgotten; i++) take_from_semaphore(channel->ready);
      std::erase(channel->queues, &queue);
      channel->refcnt--;
    }
    comp_events = queue.events_reported;
    async_events = queue.async_events_reported;
  }
  pthread_mutex_lock(&cq->mutex);
  while (cq->comp_events_completed != comp_events || cq->async_events_completed != async_events)
    pthread_cond_wait(&cq->cond, &cq->mutex);
  pthread_mutex_unlock(&cq->mutex);
  pthread_cond_destroy(&cq->cond);
  pthread_mutex_destroy(&cq->mutex);
  context.objects--;
  delete &queue;
  uncount(totals.completion_queues);
  return 0;
}

SOFTWARE_VERBS_EXPORT int ibv_resize_cq(ibv_cq*, int) { return EOPNOTSUPP; }

SOFTWARE_VERBS_EXPORT int ibv_get_cq_event(ibv_comp_channel* base, ibv_cq** cq, void** cq_context) {
  if (const int error = injected_error(Verb::kGetCqEvent)) {
    errno = error;
    return -1;
  }
  auto* channel = static_cast<CompletionChannel*>(base);
  Context& context = context_of(base);
  while (true) {
    {
      const std::lock_guard lock(context.mutex);
      for (CompletionQueue* queue : channel->queues)
        if (queue->armed != Armed::kNo) receive_all(*queue);
      const std::lock_guard events_lock(channel->events_mutex);
      if (!channel->events.empty()) {
        CompletionQueue* queue = channel->events.front();
        channel->events.pop_front();
        take_from_semaphore(channel->ready);
        queue->events_reported++;
        *cq = queue;
        *cq_context = queue->cq_context;
        return 0;
      }
    }
    if (!does_block(channel->fd)) {
      errno = EAGAIN;
      return -1;
    }
    pollfd waited{channel->fd, POLLIN, 0};
    if (poll(&waited, 1, -1) < 0) return -1;
  }
}

SOFTWARE_VERBS_EXPORT void ibv_ack_cq_events(ibv_cq* cq, unsigned events) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += events;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}

SOFTWARE_VERBS_EXPORT int ibv_get_async_event(ibv_context* base, ibv_async_event* event) {
  if (const int error = injected_error(Verb::kGetAsyncEvent)) {
    errno = error;
    return -1;
  }
  Context& context = context_of(base);
  while (true) {
    {
      const std::lock_guard lock(context.mutex);
      if (!context.async_events.empty()) {
        *event = context.async_events.front();
        context.async_events.pop_front();
        take_from_semaphore(base->async_fd);
        if (uint32_t* const reported = reported_of(*event)) (*reported)++;
        return 0;
      }
    }
    if (!does_block(base->async_fd)) {
      errno = EAGAIN;
      return -1;
    }
    pollfd waited{base->async_fd, POLLIN, 0};
    if (poll(&waited, 1, -1) < 0) return -1;
  }
}

SOFTWARE_VERBS_EXPORT void ibv_ack_async_event(ibv_async_event* event) {
  if (reported_of(*event) == nullptr) return;
  const bool is_of_queue = event->event_type == IBV_EVENT_CQ_ERR;
  pthread_mutex_t& mutex = is_of_queue ? event->element.cq->mutex : event->element.qp->mutex;
  pthread_mutex_lock(&mutex);
  if (is_of_queue) {
    event->element.cq->async_events_completed++;
    pthread_cond_signal(&event->element.cq->cond);
  } else {
    event->element.qp->events_completed++;
    pthread_cond_signal(&event->element.qp->cond);
  }
  pthread_mutex_unlock(&mutex);
}
