#ifndef NRAM_FSD_FILE_COPY_H_
#define NRAM_FSD_FILE_COPY_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/units.h"
#include "fsd/errno.h"
#include "fsd/file_data.h"
#include "fsd/file_io.h"

namespace nram {

// `length` bytes of one file to another, or to another place of the same file that they do not overlap.
struct FileCopy {
  FileData* from = nullptr;
  uint64_t from_offset = 0;
  FileData* to = nullptr;
  uint64_t to_offset = 0;
  uint64_t length = 0;
};

// How much is read and written at once.
inline constexpr uint64_t kCopyPieceBytes = kMiB;

// Copies, in order. Holes of the source become holes. Of large copies, a thread reads the next piece while this one
// writes. `buffer` has room for a MiB and is used up. Ends early where the source ends, and when `stop` says so, which
// is asked when something has been copied. An error counts only if nothing was copied before; *copied is 0 then. Blocks
// for as long as the store takes for each piece.
Errno CopyBytes(const FileCopy& copy, PaddedBytes buffer, absl::FunctionRef<bool()> stop, uint64_t* copied);
// Copies a source that is no longer than `buffer` as it is at one moment. Pages of zeros become holes.
Errno CopyAtOnce(const FileCopy& copy, PaddedBytes buffer, uint64_t* copied);

// Has the target share the source's pages (FileData::Share), where that can be: from the same place of another file, a
// piece at least. *shared is how much it shares, perhaps nothing, and perhaps all but the end.
Errno ShareBytes(const FileCopy& copy, uint64_t* shared);

}  // namespace nram

#endif  // NRAM_FSD_FILE_COPY_H_
