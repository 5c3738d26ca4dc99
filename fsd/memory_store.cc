#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/sync.h"
#include "base/units.h"
#include "fsd/block_file.h"

namespace nram {
namespace {

// Whole pages and a hash table: the ceiling must not pay for bookkeeping that the pool does not have.
class MemoryStore : public BlockStore {
 public:
  explicit MemoryStore(uint64_t bytes_max) : pages_max_(bytes_max / kPageBytes) {}

  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override { return std::make_unique<File>(this); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override { files.clear(); }
  StoreCapacity Capacity() const override {
    return {pages_max_ * kPageBytes, (pages_max_ - std::min(pages_max_, pages_.load())) * kPageBytes};
  }

 private:
  class File : public BlockFile {
   public:
    explicit File(MemoryStore* store) : store_(store) {}
    ~File() override { store_->pages_ -= pages_.size(); }

    bool Start(BlockIo* io) override {
      if (io->op() == BlockIo::Op::kRead) {
        Load(io->offset(), io->to());
        io->End(absl::OkStatus());
      } else {
        io->End(Store(io->offset(), io->from()));
      }
      return true;
    }

    absl::Status Trim(uint64_t offset, uint64_t length) override {
      WriterLock lock(&mu_);
      const uint64_t end = offset + length;
      const uint64_t first_whole = (offset + kPageBytes - 1) / kPageBytes;
      const uint64_t end_whole = std::max(end / kPageBytes, first_whole);
      const auto zero = [pages = &pages_](uint64_t from, uint64_t to) {
        const auto it = from < to ? pages->find(from / kPageBytes) : pages->end();
        if (it != pages->end()) memset(it->second.get() + from % kPageBytes, 0, to - from);
      };
      zero(offset, std::min(end, first_whole * kPageBytes));
      if (end_whole * kPageBytes >= offset) zero(std::max(offset, end_whole * kPageBytes), end);
      const auto in_range = [&](uint64_t page) { return page >= first_whole && page < end_whole; };
      const size_t before = pages_.size();
      if (end_whole - first_whole < pages_.size()) {
        for (uint64_t page = first_whole; page < end_whole; ++page) pages_.erase(page);
      } else {
        absl::erase_if(pages_, [&](const auto& entry) { return in_range(entry.first); });
      }
      store_->pages_ -= before - pages_.size();
      return absl::OkStatus();
    }

    // All of the range or nothing; that is decided before anything is allocated.
    absl::Status Reserve(uint64_t offset, uint64_t length) override {
      WriterLock lock(&mu_);
      const uint64_t free = store_->pages_max_ - std::min(store_->pages_max_, store_->pages_.load());
      uint64_t missing = (length + kPageBytes - 1) / kPageBytes;
      if (missing > free + pages_.size()) return absl::ResourceExhaustedError("the memory store is full");
      for (uint64_t page = offset / kPageBytes; page * kPageBytes < offset + length; ++page) {
        missing -= pages_.contains(page);
      }
      if (missing > free) return absl::ResourceExhaustedError("the memory store is full");
      return AddPages(offset, length);
    }

   private:
    using Pages = absl::flat_hash_map<uint64_t, std::unique_ptr<std::byte[]>>;

    void Load(uint64_t offset, absl::Span<std::byte> to) {
      ReaderLock lock(&mu_);
      const Pages* const pages = &pages_;
      ForEachPage(offset, to.size(), [&](uint64_t page, uint64_t within, uint64_t at, uint64_t bytes) {
        const auto it = pages->find(page);
        if (it == pages->end()) {
          memset(to.data() + at, 0, bytes);
        } else {
          memcpy(to.data() + at, it->second.get() + within, bytes);
        }
      });
    }
    absl::Status Store(uint64_t offset, absl::Span<const std::byte> from) {
      {
        // Most writes find their pages and may then run beside each other.
        ReaderLock lock(&mu_);
        const Pages* const pages = &pages_;
        bool all = true;
        ForEachPage(offset, from.size(),
                    [&](uint64_t page, uint64_t, uint64_t, uint64_t) { all = all && pages->contains(page); });
        if (all) {
          Copy(offset, from);
          return absl::OkStatus();
        }
      }
      WriterLock lock(&mu_);
      NRAM_RETURN_IF_ERROR(AddPages(offset, from.size()));
      Copy(offset, from);
      return absl::OkStatus();
    }

    template <typename Visit>
    static void ForEachPage(uint64_t offset, uint64_t length, Visit visit) {
      for (uint64_t at = 0; at < length;) {
        const uint64_t within = (offset + at) % kPageBytes;
        const uint64_t bytes = std::min(kPageBytes - within, length - at);
        visit((offset + at) / kPageBytes, within, at, bytes);
        at += bytes;
      }
    }
    void Copy(uint64_t offset, absl::Span<const std::byte> from) ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      const Pages* const pages = &pages_;
      ForEachPage(offset, from.size(), [&](uint64_t page, uint64_t within, uint64_t at, uint64_t bytes) {
        memcpy(pages->find(page)->second.get() + within, from.data() + at, bytes);
      });
    }
    absl::Status AddPages(uint64_t offset, uint64_t length) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      for (uint64_t page = offset / kPageBytes; page * kPageBytes < offset + length; ++page) {
        if (pages_.contains(page)) continue;
        if (store_->pages_.fetch_add(1) >= store_->pages_max_) {
          store_->pages_.fetch_sub(1);
          return absl::ResourceExhaustedError("the memory store is full");
        }
        pages_[page].reset(new std::byte[kPageBytes]());
      }
      return absl::OkStatus();
    }

    MemoryStore* const store_;
    SharedMutex mu_;
    Pages pages_ ABSL_GUARDED_BY(mu_);
  };

  const uint64_t pages_max_;
  std::atomic<uint64_t> pages_{0};
};

class NullStore : public BlockStore {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override { return std::make_unique<File>(); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override { files.clear(); }
  StoreCapacity Capacity() const override { return {1024 * kGiB, 1024 * kGiB}; }

 private:
  class File : public BlockFile {
   public:
    bool Start(BlockIo* io) override {
      if (io->op() == BlockIo::Op::kRead) memset(io->to().data(), 0, io->to().size());
      io->End(absl::OkStatus());
      return true;
    }
    absl::Status Trim(uint64_t, uint64_t) override { return absl::OkStatus(); }
    absl::Status Reserve(uint64_t, uint64_t) override { return absl::OkStatus(); }
  };
};

}  // namespace

std::unique_ptr<BlockStore> NewMemoryStore(uint64_t bytes_max) { return std::make_unique<MemoryStore>(bytes_max); }
std::unique_ptr<BlockStore> NewNullStore() { return std::make_unique<NullStore>(); }

}  // namespace nram
