#ifndef NRAM_FSD_FUSE_MOUNT_H_
#define NRAM_FSD_FUSE_MOUNT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsd/fuse_adapter.h"
#include "fsd/fuse_workers.h"

namespace nram {

struct FuseMountOptions {
  std::string directory;
  std::string source = "nram";       // what mount and df show
  std::vector<std::string> options;  // as after -o: "ro", "noexec", "allow_other", ...
  bool nonempty = false;             // hide what the directory holds
  int threads = 16;
  FastWake fast_wake = FastWake::kAuto;
  uint64_t readahead_bytes = 4 << 20;  // needs root; without, the kernel's 128 KiB
  FuseAdapterOptions adapter;
  Poller* poller = nullptr;  // of the pool that the files are in, to be driven by the mount's threads; must outlive it
};

// A filesystem that is mounted. The number of threads bounds its memory (FuseWorker::kMemoryBytes each) and what can be
// under way at once.
class FuseMount {
 public:
  // Mounts; requests are served from now on. `filesystem` must outlive it. FAILED_PRECONDITION says what is wrong with
  // the directory, or why FUSE cannot be had here, and what would mend it.
  static absl::StatusOr<std::unique_ptr<FuseMount>> Start(Filesystem* filesystem, const FuseMountOptions& options);
  // Unmounts if that has not happened yet.
  ~FuseMount();

  // Readable once somebody has unmounted it.
  int ended_fd() const { return workers_->ended_fd(); }
  bool ended() const;
  // Writes back what the kernel still has, then detaches the mount and waits until those who still have files open are
  // done; after `timeout_ms` they are cut off (ENOTCONN).
  void Unmount(int64_t timeout_ms);

 private:
  FuseMount(Filesystem* filesystem, const FuseMountOptions& options);
  absl::Status Mount();
  absl::Status CheckDirectory() const;
  // Read-ahead and share of the kernel's dirty memory, which only root may set.
  void TuneDevice();
  void Detach();

  const FuseMountOptions options_;
  Filesystem* const filesystem_;
  FuseAdapter adapter_;
  fuse_session* session_ = nullptr;
  bool mounted_ = false;
  bool detached_ = false;
  dev_t device_ = 0;  // of the mount; nothing else has the number while anybody uses it
  std::unique_ptr<FuseWorkers> workers_;
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_MOUNT_H_
