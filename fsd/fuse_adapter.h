#ifndef NRAM_FSD_FUSE_ADAPTER_H_
#define NRAM_FSD_FUSE_ADAPTER_H_

// libfuse's low-level callbacks on a Filesystem: each decodes, calls, and replies once.

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "fsd/aside_thread.h"
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
  uint64_t offset = 0;  // of a write
  size_t bytes = 0;     // likewise
  bool direct = false;  // likewise: past the page cache
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
  // Requests that libfuse 3.14 does not know: the worker's, of `bytes` (a header at least); it replies to `fd`. False:
  // give it to libfuse. Whatever the bytes are, it reads none beyond them.
  bool HandleUnknown(int fd, const FuseWorker& worker, size_t bytes);

  Filesystem* filesystem() { return filesystem_; }
  const FuseAdapterOptions& options() const { return options_; }
  // Begin a small read or write; the reply follows when it is done. False: nothing was begun.
  bool StartRead(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes);
  bool StartWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, absl::Span<const std::byte> bytes, bool cached,
                  bool direct);
  // Replies to a write past the page cache, once the cache has nothing older of its range. Linux drops that before such
  // a write; again after it, in case somebody has read it meanwhile, only where the writer waits (not for libaio and
  // io_uring).
  void ReplyDirectWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t bytes);
  // Answers an lseek for data or a hole.
  void Seek(fuse_req_t req, InodeNumber inode, uint64_t offset, int whence);
  // Ends the threads that these two use; must be called before requests are no longer served, and before this goes
  // away.
  void StopAside();
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

  Filesystem* const filesystem_;
  const FuseAdapterOptions options_;
  Mutex mu_;
  std::vector<std::unique_ptr<SmallRequest>> smalls_ ABSL_GUARDED_BY(mu_);
  std::vector<SmallRequest*> free_smalls_ ABSL_GUARDED_BY(mu_);
  // Has the whole file dropped from the page cache, soon; nobody waits for that.
  void DropLater(InodeNumber inode);

  // Of the kernel's places for asynchronous requests, so many may be taken by direct writes that wait for a drop. Those
  // may wait for reads that hold pages and have no place yet.
  std::atomic<unsigned> waiting_drops_{0};
  absl::flat_hash_set<InodeNumber> drop_later_ ABSL_GUARDED_BY(mu_);  // those in drops_
  // Apart, because a seek waits until a file is written back.
  AsideThread seeks_{"nram-seek"};
  AsideThread drops_{"nram-drop"};
  fuse_session* session_ = nullptr;
  std::atomic<bool> replied_{false};
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_ADAPTER_H_
