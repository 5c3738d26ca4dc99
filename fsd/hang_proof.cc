#include "fsd/hang_proof.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/host_memory.h"
#include "base/status.h"

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

namespace nram {
namespace {

// Of each thread; gRPC's need less, a request's handler takes some kilobytes.
constexpr size_t kStackBytes = 256 << 10;
// What the daemon allocates in its whole life, twice over: 8 MiB of small requests' buffers, if all are under way at
// once, and little beside.
constexpr size_t kHeapBytes = 20 << 20;

// systemd spares root's processes of such a name when it ends all others of a machine that goes down, which it does
// before it takes swap off (https://systemd.io/ROOT_STORAGE_DAEMONS).
void MarkAsStorage() { program_invocation_name[0] = '@'; }

// Copies standard error to where it went so far, in a process of its own that swap does not wait for.
absl::Status StartLogger() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    close(ends[1]);
    // It ends with the daemon, whose end of the pipe is then closed.
    for (const int signal_number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signal(signal_number, SIG_IGN);
    for (int fd = 3; fd < 1024; ++fd) {
      if (fd != ends[0]) close(fd);
    }
    (void)!chdir("/");
    char buffer[4096];
    for (;;) {
      const ssize_t n = read(ends[0], buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) _exit(0);
      (void)!write(STDERR_FILENO, buffer, static_cast<size_t>(n));
    }
  }
  close(ends[0]);
  if (fcntl(ends[1], F_SETFL, O_NONBLOCK) != 0 || dup2(ends[1], STDERR_FILENO) < 0) {
    return ErrnoStatus(errno, "log through a pipe");
  }
  close(ends[1]);
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareHangProof(bool unprotected) {
  absl::Status status;
  if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) != 0) status = ErrnoStatus(errno, "PR_SET_IO_FLUSHER");
  status.Update(Annotate(WriteOomScore(-1000), "keep the OOM killer away"));
  // Real-time tasks may allocate from what min_free_kbytes keeps from everybody else (ALLOC_HARDER in mm/page_alloc.c):
  // without that, sending a page to a server waits for memory as its owner does, and for it. They also run before those
  // who spin in search of memory. Of equal priority, so that none of them starves another.
  const sched_param priority{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_RR, &priority) != 0) status.Update(ErrnoStatus(errno, "SCHED_RR"));
  if (!status.ok()) {
    const std::string text =
        absl::StrCat(status.message(), "; serving swap needs CAP_SYS_RESOURCE, CAP_SYS_NICE and Linux 5.6");
    if (!unprotected) {
      return absl::FailedPreconditionError(
          text + ". --unprotected does without: safe only where what swaps is in a limited memory cgroup");
    }
    LOG(WARNING) << "unprotected: " << text;
  }
  MarkAsStorage();
  NRAM_RETURN_IF_ERROR(StartLogger());
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const int error = pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
  if (error != 0) return ErrnoStatus(error, "threads' stack size");
  // One heap, never given back, nothing beside it.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, kHeapBytes);
  void* const first = malloc(kHeapBytes);
  if (first == nullptr) return absl::ResourceExhaustedError("no memory for the heap");
  memset(first, 0, kHeapBytes);
  free(first);
  return absl::OkStatus();
}

absl::Status LockMemory() {
  if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return ErrnoStatus(errno, "mlockall");
  return absl::OkStatus();
}

}  // namespace nram
