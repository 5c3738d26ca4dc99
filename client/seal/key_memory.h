#ifndef NRAM_CLIENT_SEAL_KEY_MEMORY_H_
#define NRAM_CLIENT_SEAL_KEY_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/mapping.h"

namespace nram {

// Memory for keys and secrets: locked, in no core dump, and wiped in a child after fork. The thread that fills it must
// be alone with it; from then on it is thread-safe.
class KeyMemory {
 public:
  // Zeros. RESOURCE_EXHAUSTED: no memory may be locked (ulimit -l).
  static absl::StatusOr<std::shared_ptr<KeyMemory>> Make(size_t bytes);
  ~KeyMemory();  // wipes it
  KeyMemory(const KeyMemory&) = delete;

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(memory_.data()); }
  // False in a child after fork: all is zeros there, which would do as well as any other key.
  bool is_there() const { return *magic() == kMagic; }

 private:
  static constexpr uint64_t kMagic = 0x6c61657365670000;

  explicit KeyMemory(Mapping memory) : memory_(std::move(memory)) {}
  // At the end, and wiped with all the rest.
  uint64_t* magic() const { return reinterpret_cast<uint64_t*>(memory_.data() + memory_.size()) - 1; }

  const Mapping memory_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_SEAL_KEY_MEMORY_H_
