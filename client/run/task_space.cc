#include "client/run/task_space.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"
#include "base/userfault_numbers.h"
#include "client/memory/userfault.h"

// Newer than Debian 12's headers: the kernel's own numbers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

namespace nram {
namespace {

constexpr int64_t kRoomPatienceMs = 10'000;
constexpr int64_t kRoomLookMs = 5;
constexpr int kFdFlags = O_CLOEXEC | O_NONBLOCK;
constexpr char kDevice[] = "/dev/userfaultfd";
constexpr uint64_t kFeatures = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MOVE | UFFD_FEATURE_POISON;

absl::Status NotAllowed() {
  return absl::PermissionDeniedError(
      "the kernel permits this user no userfaultfd, which nram run needs. Join the group nram of the package's udev "
      "rule; or, as root after each boot, `setfacl -m u:USER:rw /dev/userfaultfd` for one user or "
      "`sysctl vm.unprivileged_userfaultfd=1` for all");
}

absl::Status BeginApi(int fd) {
  uffdio_api api = {.api = UFFD_API, .features = kFeatures};
  if (ioctl(fd, UFFDIO_API, &api) == 0) return absl::OkStatus();
  if (errno != EINVAL) return ErrnoStatus(errno, "UFFDIO_API");
  return absl::UnimplementedError(
      "this kernel cannot move pages out of a program: nram run needs Linux 6.8 or newer, x86-64");
}

uffdio_range Range(uint64_t begin, uint64_t pages) { return {begin, pages * kPageBytes}; }

}  // namespace

absl::Status TaskSpace::Probe() {
  UniqueFd fd(static_cast<int>(syscall(SYS_userfaultfd, kFdFlags)));
  if (!fd.valid()) {
    const UniqueFd device(open(kDevice, O_RDWR | O_CLOEXEC));
    if (device.valid()) fd = UniqueFd(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFdFlags));
  }
  return fd.valid() ? BeginApi(fd.get()) : NotAllowed();
}

absl::StatusOr<std::unique_ptr<TaskSpace>> TaskSpace::Open(Helper* helper) {
  NRAM_ASSIGN_OR_RETURN(int64_t number, helper->Call(SYS_userfaultfd, {kFdFlags}));
  if (number < 0) {
    char path[sizeof(kDevice)];
    memcpy(path, kDevice, sizeof(path));
    NRAM_ASSIGN_OR_RETURN(
        const int64_t device,
        helper->Call(SYS_openat, {static_cast<uint64_t>(AT_FDCWD), Helper::PayloadAddress(1), O_RDWR | O_CLOEXEC},
                     absl::MakeSpan(reinterpret_cast<std::byte*>(path), sizeof(path))));
    if (device < 0) return NotAllowed();
    NRAM_ASSIGN_OR_RETURN(number,
                          helper->Call(SYS_ioctl, {static_cast<uint64_t>(device), USERFAULTFD_IOC_NEW, kFdFlags}));
    NRAM_RETURN_IF_ERROR(helper->Call(SYS_close, {static_cast<uint64_t>(device)}).status());
    if (number < 0) return NotAllowed();
  }
  NRAM_ASSIGN_OR_RETURN(UniqueFd fd, helper->Take(static_cast<int>(number)));
  NRAM_RETURN_IF_ERROR(BeginApi(fd.get()));
  NRAM_ASSIGN_OR_RETURN(const int64_t scratch,
                        helper->Call(SYS_mmap, {0, kScratchPages * kPageBytes, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, ~uint64_t{0}, 0}));
  if (scratch < 0) return ErrnoStatus(static_cast<int>(-scratch), "mmap in the program");
  const auto at = static_cast<uint64_t>(scratch);
  NRAM_RETURN_IF_ERROR(helper->Call(SYS_madvise, {at, kScratchPages * kPageBytes, MADV_DONTFORK}).status());
  auto space = std::unique_ptr<TaskSpace>(new TaskSpace(helper, std::move(fd), static_cast<int>(number), at));
  if (helper->reach() == Helper::Reach::kByHelper) NRAM_RETURN_IF_ERROR(space->OpenFile());
  NRAM_RETURN_IF_ERROR(space->Register(at, kScratchPages));
  return space;
}

absl::Status TaskSpace::OpenFile() {
  // The program's file-size limits do not apply to this file.
  for (const pid_t task : {getpid(), helper_->pid()}) {
    rlimit limit;
    if (prlimit(task, RLIMIT_FSIZE, nullptr, &limit) != 0) continue;
    limit.rlim_cur = limit.rlim_max;
    prlimit(task, RLIMIT_FSIZE, &limit, nullptr);
  }
  file_ = UniqueFd(static_cast<int>(syscall(SYS_memfd_create, "nram-pages", MFD_CLOEXEC | MFD_NOEXEC_SEAL)));
  if (!file_.valid() || ftruncate(file_.get(), kScratchPages * kPageBytes) != 0) {
    return ErrnoStatus(errno, "a file for the program's pages (memfd_create)");
  }
  NRAM_ASSIGN_OR_RETURN(const int64_t number, helper_->Lend(file_.get()));
  if (number < 0) return ErrnoStatus(static_cast<int>(-number), "a file for the program's pages");
  helper_file_ = static_cast<int>(number);
  return absl::OkStatus();
}

bool TaskSpace::ReadFault(RunFault* fault) {
  uffd_msg message;
  ssize_t got;
  do {
    got = read(faults_.get(), &message, sizeof(message));
  } while (got < 0 && errno == EINTR);
  if (got != sizeof(message) || message.event != UFFD_EVENT_PAGEFAULT) return false;
  const auto& page = message.arg.pagefault;
  *fault = {page.address, (page.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0,
            (page.flags & UFFD_PAGEFAULT_FLAG_WP) != 0};
  return true;
}

absl::Status TaskSpace::Register(uint64_t begin, uint64_t pages) {
  if (file_.valid()) {
    NRAM_ASSIGN_OR_RETURN(const int64_t result, helper_->Call(SYS_madvise, {begin, pages * kPageBytes, MADV_DONTFORK}));
    if (result < 0) return ErrnoStatus(static_cast<int>(-result), "MADV_DONTFORK");
  }
  uffdio_register request = {.range = Range(begin, pages),
                             .mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP};
  if (ioctl(faults_.get(), UFFDIO_REGISTER, &request) != 0) return ErrnoStatus(errno, "UFFDIO_REGISTER");
  return absl::OkStatus();
}

bool TaskSpace::IsRegistered(uint64_t begin, uint64_t pages) {
  uffdio_writeprotect request = {.range = Range(begin, pages), .mode = 0};
  while (ioctl(faults_.get(), UFFDIO_WRITEPROTECT, &request) != 0) {
    if (errno != EAGAIN && errno != EINTR) return false;
  }
  return true;
}

void TaskSpace::PoisonMissing(absl::Span<const AddressRun> runs) {
  for (const AddressRun& run : runs) {
    const uint64_t end = run.begin + run.pages * kPageBytes;
    uint64_t most = end - run.begin;
    for (uint64_t at = run.begin; at < end;) {
      uffdio_poison request = {.range = {at, std::min(most, end - at)}, .mode = 0, .updated = 0};
      if (ioctl(faults_.get(), UFFDIO_POISON, &request) == 0) {
        at += request.range.len;
      } else if (errno == ESRCH) {
        return;  // no process has the memory any more
      } else if (request.updated > 0) {
        at += static_cast<uint64_t>(request.updated);
      } else if (errno == ENOENT && most > kPageBytes) {
        most = kPageBytes;  // over two of the kernel's areas
      } else if (errno != EAGAIN && errno != EINTR) {
        at += kPageBytes;  // it is there
      }
    }
  }
}

absl::Status TaskSpace::Copy(uint64_t to, absl::Span<const std::byte> data, bool protect) {
  // The patience is that of all the pages. Pages are evicted meanwhile.
  int64_t until_ns = 0;
  const auto wait_for_memory = [&until_ns] {
    if (until_ns == 0) until_ns = DeadlineAfterMs(kRoomPatienceMs);
    if (MonotonicNs() >= until_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(kRoomLookMs));
    return true;
  };
  const int error = FillPages(faults_.get(), to, data.data(), data.size(), protect, wait_for_memory);
  if (error == 0) return absl::OkStatus();
  if (error == ESRCH) return absl::NotFoundError("the program has ended");
  return ErrnoStatus(error, absl::StrCat("UFFDIO_COPY to 0x", absl::Hex(to)));
}

void TaskSpace::Unprotect(uint64_t begin, uint64_t pages) {
  uffdio_writeprotect request = {.range = Range(begin, pages), .mode = 0};
  while (ioctl(faults_.get(), UFFDIO_WRITEPROTECT, &request) != 0) {
    if (errno == EAGAIN || errno == EINTR) continue;
    // It has been unmapped, or the program has ended.
    Wake(begin, pages);
    return;
  }
}

void TaskSpace::Wake(uint64_t begin, uint64_t pages) {
  uffdio_range range = Range(begin, pages);
  PCHECK(ioctl(faults_.get(), UFFDIO_WAKE, &range) == 0) << "UFFDIO_WAKE";
}

absl::Status TaskSpace::Move(absl::Span<const AddressRun> runs, const std::vector<uint64_t>& first, bool unshare,
                             std::vector<bool>* taken, std::vector<int>* errors) {
  std::vector<HelperCall> calls;
  std::vector<uffdio_move> moves(runs.size());
  const size_t each = unshare ? 2 : 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    moves[i] = {scratch_ + first[i] * kPageBytes, runs[i].begin, runs[i].pages * kPageBytes, UFFDIO_MOVE_MODE_DONTWAKE,
                0};
    if (unshare) calls.push_back({SYS_madvise, {runs[i].begin, runs[i].pages * kPageBytes, MADV_POPULATE_WRITE}});
    calls.push_back({SYS_ioctl,
                     {static_cast<uint64_t>(helper_fd_), UFFDIO_MOVE,
                      Helper::PayloadAddress(runs.size() * each) + i * sizeof(uffdio_move)}});
  }
  NRAM_RETURN_IF_ERROR(helper_->Make(
      &calls, absl::MakeSpan(reinterpret_cast<std::byte*>(moves.data()), moves.size() * sizeof(uffdio_move))));
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t result = calls[i * each + each - 1].result;
    const uint64_t moved = result == 0 ? runs[i].pages : moves[i].move > 0 ? moves[i].move / kPageBytes : 0;
    for (uint64_t page = 0; page < runs[i].pages; ++page) {
      (*taken)[first[i] + page] = page < moved;
      (*errors)[first[i] + page] = page < moved ? 0 : static_cast<int>(-result);
    }
  }
  return absl::OkStatus();
}

absl::Status TaskSpace::MoveAll(absl::Span<const AddressRun> runs, bool may_be_shared, std::vector<bool>* taken) {
  std::vector<uint64_t> first;
  std::vector<uint64_t> addresses;
  for (const AddressRun& run : runs) {
    first.push_back(addresses.size());
    for (uint64_t page = 0; page < run.pages; ++page) addresses.push_back(run.begin + page * kPageBytes);
  }
  const uint64_t count = addresses.size();
  CHECK_LE(count, kScratchPages);
  taken->assign(count, false);
  std::vector<int> errors(count);
  NRAM_RETURN_IF_ERROR(Move(runs, first, /*unshare=*/false, taken, &errors));
  // A run ends at its first page that does not move; the others have a try each.
  for (const bool unshare : {false, true}) {
    std::vector<AddressRun> singles;
    std::vector<uint64_t> at;
    for (uint64_t i = 0; i < count && singles.size() < Helper::kCallsMax / 2; ++i) {
      if ((*taken)[i] || (unshare && errors[i] != EBUSY)) continue;
      singles.push_back({addresses[i], 1});
      at.push_back(i);
    }
    // Copying a protected page would raise a fault that is never answered.
    if (singles.empty() || (unshare && !may_be_shared)) break;
    NRAM_RETURN_IF_ERROR(Move(singles, at, unshare, taken, &errors));
  }
  return absl::OkStatus();
}

absl::Status TaskSpace::Take(absl::Span<const AddressRun> runs, absl::Span<std::byte> to, std::vector<bool>* taken) {
  MutexLock lock(&take_mu_);
  NRAM_RETURN_IF_ERROR(MoveAll(runs, /*may_be_shared=*/true, taken));
  std::vector<AddressRun> moved;
  for (uint64_t i = 0; i < taken->size(); ++i) {
    if (!(*taken)[i]) continue;
    if (i > 0 && (*taken)[i - 1]) {
      ++moved.back().pages;
    } else {
      moved.push_back({scratch_ + i * kPageBytes, 1});
    }
  }
  if (moved.empty()) return absl::OkStatus();
  NRAM_RETURN_IF_ERROR(file_.valid() ? ReadByFile(moved, to) : Read(moved, to));
  return DropScratch();
}

absl::Status TaskSpace::Read(const std::vector<AddressRun>& runs, absl::Span<std::byte> to) {
  std::vector<iovec> local;
  std::vector<iovec> remote;
  size_t bytes = 0;
  for (const AddressRun& run : runs) {
    local.push_back({to.data() + (run.begin - scratch_), run.pages * kPageBytes});
    remote.push_back({reinterpret_cast<void*>(run.begin), run.pages * kPageBytes});
    bytes += run.pages * kPageBytes;
  }
  if (process_vm_readv(helper_->pid(), local.data(), local.size(), remote.data(), remote.size(), 0) !=
      static_cast<ssize_t>(bytes)) {
    return ErrnoStatus(errno, "reading pages of the program");
  }
  return absl::OkStatus();
}

absl::Status TaskSpace::ReadByFile(const std::vector<AddressRun>& runs, absl::Span<std::byte> to) {
  std::vector<HelperCall> calls;
  for (const AddressRun& run : runs) {
    calls.push_back(
        {SYS_pwrite64, {static_cast<uint64_t>(helper_file_), run.begin, run.pages * kPageBytes, run.begin - scratch_}});
  }
  NRAM_RETURN_IF_ERROR(helper_->Make(&calls));
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto bytes = static_cast<int64_t>(runs[i].pages * kPageBytes);
    const uint64_t at = runs[i].begin - scratch_;
    if (calls[i].result != bytes) {
      return ErrnoStatus(calls[i].result < 0 ? static_cast<int>(-calls[i].result) : ENOSPC, "copying pages out");
    }
    const ssize_t got = pread(file_.get(), to.data() + at, static_cast<size_t>(bytes), static_cast<off_t>(at));
    if (got != bytes) return ErrnoStatus(got < 0 ? errno : EIO, "reading pages of the program");
  }
  return absl::OkStatus();
}

absl::Status TaskSpace::Drop(absl::Span<const AddressRun> runs, std::vector<bool>* taken) {
  MutexLock lock(&take_mu_);
  NRAM_RETURN_IF_ERROR(MoveAll(runs, /*may_be_shared=*/false, taken));
  return DropScratch();
}

absl::Status TaskSpace::DropScratch() {
  NRAM_ASSIGN_OR_RETURN(const int64_t result,
                        helper_->Call(SYS_madvise, {scratch_, kScratchPages * kPageBytes, MADV_DONTNEED}));
  if (result != 0) return ErrnoStatus(static_cast<int>(-result), "dropping pages of the program");
  return absl::OkStatus();
}

}  // namespace nram
