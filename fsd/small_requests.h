#ifndef NRAM_FSD_SMALL_REQUESTS_H_
#define NRAM_FSD_SMALL_REQUESTS_H_

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/sync.h"
#include "fsd/file_io.h"
#include "fsd/filesystem.h"
#include "fsd/kernel_cache.h"

namespace nram {

// The small reads and writes of a mount, for which no thread waits: each has a handle from its start to its reply.
// Thread-safe. Its memory is bounded: 65 KiB for each of 128 handles, made when first needed.
class SmallRequests {
 public:
  // Both must outlive it.
  SmallRequests(Filesystem* filesystem, KernelCache* cache) : filesystem_(filesystem), cache_(cache) {}

  // These begin a read or write of up to 64 KiB; the reply to `req` follows when it has ended, perhaps before they
  // return. False: nothing was begun, because the operation has to wait, is too large, or no handle is free.
  bool StartRead(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t size, ReadNotes notes);
  // `direct`: past the page cache.
  bool StartWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, absl::Span<const std::byte> bytes,
                  WriteNotes notes, bool direct);

  // Waits until all that were begun have ended, which each does by its deadline. None may be begun meanwhile.
  void AwaitAll();

 private:
  static constexpr size_t kHandlesMax = 128;

  // The one handle of a request: what FUSE, the file and the store know of it.
  class Handle : public FileIo {
   public:
    explicit Handle(SmallRequests* owner) : FileIo(owner->filesystem_->store()), owner_(owner) {}

    fuse_req_t req = nullptr;
    InodeNumber inode = 0;
    uint64_t offset = 0;
    size_t bytes = 0;  // of a write
    bool reads = false;
    bool touch = false;   // the inode's times change
    bool direct = false;  // of a write: past the page cache

   private:
    void OnEnd(Errno error, absl::Span<const std::byte> got) override { owner_->Reply(this, error, got); }
    SmallRequests* const owner_;
  };

  // Null if none is free.
  Handle* Take() ABSL_LOCKS_EXCLUDED(mu_);
  void Give(Handle* handle) ABSL_LOCKS_EXCLUDED(mu_);
  // Replies and gives the handle back.
  void Reply(Handle* handle, Errno error, absl::Span<const std::byte> got);

  Filesystem* const filesystem_;
  KernelCache* const cache_;

  // No other lock is taken while this one is held.
  Mutex mu_;
  CondVar all_free_;
  std::vector<std::unique_ptr<Handle>> handles_ ABSL_GUARDED_BY(mu_);
  std::vector<Handle*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_FSD_SMALL_REQUESTS_H_
