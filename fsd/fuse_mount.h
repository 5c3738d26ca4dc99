#ifndef NRAM_FSD_FUSE_MOUNT_H_
#define NRAM_FSD_FUSE_MOUNT_H_

#include <sys/types.h>

#include <cstdint>
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
  std::string source = "nram";       // as mount and df show it
  std::vector<std::string> options;  // as after -o: "ro", "noexec", "allow_other", ...
  bool nonempty = false;             // hide the directory's own files
  int threads = 16;
  FastWake fast_wake = FastWake::kAuto;
  uint64_t readahead_bytes = 4 << 20;  // needs root; for others it is the kernel's 128 KiB
  FuseAdapterOptions adapter;
  // The pool's; the mount's threads drive it. It must outlive the mount. Null: the files are in no pool.
  Poller* poller = nullptr;
};

// The place of a directory: its device, and the number of the mount that it is in (0: unknown, before Linux 5.8).
struct DirectoryPlace {
  dev_t device = 0;
  uint64_t mount = 0;
};

// Whether another filesystem is mounted on a directory, whose parent is `above`. A btrfs subvolume has a device of its
// own, and is no mount.
bool IsMountedOn(const DirectoryPlace& directory, const DirectoryPlace& above);

// A filesystem that is mounted. The number of threads bounds its memory (FuseWorker::kMemoryBytes each) and the
// requests that it has in hand at once, beside the small ones. Not thread-safe.
class FuseMount {
 public:
  // Mounts; requests are served from now on. `filesystem` must outlive the mount. FAILED_PRECONDITION: the error names
  // the directory's fault, or why FUSE cannot be had here, and how to mend it.
  static absl::StatusOr<std::unique_ptr<FuseMount>> Start(Filesystem* filesystem, const FuseMountOptions& options);
  // Unmounts, if it is still mounted, and waits for the requests under way; each ends by its deadline.
  ~FuseMount();

  // Readable once it is unmounted.
  int ended_fd() const { return workers_->ended_fd(); }
  bool ended() const;
  // Has the kernel write back its dirty pages, and detaches the mount. Then waits for the programs that still have
  // files open. `timeout_ms` is for all of that; the programs are cut off afterwards (ENOTCONN).
  void Unmount(int64_t timeout_ms);

 private:
  FuseMount(Filesystem* filesystem, const FuseMountOptions& options);
  absl::Status Mount();
  absl::Status CheckDirectory() const;
  // Tells the kernel that files need no opening. As root, also sets read-ahead and the mount's share of the kernel's
  // dirty memory.
  void TuneDevice();
  // As root, with write-back: looks at the room, and has writes wait for the pool when there is little (WriteThrough).
  void WatchRoom();
  // Switches the mount between the options "sync" and "async". The kernel writes back all that is dirty first. Only on
  // a thread that needs no descriptors: it loses them.
  bool SetSync(bool on) const;
  // Takes the mount out of the file tree, once.
  void Detach();

  const FuseMountOptions options_;
  Filesystem* const filesystem_;
  FuseAdapter adapter_;
  fuse_session* session_ = nullptr;
  bool mounted_ = false;
  bool detached_ = false;
  uint64_t margin_bytes_ = 0;  // writes go through if there is less room
  dev_t device_ = 0;           // the mount's; nothing else has the number while the mount is in use
  std::unique_ptr<FuseWorkers> workers_;
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_MOUNT_H_
