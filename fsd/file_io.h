#ifndef NRAM_FSD_FILE_IO_H_
#define NRAM_FSD_FILE_IO_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/units.h"
#include "fsd/block_file.h"
#include "fsd/errno.h"
#include "fsd/file_store.h"
#include "fsd/reclaimer.h"

namespace nram {

class FileData;

// Where a write comes from. A writer waits for its result. From the page cache, the kernel writes bytes whose
// writer has been told that they are written: if that fails, the pages are errors from then on (fsd/failed_pages.h).
enum class WriteOrigin : uint8_t { kWriter, kPageCache };

// Bytes with a page's worth of memory before and behind them that may be overwritten, so that a write can be rounded
// out to whole units of its store in place.
struct PaddedBytes {
  static constexpr size_t kPadBytes = kPageBytes;  // the largest unit
  std::byte* data = nullptr;
  size_t size = 0;
};

// The handle of a small asynchronous read or write, and its buffer: FileData's half of a BlockIo. A user derives the
// other half. One operation at a time; made once and used again and again.
class FileIo : public BlockIo, private Reclaimer::Waiter {
 public:
  static constexpr size_t kBytesMax = 64 * kKiB;

  explicit FileIo(FileStore* store);

  PaddedBytes buffer() { return {memory_.get() + PaddedBytes::kPadBytes, kBytesMax}; }

  // Call it when a write has just ended: false if FileData::NoteDirectWrite of its file would say kNothing.
  bool MayBeCached() const;
  // Of the last write.
  WriteOrigin origin() const { return origin_; }

 protected:
  // Runs once for each operation that was started, on any thread, perhaps before its start has returned. Nothing
  // touches the handle afterwards, so it may be started again or given away here. It must not block. `got`: the bytes
  // that were read, in buffer().
  virtual void OnEnd(Errno error, absl::Span<const std::byte> got) = 0;

 private:
  friend class FileData;

  void OnFreed() override;

  const std::unique_ptr<std::byte[]> memory_;
  FileData* file_ = nullptr;
  BlockFile* stored_ = nullptr;      // the file's; it stays while the operation holds the file's gate
  bool tried_again_ = false;         // a write for which there was no room
  WriteOrigin origin_ = WriteOrigin::kWriter;
  absl::Span<const std::byte> got_;  // of a read that ends well
};

}  // namespace nram

#endif  // NRAM_FSD_FILE_IO_H_
