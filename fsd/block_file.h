#ifndef NRAM_FSD_BLOCK_FILE_H_
#define NRAM_FSD_BLOCK_FILE_H_

// The seam between files and the place of their bytes: the pool, this process's memory, or nowhere.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace nram {

// The memory that a store needs for an asynchronous operation. Each store derives its own.
class StoreIo {
 public:
  virtual ~StoreIo() = default;
};

// The handle of one read or write. It is the same object from the caller down to the store. One operation at a time;
// when that has ended, the handle can be used again. The owner keeps the handle and the buffer until then.
//
// There are two kinds. The caller waits on a synchronous one: Wait() returns the result. An asynchronous one calls
// `done`, and status() has the result.
class BlockIo {
 public:
  enum class Op : uint8_t { kRead, kWrite };
  // Runs once for each operation, on any thread, perhaps before the operation's start has returned. It must not block.
  // The store does not touch the handle afterwards, so `done` may start the next operation or give the handle away.
  using Done = void (*)(BlockIo* io);

  // A synchronous handle. It needs nothing from the store and allocates nothing: it may live on the stack.
  BlockIo() = default;
  // An asynchronous handle. `part` is from NewIo() of the store that the handle is used with; it may be null if the
  // store needs none.
  BlockIo(std::unique_ptr<StoreIo> part, Done done) : part_(std::move(part)), done_(done) {}
  ~BlockIo();
  BlockIo(const BlockIo&) = delete;
  BlockIo& operator=(const BlockIo&) = delete;

  // Blocks until the operation has ended and returns its result. The store bounds the time.
  absl::Status Wait();

  // The operation, as it was started last.
  Op op() const { return op_; }
  uint64_t offset() const { return offset_; }
  absl::Span<std::byte> to() const { return to_; }            // of a read
  absl::Span<const std::byte> from() const { return from_; }  // of a write
  uint64_t end() const { return offset_ + (op_ == Op::kRead ? to_.size() : from_.size()); }
  const absl::Status& status() const { return status_; }

  // A repeated write says how it failed before: the store then need not try the same way.
  void set_earlier_failure(absl::Status failure) { earlier_failure_ = std::move(failure); }
  const absl::Status& earlier_failure() const { return earlier_failure_; }

  // For stores.
  bool waited_for() const { return done_ == nullptr; }
  StoreIo* part() { return part_.get(); }
  // Ends the operation. The handle may be gone when this returns.
  void End(absl::Status status);

 private:
  friend class BlockFile;

  static constexpr uint32_t kIdle = 0, kRunning = 1, kSleeping = 2, kEnded = 3;

  void Begin(Op op, uint64_t offset, absl::Span<std::byte> to, absl::Span<const std::byte> from);
  // Nothing was begun after all.
  void Cancel();

  const std::unique_ptr<StoreIo> part_;
  const Done done_ = nullptr;
  std::atomic<uint32_t> state_{kIdle};  // kSleeping: running, and the waiter must be woken
  Op op_ = Op::kRead;
  uint64_t offset_ = 0;
  absl::Span<std::byte> to_;
  absl::Span<const std::byte> from_;
  absl::Status status_;
  absl::Status earlier_failure_;
};

class CloneFile;

// The stored bytes of one file: sparse, up to 2^62, zeros where nothing was written. Offsets and lengths are multiples
// of the store's unit. Thread-safe like Region, whose errors these are too (client/pool/region.h). Each operation ends
// in a bounded time.
class BlockFile {
 public:
  virtual ~BlockFile() = default;

  // These start an operation. If `io` is asynchronous, the operation has at most 64 KiB, and false says that it would
  // have to wait; nothing was begun then. If `io` is synchronous, the answer is always true, and the store may do the
  // work on the caller's thread before the answer.
  bool StartRead(BlockIo* io, uint64_t offset, absl::Span<std::byte> to);
  bool StartWrite(BlockIo* io, uint64_t offset, absl::Span<const std::byte> from);
  // These start an operation and wait for it.
  absl::Status Read(uint64_t offset, absl::Span<std::byte> to);
  absl::Status Write(uint64_t offset, absl::Span<const std::byte> from);

  // All functions above come to this: it begins `io`'s operation, and calls io->End exactly once unless it returns
  // false. A store that stands on another one hands the handle on to that one's Start.
  virtual bool Start(BlockIo* io) = 0;

  // Whether a write that failed so may succeed if it is tried again and says so (BlockIo::set_earlier_failure).
  virtual bool RewriteMayHelp(const absl::Status& failed) const { return false; }
  // Whether a write there may run beside other reads and writes of the file. If not, the user of the file waits for
  // them first, and lets others wait; such a write is synchronous.
  virtual bool WritesBeside(uint64_t offset, uint64_t length) const { return true; }
  // Makes a hole and frees its memory. Blocks.
  virtual absl::Status Trim(uint64_t offset, uint64_t length) = 0;
  // Reserves room: later writes to the range do not fail for lack of it. Blocks.
  virtual absl::Status Reserve(uint64_t offset, uint64_t length) = 0;
  // Gives back the room of pages that were reserved and never written since. Does not block.
  virtual void Unreserve(uint64_t offset, uint64_t length) {}
  // The same for all reserved room that is left: the file has no such pages any more.
  virtual void UnreserveAll() {}
  // Itself, if it is one (fsd/clone_file.h).
  virtual CloneFile* AsClone() { return nullptr; }
};

struct StoreCapacity {
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// Thread-safe.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  // Takes no round trip.
  virtual absl::StatusOr<std::unique_ptr<BlockFile>> Create() = 0;
  // The store's part of an asynchronous handle; null if the store needs none.
  virtual std::unique_ptr<StoreIo> NewIo() { return nullptr; }
  // Frees all bytes of these files. They must not be in use any more. Blocks until it is done or given up.
  virtual void Destroy(std::vector<std::unique_ptr<BlockFile>> files) = 0;
  // As of the last news from the servers.
  virtual StoreCapacity Capacity() const = 0;
  // The unit of its files' reads and writes: 512, or 4096 where pages are sealed. Does not change.
  virtual size_t unit_bytes() const { return kChunkBytes; }
  // Its files keep the room of holes that are made in them: reserved room stays reserved. Does not change.
  virtual bool keeps_room() const { return false; }
};

// Pages in this process's memory, at most `bytes_max` of them: the ceiling that the pool is measured against.
std::unique_ptr<BlockStore> NewMemoryStore(uint64_t bytes_max);
// Forgets all writes and reads zeros: it shows FUSE's own cost.
std::unique_ptr<BlockStore> NewNullStore();

}  // namespace nram

#endif  // NRAM_FSD_BLOCK_FILE_H_
