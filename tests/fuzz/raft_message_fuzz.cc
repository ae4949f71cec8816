// Any bytes as data of another replica: a head with a message, as in a request, a message alone, as in an answer, or a
// configuration. Input: its kind 8 | allocations that succeed 8 (255: all) | bytes. Data that a decoder accepts must
// obey the rules that libraft relies on, and the encoder must give the same bytes again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "../apps/raft/message.h"

namespace {

using namespace replicated;

void require(bool is_true) {
  if (!is_true) std::abort();
}

/// libraft's memory, which fails after the given number of allocations.
class Heap {
 public:
  explicit Heap(uint8_t allocations) : left_(allocations == 255 ? SIZE_MAX : allocations) {
    heap_.data = this;
    heap_.malloc = [](void* self, size_t bytes) { return of(self).has_more() ? std::malloc(bytes) : nullptr; };
    heap_.calloc = [](void* self, size_t count, size_t bytes) {
      return of(self).has_more() ? std::calloc(count, bytes) : nullptr;
    };
    heap_.realloc = [](void* self, void* at, size_t bytes) {
      return of(self).has_more() ? std::realloc(at, bytes) : nullptr;
    };
    heap_.free = [](void*, void* at) { std::free(at); };
    raft_heap_set(&heap_);
  }
  ~Heap() { raft_heap_set_default(); }
  void refill() { left_ = SIZE_MAX; }

 private:
  static Heap& of(void* self) { return *static_cast<Heap*>(self); }
  bool has_more() { return left_ > 0 && left_-- > 0; }

  raft_heap heap_ = {};
  size_t left_;
};

std::string encoded(const raft_message& message, std::string_view configuration) {
  std::string bytes(encoded_bytes(message, configuration), '\0');
  encode(message, std::as_writable_bytes(std::span(bytes)), configuration);
  return bytes;
}

/// libraft leaves anything in the last bytes of a configuration, so that two forms may be the same.
void check_configuration(Bytes bytes, Heap& heap) {
  raft_configuration once, twice;
  if (!decode_configuration(bytes, once)) return require(once.n == 0 && once.servers == nullptr);
  heap.refill();
  require(once.n > 0 && once.n <= 2 * kReplicasMax);
  const std::string text = encode_configuration(once);
  require(text.size() == bytes.size() && decode_configuration(as_bytes(text), twice));
  require(encode_configuration(twice) == text);
  raft_configuration_close(&twice);
  raft_configuration_close(&once);
}

void check_append(const raft_append_entries& append, Heap& heap) {
  uint64_t last_term = append.prev_log_term;
  size_t bytes = 0;
  for (unsigned i = 0; i < append.n_entries; i++) {
    const raft_entry& entry = append.entries[i];
    require(entry.term > 0 && entry.term >= last_term && entry.term <= append.term);
    require(entry.type == RAFT_COMMAND || entry.type == RAFT_BARRIER || entry.type == RAFT_CHANGE);
    require(entry.batch == append.entries[0].batch);
    const Bytes text = {static_cast<const std::byte*>(entry.buf.base), entry.buf.len};
    if (entry.type == RAFT_CHANGE) check_configuration(text, heap);
    last_term = entry.term;
    bytes += text.size();
  }
  require(append.prev_log_index + append.n_entries >= append.prev_log_index);
  for (const size_t bytes_max : {size_t{0}, bytes / 2, bytes, SIZE_MAX}) {
    const unsigned fit = entries_that_fit(append, bytes_max);
    require(fit <= append.n_entries && (fit > 0 || append.n_entries == 0));
    require(bytes_max != SIZE_MAX || fit == append.n_entries);
  }
}

void check_message(Bytes bytes, Heap& heap) {
  raft_message message;
  if (!decode(bytes, 3, message)) return;
  heap.refill();
  std::string configuration;
  if (message.type == RAFT_IO_APPEND_ENTRIES) {
    check_append(message.append_entries, heap);
  } else if (message.type == RAFT_IO_INSTALL_SNAPSHOT) {
    const raft_install_snapshot& install = message.install_snapshot;
    require(install.last_index > 0 && install.last_term > 0 && install.last_term <= install.term);
    require(install.conf_index <= install.last_index && install.conf.n > 0 && install.data.len > 0);
    configuration = encode_configuration(install.conf);
  }
  const std::string text = encoded(message, configuration);
  if (message.type == RAFT_IO_INSTALL_SNAPSHOT) {
    raft_message again;
    require(text.size() == bytes.size() && decode(as_bytes(text), 3, again));
    require(encoded(again, configuration) == text);
    release(again);
  } else {
    require(text == as_text(bytes));
  }
  release(message);
}

}  // namespace

uint64_t fuzz_packets = 0;  ///< messages; the runner of the target prints it

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  fuzz_packets++;
  const std::vector<std::byte> own(reinterpret_cast<const std::byte*>(data) + 2,
                                   reinterpret_cast<const std::byte*>(data) + size);  // of just its size
  const Bytes bytes(own);
  Heap heap(data[1]);
  switch (data[0] % 3) {
    case 0: {
      Reader reader(bytes);
      Head head;
      if (!read_head(reader, head)) break;
      require(head.from != 0 && head.life != 0 && !head.address.empty() && head.address.size() <= kAddressBytesMax);
      std::string again(encoded_bytes(head), '\0');
      Writer writer(std::as_writable_bytes(std::span(again)));
      encode(head, writer);
      require(as_text(bytes).starts_with(again) && again.size() + reader.rest().size() == bytes.size());
      check_message(reader.rest(), heap);
      break;
    }
    case 1:
      check_message(bytes, heap);
      break;
    default:
      check_configuration(bytes, heap);
  }
  return 0;
}
