#include "client/seal/key_memory.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {

absl::StatusOr<std::shared_ptr<KeyMemory>> KeyMemory::Make(size_t bytes) {
  const size_t whole = RoundUp(bytes + sizeof kMagic, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  NRAM_ASSIGN_OR_RETURN(Mapping memory, Mapping::Anonymous(whole));
  // Before anything is there. A child's fork must find the advice, so its failure counts.
  if (madvise(memory.data(), whole, MADV_DONTDUMP) != 0 || madvise(memory.data(), whole, MADV_WIPEONFORK) != 0) {
    return ErrnoStatus(errno, "exclude a key from core dumps and children");
  }
  // Not mlock, which sanitizers leave out.
  if (syscall(SYS_mlock2, memory.data(), whole, 0) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a key cannot be locked in memory: ", strerror(errno),
                                                     "; raise the limit of locked memory (ulimit -l, RLIMIT_MEMLOCK)"));
  }
  std::shared_ptr<KeyMemory> keys(new KeyMemory(std::move(memory)));
  *keys->magic() = kMagic;
  return keys;
}

KeyMemory::~KeyMemory() { OPENSSL_cleanse(memory_.data(), memory_.size()); }

}  // namespace nram
