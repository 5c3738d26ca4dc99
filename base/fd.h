#ifndef NRAM_BASE_FD_H_
#define NRAM_BASE_FD_H_

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace nram {

// Owns a file descriptor. Move-only; move-assignment closes the previous one. A raw int elsewhere is always borrowed.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Gives the descriptor up without closing it.
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Closes all descriptors of this process from `first` on. Owners elsewhere must not close theirs again, so this is for
// a child that has just been forked. Allocates nothing.
inline void CloseFrom(int first) {
  if (syscall(SYS_close_range, first, ~0u, 0) == 0) return;
  for (int fd = first; fd < 1024; ++fd) close(fd);  // before Linux 5.9
}

// For the start of main. If this process was started without a standard stream, a file that it opens later would get
// the stream's number, and the text that is written to the stream; /dev/null takes the number instead.
inline void OpenStandardFds() {
  int fd = -1;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) close(fd);
}

// Raises the soft limit of descriptors to `wanted`, as far as the hard limit allows. Returns how many may be open. Not
// for a library: a program's select(2) knows none above 1023.
inline uint64_t RaiseDescriptorLimit(uint64_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  if (limit.rlim_cur >= wanted) return limit.rlim_cur;
  const rlimit raised{std::min<rlim_t>(wanted, limit.rlim_max), limit.rlim_max};
  return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : limit.rlim_cur;
}

}  // namespace nram

#endif  // NRAM_BASE_FD_H_
