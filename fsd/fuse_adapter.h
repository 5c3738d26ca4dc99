#ifndef NRAM_FSD_FUSE_ADAPTER_H_
#define NRAM_FSD_FUSE_ADAPTER_H_

// libfuse's low-level callbacks on a Filesystem: each decodes, calls, and replies once.

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/mapping.h"
#include "base/sync.h"
#include "fsd/filesystem.h"

namespace nram {

// The largest read and write that the kernel sends: 256 pages, its own limit unless root has raised it.
inline constexpr size_t kFuseIoBytesMax = 1 << 20;

class FuseAdapter;

// One thread that serves requests: its buffers, and the request that it has in hand. A callback runs on such a thread.
class FuseWorker {
 public:
  // What a worker takes: a request with its data, and a reply's.
  static constexpr size_t kRequestBytes = kFuseIoBytesMax + 4096;
  static constexpr size_t kMemoryBytes = 2 * kFuseIoBytesMax + 4096 + 8 * PaddedBytes::kPadBytes;

  FuseWorker();
  virtual ~FuseWorker() = default;
  // Null on other threads.
  static FuseWorker* Current();
  void MakeCurrent();
  // A callback says so before it does what may wait: for a memory server, for another request, for the kernel to write
  // something back. Others then read requests meanwhile.
  virtual void BeforeWaiting() {}

  // Where the next request is to be read to.
  std::byte* request() { return memory_.data() + PaddedBytes::kPadBytes; }
  // Room for a reply.
  PaddedBytes reply() { return {memory_.data() + kRequestBytes + 3 * PaddedBytes::kPadBytes, kFuseIoBytesMax}; }
  // The request as the kernel sent it: for what libfuse 3.14 does not hand on.
  const fuse_in_header& header() const {
    return *reinterpret_cast<const fuse_in_header*>(memory_.data() + PaddedBytes::kPadBytes);
  }
  template <typename Body>
  const Body& body() const {
    return *reinterpret_cast<const Body*>(&header() + 1);
  }

 private:
  Mapping memory_;
};

// A small read or write for which no thread waits.
struct SmallRequest {
  explicit SmallRequest(Filesystem* filesystem) : io(filesystem->NewIo()) {}
  const std::unique_ptr<FileIo> io;
  FuseAdapter* adapter = nullptr;
  InodeNumber inode = 0;
  size_t bytes = 0;  // of a write
  bool reads = false;
  bool touch = false;  // the inode's times
  fuse_req_t req = nullptr;
};

struct FuseAdapterOptions {
  bool writeback = true;
  // Read-ahead and write-back that the kernel has under way: fewer than there are threads, so that a server that does
  // not answer leaves some for everything else.
  unsigned background_max = 12;
  // The kernel ends a mount whose daemon has left a request unanswered for so long; 0: never. Linux 6.15 and later.
  int request_timeout_s = 0;
};

// What the callbacks' user data is.
class FuseAdapter {
 public:
  FuseAdapter(Filesystem* filesystem, FuseAdapterOptions options) : filesystem_(filesystem), options_(options) {}

  static const fuse_lowlevel_ops& Operations();
  // Requests that libfuse 3.14 does not know. False: give it to libfuse.
  bool HandleUnknown(int fd, const FuseWorker& worker);

  Filesystem* filesystem() { return filesystem_; }
  const FuseAdapterOptions& options() const { return options_; }
  // Begin a small read or write; the reply follows when it is done. False: nothing was begun.
  bool StartRead(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t size);
  bool StartWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, absl::Span<const std::byte> bytes, bool cached);
  // An lseek for data or a hole, answered by a thread of its own: it waits until the kernel has written the file back,
  // for which it needs the others.
  struct SeekRequest {
    fuse_req_t req;
    InodeNumber inode;
    uint64_t offset;
    int whence;
  };
  void Seek(const SeekRequest& request);
  // Ends that thread; must be called before requests are no longer served, and before this goes away.
  void StopSeeks();
  // Waits until no small request is under way; none must be begun meanwhile.
  void AwaitSmall();
  // To tell the kernel something; set before the first request.
  void set_session(fuse_session* session) { session_ = session; }
  fuse_session* session() { return session_; }
  // True once: for the reply to FUSE_INIT, which comes before all others.
  bool TakeFirstReply() {
    return !replied_.load(std::memory_order_relaxed) && !replied_.exchange(true, std::memory_order_relaxed);
  }

 private:
  // At most so many at once, 65 KiB each.
  static constexpr size_t kSmallRequestsMax = 128;

  SmallRequest* TakeSmall();
  void GiveSmall(SmallRequest* small);
  static void OnSmallDone(FileIo* io, Errno error, absl::Span<const std::byte> got);
  void RunSeeks();

  Filesystem* const filesystem_;
  const FuseAdapterOptions options_;
  Mutex mu_;
  std::vector<std::unique_ptr<SmallRequest>> smalls_ ABSL_GUARDED_BY(mu_);
  std::vector<SmallRequest*> free_smalls_ ABSL_GUARDED_BY(mu_);
  CondVar sought_;
  std::deque<SeekRequest> seeks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread seeker_ ABSL_GUARDED_BY(mu_);
  fuse_session* session_ = nullptr;
  std::atomic<bool> replied_{false};
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_ADAPTER_H_
