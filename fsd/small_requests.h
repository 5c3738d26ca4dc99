#ifndef NRAM_FSD_SMALL_REQUESTS_H_
#define NRAM_FSD_SMALL_REQUESTS_H_

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "fsd/file_io.h"
#include "fsd/filesystem.h"
#include "fsd/kernel_cache.h"

namespace nram {

// The small reads and writes of a mount, for which no thread waits: each has a handle from its start to its reply.
// Thread-safe, without a lock. Its memory is bounded: 72 KiB for each of 128 handles, made when first needed.
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
  static constexpr uint32_t kAwaited = 1u << 31;

  // The one handle of a request: what FUSE, the file and the store know of it.
  class Handle : public FileIo {
   public:
    Handle(SmallRequests* owner, size_t place) : FileIo(owner->filesystem_->store()), place(place), owner_(owner) {}

    const size_t place;  // in handles_
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

  // A handle that is free; null if there is none.
  Handle* Take();
  void Give(Handle* handle) { GivePlace(handle->place); }
  // This may be gone when GivePlace returns, if AwaitAll waits for it.
  void GivePlace(size_t place);
  // Replies and gives the handle back.
  void Reply(Handle* handle, Errno error, absl::Span<const std::byte> got);

  Filesystem* const filesystem_;
  KernelCache* const cache_;

  // A bit for each place in handles_. The request that has set a bit owns the place; the next owner sees its writes.
  std::array<std::atomic<uint64_t>, kHandlesMax / 64> taken_{};
  std::array<std::unique_ptr<Handle>, kHandlesMax> handles_;
  std::atomic<uint32_t> under_way_{0};  // places taken; and kAwaited once AwaitAll sleeps on it
};

}  // namespace nram

#endif  // NRAM_FSD_SMALL_REQUESTS_H_
