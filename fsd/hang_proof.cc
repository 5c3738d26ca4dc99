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

#include "base/host/host_memory.h"
#include "base/status.h"

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

namespace nram {
namespace {

// For each thread. gRPC's threads need less; a request's handler takes some kilobytes.
constexpr size_t kStackBytes = 256 << 10;
// Much more than the daemon allocates in its whole life: 8 MiB of small requests' buffers, if all are under way at
// once, 6 MiB for the repair of several copies, and little beside.
constexpr size_t kHeapBytes = 20 << 20;

// When a machine goes down, systemd ends all processes before it takes swap off. It spares root's processes of such a
// name (https://systemd.io/ROOT_STORAGE_DAEMONS).
void MarkAsStorage() { program_invocation_name[0] = '@'; }

// From now on, standard error is a pipe, and another process copies it to the former place. This process does not wait
// for that one.
absl::Status StartLogger() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    close(ends[1]);
    // The logger ends when the daemon does, which closes the other end of the pipe.
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
  status.Update(Annotate(WriteOomScore(-1000), "set the OOM score"));
  // Real-time tasks may allocate from the reserve below min_free_kbytes (ALLOC_HARDER in mm/page_alloc.c). Without
  // that, the daemon that is to free memory waits for memory. Real-time tasks also run before those that spin in search
  // of memory. All threads have the same priority, so none starves another.
  const sched_param priority{.sched_priority = 1};
  if (sched_setscheduler(0, SCHED_RR, &priority) != 0) status.Update(ErrnoStatus(errno, "SCHED_RR"));
  if (!status.ok()) {
    const std::string text =
        absl::StrCat(status.message(), "; serving swap needs CAP_SYS_RESOURCE, CAP_SYS_NICE and Linux 5.6");
    if (!unprotected) {
      return absl::FailedPreconditionError(
          text + ". --unprotected does without: safe only if the swapping programs are in a limited memory cgroup");
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
  // One heap; none of it is given back, and nothing is beside it.
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
