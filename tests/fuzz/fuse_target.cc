#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/sync.h"
#include "fsd/filesystem.h"
#include "fsd/fuse_adapter.h"
#include "tests/fuzz/fuse_requests.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

constexpr uint64_t kStoreBytes = 1 << 20;
constexpr uint64_t kInodesMax = 64;
constexpr int kRequestsPerInput = 64;

// The daemon's answers to the request that is under way.
struct Answers {
  Mutex mu;
  CondVar came;
  uint64_t unique ABSL_GUARDED_BY(mu) = 0;
  int count ABSL_GUARDED_BY(mu) = 0;

  static Answers& Get() {
    static Answers* const answers = new Answers;
    return *answers;
  }
};

ssize_t TakeAnswer(int, iovec* pieces, int count, void*) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  fuse_out_header header;
  CHECK_GE(pieces[0].iov_len, sizeof header);
  memcpy(&header, pieces[0].iov_base, sizeof header);
  CHECK_EQ(header.len, bytes);
  // The kernel would read all of it.
  for (int i = 0; i < count; ++i) (void)std::string(static_cast<const char*>(pieces[i].iov_base), pieces[i].iov_len);
  if (header.unique == 0) return static_cast<ssize_t>(bytes);  // news of its own
  CHECK(header.error <= 0 && header.error > -1000) << header.error;
  Answers& answers = Answers::Get();
  MutexLock lock(&answers.mu);
  CHECK_EQ(header.unique, answers.unique);
  ++answers.count;
  answers.came.SignalAll();
  return static_cast<ssize_t>(bytes);
}

ssize_t NothingToRead(int, void*, size_t, void*) { return -1; }

void NoLog(fuse_log_level, const char*, va_list) {}

// The parts of FuseMount, without the mount.
class Daemon {
 public:
  Daemon() : adapter_(&filesystem_, FuseAdapterOptions{}) {
    static const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    char name[] = "fuzz";
    char* argv[] = {name, nullptr};
    fuse_args args = FUSE_ARGS_INIT(1, argv);
    session_ = fuse_session_new(&args, &FuseAdapter::Operations(), sizeof(fuse_lowlevel_ops), &adapter_);
    fuse_opt_free_args(&args);
    CHECK(session_ != nullptr);
    adapter_.set_session(session_);
    filesystem_.set_on_set_id_dropped(
        [this](InodeNumber inode) { fuse_lowlevel_notify_inval_inode(session_, inode, -1, 0); });
    fd_ = fcntl(nowhere, F_DUPFD_CLOEXEC, 3);
    const fuse_custom_io io{
        .writev = &TakeAnswer, .read = &NothingToRead, .splice_receive = nullptr, .splice_send = nullptr};
    CHECK_EQ(fuse_session_custom_io(session_, &io, fd_), 0);
  }
  ~Daemon() {
    adapter_.StopAside();
    adapter_.AwaitSmall();
    fuse_session_destroy(session_);  // closes fd_
  }

  // As FuseWorkers does it.
  void Handle(FuseWorker* worker, size_t bytes) {
    const fuse_in_header header = worker->header();
    Answers& answers = Answers::Get();
    {
      MutexLock lock(&answers.mu);
      answers.unique = header.unique;
      answers.count = 0;
    }
    const bool unknown = adapter_.HandleUnknown(fd_, *worker, bytes);
    if (!unknown) {
      fuse_buf buffer{};
      buffer.mem = worker->request();
      buffer.size = bytes;
      fuse_session_process_buf(session_, &buffer);
    }
    const bool answered = !unknown && header.opcode != FUSE_FORGET && header.opcode != FUSE_BATCH_FORGET;
    const int64_t deadline_ns = DeadlineAfterMs(100'000);
    MutexLock lock(&answers.mu);
    while (answered && answers.count == 0) {
      CHECK_LT(MonotonicNs(), deadline_ns) << "no answer to opcode " << header.opcode;
      answers.came.WaitUntil(&answers.mu, deadline_ns);
    }
    CHECK_EQ(answers.count, answered ? 1 : 0) << "opcode " << header.opcode;
  }

 private:
  static FilesystemOptions Options() {
    FilesystemOptions options;
    options.names.inodes_max = kInodesMax;
    return options;
  }

  std::unique_ptr<BlockStore> blocks_ = NewMemoryStore(kStoreBytes);
  Filesystem filesystem_{blocks_.get(), Options()};
  FuseAdapter adapter_;
  fuse_session* session_ = nullptr;
  int fd_ = -1;
};

}  // namespace

void FuzzFuse(const uint8_t* data, size_t size) {
  static FuseWorker* const worker = [] {
    fuse_set_log_func(&NoLog);
    return new FuseWorker;
  }();
  worker->MakeCurrent();
  FuzzInput input(data, size);
  Daemon daemon;
  FuseRequests requests(&input, worker);
  daemon.Handle(worker, requests.Init());
  for (int i = 0; i < kRequestsPerInput && !input.empty(); ++i) daemon.Handle(worker, requests.Next());
}

}  // namespace nram
