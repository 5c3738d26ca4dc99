#include "experiments/memory/backing.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/mapping.h"
#include "base/status.h"
#include "experiments/memory/bare_fault.h"

namespace nram {
namespace {

Backing::Memory Plain(void* at) { return {static_cast<uint64_t*>(at), static_cast<uint64_t*>(at)}; }

// nram_error() is about the calling thread's last failure.
absl::Status NramStatus() { return absl::UnknownError(nram_error()); }

class NramBacking : public Backing {
 public:
  static absl::StatusOr<std::unique_ptr<Backing>> Open(const WorkOptions& options) {
    nram_options opening;
    nram_options_init(&opening);
    opening.budget_bytes = options.budget_bytes;
    opening.page_bytes = options.page_bytes;
    opening.handlers = static_cast<uint32_t>(options.handlers);
    opening.policy = options.policy;
    nram_t* handle = nram_open(nullptr, &opening);
    if (handle == nullptr) return NramStatus();
    return std::unique_ptr<Backing>(new NramBacking(handle, options.advice));
  }
  ~NramBacking() override { nram_close(handle_); }

  absl::StatusOr<Memory> Map(uint64_t bytes) override {
    void* at = nram_mmap(handle_, bytes, nullptr, 0);
    if (at == nullptr || nram_advise(handle_, at, bytes, advice_) != 0) return NramStatus();
    return Plain(at);
  }
  absl::Status Settle(const Memory& memory, uint64_t bytes) override {
    return nram_flush(handle_, memory.words, bytes) == 0 ? absl::OkStatus() : NramStatus();
  }
  nram_stats Stats() const override {
    nram_stats stats{};
    stats.size = sizeof stats;
    nram_get_stats(handle_, &stats);
    return stats;
  }

 private:
  NramBacking(nram_t* handle, nram_advice advice) : handle_(handle), advice_(advice) {}

  nram_t* const handle_;
  const nram_advice advice_;
};

class MallocBacking : public Backing {
 public:
  absl::StatusOr<Memory> Map(uint64_t bytes) override {
    NRAM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Anonymous(bytes));
    if (madvise(mapping.data(), bytes, MADV_NOHUGEPAGE) != 0 && errno != EINVAL) {
      return ErrnoStatus(errno, "MADV_NOHUGEPAGE");
    }
    mappings_.push_back(std::move(mapping));
    return Plain(mappings_.back().data());
  }

 private:
  std::vector<Mapping> mappings_;
};

class FileBacking : public Backing {
 public:
  explicit FileBacking(std::string directory) : directory_(std::move(directory)) {}
  ~FileBacking() override {
    for (const auto& [at, bytes] : mappings_) munmap(at, bytes);
  }

  absl::StatusOr<Memory> Map(uint64_t bytes) override {
    std::string path = directory_ + "/nram-memory-work-XXXXXX";
    UniqueFd fd(mkostemp(path.data(), O_CLOEXEC));
    if (!fd.valid()) return ErrnoStatus(errno, "create " + path);
    unlink(path.c_str());
    // Takes the space now, to avoid SIGBUS later.
    if (const int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
      return ErrnoStatus(error, "make room in " + directory_);
    }
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    if (at == MAP_FAILED) return ErrnoStatus(errno, "map " + path);
    mappings_.emplace_back(at, bytes);
    return Plain(at);
  }

 private:
  const std::string directory_;
  std::vector<std::pair<void*, size_t>> mappings_;
};

class BareBacking : public Backing {
 public:
  explicit BareBacking(const WorkOptions& options) {
    options_.budget_bytes = options.budget_bytes;
    options_.batch_pages = options.batch_pages;
    options_.handlers = static_cast<int>(std::max<int64_t>(options.handlers, 1));
  }

  absl::StatusOr<Memory> Map(uint64_t bytes) override {
    if (bare_ != nullptr) return absl::FailedPreconditionError("the bare loop has one memory only");
    options_.bytes = bytes;
    NRAM_ASSIGN_OR_RETURN(bare_, BareFault::Start(options_));
    return Memory{reinterpret_cast<uint64_t*>(bare_->data()), reinterpret_cast<uint64_t*>(bare_->source())};
  }
  bool keeps_writes() const override { return false; }
  nram_stats Stats() const override {
    nram_stats stats{};
    stats.budget_bytes = options_.budget_bytes;
    stats.mapped_bytes = options_.bytes;
    if (bare_ != nullptr) stats.faults = bare_->faults();
    return stats;
  }

 private:
  BareFaultOptions options_;
  std::unique_ptr<BareFault> bare_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backing>> Backing::Open(const WorkOptions& options) {
  switch (options.backing) {
    case BackingKind::kNram:
      return NramBacking::Open(options);
    case BackingKind::kMalloc:
      return std::make_unique<MallocBacking>();
    case BackingKind::kFile:
      return std::make_unique<FileBacking>(options.directory);
    case BackingKind::kBare:
      return std::make_unique<BareBacking>(options);
  }
  return absl::InternalError("no such backing");
}

}  // namespace nram
