#ifndef NRAM_FSD_FUSE_ADAPTER_H_
#define NRAM_FSD_FUSE_ADAPTER_H_

// FUSE on a Filesystem: the state behind libfuse's low-level callbacks, which are in fuse_operations.cc.

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>
#include <linux/fuse.h>

#include <atomic>
#include <cstddef>

#include "absl/strings/string_view.h"
#include "fsd/filesystem.h"
#include "fsd/fuse_worker.h"
#include "fsd/kernel_cache.h"
#include "fsd/small_requests.h"

namespace nram {

struct FuseAdapterOptions {
  bool writeback = true;
  // Read-ahead and write-back that the kernel has under way: fewer than there are threads, so that a server that does
  // not answer leaves some for everything else.
  unsigned background_max = 12;
  // The kernel ends a mount whose daemon has left a request unanswered for this time; 0: never. Linux 6.15 and later.
  int request_timeout_s = 0;
  // Whether lseek finds holes (KernelFindsHoles). If not, all of a file is data.
  bool finds_holes = true;
};

// The limit for one request that a mount asks the kernel for, in seconds, 0 for none. A mount has its own
// `own_s`. If the site limits all mounts (fs.fuse.default_request_timeout, fs.fuse.max_request_timeout; 0: it does
// not), one without a limit asks for the longest that it may have. The kernel never gives more than `site_max_s`.
int ChooseRequestTimeout(int own_s, int site_default_s, int site_max_s);

// Whether Linux of this release ("6.1.0-37-amd64") writes pages back so that the daemon can wait for those on their way
// (6.16). Before, the daemon may take such a page for a hole. False: not a release.
bool KernelFindsHoles(absl::string_view release);

// The callbacks' user data. Thread-safe.
class FuseAdapter {
 public:
  // Only this mount changes anything, so the kernel's knowledge stays true until it changes it.
  static constexpr double kForeverSeconds = 1e9;

  // `filesystem` must outlive it.
  FuseAdapter(Filesystem* filesystem, FuseAdapterOptions options)
      : filesystem_(filesystem), options_(options), cache_(filesystem, options.writeback, options.background_max) {}

  static const fuse_lowlevel_ops& Operations();
  // Serves a request that libfuse 3.14 does not know: the worker's, of `bytes` (a header at least). It replies to `fd`.
  // False: libfuse is to have the request. Whatever the bytes are, none beyond them is read.
  bool HandleUnknown(int fd, const FuseWorker& worker, size_t bytes);

  Filesystem* filesystem() { return filesystem_; }
  const FuseAdapterOptions& options() const { return options_; }
  KernelCache* cache() { return &cache_; }
  SmallRequests* small() { return &small_; }
  // How long the kernel may keep an inode's attributes.
  double AttrSeconds(const InodeAttr& attr) const;

  // The mount; set before the first request.
  void set_session(fuse_session* session) { cache_.set_session(session); }
  // True once: for the reply to FUSE_INIT, which comes before all others.
  bool TakeFirstReply() {
    return !replied_.load(std::memory_order_relaxed) && !replied_.exchange(true, std::memory_order_relaxed);
  }
  // Ends the cache's threads (KernelCache::Stop).
  void StopAside() { cache_.Stop(); }
  void StopWriteThrough() { cache_.StopWriteThrough(); }
  // Waits until no small request is under way (SmallRequests::AwaitAll).
  void AwaitSmall() { small_.AwaitAll(); }

 private:
  Filesystem* const filesystem_;
  const FuseAdapterOptions options_;
  KernelCache cache_;
  SmallRequests small_{filesystem_, &cache_};
  std::atomic<bool> replied_{false};
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_ADAPTER_H_
