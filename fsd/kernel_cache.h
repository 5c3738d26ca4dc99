#ifndef NRAM_FSD_KERNEL_CACHE_H_
#define NRAM_FSD_KERNEL_CACHE_H_

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/sync.h"
#include "fsd/aside_thread.h"
#include "fsd/filesystem.h"
#include "fsd/write_through.h"

namespace nram {

// The requests that are answered only after the kernel's page cache was told something: to write a file back, or to
// drop older bytes. The kernel may do either only when other requests have been served, so this has threads of its own.
// Thread-safe.
class KernelCache {
 public:
  // `filesystem` must outlive it. `background_max`: the kernel's places for asynchronous requests. `writeback`: the
  // kernel collects writes before it sends them.
  KernelCache(Filesystem* filesystem, bool writeback, unsigned background_max)
      : filesystem_(filesystem), writeback_(writeback), waiting_drops_max_(background_max / 2) {}

  // The mount that the kernel is told about; set before the first request.
  void set_session(fuse_session* session) { session_ = session; }

  // Replies to a write past the page cache, when the cache has nothing older of the write's range. Linux drops that
  // before such a write; it drops it again after the write, in case of a read meanwhile, only if the writer waits (not
  // for libaio and io_uring).
  void ReplyDirectWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t bytes);
  // Answers an lseek for data or a hole, once the file is written back: pages that only the kernel has are data too.
  void Seek(fuse_req_t req, InodeNumber inode, uint64_t offset, int whence);

  // The kernel has sent `bytes` from the page cache, with this result. It keeps pages that it could not write back as
  // if it had: the whole file is dropped, soon, after the dirty pages are written back. Does not block.
  void NoteWriteBack(InodeNumber inode, size_t bytes, Errno error);
  // A change of the file without its bytes (a truncation, a hole, a copy) has failed, perhaps after a part of it. The
  // kernel keeps all that it has cached then, so the whole file is dropped, soon. Does not block.
  void NoteFailedChange(InodeNumber inode) { DropLater(inode); }
  // Looks at the room from then on; set before the first request.
  void set_write_through(std::unique_ptr<WriteThrough> through) { through_ = std::move(through); }

  // Ends the threads, and answers all that they have left to do and all that comes later at once. Must be called while
  // requests are still served, and before this goes away.
  void Stop();
  // Ends the looks at the room, and waits for a switch under way: to be called when the kernel has ended the mount, or
  // that may take as long as it takes to write back all that is dirty.
  void StopWriteThrough();

 private:
  // Has the whole file dropped from the page cache, soon, without waiting for that.
  void DropLater(InodeNumber inode);

  Filesystem* const filesystem_;
  const bool writeback_;
  // The most of the kernel's places for direct writes that wait for a drop. A drop may have to wait for
  // reads that hold pages and have no place yet.
  const unsigned waiting_drops_max_;
  fuse_session* session_ = nullptr;
  std::unique_ptr<WriteThrough> through_;  // null: writes go on as they began
  std::atomic<unsigned> waiting_drops_{0};

  // No other lock is taken while this one is held.
  Mutex mu_;
  absl::flat_hash_set<InodeNumber> drop_later_ ABSL_GUARDED_BY(mu_);  // those that DropLater has put into drops_
  // Two, because a seek waits until a file is written back.
  AsideThread seeks_{"nram-seek"};
  AsideThread drops_{"nram-drop"};
};

}  // namespace nram

#endif  // NRAM_FSD_KERNEL_CACHE_H_
