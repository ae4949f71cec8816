// tern_nexus_*(), and the functions without an object.
#include <tern/nexus.h>
#include <tern/tern.h>

#include "base/try.h"
#include "c/convert.h"
#include "c/handles.h"
#include "c/log.h"
#include "c/objects.h"

namespace tern::c {

constinit Objects<tern_nexus> nexuses;

namespace {

constexpr Status kNoMemory(Code::kNoMemory, "no memory for a nexus");

Result<NexusOptions> nexus_options(const tern_nexus_options* given) {
  tern_nexus_options wanted;
  if (Status status = read_options(given, 48, wanted); !status.ok()) return status;
  if (wanted.liveness_timeout_ns < 0) return kNegative;
  NexusOptions options;
  options.liveness_timeout = or_default(wanted.liveness_timeout_ns, options.liveness_timeout);
  options.worker_threads = or_default(wanted.worker_threads, options.worker_threads);
  options.worker_queue_limit = or_default(wanted.worker_queue_limit, options.worker_queue_limit);
  options.peers_per_address_max = or_default(wanted.peers_per_address_max, options.peers_per_address_max);
  options.sessions_per_address_max = or_default(wanted.sessions_per_address_max, options.sessions_per_address_max);
  if (wanted.log == nullptr && wanted.log_context != nullptr) {
    return Status(Code::kMisuse, "options->log_context is set, but options->log is NULL: set options->log, too");
  }
  const bool has_memory = base::try_grow([&] {
    if (wanted.page != nullptr) options.page = wanted.page;
    if (wanted.log != nullptr) options.log = make_log_sink(wanted.log, wanted.log_context);
  });
  if (!has_memory) return kNoMemory;
  return options;
}

Status create(const char* listen_uri, const tern_nexus_options* given, tern_nexus* object) {
  const auto options = nexus_options(given);
  if (!options.ok()) return options.status();
  auto nexus = Nexus::create(listen_uri, *options);
  if (!nexus.ok()) return nexus.status();
  if (!base::try_grow([&] { object->uri = (*nexus)->uri(); })) return kNoMemory;
  object->nexus = std::move(*nexus);
  object->endpoints.store(0, std::memory_order_relaxed);
  object->kind.store(Kind::kNexus, std::memory_order_relaxed);
  return {};
}

}  // namespace
}  // namespace tern::c

using namespace tern::c;  // NOLINT(google-build-using-namespace): what follows are names of C

const char* tern_version(void) noexcept { return TERN_C_VERSION; }

const char* tern_code_name(tern_code code) noexcept { return words_of<tern::Code>(code); }

tern_status tern_nexus_create(const char* listen_uri, const tern_nexus_options* options, tern_nexus** nexus) noexcept {
  if (nexus == nullptr) return misuse("nexus is NULL: pass the address of a variable for the new one");
  *nexus = nullptr;
  if (listen_uri == nullptr) return misuse("listen_uri is NULL: pass \"tern://HOST:PORT\"");
  tern_nexus* const object = nexuses.make();
  if (object == nullptr) return to_c(kNoMemory);
  const tern::Status status = create(listen_uri, options, object);
  if (status.ok()) {
    *nexus = object;
  } else {
    nexuses.end(object);
  }
  return to_c(status);
}

tern_status tern_nexus_destroy(tern_nexus* nexus) noexcept {
  if (nexus == nullptr) return to_c({});
  if (tern::Status status = check(nexus); !status.ok()) return to_c(status);
  uint32_t count = 0;
  if (!nexus->endpoints.compare_exchange_strong(count, tern_nexus::kEnded, std::memory_order_acquire)) {
    return count == tern_nexus::kEnded ? to_c(kNotANexus) : misuse("the nexus has endpoints: destroy them first");
  }
  nexus->kind.store(Kind::kNone, std::memory_order_relaxed);
  nexus->nexus.reset();
  nexuses.end(nexus);
  return to_c({});
}

const char* tern_nexus_uri(const tern_nexus* nexus) noexcept {
  return check(nexus).ok() ? nexus->uri.c_str() : nullptr;
}
