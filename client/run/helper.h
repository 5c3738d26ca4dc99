#ifndef NRAM_CLIENT_RUN_HELPER_H_
#define NRAM_CLIENT_RUN_HELPER_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/fd.h"
#include "base/sync.h"
#include "client/run/address_space.h"
#include "client/run/helper_code.h"

namespace nram {

// The task in a program's memory that makes the system calls that cannot be made from outside. If this object, or this
// process, ends without Dismiss, the helper kills the program. Thread-safe: one message at a time.
class Helper {
 public:
  // The bytes that calls may point to, at most, and where they are in the program for that number of calls.
  static constexpr size_t kCallsMax = 300;
  static constexpr uint64_t PayloadAddress(size_t calls) {
    return HelperPlace::kMessage + sizeof(HelperHeader) + calls * sizeof(HelperCall);
  }

  // Whether this process may trace the program, and so reach into its memory without the helper.
  enum class Reach { kTraces, kByHelper };

  // `socket`: SOCK_SEQPACKET, whose other end the helper has, as `its_socket`.
  Helper(pid_t pid, UniqueFd pidfd, UniqueFd socket, int its_socket, Reach reach = Reach::kTraces)
      : pid_(pid), pidfd_(std::move(pidfd)), its_socket_(its_socket), reach_(reach), socket_(std::move(socket)) {}

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  Reach reach() const { return reach_; }

  // The first act of a helper: it leaves the program's descriptors, except its socket and `pidfd` (-1: none), its
  // terminal and its group.
  absl::Status Settle(int pidfd = -1);

  // Makes the calls, in order, and fills in their results. Meanwhile `payload` is in the helper at
  // PayloadAddress(calls.size()); afterwards it has the bytes that the calls have left there. Blocks as long as the
  // calls. UNAVAILABLE: the helper has ended.
  absl::Status Make(std::vector<HelperCall>* calls, absl::Span<std::byte> payload = {});
  // One call, and its result as the kernel's. UNAVAILABLE as above.
  absl::StatusOr<int64_t> Call(uint64_t number, std::initializer_list<uint64_t> arguments,
                               absl::Span<std::byte> payload = {});
  // Gives the helper a descriptor of this process. Its number there, which is to be closed there, or -errno.
  absl::StatusOr<int64_t> Lend(int fd);
  // A descriptor of the helper's, which keeps it.
  absl::StatusOr<UniqueFd> Take(int number);
  // The helper ends, and the program goes on. Before that the helper unmaps `unmapped`: a process that still shares the
  // memory must not read zeros when its faults are not answered any more. False: the helper had ended before. Waits for
  // its end, for a second at most, and reaps it: it is this process' child.
  bool Dismiss(const std::vector<AddressRun>& unmapped = {});

 private:
  // Blocks until there is a message. False: the helper has ended.
  bool HasAnswered() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: it ends by itself.
  bool End(const std::vector<AddressRun>& unmapped);
  // `lent`: a descriptor that the calls receive; -1: none. `taken`: one that they send; null: none.
  absl::Status MakeLocked(std::vector<HelperCall>* calls, absl::Span<std::byte> payload, int lent,
                          UniqueFd* taken = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const pid_t pid_;
  const UniqueFd pidfd_;
  const int its_socket_;
  const Reach reach_;
  Mutex mu_;
  UniqueFd socket_ ABSL_GUARDED_BY(mu_);
  std::vector<std::byte> message_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_HELPER_H_
