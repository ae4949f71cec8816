#include "disk_storage.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace replicated {

namespace {

constexpr const char* kStateName = "state";
constexpr const char* kNewSuffix = ".new";
/// If more bytes are unwritten, they are written before sync(), so that memory stays bounded.
constexpr size_t kUnwrittenBytesMax = 4u << 20;

std::string log_name(uint64_t number) { return "log-" + std::to_string(number); }
std::string snapshot_name(uint64_t number) { return "snapshot-" + std::to_string(number); }
bool is_ours(const std::string& name) {
  return name == kStateName || name.starts_with("log-") || name.starts_with("snapshot-") || name.ends_with(kNewSuffix);
}

constexpr const char* kRejoin =
    "remove this replica from the cluster, and add it again with an empty directory, under a number that no replica "
    "has had";

}  // namespace

DiskStorage::DiskStorage(std::unique_ptr<Directory> directory, DiskOptions options)
    : directory_(std::move(directory)), options_(options) {}

DiskStorage::~DiskStorage() {
  if (thread_.joinable()) thread_.join();
}

// ---- load ----

std::string DiskStorage::load(Saved& saved) {
  std::string problem = load_state();
  if (problem.empty()) {
    // A run that was killed may have renamed files without the sync that followed. Nothing may build on that before.
    if (const int error = directory_->sync(); error != 0) problem = failed("write", "", error);
  }
  if (problem.empty()) problem = load_snapshot(saved);
  if (problem.empty()) problem = load_log(saved);
  if (problem.empty()) problem = remove_others();
  saved.term = state_.term;
  saved.vote = state_.vote;
  return problem;
}

std::string DiskStorage::load_state() {
  std::string bytes;
  const int error = directory_->read(kStateName, bytes);
  if (error == 0) {
    const auto state = disk::parse_state(bytes);
    if (!state) return damaged(kStateName, "is damaged");
    state_ = *state;
    return {};
  }
  std::vector<std::string> names;
  const int list_error = error == ENOENT ? directory_->list(names) : error;
  if (list_error != 0) return failed("read", kStateName, list_error);
  for (const std::string& name : names) {
    if (is_ours(name) && !name.ends_with(kNewSuffix)) {
      return damaged(kStateName, "is missing, though there is " + directory_->path(name));
    }
  }
  return change_state([](disk::State&) {});  // the state of a new replica
}

std::string DiskStorage::load_snapshot(Saved& saved) {
  if (state_.snapshot == 0) return {};
  const std::string name = snapshot_name(state_.snapshot);
  std::string bytes;
  const int error = directory_->read(name, bytes);
  if (error == ENOENT) return damaged(name, "is missing");
  if (error != 0) return failed("read", name, error);
  auto snapshot = disk::parse_snapshot(bytes);
  if (!snapshot) return damaged(name, "is damaged");
  saved.snapshot = std::make_shared<const Snapshot>(std::move(*snapshot));
  return {};
}

std::string DiskStorage::load_log(Saved& saved) {
  for (uint64_t number = state_.first_log; number <= state_.last_log; number++) {
    if (auto problem = load_log_file(number, saved); !problem.empty()) return problem;
  }
  if (log_.empty()) return add_log_file(1, true);
  saved.first_index = log_.front().first_index;
  next_index_ = saved.first_index + saved.entries.size();
  const uint64_t covered = saved.snapshot != nullptr ? saved.snapshot->index : 0;
  const uint64_t snapshot_term = saved.snapshot != nullptr ? saved.snapshot->term : 0;
  bool fits = saved.first_index <= covered + 1 && next_index_ > covered;
  if (fits && saved.first_index <= covered) {
    fits = saved.entries[covered - saved.first_index].term == snapshot_term;
  }
  if (fits) return {};
  if (saved.snapshot == nullptr) {
    return damaged(log_name(state_.first_log), "begins after the first entry, and there is no snapshot");
  }
  saved.entries.clear();
  saved.first_index = covered + 1;
  return restart_log(covered + 1);
}

std::string DiskStorage::load_log_file(uint64_t number, Saved& saved) {
  const std::string name = log_name(number);
  const bool is_last = number == state_.last_log;
  std::string bytes;
  const int error = directory_->read(name, bytes);
  if (error == ENOENT) return damaged(name, "is missing");
  if (error != 0) return failed("read", name, error);
  auto log = disk::parse_log(bytes, number);
  if (!log) return damaged(name, "is damaged at its beginning");
  const uint64_t next = log_.empty() ? log->first_index : log_.front().first_index + saved.entries.size();
  if (log->first_index != next) return damaged(log_name(number - 1), "ends too early");
  const std::string where = " at byte " + std::to_string(log->len_bytes);
  if (log->end == disk::Log::End::kDamaged) return damaged(name, "is damaged" + where);
  if (log->end == disk::Log::End::kTorn && !is_last) return damaged(name, "ends too early," + where);
  log_.push_back({number, log->first_index});
  std::move(log->entries.begin(), log->entries.end(), std::back_inserter(saved.entries));
  if (!is_last) return {};
  last_bytes_ = log->len_bytes;
  if (auto problem = open_last(); !problem.empty()) return problem;
  // Cuts a torn record off. A run that was killed may also have written whole records without the sync that followed.
  // The replica tells others that it has them, so they become durable here.
  int cut_error = last_->truncate(last_bytes_);
  if (cut_error == 0) cut_error = last_->sync();
  return cut_error == 0 ? "" : failed("shorten", name, cut_error);
}

/// Removes files that a crash has left between their creation and their entry in `state`, or between the removal of
/// that entry and their own removal.
std::string DiskStorage::remove_others() {
  std::vector<std::string> names;
  const int error = directory_->list(names);
  if (error != 0) return failed("read", "", error);
  for (const std::string& name : names) {
    bool is_named = !is_ours(name) || name == kStateName;
    is_named = is_named || (state_.snapshot != 0 && name == snapshot_name(state_.snapshot));
    for (const LogFile& file : log_) is_named = is_named || name == log_name(file.number);
    if (!is_named) remove(name);
  }
  return {};
}

// ---- changes ----

std::string DiskStorage::set_term(uint64_t term) {
  return change_state([term](disk::State& state) {
    state.term = term;
    state.vote = 0;
  });
}

std::string DiskStorage::set_vote(uint64_t replica) {
  return change_state([replica](disk::State& state) { state.vote = replica; });
}

std::string DiskStorage::append(std::span<const Entry> entries) {
  for (const Entry& entry : entries) {
    disk::encode_record(next_index_++, entry, unwritten_);
    if (unwritten_.size() < kUnwrittenBytesMax) continue;
    if (auto problem = sync(); !problem.empty()) return problem;
  }
  return {};
}

std::string DiskStorage::sync() {
  if (unwritten_.empty()) return {};
  int error = last_->append(unwritten_);
  if (error == 0) error = last_->sync();
  if (error != 0) {
    // A later run must not find records there that the system could not make durable.
    (void)last_->truncate(last_bytes_);
    return failed("write", log_name(log_.back().number), error);
  }
  last_bytes_ += unwritten_.size();
  unwritten_.clear();
  return last_bytes_ < options_.log_bytes_max ? "" : add_log_file(next_index_, false);
}

std::string DiskStorage::truncate(uint64_t index) {
  if (auto problem = sync(); !problem.empty()) return problem;
  // The files after the one that contains `index` are removed first, so that the log is always the old log or a
  // beginning of it.
  std::vector<LogFile> removed;
  while (log_.size() > 1 && log_.back().first_index > index) {
    removed.push_back(log_.back());
    log_.pop_back();
  }
  const LogFile last = log_.back();
  const std::string name = log_name(last.number);
  if (!removed.empty()) {
    auto problem = change_state([&](disk::State& state) { state.last_log = last.number; });
    if (problem.empty()) problem = open_last();
    if (!problem.empty()) return problem;
    for (const LogFile& file : removed) remove(log_name(file.number));
  }
  std::string bytes;
  int error = directory_->read(name, bytes);
  if (error != 0) return failed("read", name, error);
  const auto log = disk::parse_log(bytes, last.number, index);
  if (!log || log->first_index + log->entries.size() != index) return damaged(name, "is damaged");
  error = last_->truncate(log->len_bytes);
  if (error == 0) error = last_->sync();
  if (error != 0) return failed("shorten", name, error);
  last_bytes_ = log->len_bytes;
  next_index_ = index;
  return {};
}

void DiskStorage::put_snapshot(std::shared_ptr<const Snapshot> snapshot, std::function<void(std::string)> done) {
  if (thread_.joinable()) thread_.join();  // the thread of the snapshot before, which has ended
  auto write = [this, its = std::move(snapshot), tell = std::move(done)] { tell(write_snapshot(*its)); };
  if (options_.has_thread) {
    try {
      thread_ = std::thread(write);
      return;
    } catch (const std::system_error&) {  // no more threads: this one writes it
    }
  }
  write();
}

std::string DiskStorage::write_snapshot(const Snapshot& snapshot) {
  uint64_t before;
  {
    const std::lock_guard lock(mutex_);
    before = state_.snapshot;
  }
  const std::string head = disk::encode_snapshot_head(snapshot);
  const std::string end = disk::encode_snapshot_end(snapshot, head);
  auto problem = write_file(snapshot_name(before + 1), {head, snapshot.configuration, snapshot.bytes, end});
  if (problem.empty()) problem = change_state([&](disk::State& state) { state.snapshot = before + 1; });
  if (problem.empty() && before != 0) remove(snapshot_name(before));
  return problem;
}

std::string DiskStorage::drop_before(uint64_t index) {
  size_t count = 0;
  while (count + 1 < log_.size() && log_[count + 1].first_index <= index) count++;
  if (count == 0) return {};
  const std::vector<LogFile> removed(log_.begin(), log_.begin() + static_cast<ptrdiff_t>(count));
  log_.erase(log_.begin(), log_.begin() + static_cast<ptrdiff_t>(count));
  auto problem = change_state([&](disk::State& state) { state.first_log = log_.front().number; });
  if (!problem.empty()) return problem;
  for (const LogFile& file : removed) remove(log_name(file.number));
  return {};
}

std::string DiskStorage::restart_log(uint64_t index) {
  unwritten_.clear();
  next_index_ = index;
  const std::vector<LogFile> removed = log_;
  if (auto problem = add_log_file(index, true); !problem.empty()) return problem;
  for (const LogFile& file : removed) remove(log_name(file.number));
  return {};
}

// ---- files ----

std::string DiskStorage::change_state(const std::function<void(disk::State&)>& change) {
  const std::lock_guard lock(mutex_);
  disk::State next = state_;
  change(next);
  auto problem = write_file(kStateName, {disk::encode(next)});
  if (problem.empty()) state_ = next;
  return problem;
}

std::string DiskStorage::write_file(const std::string& name, std::initializer_list<std::string_view> parts) {
  const std::string new_name = name + kNewSuffix;
  std::unique_ptr<File> file;
  int error = directory_->create(new_name, file);
  for (const std::string_view part : parts) {
    if (error == 0) error = file->append(part);
  }
  if (error == 0) error = file->sync();
  if (error == 0) error = directory_->rename(new_name, name);
  if (error == 0) error = directory_->sync();
  return error == 0 ? "" : failed("write", name, error);
}

/// Adds a log file after the others, or in their place.
std::string DiskStorage::add_log_file(uint64_t first_index, bool is_only_one) {
  const uint64_t number = log_.empty() ? 1 : log_.back().number + 1;
  auto problem = write_file(log_name(number), {disk::encode_log_head(number, first_index)});
  if (problem.empty()) {
    problem = change_state([&](disk::State& state) {
      state.last_log = number;
      if (is_only_one) state.first_log = number;
    });
  }
  if (!problem.empty()) return problem;
  if (is_only_one) log_.clear();
  log_.push_back({number, first_index});
  last_bytes_ = disk::kLogHeadBytes;
  return open_last();
}

std::string DiskStorage::open_last() {
  const std::string name = log_name(log_.back().number);
  const int error = directory_->open(name, last_);
  return error == 0 ? "" : failed("open", name, error);
}

/// Removes a file that `state` no longer names. If the removal fails, load() tries again.
void DiskStorage::remove(const std::string& name) { (void)directory_->remove(name); }

// ---- messages ----

std::string DiskStorage::failed(const char* to, const std::string& name, int error) const {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return std::string("cannot ") + to + " " + directory_->path(name) + ": " + std::strerror(error) +
         ". Nothing that was acknowledged is lost. " +
         (is_full ? "Make room on the disk, and start the replica again"
                  : std::string("Start the replica again when the file can be used; if it can never be used again, ") +
                        kRejoin);
}

std::string DiskStorage::damaged(const std::string& name, const std::string& how) const {
  return directory_->path(name) + " " + how + ". The replica cannot know what it has promised to others: " + kRejoin;
}

}  // namespace replicated
