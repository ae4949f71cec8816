#include "trace/record.h"

namespace tern::trace {

const char* names() {
  return "kind 1 enqueued\n"
         "kind 2 started\n"
         "kind 3 sent\n"
         "kind 4 retransmitted\n"
         "kind 5 received\n"
         "kind 6 handler_begin\n"
         "kind 7 handler_end\n"
         "kind 8 answered\n"
         "kind 9 completed\n"
         "kind 10 continuation_begin\n"
         "kind 11 continuation_end\n"
         "kind 12 ended_early\n"
         "kind 13 credit_stall\n"
         "kind 14 paced\n"
         "packet 1 request\n"
         "packet 2 request_for_response\n"
         "packet 3 probe\n"
         "packet 4 cancel\n"
         "packet 5 report\n"
         "packet 6 path_probe\n"
         "packet 8 response\n"
         "packet 9 credit_return\n"
         "packet 10 cancelled\n"
         "packet 11 path_reply\n";
}

}  // namespace tern::trace
