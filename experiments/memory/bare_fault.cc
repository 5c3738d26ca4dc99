#include "experiments/memory/bare_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t kDropBytes = kMiB;  // bytes that one call gives back, where consecutive batches adjoin

absl::StatusOr<UniqueFd> OpenUserfaultfd() {
  // Faults of system calls are not needed, and without them no privilege is needed.
  UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY)));
  if (!fd.valid()) return ErrnoStatus(errno, "userfaultfd");
  uffdio_api api{};
  api.api = UFFD_API;
  if (ioctl(fd.get(), UFFDIO_API, &api) != 0) return ErrnoStatus(errno, "UFFDIO_API");
  return fd;
}

absl::Status RegisterMissing(int fd, std::byte* begin, uint64_t bytes) {
  uffdio_register request{};
  request.range = {reinterpret_cast<uint64_t>(begin), bytes};
  request.mode = UFFDIO_REGISTER_MODE_MISSING;
  if (ioctl(fd, UFFDIO_REGISTER, &request) != 0) return ErrnoStatus(errno, "UFFDIO_REGISTER");
  return absl::OkStatus();
}

}  // namespace

// One handler and the memory whose faults it answers. Everything but the count belongs to the handler's thread.
class BareFault::Part {
 public:
  struct Place {
    std::byte* data;
    const std::byte* source;
    uint64_t bytes;
    uint64_t batch_bytes;
    uint64_t batches_max;  // in place
    std::byte* end_page;
  };

  static absl::StatusOr<std::unique_ptr<Part>> Start(const Place& place) {
    NRAM_ASSIGN_OR_RETURN(UniqueFd fd, OpenUserfaultfd());
    NRAM_RETURN_IF_ERROR(RegisterMissing(fd.get(), place.data, place.bytes));
    NRAM_RETURN_IF_ERROR(RegisterMissing(fd.get(), place.end_page, kPageBytes));
    return std::unique_ptr<Part>(new Part(place, std::move(fd)));
  }
  ~Part() {
    (void)*static_cast<volatile std::byte*>(place_.end_page);
    handler_.join();
  }

  uint64_t faults() const { return faults_.load(std::memory_order_relaxed); }

 private:
  Part(const Place& place, UniqueFd fd)
      : place_(place),
        fd_(std::move(fd)),
        drop_max_(std::clamp<uint64_t>(kDropBytes / place.batch_bytes, 1, place.batches_max / 2)),
        placed_(place.batches_max),
        handler_([this] { Run(); }) {}

  void Run() {
    while (true) {
      uffd_msg messages[16];
      const ssize_t n = read(fd_.get(), messages, sizeof messages);
      if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      PCHECK(n > 0);
      bool end = false;
      for (size_t i = 0; i < n / sizeof(uffd_msg); ++i) {
        CHECK_EQ(messages[i].event, UFFD_EVENT_PAGEFAULT);
        auto* at = reinterpret_cast<std::byte*>(messages[i].arg.pagefault.address & ~(kPageBytes - 1));
        if (at == place_.end_page) {
          end = true;
        } else {
          Answer((at - place_.data) / place_.batch_bytes);
        }
      }
      if (!end) continue;
      uffdio_zeropage zero{};
      zero.range = {reinterpret_cast<uint64_t>(place_.end_page), kPageBytes};
      PCHECK(ioctl(fd_.get(), UFFDIO_ZEROPAGE, &zero) == 0);
      return;
    }
  }

  void Answer(uint64_t batch) {
    const uint64_t offset = batch * place_.batch_bytes;
    const uint64_t to = reinterpret_cast<uint64_t>(place_.data) + offset;
    const uint64_t from = reinterpret_cast<uint64_t>(place_.source) + offset;
    for (uint64_t done = 0; done < place_.batch_bytes;) {
      uffdio_copy copy{};
      copy.dst = to + done;
      copy.src = from + done;
      copy.len = place_.batch_bytes - done;
      if (ioctl(fd_.get(), UFFDIO_COPY, &copy) == 0) break;
      if (errno == EAGAIN) {
        done += copy.copy > 0 ? copy.copy : 0;
        continue;
      }
      // Two threads waited for the same batch, and the first thread's fault has placed it.
      PCHECK(errno == EEXIST);
      uffdio_range range{to, place_.batch_bytes};
      PCHECK(ioctl(fd_.get(), UFFDIO_WAKE, &range) == 0);
      return;
    }
    faults_.fetch_add(1, std::memory_order_relaxed);
    placed_[(first_ + count_++) % placed_.size()] = batch;
    // Drops now, while the program runs. The program would wait for a drop before the next copy.
    if (count_ == placed_.size()) Drop();
  }

  void Drop() {
    const uint64_t batch = placed_[first_];
    uint64_t run = 1;
    while (run < drop_max_ && placed_[(first_ + run) % placed_.size()] == batch + run) ++run;
    std::byte* at = place_.data + batch * place_.batch_bytes;
    PCHECK(madvise(at, run * place_.batch_bytes, MADV_DONTNEED) == 0);
    first_ = (first_ + run) % placed_.size();
    count_ -= run;
  }

  const Place place_;
  const UniqueFd fd_;
  const uint64_t drop_max_;
  std::vector<uint64_t> placed_;  // a ring of `count_` batches from `first_` on, the oldest first
  uint64_t first_ = 0;
  uint64_t count_ = 0;
  std::atomic<uint64_t> faults_{0};
  std::thread handler_;  // last: it uses the others
};

BareFault::BareFault() = default;
BareFault::~BareFault() = default;

uint64_t BareFault::faults() const {
  uint64_t sum = 0;
  for (const auto& part : parts_) sum += part->faults();
  return sum;
}

absl::StatusOr<std::unique_ptr<BareFault>> BareFault::Start(const BareFaultOptions& options) {
  const uint64_t parts = options.handlers;
  const uint64_t batch_bytes = options.batch_pages * kPageBytes;
  const uint64_t batches_max = options.budget_bytes / parts / batch_bytes;
  if (options.bytes == 0 || options.bytes % (parts * batch_bytes) != 0 || batches_max < 2) {
    return absl::InvalidArgumentError(absl::StrCat("the bare loop cannot divide ", options.bytes, " bytes, budget ",
                                                   options.budget_bytes, ", into ", parts, " parts of batches of ",
                                                   options.batch_pages, " pages"));
  }
  std::unique_ptr<BareFault> bare(new BareFault);
  NRAM_ASSIGN_OR_RETURN(bare->source_, Mapping::Anonymous(options.bytes));
  NRAM_ASSIGN_OR_RETURN(bare->data_, Mapping::Anonymous(options.bytes + parts * kPageBytes));
  for (const Mapping* mapping : {&bare->source_, &bare->data_}) {
    if (madvise(mapping->data(), mapping->size(), MADV_NOHUGEPAGE) != 0 && errno != EINVAL) {
      return ErrnoStatus(errno, "MADV_NOHUGEPAGE");
    }
  }
  const uint64_t part_bytes = options.bytes / parts;
  for (uint64_t i = 0; i < parts; ++i) {
    NRAM_ASSIGN_OR_RETURN(
        auto part, Part::Start({bare->data() + i * part_bytes, bare->source() + i * part_bytes, part_bytes, batch_bytes,
                                batches_max, bare->data() + options.bytes + i * kPageBytes}));
    bare->parts_.push_back(std::move(part));
  }
  return bare;
}

}  // namespace nram
