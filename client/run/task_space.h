#ifndef NRAM_CLIENT_RUN_TASK_SPACE_H_
#define NRAM_CLIENT_RUN_TASK_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/sync.h"
#include "client/run/address_space.h"
#include "client/run/engine.h"
#include "client/run/helper.h"

namespace nram {

// The memory of another program: by its userfaultfd, and, for operations that cannot be done from outside, by the
// helper in it. Thread-safe.
class TaskSpace : public AddressSpace {
 public:
  // Whether this process could have one; the message says how to mend it. UNIMPLEMENTED: the kernel is older than 6.8.
  static absl::Status Probe();
  // `helper` outlives it.
  static absl::StatusOr<std::unique_ptr<TaskSpace>> Open(Helper* helper);

  // Readable when there are faults; non-blocking.
  int fault_fd() const { return faults_.get(); }
  // Takes a fault that waits; false if there is none.
  bool ReadFault(RunFault* fault);

  // Addresses that are this object's own in the program.
  bool HasOwn(uint64_t address) const override {
    return address >= scratch_ && address - scratch_ < kScratchPages * kPageBytes;
  }
  AddressRun scratch() const { return {scratch_, kScratchPages}; }
  // From now on missing pages and first writes there are faults. INVALID_ARGUMENT: such memory cannot be looked after.
  // If the program may not be traced, no child inherits it: a fork(2) may be under way that cannot be stopped.
  absl::Status Register(uint64_t begin, uint64_t pages);
  // Whether the present mappings there are registered. Protected pages may be written to afterwards.
  bool IsRegistered(uint64_t begin, uint64_t pages);

  // A process that touches a missing page there ends by SIGBUS, also after this object is destroyed.
  void PoisonMissing(absl::Span<const AddressRun> runs);

  absl::Status Copy(uint64_t to, absl::Span<const std::byte> data, bool protect) override;
  void Unprotect(uint64_t begin, uint64_t pages) override;
  void Wake(uint64_t begin, uint64_t pages) override;
  absl::Status Take(absl::Span<const AddressRun> runs, absl::Span<std::byte> to, std::vector<bool>* taken) override;
  absl::Status Drop(absl::Span<const AddressRun> runs, std::vector<bool>* taken) override;

 private:
  static constexpr uint64_t kScratchPages = 256;

  TaskSpace(Helper* helper, UniqueFd faults, int helper_fd, uint64_t scratch)
      : helper_(helper), faults_(std::move(faults)), helper_fd_(helper_fd), scratch_(scratch) {}

  // Makes the file that pages go through where this process may not read the program's memory.
  absl::Status OpenFile();
  // Reads the pages moved to the scratch, to the same place in `to`.
  absl::Status Read(const std::vector<AddressRun>& runs, absl::Span<std::byte> to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_);
  absl::Status ReadByFile(const std::vector<AddressRun>& runs, absl::Span<std::byte> to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_);

  // Has the helper move pages to the scratch, page `first` of the call's pages to the scratch's. Notes those that have
  // moved, and the errors of the others. `unshare`: pages that are shared with a child are copied first.
  absl::Status Move(absl::Span<const AddressRun> runs, const std::vector<uint64_t>& first, bool unshare,
                    std::vector<bool>* taken, std::vector<int>* errors);

  // Moves all that can be moved. `may_be_shared`: with a child; such pages are copied first.
  absl::Status MoveAll(absl::Span<const AddressRun> runs, bool may_be_shared, std::vector<bool>* taken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_);
  // Drops the pages moved to the scratch.
  absl::Status DropScratch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(take_mu_);

  Helper* const helper_;
  const UniqueFd faults_;
  const int helper_fd_;     // the same in the helper
  const uint64_t scratch_;  // addresses that pages are moved to on their way out
  UniqueFd file_;           // of the size of the scratch; none: this process may read the program's memory
  int helper_file_ = -1;    // the same in the helper
  Mutex take_mu_;           // held while the scratch is in use
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_TASK_SPACE_H_
