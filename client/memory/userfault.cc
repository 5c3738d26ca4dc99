#include "client/memory/userfault.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "base/userfault_numbers.h"

// Newer than Debian 12's headers: the kernel's own numbers.
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace nram {
namespace {

UniqueFd NewFd() {
  constexpr int kFlags = O_CLOEXEC | O_NONBLOCK;
  if (const auto fd = static_cast<int>(syscall(SYS_userfaultfd, kFlags)); fd >= 0) return UniqueFd(fd);
  const int error = errno;
  if (const UniqueFd device(open("/dev/userfaultfd", O_RDWR | O_CLOEXEC)); device.valid()) {
    return UniqueFd(ioctl(device.get(), USERFAULTFD_IOC_NEW, kFlags));
  }
  errno = error;
  return UniqueFd();
}

constexpr uint64_t kPoisonDontWake = 1;

uffdio_range Range(std::byte* begin, size_t length) { return {reinterpret_cast<uintptr_t>(begin), length}; }

}  // namespace

absl::StatusOr<std::unique_ptr<Userfault>> Userfault::Open() {
  // The first descriptor only asks for the kernel's features: a descriptor can be set up only once.
  uffdio_api api = {.api = UFFD_API};
  for (const bool asks : {true, false}) {
    UniqueFd fd = NewFd();
    if (!fd.valid() && errno == EPERM) {
      return absl::PermissionDeniedError(
          "the kernel permits this user no userfaultfd, which nram memory needs. Join the group nram of the package's "
          "udev rule; or, as root after each boot, `setfacl -m u:USER:rw /dev/userfaultfd` for one user or "
          "`sysctl vm.unprivileged_userfaultfd=1` for all");
    }
    if (!fd.valid()) return ErrnoStatus(errno, "userfaultfd");
    if (!asks) {
      constexpr uint64_t kNeeded = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
      if ((api.features & kNeeded) == 0) {
        return absl::UnimplementedError(
            "this kernel cannot report writes to memory pages: nram memory needs Linux 5.7 or newer, x86-64");
      }
      api.features &= kNeeded | UFFD_FEATURE_POISON;
    }
    if (ioctl(fd.get(), UFFDIO_API, &api) != 0) return ErrnoStatus(errno, "UFFDIO_API");
    if (!asks) return std::unique_ptr<Userfault>(new Userfault(std::move(fd)));
  }
  return absl::InternalError("unreachable");
}

size_t Userfault::Read(Fault* faults, size_t max) {
  constexpr size_t kBatch = 16;
  uffd_msg messages[kBatch];
  ssize_t got;
  do {
    got = read(fd_.get(), messages, sizeof(uffd_msg) * std::min(max, kBatch));
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    CHECK_EQ(errno, EAGAIN) << "reading a userfaultfd";
    return 0;
  }
  size_t count = 0;
  for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) {
    if (messages[i].event != UFFD_EVENT_PAGEFAULT) continue;
    const auto& fault = messages[i].arg.pagefault;
    faults[count++] = {fault.address, (fault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0,
                       (fault.flags & UFFD_PAGEFAULT_FLAG_WP) != 0};
  }
  return count;
}

absl::Status Userfault::Register(std::byte* begin, size_t length, bool writable) {
  uffdio_register request = {.range = Range(begin, length), .mode = UFFDIO_REGISTER_MODE_MISSING};
  if (writable) request.mode |= UFFDIO_REGISTER_MODE_WP;
  if (ioctl(fd_.get(), UFFDIO_REGISTER, &request) != 0) return ErrnoStatus(errno, "UFFDIO_REGISTER");
  return absl::OkStatus();
}

void Userfault::Unregister(std::byte* begin, size_t length) {
  uffdio_range range = Range(begin, length);
  PCHECK(ioctl(fd_.get(), UFFDIO_UNREGISTER, &range) == 0) << "UFFDIO_UNREGISTER";
}

int FillPages(int fd, uint64_t to, const std::byte* from, size_t length, bool protect,
              absl::FunctionRef<bool()> wait_for_memory) {
  size_t done = 0;
  while (done < length) {
    uffdio_copy request = {.dst = to + done,
                           .src = reinterpret_cast<uintptr_t>(from + done),
                           .len = length - done,
                           .mode = protect ? uint64_t{UFFDIO_COPY_MODE_WP} : 0};
    if (ioctl(fd, UFFDIO_COPY, &request) == 0) return 0;
    const int error = errno;
    if (request.copy > 0) done += static_cast<size_t>(request.copy);
    if ((error == ENOENT || error == EEXIST) && length > kPageBytes) {
      // The program has split the range by an madvise(2) or mprotect(2) of its own, or part of it is there from a try
      // that ended half way.
      for (; done < length; done += kPageBytes) {
        const int one = FillPages(fd, to + done, from + done, kPageBytes, protect, wait_for_memory);
        if (one != 0 && one != EEXIST) return one;
      }
      return 0;
    }
    if (error == ENOMEM && wait_for_memory()) continue;
    // EAGAIN: the address space was changing, or it stopped half way.
    if (error != EAGAIN && error != EINTR) return error;
  }
  return 0;
}

absl::Status Userfault::Copy(std::byte* to, const std::byte* from, size_t length, bool protect) {
  const int error = FillPages(fd_.get(), reinterpret_cast<uintptr_t>(to), from, length, protect, [] { return false; });
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "UFFDIO_COPY");
}

void Userfault::WriteProtect(std::byte* begin, size_t length, uint64_t mode) {
  uffdio_writeprotect request = {.range = Range(begin, length), .mode = mode};
  while (ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request) != 0) {
    if (errno == ENOENT && length > kPageBytes) {  // before Linux 6.3: over two of the kernel's areas
      for (size_t done = 0; done < length; done += kPageBytes) WriteProtect(begin + done, kPageBytes, mode);
      return;
    }
    PCHECK(errno == EAGAIN || errno == EINTR) << "UFFDIO_WRITEPROTECT";
  }
}

void Userfault::Protect(std::byte* begin, size_t length) { WriteProtect(begin, length, UFFDIO_WRITEPROTECT_MODE_WP); }
void Userfault::Unprotect(std::byte* begin, size_t length) { WriteProtect(begin, length, 0); }

void Userfault::Wake(std::byte* begin, size_t length) {
  uffdio_range range = Range(begin, length);
  PCHECK(ioctl(fd_.get(), UFFDIO_WAKE, &range) == 0) << "UFFDIO_WAKE";
}

absl::Status Userfault::Poison(std::byte* begin, size_t length) {
  size_t done = 0;
  while (done < length) {
    uffdio_poison request = {.range = Range(begin + done, length - done), .mode = kPoisonDontWake};
    if (ioctl(fd_.get(), UFFDIO_POISON, &request) == 0) return absl::OkStatus();
    const int error = errno;
    if (request.updated > 0) done += static_cast<size_t>(request.updated);
    if ((error == ENOENT || error == EEXIST) && length > kPageBytes) {  // as for Copy
      for (; done < length; done += kPageBytes) {
        const absl::Status one = Poison(begin + done, kPageBytes);
        if (!one.ok() && !absl::IsAlreadyExists(one)) return one;
      }
      return absl::OkStatus();
    }
    if (error != EAGAIN && error != EINTR) return ErrnoStatus(error, "UFFDIO_POISON");
  }
  return absl::OkStatus();
}

void DropLocally(std::byte* begin, size_t length) {
  if (madvise(begin, length, MADV_DONTNEED) == 0) return;
  if (errno == EINVAL && madvise(begin, length, MADV_DONTNEED_LOCKED) == 0) return;
  // Before Linux 5.18 locked pages cannot be dropped.
  PCHECK(errno == EINVAL && munlock(begin, length) == 0 && madvise(begin, length, MADV_DONTNEED) == 0)
      << "dropping " << length << " bytes";
}

}  // namespace nram
