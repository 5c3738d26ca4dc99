#ifndef NRAM_FSD_CLONE_FILE_H_
#define NRAM_FSD_CLONE_FILE_H_

// Files that see the same pages until they are written (adr/0024).

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/sync.h"
#include "fsd/block_file.h"
#include "fsd/page_set.h"
#include "fsd/reclaimer.h"

namespace nram {

class Sight;

// A store's file of which several files see pages. A page that more than one sees does not change. Thread-safe.
class CloneBase {
 public:
  CloneBase(std::unique_ptr<BlockFile> file, Reclaimer* reclaimer) : file_(std::move(file)), reclaimer_(reclaimer) {}
  CloneBase(const CloneBase&) = delete;
  CloneBase& operator=(const CloneBase&) = delete;

  BlockFile* file() const { return file_.get(); }
  // Whether one file alone sees pages of it. That file may write to them in place; and it stays so while that file does
  // not share them.
  bool sole() const;
  // Frees pages that no file sees any more, if they are many enough. Their room is not promised. The caller must have a
  // sight. Blocks as the store's Trim does.
  void TrimUnseen();

 private:
  friend class Sight;

  std::unique_ptr<BlockFile> file_;  // the last sight takes it along
  Reclaimer* const reclaimer_;
  mutable Mutex mu_;  // over no wait, and no other lock
  std::vector<Sight*> sights_ ABSL_GUARDED_BY(mu_);
  PageSet unseen_ ABSL_GUARDED_BY(mu_);  // stored perhaps, and seen by no file
};

// The pages of a base that one file sees. Only the sight's owner changes it, and only alone; other threads may
// look at its pages, under the base's lock.
class Sight {
 public:
  // Sees [first, end) of `pages`.
  Sight(std::shared_ptr<CloneBase> base, const PageSet& pages, uint64_t first, uint64_t end);
  // Frees the pages that it alone has seen, unless the reclaimer does not free any more. May block as the store's Trim.
  ~Sight();
  Sight(const Sight&) = delete;
  Sight& operator=(const Sight&) = delete;

  CloneBase* base() const { return base_.get(); }
  std::shared_ptr<CloneBase> ShareBase() const { return base_; }
  // Sees nothing any more; of no use afterwards. The base's file, if this was its last sight; else null.
  std::unique_ptr<BlockFile> Leave();
  const PageSet& pages() const { return pages_; }
  // Drop: sees [first, end) no more. Add: sees the pages of `other`, of the same base, too.
  void Drop(uint64_t first, uint64_t end);
  // The same for the sight of a sole base, whose file has freed the pages.
  void DropFreed(uint64_t first, uint64_t end);
  void Add(const Sight& other);

 private:
  void DropLocked(uint64_t first, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(base_->mu_);

  const std::shared_ptr<CloneBase> base_;
  PageSet pages_;
  bool left_ = false;
};

// The pages that a file has seen at one moment. While it lives, they stay.
using SharedPages = std::vector<std::unique_ptr<Sight>>;

// A file that sees pages of bases, and has pages of its own. Read it, and write where WritesBeside says so, from any
// number of threads; everything else is for one thread, with nothing under way. (FileData's gate sees to that.)
class CloneFile : public BlockFile {
 public:
  static constexpr size_t kSightsMax = 64;

  // Sees `pages` of `file`, which may be null. `reserved`: some of them are promised. `store` and `reclaimer` must
  // outlive it.
  CloneFile(BlockStore* store, Reclaimer* reclaimer, std::unique_ptr<BlockFile> file, const PageSet& pages,
            bool reserved = false);

  bool Start(BlockIo* io) override;
  bool WritesBeside(uint64_t offset, uint64_t length) const override;
  absl::Status Trim(uint64_t offset, uint64_t length) override;
  absl::Status Reserve(uint64_t offset, uint64_t length) override;
  void Unreserve(uint64_t offset, uint64_t length) override;
  void UnreserveAll() override;
  CloneFile* AsClone() override { return this; }

  // The pages [first, end) as they are. Those in `promised` were reserved and never written: they are holes for others,
  // and this file goes on to write them where they are. Nothing: the file has too many bases. Waits for nothing, unless
  // it has as many as it may and makes them one fewer (Fold).
  std::optional<SharedPages> Share(uint64_t first, uint64_t end, const PageSet& promised);
  // Sees `pages`, and nothing else, in [first, end). UNIMPLEMENTED: that would be too many bases. After an error
  // nothing has changed, but that pages of its own may be zeros there. Blocks as Trim does.
  absl::Status Adopt(SharedPages pages, uint64_t first, uint64_t end);

  // Takes out the files that the store has to destroy with this one. Blocks as Trim does.
  void TakeFiles(std::vector<std::unique_ptr<BlockFile>>* files);

 private:
  // Where a page is, and the pages behind it up to `end`.
  struct Place {
    BlockFile* file = nullptr;  // null: a hole
    bool in_place = false;      // it may be written there
    uint64_t end = 0;
  };
  struct Run {
    BlockFile* file = nullptr;
    uint64_t offset = 0;
    absl::Span<std::byte> to;
  };

  Place PlaceOf(uint64_t page, uint64_t end) const;
  absl::Status ReadAll(uint64_t offset, absl::Span<std::byte> to) const;
  static absl::Status ReadRuns(absl::Span<const Run> runs);
  absl::Status WriteAll(uint64_t offset, absl::Span<const std::byte> from);
  // Writes to pages that cannot be written where they are: they become its own.
  absl::Status WriteOwn(uint64_t offset, absl::Span<const std::byte> from);
  // The same for bytes of one page.
  absl::Status WriteOwnPart(uint64_t offset, absl::Span<const std::byte> from);
  absl::Status WriteOwnPages(uint64_t offset, absl::Span<const std::byte> from);
  absl::Status TrimPart(uint64_t offset, uint64_t end);
  absl::Status MakeOwn();
  // Reserves room for pages of own_ that are new to it, if it has room that is promised to others.
  absl::Status ReserveOwn(uint64_t offset, uint64_t length);
  // The pages of the base of which it sees the fewest become its own. False: they are too many, or cannot be read, or
  // there is no room for them.
  bool Fold();
  // Sees nothing of the bases in [first, end) any more.
  void DropSights(uint64_t first, uint64_t end);

  BlockStore* const store_;
  Reclaimer* const reclaimer_;
  std::unique_ptr<BlockFile> own_;  // null: none yet
  PageSet own_pages_;               // others of own_ may be anything, after a failed write
  bool own_reserved_ = false;       // room of own_ is promised to some of its pages
  SharedPages sights_;              // no page is in two of them, or in one and in own_pages_
  PageSet alone_;                   // of the sights: pages that no other file sees or will
};

// Another store whose files may become CloneFiles: it can destroy both.
class CloningStore : public BlockStore {
 public:
  // `inner` must outlive it.
  explicit CloningStore(BlockStore* inner) : inner_(inner) {}
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override { return inner_->Create(); }
  std::unique_ptr<StoreIo> NewIo() override { return inner_->NewIo(); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override;
  StoreCapacity Capacity() const override { return inner_->Capacity(); }
  size_t unit_bytes() const override { return inner_->unit_bytes(); }

 private:
  BlockStore* const inner_;
};

}  // namespace nram

#endif  // NRAM_FSD_CLONE_FILE_H_
