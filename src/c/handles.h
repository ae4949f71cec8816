// The objects behind the handles of the C interface, and the check whether a handle was destroyed. C layer.
// <tern/tern.h> says which threads may use a program's objects. Objects: any thread.
#pragma once

#include <tern/endpoint.h>
#include <tern/nexus.h>
#include <tern/tern.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>

#include "base/process.h"
#include "base/thread_safety.h"
#include "c/any_rpc.h"

namespace tern::c {

/// The kind of an object; kNone: it was destroyed. The values rarely occur in other memory.
enum class Kind : uint32_t { kNone = 0, kNexus = 0x7e2a0001, kEndpoint = 0x7e2a0002, kRequest = 0x7e2a0003 };

struct Object {
  std::atomic<Kind> kind{Kind::kNone};
  Object* next = nullptr;  ///< in the list of spare objects
};

/// Destroyed objects, the oldest first. A forked child takes and puts nothing, because a thread that it does not have
/// may have held the mutex at the fork.
class Spares {
 public:
  /// Takes the oldest. Null if there are at most kSparesMin.
  Object* take() {
    if (!is_of_this_process()) return nullptr;
    base::MutexLock lock(mutex_);
    if (count_ <= kSparesMin) return nullptr;
    Object* const object = first_;
    first_ = object->next;
    --count_;
    return object;
  }
  void put(Object* object) {
    if (!is_of_this_process()) return;
    object->next = nullptr;
    base::MutexLock lock(mutex_);
    (first_ == nullptr ? first_ : last_->next) = object;
    last_ = object;
    ++count_;
  }

 private:
  /// The first process that uses the object has it.
  bool is_of_this_process() {
    const uint32_t own = base::process_number();
    uint32_t owner = 0;
    return process_.compare_exchange_strong(owner, own, std::memory_order_relaxed) || owner == own;
  }

  static constexpr size_t kSparesMin = 64;
  std::atomic<uint32_t> process_{0};  ///< 0: none has used it yet
  base::Mutex mutex_;
  Object* first_ GUARDED_BY(mutex_) = nullptr;
  Object* last_ GUARDED_BY(mutex_) = nullptr;
  size_t count_ GUARDED_BY(mutex_) = 0;
};

/// The objects of one kind. Their memory is never returned to the system, so that a handle can be checked after its
/// object was destroyed. The object that was destroyed first is reused first, and only if more than kSparesMin are
/// spare. A handle that is used shortly after its destruction therefore does not name a new object.
template <class T>
class Objects {
 public:
  /// Returns an object whose kind is kNone. Null: no memory.
  T* make() {
    Object* const spare = spares_.take();
    return spare != nullptr ? static_cast<T*>(spare) : new (std::nothrow) T;
  }
  /// Ends an object: for the program it is destroyed.
  void end(T* object) {
    object->kind.store(Kind::kNone, std::memory_order_relaxed);
    spares_.put(object);
  }

 private:
  Spares spares_;
};

}  // namespace tern::c

struct tern_nexus : tern::c::Object {
  static constexpr uint32_t kEnded = UINT32_MAX;
  /// Number of endpoints, from the start of their creation to the end of their destruction. kEnded: the nexus is
  /// being destroyed, or was.
  std::atomic<uint32_t> endpoints{0};
  std::unique_ptr<tern::Nexus> nexus;
  std::string uri;
};

struct tern_endpoint : tern::c::Object {
  std::atomic<uint32_t> loop_calls{0};  ///< calls of its loop and of close(), refused ones too; 1 in its destruction
  tern_nexus* nexus = nullptr;
  std::unique_ptr<tern::c::AnyRpc> rpc;  ///< null while it is destroyed
  tern::Endpoint* endpoint = nullptr;
  uint32_t process = 0;  ///< base::process_number() of the process that made it
};

struct tern_request : tern::c::Object {
  tern::Request* live = nullptr;     ///< the handler's argument, or `own`
  std::optional<tern::Request> own;  ///< of a request that was kept
};

namespace tern::c {

inline constexpr Status kNotANexus(Code::kMisuse,
                                   "this is not a nexus: it was destroyed, or the pointer points to something else");

/// Returns ok if the handle may be used.
inline Status check(const tern_nexus* nexus) {
  if (nexus == nullptr) return {Code::kMisuse, "the nexus is NULL: tern_nexus_create() makes one"};
  return nexus->kind.load(std::memory_order_relaxed) == Kind::kNexus ? Status() : kNotANexus;
}
inline Status check(const tern_endpoint* endpoint) {
  if (endpoint == nullptr) [[unlikely]]
    return {Code::kMisuse, "the endpoint is NULL: tern_endpoint_create() makes one"};
  if (endpoint->kind.load(std::memory_order_relaxed) == Kind::kEndpoint) [[likely]]
    return {};
  return {Code::kMisuse, "this is not an endpoint: it was destroyed, or the pointer points to something else"};
}
inline Status check(const tern_request* request) {
  if (request == nullptr) [[unlikely]]
    return {Code::kMisuse, "the request is NULL: pass the request that a handler has received"};
  if (request->kind.load(std::memory_order_relaxed) == Kind::kRequest) [[likely]]
    return {};
  return {Code::kMisuse,
          "the request has ended: it was answered, dropped or kept; after tern_request_keep(), use the pointer that it "
          "has returned"};
}

}  // namespace tern::c
