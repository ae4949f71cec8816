#include "transport/xdp/attachment.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "base/status_text.h"
#include "transport/xdp/messages.h"
#include "transport/xdp/refusals.h"

namespace tern::transport::xdp {

namespace {

/// A program whose last process has ended stays attached for a moment.
constexpr auto kPatience = std::chrono::seconds(2);
/// tern's program without a link after this time was attached by netlink.
constexpr auto kReleaseTime = std::chrono::milliseconds(200);
constexpr auto kPause = std::chrono::milliseconds(1);

uint32_t flags_of(Mode mode) { return mode == Mode::kNative ? XDP_FLAGS_DRV_MODE : XDP_FLAGS_SKB_MODE; }

/// The attached program, according to the kernel.
struct Attached {
  uint32_t program = 0;  ///< 0: none
  Mode mode = Mode::kAny;
};

/// Returns 0 or an error number.
int look(uint32_t interface, Attached* attached) {
  LIBBPF_OPTS(bpf_xdp_query_opts, query);
  if (const int error = bpf_xdp_query(static_cast<int>(interface), 0, &query); error != 0) return -error;
  const bool is_generic = query.skb_prog_id != 0 && query.drv_prog_id == 0 && query.hw_prog_id == 0;
  attached->program = is_generic ? query.skb_prog_id : query.drv_prog_id != 0 ? query.drv_prog_id : query.hw_prog_id;
  if (attached->program == 0) attached->program = query.prog_id;
  attached->mode = is_generic ? Mode::kGeneric : Mode::kNative;
  return 0;
}

/// Finds the link by which the program is attached to the interface. The program's number is unique in the machine, so
/// that an interface with the same index in another network namespace is not mistaken for this one. Returns 0 or an
/// error number; ENOENT: there is no such link.
int find_link(uint32_t program, uint32_t interface, base::Descriptor* found) {
  __u32 id = 0;
  while (bpf_link_get_next_id(id, &id) == 0) {
    base::Descriptor link(bpf_link_get_fd_by_id(id));
    if (!link && errno == ENOENT) continue;  // it has just been closed
    if (!link) return errno;
    bpf_link_info info{};
    if (read_info(link.get(), &info) != 0 || info.type != BPF_LINK_TYPE_XDP) continue;
    if (info.prog_id != program || info.xdp.ifindex != interface) continue;
    *found = std::move(link);
    return 0;
  }
  return errno;
}

/// Returns the driver's reason for refusing native mode, in the kernel's words, which only netlink reports. If the
/// attachment succeeds this time, `program` is detached again.
std::string reason_of(uint32_t interface, int program) {
  (void)last_warning();
  const auto flags = XDP_FLAGS_DRV_MODE | XDP_FLAGS_UPDATE_IF_NOEXIST;
  LIBBPF_OPTS(bpf_xdp_attach_opts, options);
  if (bpf_xdp_attach(static_cast<int>(interface), program, flags, &options) == 0) {
    options.old_prog_fd = program;
    (void)bpf_xdp_detach(static_cast<int>(interface), XDP_FLAGS_DRV_MODE, &options);
    return {};
  }
  const std::string line = last_warning();
  constexpr std::string_view kBefore = "Kernel error message: ";
  const size_t at = line.find(kBefore);
  return at == std::string::npos ? std::string() : line.substr(at + kBefore.size());
}

bool has_other_owner(const Program& program, const Owner& owner) {
  bool has_one = false;
  program.for_each_port([&](const PortKey&, const PortEntry& entry) {
    has_one = has_one || (entry.owner != owner.number() && owner.is_alive(entry.owner));
  });
  return has_one;
}

void detach(const Program& program, uint32_t interface, Mode mode) {
  LIBBPF_OPTS(bpf_xdp_attach_opts, options, .old_prog_fd = program.descriptor());
  (void)bpf_xdp_detach(static_cast<int>(interface), flags_of(mode), &options);
}

/// Makes attempts until the program is attached and this process holds it.
class Attempts {
 public:
  Attempts(const neighbours::Interface& interface, const AttachOptions& options, const Owner& owner)
      : index_(interface.index), options_(options), owner_(owner) {
    facts_.interface = interface.name;
    facts_.mtu_bytes = interface.mtu_bytes;
  }

  Result<Attachment> run() {
    if (const int error = result_.program.load(); error != 0) {
      facts_.may_lack_locked_memory = may_lack_locked_memory();
      return refusal(Step::kLoad, error, facts_);
    }
    own_ = result_.program.identity();
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      Attached attached;
      if (const int error = look(index_, &attached); error != 0) return refusal(Step::kLook, error, facts_);
      Result<bool> is_done = attached.program == 0 ? attach() : join(attached);
      if (!is_done.ok()) return is_done.status();
      if (*is_done) return std::move(result_);
      waited_ = std::chrono::steady_clock::now() - start;
      if (waited_ > kPatience) {
        return base::status_of(
            Code::kUnavailable, "xdp: the XDP program of the interface keeps changing",
            {"xdp: the XDP program of ", facts_.interface, " keeps changing: let one process after the other use it"});
      }
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  /// False: another process was faster.
  Result<bool> attach() {
    int error = 0;
    if (options_.mode != Mode::kGeneric) {
      error = attach_in(Mode::kNative);
      if (error == 0) return true;
      if (is_taken(error)) return false;
      if (error != EPERM && error != ENODEV) facts_.kernel_words = reason_of(index_, result_.program.descriptor());
      const Status refused = refusal(Step::kAttachNative, error, facts_);
      if (options_.mode == Mode::kNative || error == EPERM || error == ENODEV) return refused;
      result_.why_generic = refused.message();
    }
    error = attach_in(Mode::kGeneric);
    if (error == 0) return true;
    if (is_taken(error)) return false;
    return refusal(Step::kAttachGeneric, error, facts_);
  }

  /// EBUSY: in this mode; EEXIST: in the other one.
  static bool is_taken(int error) { return error == EBUSY || error == EEXIST; }

  /// Returns 0 or an error number.
  int attach_in(Mode mode) {
    const int interface = static_cast<int>(index_), program = result_.program.descriptor();
    result_.mode = mode;
    if (options_.has_links) {
      LIBBPF_OPTS(bpf_link_create_opts, options, .flags = flags_of(mode));
      result_.link = base::Descriptor(bpf_link_create(program, interface, BPF_XDP, &options));
      if (result_.link) return 0;
      if (errno != EINVAL) return errno;  // EINVAL: the driver's, or of a kernel without links for XDP
    }
    return -bpf_xdp_attach(interface, program, flags_of(mode) | XDP_FLAGS_UPDATE_IF_NOEXIST, nullptr);
  }

  /// False: the program is gone, or is being detached.
  Result<bool> join(const Attached& attached) {
    Program other;
    const int error = other.open(attached.program);
    if (error == ENOENT) return false;
    if (error == EPERM || error == EACCES) return refusal(Step::kLook, error, facts_);
    const Program::Identity identity = other.identity();
    if (identity.name != own_.name) {
      return refusal_by_program(facts_.interface, identity.name, attached.program, attached.mode == Mode::kNative);
    }
    if (identity.tag != own_.tag || error == EINVAL) return refusal_by_version(facts_.interface);
    if (error != 0) return refusal(Step::kLook, error, facts_);
    base::Descriptor link;
    const int link_error = find_link(attached.program, index_, &link);
    if (link_error == EPERM) return refusal(Step::kLook, link_error, facts_);
    if (!link) {
      if (waited_ < kReleaseTime) return false;  // its last process may be ending
      if (!has_other_owner(other, owner_)) {     // attached by netlink, by a process that was killed
        detach(other, index_, attached.mode);
        return false;
      }
    }
    if (options_.mode != Mode::kAny && options_.mode != attached.mode)
      return refusal_by_mode(facts_.interface, attached.mode == Mode::kNative);
    result_ = {std::move(other), std::move(link), attached.mode, {}};
    return true;
  }

  const uint32_t index_;
  const AttachOptions options_;
  const Owner& owner_;
  Facts facts_;
  Program::Identity own_;
  Attachment result_;
  std::chrono::steady_clock::duration waited_{};
};

}  // namespace

Result<Attachment> attach(const neighbours::Interface& interface, const AttachOptions& options, const Owner& owner) {
  take_messages();
  return Attempts(interface, options, owner).run();
}

bool is_attached(const Attachment& attachment, uint32_t interface) {
  if (attachment.link) {
    bpf_link_info info{};
    return read_info(attachment.link.get(), &info) == 0 && info.xdp.ifindex == interface;
  }
  Attached attached;
  return look(interface, &attached) == 0 && attached.program == attachment.program.identity().id;
}

void leave(const Attachment& attachment, uint32_t interface, const Owner& owner) {
  if (!attachment.link && !has_other_owner(attachment.program, owner))
    detach(attachment.program, interface, attachment.mode);
}

}  // namespace tern::transport::xdp
