#ifndef NRAM_TOOLS_NRAM_CHECKPOINT_DIR_H_
#define NRAM_TOOLS_NRAM_CHECKPOINT_DIR_H_

// A published version in files: DIR/NAME-N/ has mapping-0.raw and so on (sparse, as long as the mappings), `sums` (the
// CRC-32C of each MiB) and manifest.json. The manifest comes last: with it the checkpoint is whole, and on the disk.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fd.h"
#include "base/units.h"
#include "client/pool/published_array.h"

namespace nram {

inline constexpr uint64_t kCheckpointBlockBytes = kMiB;

struct CheckpointManifest {
  struct Mapping {
    std::string name;
    uint64_t bytes = 0;
    friend bool operator==(const Mapping&, const Mapping&) = default;
  };
  std::string name;  // of the publication
  uint64_t number = 0;
  uint64_t step = 0;
  int64_t time_ns = 0;
  std::string header_json;
  std::vector<Mapping> mappings;
  std::vector<PublishedArray> arrays;

  uint64_t blocks(size_t mapping) const {
    return RoundUp(mappings[mapping].bytes, kCheckpointBlockBytes) / kCheckpointBlockBytes;
  }
  // The last one may be short.
  uint64_t BytesOfBlock(size_t mapping, uint64_t block) const;
  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// "DIR/NAME-N". A '/' of the name is written as "%2F", and a '%' as "%25".
std::string CheckpointPath(const std::string& directory, const std::string& name, uint64_t number);

// The files of both: block b of a mapping begins at b MiB. Not thread-safe. Calls block for as long as the disk does.
class CheckpointFiles {
 protected:
  CheckpointFiles(std::string path, CheckpointManifest manifest);
  // `flags`: of open(2).
  absl::Status Open(int flags);
  // A block's place in `sums`.
  uint64_t IndexOf(size_t mapping, uint64_t block) const { return first_block_[mapping] + block; }
  absl::Status ReadData(size_t mapping, uint64_t block, absl::Span<std::byte> to) const;
  std::string FileOf(size_t mapping) const;

  static constexpr uint32_t kDone = 0x314d5553;  // "SUM1" in memory order
  struct Sum {
    uint32_t crc = 0;
    uint32_t done = 0;  // kDone: the block was written
  };

  const std::string path_;
  const CheckpointManifest manifest_;
  std::vector<uint64_t> first_block_;
  std::vector<UniqueFd> data_;
  UniqueFd sums_fd_;
  std::vector<Sum> sums_;
};

class CheckpointWriter : private CheckpointFiles {
 public:
  // Makes the directory, and the one above; or resumes the same checkpoint where another call has left it. Parts of
  // another checkpoint with that name and number are thrown away, unless it is whole: ALREADY_EXISTS. UNAVAILABLE:
  // another process is writing it.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(const std::string& directory,
                                                                  const CheckpointManifest& manifest);
  // It is whole: nothing is to be written any more.
  bool complete() const { return complete_; }
  const std::string& path() const { return path_; }
  // The block was written before, and is there. Reads it.
  bool Has(size_t mapping, uint64_t block) const;
  // `from`: BytesOfBlock. Pages of zeros take no room. RESOURCE_EXHAUSTED and others: as the disk says.
  absl::Status Write(size_t mapping, uint64_t block, absl::Span<const std::byte> from);
  // All blocks were written: brings everything to the disk, and then the manifest. FAILED_PRECONDITION: one was not.
  absl::Status Finish();

 private:
  using CheckpointFiles::CheckpointFiles;
  absl::Status Begin(const std::string& directory);
  bool resumes_ = false;  // files may have something where nothing is known to be
  bool complete_ = false;
};

class CheckpointReader : private CheckpointFiles {
 public:
  // `path`: of the checkpoint itself. NOT_FOUND: there is no manifest, so it is no checkpoint, or not a whole one.
  // DATA_LOSS: something is missing, or was changed.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& path);
  const CheckpointManifest& manifest() const { return manifest_; }
  // `to`: BytesOfBlock. DATA_LOSS: the block has changed since it was written.
  absl::Status Read(size_t mapping, uint64_t block, absl::Span<std::byte> to) const;

 private:
  using CheckpointFiles::CheckpointFiles;
};

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_CHECKPOINT_DIR_H_
