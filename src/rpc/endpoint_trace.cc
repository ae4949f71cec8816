// EndpointCore: the trace, from the option to the file.

#include <string>

#include "base/try.h"
#include "rpc/endpoint_core.h"

namespace tern::rpc {

namespace {
constexpr Status kNoName(Code::kNoMemory, "no memory for the name of a file");
}

Status EndpointCore::begin_to_trace() {
  const size_t records = context_.options.trace_records;
  if (records == 0) return {};
  if (records > trace::Ring::kRecordsMax) return {Code::kMisuse, "RpcOptions::trace_records must be 0 to 2^26"};
  context_.tracer = Tracer::create(records, context_.nexus.local_address(), context_.port.transport.view(),
                                   context_.options.endpoint_id, context_.mailbox->environment);
  if (context_.tracer == nullptr) return {Code::kNoMemory, "no memory for RpcOptions::trace_records"};
  context_.choose_receiving();
  return {};
}

Status EndpointCore::dump_trace(std::string_view file) const {
  if (context_.tracer == nullptr) return {Code::kMisuse, "the endpoint has no trace: set RpcOptions::trace_records"};
  Status status = kNoName;
  (void)base::try_grow([&] { status = context_.tracer->dump(std::string(file)); });
  return status;
}

void EndpointCore::trace_packet(const wire::Header& header, uint32_t bytes) {
  if (wire::is_from_client(header.kind())) {
    if (const Server* server = server_sessions_.find(header.session_key())) {
      context_.tracer->received(server, header, bytes);
    }
  } else if (const Client* client = client_sessions_.find(header.session_key())) {
    context_.tracer->received(client, header, bytes);
  }
}

/// Writes the trace to RpcOptions::trace_folder.
void EndpointCore::keep_trace() const {
  if (context_.tracer == nullptr || context_.options.trace_folder.empty()) return;
  Status status = kNoName;
  (void)base::try_grow([&] { status = context_.tracer->dump_into(context_.options.trace_folder); });
  if (!status.ok()) context_.log.endpoint(LogKind::kTraceMissing, status);
}

}  // namespace tern::rpc
