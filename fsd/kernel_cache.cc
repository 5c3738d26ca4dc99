#include "fsd/kernel_cache.h"

namespace nram {

void KernelCache::Stop() {
  seeks_.Stop();
  drops_.Stop();
}

void KernelCache::StopWriteThrough() {
  if (through_ != nullptr) through_->Stop();
}

void KernelCache::Seek(fuse_req_t req, InodeNumber inode, uint64_t offset, int whence) {
  seeks_.Add([this, req, inode, offset, whence](bool stopping) {
    if (stopping) {
      fuse_reply_err(req, ENOTCONN);
      return;
    }
    // Linux does not write back by itself.
    if (writeback_) (void)fuse_lowlevel_notify_inval_inode(session_, inode, 0, 0);
    uint64_t found = 0;
    if (const Errno error = filesystem_->Seek(inode, offset, whence, &found); !Ok(error)) {
      fuse_reply_err(req, Raw(error));
    } else {
      fuse_reply_lseek(req, static_cast<off_t>(found));
    }
  });
}

void KernelCache::ReplyDirectWrite(fuse_req_t req, InodeNumber inode, uint64_t offset, size_t bytes) {
  uint32_t token = 0;
  const FileData::Stale stale = filesystem_->NoteDirectWrite(inode, &token);
  if (stale == FileData::Stale::kNothing) {
    fuse_reply_write(req, bytes);
    return;
  }
  if (++waiting_drops_ > waiting_drops_max_) {
    --waiting_drops_;
    fuse_reply_write(req, bytes);
    return DropLater(inode);
  }
  const bool all = stale == FileData::Stale::kWholeFile;
  drops_.Add([this, req, inode, offset, bytes, all, token](bool stopping) {
    if (!stopping) {
      (void)fuse_lowlevel_notify_inval_inode(session_, inode, all ? 0 : static_cast<off_t>(offset),
                                             all ? 0 : static_cast<off_t>(bytes));
      if (all) filesystem_->NoteDropped(inode, token);
    }
    --waiting_drops_;
    fuse_reply_write(req, bytes);
  });
}

void KernelCache::NoteWriteBack(InodeNumber inode, size_t bytes, Errno error) {
  if (!Ok(error)) DropLater(inode);
  if (through_ == nullptr) return;
  if (error == Err(ENOSPC)) {
    through_->NoteFull();
  } else if (Ok(error)) {
    through_->NoteWritten(bytes);
  }
}

void KernelCache::DropLater(InodeNumber inode) {
  {
    MutexLock lock(&mu_);
    if (!drop_later_.insert(inode).second) return;
  }
  drops_.Add([this, inode](bool stopping) {
    {
      // Writes from now on need another drop.
      MutexLock lock(&mu_);
      drop_later_.erase(inode);
    }
    if (!stopping) (void)fuse_lowlevel_notify_inval_inode(session_, inode, 0, 0);
  });
}

}  // namespace nram
