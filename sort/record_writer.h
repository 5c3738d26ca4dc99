#ifndef NRAM_SORT_RECORD_WRITER_H_
#define NRAM_SORT_RECORD_WRITER_H_

// Writes sorted records to a run in the scratch, or to the output. Full blocks are written while the next one fills.

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "sort/scratch.h"

namespace nram {

// Not thread-safe. After an error nothing more may be appended.
class RecordWriter {
 public:
  virtual ~RecordWriter() = default;

  // May block until an earlier block is written.
  absl::Status Append(absl::string_view bytes) {
    if (bytes.size() <= room_.size() - filled_) {
      std::memcpy(room_.data() + filled_, bytes.data(), bytes.size());
      filled_ += bytes.size();
      return absl::OkStatus();
    }
    return AppendSlowly(bytes);
  }
  // Blocks until all is written.
  virtual absl::Status Finish() = 0;

 protected:
  RecordWriter() = default;
  // Hands the first filled_ bytes of room_ over to be written, and sets room_ to an empty block.
  virtual absl::Status Flush() = 0;

  absl::Span<char> room_;
  size_t filled_ = 0;

 private:
  absl::Status AppendSlowly(absl::string_view bytes);
};

// A run from `offset` on, through two blocks: the halves of `memory` (whose size is a multiple of 8 KiB). The run's
// last block is filled up with zeros.
class RunWriter : public RecordWriter {
 public:
  RunWriter(Scratch* scratch, uint64_t offset, absl::Span<char> memory);
  absl::Status Finish() override;

 private:
  absl::Status Flush() override;

  const absl::Span<char> memory_;
  uint64_t offset_;
  int half_ = 0;
  std::unique_ptr<Scratch::Transfer> transfers_[2];
};

// A file descriptor, written by a thread of its own (if there can be one more), through four blocks: the quarters of
// `memory`.
class OutputWriter : public RecordWriter {
 public:
  // `name` stands in messages. The descriptor must stay open for as long as this object exists.
  OutputWriter(int fd, std::string name, absl::Span<char> memory);
  ~OutputWriter() override;
  absl::Status Finish() override;

 private:
  static constexpr size_t kBlocks = 4;

  absl::Status Flush() override;
  void Run();
  absl::Status WriteAll(absl::Span<const char> bytes) const;
  size_t Count() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return given_ - written_; }

  const int fd_;
  const std::string name_;
  const absl::Span<char> memory_;
  Mutex mu_;
  CondVar changed_;
  size_t sizes_[kBlocks] ABSL_GUARDED_BY(mu_) = {};
  size_t given_ ABSL_GUARDED_BY(mu_) = 0;    // blocks so far
  size_t written_ ABSL_GUARDED_BY(mu_) = 0;  // of them
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_SORT_RECORD_WRITER_H_
