#include "fsd/file_io.h"

#include "fsd/file_data.h"

namespace nram {

FileIo::FileIo(FileStore* store)
    : BlockIo(store->blocks()->NewIo(), &FileData::OnBlockEnd),
      memory_(new std::byte[kBytesMax + 2 * PaddedBytes::kPadBytes]) {}

bool FileIo::MayBeCached() const { return file_->direct_writes_ != 0; }

void FileIo::OnFreed() { file_->WriteAgain(this); }

}  // namespace nram
