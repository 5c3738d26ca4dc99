#include "fsd/fuse_adapter.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace nram {

int ChooseRequestTimeout(int own_s, int site_default_s, int site_max_s) {
  constexpr int kLongestS = UINT16_MAX;  // that the reply can tell of
  if (site_max_s > 0) return own_s > 0 ? std::min(own_s, site_max_s) : std::min(site_max_s, kLongestS);
  return own_s > 0 || site_default_s == 0 ? own_s : kLongestS;
}

bool KernelFindsHoles(absl::string_view release) {
  const std::vector<absl::string_view> numbers = absl::StrSplit(release, absl::ByAnyChar(".-+"));
  int major = 0, minor = 0;
  return numbers.size() >= 2 && absl::SimpleAtoi(numbers[0], &major) && absl::SimpleAtoi(numbers[1], &minor) &&
         std::pair(major, minor) >= std::pair(6, 16);
}

double FuseAdapter::AttrSeconds(const InodeAttr& attr) const {
  // The kernel writes back without asking again how many blocks the file takes then.
  return options_.writeback && S_ISREG(attr.st_mode) ? 1 : kForeverSeconds;
}

bool FuseAdapter::HandleUnknown(int fd, const FuseWorker& worker, size_t bytes) {
  constexpr uint32_t kTmpfile = 51;
  const fuse_in_header& header = worker.header();
  if (header.opcode != kTmpfile || bytes < sizeof header + sizeof(fuse_create_in)) return false;
  const auto& in = worker.body<fuse_create_in>();
  InodeAttr attr;
  const Errno error =
      filesystem_->names()->CreateUnnamed(header.nodeid, in.mode, {header.uid, header.gid, in.umask}, &attr);
  struct {
    fuse_out_header header{};
    fuse_entry_out entry{};
    fuse_open_out open{};
  } reply;
  reply.header.unique = header.unique;
  reply.header.error = -Raw(error);
  reply.header.len = Ok(error) ? sizeof reply : sizeof reply.header;
  if (Ok(error)) {
    reply.entry.nodeid = attr.st_ino;
    reply.entry.generation = attr.generation;
    reply.entry.entry_valid = static_cast<uint64_t>(kForeverSeconds);
    reply.entry.attr_valid = static_cast<uint64_t>(AttrSeconds(attr));
    fuse_attr& out = reply.entry.attr;
    out.ino = attr.st_ino;
    out.mode = attr.st_mode;
    out.nlink = static_cast<uint32_t>(attr.st_nlink);
    out.uid = attr.st_uid;
    out.gid = attr.st_gid;
    out.blocks = options_.writeback ? 1 : 0;  // as for other files without data (fuse_operations.cc)
    out.blksize = static_cast<uint32_t>(attr.st_blksize);
    out.atime = static_cast<uint64_t>(attr.st_atim.tv_sec);
    out.mtime = static_cast<uint64_t>(attr.st_mtim.tv_sec);
    out.ctime = static_cast<uint64_t>(attr.st_ctim.tv_sec);
    out.atimensec = static_cast<uint32_t>(attr.st_atim.tv_nsec);
    out.mtimensec = static_cast<uint32_t>(attr.st_mtim.tv_nsec);
    out.ctimensec = static_cast<uint32_t>(attr.st_ctim.tv_nsec);
    reply.open.open_flags = FOPEN_KEEP_CACHE;
  }
  if (write(fd, &reply, reply.header.len) < 0 && Ok(error)) filesystem_->names()->Forget(attr.st_ino, 1);
  return true;
}

}  // namespace nram
