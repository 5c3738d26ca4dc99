#include "fsd/inode_table.h"

namespace nram {
namespace {

constexpr uint64_t kDirectoryEntryBytes = 20;  // for which an entry counts in its directory's size, as in tmpfs

}  // namespace

void Inode::DropSetId(SetIdBits set_id) {
  if (S_ISDIR(mode) || set_id == SetIdBits::kKeep) return;
  mode &= ~S_ISUID;
  if ((mode & S_IXGRP) != 0 || set_id == SetIdBits::kDropByStranger) mode &= ~S_ISGID;
}

size_t Inode::TextBytes() const {
  const size_t bytes = xattrs == nullptr ? 0 : xattrs->text_bytes();
  return target() == nullptr ? bytes : bytes + TextCost(target()->size());
}

void Inode::Fill(InodeNumber number, uint32_t generation_base, InodeAttr* attr) const {
  *attr = {};
  attr->st_ino = number;
  attr->generation = number == kRootInode ? 0 : generation_base + generation;
  attr->st_mode = mode;
  attr->st_nlink = link_count;
  attr->st_uid = uid;
  attr->st_gid = gid;
  attr->st_rdev = rdev;
  attr->st_blksize = 4096;
  attr->st_atim = GetTime(kAccess);
  attr->st_mtim = GetTime(kModify);
  attr->st_ctim = GetTime(kChange);
  if (directory() != nullptr) {
    attr->st_size = static_cast<off_t>(directory()->entries.size() * kDirectoryEntryBytes);
  } else if (target() != nullptr) {
    attr->st_size = static_cast<off_t>(target()->size());
  } else if (body() != nullptr) {
    attr->st_size = static_cast<off_t>(body()->size());
    attr->st_blocks = static_cast<blkcnt_t>(body()->blocks());
  }
}

Inode* InodeTable::Get(InodeNumber number) const {
  if (number == 0 || number >= slots_used_) return nullptr;
  Inode* const inode = &(*blocks_[number / kInodesPerBlock])[number % kInodesPerBlock];
  return inode->mode == 0 ? nullptr : inode;
}

Inode* InodeTable::Add(InodeNumber* number) {
  if (free_.empty()) {
    if (slots_used_ / kInodesPerBlock >= blocks_.size()) blocks_.push_back(std::make_unique<Block>());
    *number = slots_used_++;
  } else {
    *number = free_.back();
    free_.pop_back();
  }
  Inode* const inode = &(*blocks_[*number / kInodesPerBlock])[*number % kInodesPerBlock];
  ++inode->generation;
  return inode;
}

void InodeTable::Remove(InodeNumber number) {
  Inode* const inode = Get(number);
  inode->content = std::monostate();
  inode->xattrs = nullptr;
  inode->mode = 0;
  free_.push_back(static_cast<uint32_t>(number));
}

}  // namespace nram
