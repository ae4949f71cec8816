// A replica's disk with any files: files of any bytes, and heads and records with right checksums and wrong content.
// Input: a sequence of steps, each op 8 | length 8 | bytes, that write, extend and change files of a few names. A
// replica then loads the disk. Either it names the wrong file and changes nothing, or the loaded state obeys the rules
// of Storage::load(), and this state and later additions are found again.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../apps/raft/disk_format.h"
#include "../apps/raft/disk_storage.h"
#include "raft/memory_disk.h"

namespace {

using namespace replicated;
using raft_test::MemoryDirectory;
using raft_test::MemoryDisk;

void require(bool is_true) {
  if (!is_true) std::abort();
}

std::unique_ptr<DiskStorage> open(const std::shared_ptr<MemoryDisk>& disk) {
  return std::make_unique<DiskStorage>(std::make_unique<MemoryDirectory>(disk),
                                       DiskOptions{.log_bytes_max = 200, .has_thread = false});
}

class Input {
 public:
  explicit Input(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint8_t u8() {
    if (bytes_.empty()) return 0;
    const uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  /// A place that is small, or near the end of the file.
  uint64_t number() {
    const uint8_t value = u8();
    return value < 250 ? value % 16 : UINT64_MAX - (255 - value);
  }
  std::string_view rest() const { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

 private:
  std::span<const uint8_t> bytes_;
};

class Target {
 public:
  void step(uint8_t op, Input input) {
    static const char* const kNames[] = {"state", "log-1", "log-2", "log-3", "snapshot-1", "snapshot-2", "log-1.new"};
    const std::string name = kNames[op / 8 % std::size(kNames)];
    const auto bytes_of = [&]() -> std::string& { return *disk_->bytes_of(name); };
    if (disk_->bytes_of(name) == nullptr && op % 8 != 7) write(name, "");
    switch (op % 8) {
      case 0:
        bytes_of() += input.rest();
        break;
      case 1: {
        const uint64_t term = input.number(), vote = input.number(), first = input.number(), last = input.number();
        bytes_of() = disk::encode({term, vote, first, last, input.number()});
        break;
      }
      case 2: {
        const uint64_t number = input.number();
        bytes_of() = disk::encode_log_head(number, input.number());
        break;
      }
      case 3: {
        const uint64_t index = input.number(), term = input.number();
        const uint8_t type = input.u8();
        disk::encode_record(
            index, {term, static_cast<uint16_t>(type < 250 ? 1 + type % 3 : type), as_bytes(input.rest())}, bytes_of());
        break;
      }
      case 4: {
        Snapshot snapshot;
        snapshot.index = input.number();
        snapshot.term = input.number();
        snapshot.configuration_index = input.number();
        const size_t wanted = input.u8(), cut = std::min(wanted, input.rest().size());
        snapshot.configuration = input.rest().substr(0, cut);
        snapshot.bytes = input.rest().substr(cut);
        const std::string head = disk::encode_snapshot_head(snapshot);
        bytes_of() = head + snapshot.configuration + snapshot.bytes + disk::encode_snapshot_end(snapshot, head);
        break;
      }
      case 5:
        if (!bytes_of().empty()) bytes_of().resize(bytes_of().size() * input.u8() / 256);
        break;
      case 6:
        if (!bytes_of().empty()) bytes_of()[input.u8() % bytes_of().size()] = static_cast<char>(input.u8());
        break;
      default:
        live(input);
    }
  }

  /// What a whole replica leaves behind, up to here.
  void live(Input& input) {
    const auto storage = open(disk_);
    Saved saved;
    if (!storage->load(saved).empty()) return;
    uint64_t next = saved.first_index + saved.entries.size();
    if (next > UINT64_MAX / 4) return;  // no log is as long
    const uint64_t first = saved.first_index;
    for (uint8_t what = input.u8(); what != 0; what = input.u8()) {
      const Entry entry = {1, 1, as_bytes(std::string_view("an entry of the log").substr(0, what / 8))};
      switch (what % 8) {
        case 0:
          require(storage->set_term(what).empty());
          break;
        case 1:
          require(storage->set_vote(what).empty());
          break;
        case 2: {
          auto snapshot = std::make_shared<Snapshot>();
          if (next == first) break;
          snapshot->index = next - 1;
          snapshot->term = 1;
          snapshot->configuration = "configuration";
          snapshot->bytes = "bytes";
          storage->put_snapshot(snapshot, [](const std::string& problem) { require(problem.empty()); });
          break;
        }
        default:
          require(storage->append({&entry, 1}).empty() && storage->sync().empty());
          next++;
      }
    }
  }

  void load() {
    const auto before = files();
    Saved saved, again;
    std::string problem;
    {
      const auto storage = open(disk_);
      problem = storage->load(saved);
      if (!problem.empty()) {
        require(problem.find("disk/") != problem.npos && problem.find("add it again") != problem.npos);
        require(files() == before);
        return;
      }
      const uint64_t next = saved.first_index + saved.entries.size();
      require(next >= saved.first_index && saved.first_index >= 1);
      if (saved.snapshot == nullptr) {
        require(saved.first_index == 1);
      } else {
        const Snapshot& snapshot = *saved.snapshot;
        require(saved.first_index <= snapshot.index + 1 && next > snapshot.index);
        if (saved.first_index <= snapshot.index) {
          require(saved.entries[snapshot.index - saved.first_index].term == snapshot.term);
        }
      }
      for (const StoredEntry& entry : saved.entries) require(entry.type >= 1 && entry.type <= 3 && entry.term > 0);
      const Entry added = {saved.term + 1, 1, as_bytes(std::string_view("added"))};
      require(storage->append({&added, 1}).empty() && storage->sync().empty());
    }
    saved.entries.push_back({saved.term + 1, 1, "added"});
    require(open(disk_)->load(again).empty());
    require(again.term == saved.term && again.vote == saved.vote && again.first_index == saved.first_index);
    require(again.entries.size() == saved.entries.size());
    for (size_t i = 0; i < again.entries.size(); i++) {
      require(again.entries[i].bytes == saved.entries[i].bytes && again.entries[i].term == saved.entries[i].term);
    }
  }

 private:
  void write(const std::string& name, std::string_view bytes) {
    std::unique_ptr<File> file;
    require(MemoryDirectory(disk_).create(name, file) == 0 && file->append(bytes) == 0);
  }
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> files;
    for (const std::string& name : disk_->names()) files[name] = *disk_->bytes_of(name);
    return files;
  }

  std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
};

}  // namespace

uint64_t fuzz_packets = 0;  ///< disks; the runner of the target prints it

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> input(data, size);
  Target target;
  while (input.size() >= 2) {
    const size_t length = std::min<size_t>(input[1], input.size() - 2);
    target.step(input[0], Input(input.subspan(2, length)));
    input = input.subspan(2 + length);
  }
  fuzz_packets++;
  target.load();
  return 0;
}
