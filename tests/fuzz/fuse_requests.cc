#include "tests/fuzz/fuse_requests.h"

#include <fcntl.h>

#include <iterator>

namespace nram {

bool FuseRequests::PutNamesRequest(uint32_t opcode) {
  const uint32_t mode = static_cast<uint32_t>(input_.Number(2));
  switch (opcode) {
    case FUSE_LOOKUP:
    case FUSE_UNLINK:
    case FUSE_RMDIR:
      PutText(Name());
      return true;
    case FUSE_SYMLINK:
      PutText(Name());
      PutText(Name());
      return true;
    case FUSE_MKNOD:
      Put(fuse_mknod_in{.mode = mode, .rdev = static_cast<uint32_t>(input_.AnyNumber()), .umask = 022});
      PutText(Name());
      return true;
    case FUSE_MKDIR:
      Put(fuse_mkdir_in{.mode = mode, .umask = 022});
      PutText(Name());
      return true;
    case FUSE_CREATE:
    case FUSE_TMPFILE:
      Put(fuse_create_in{.flags = O_RDWR, .mode = mode, .umask = 022});
      PutText(Name());
      return true;
    case FUSE_RENAME:
      Put(fuse_rename_in{.newdir = Inode()});
      PutText(Name());
      PutText(Name());
      return true;
    case FUSE_RENAME2:
      Put(fuse_rename2_in{.newdir = Inode(), .flags = mode % 8});
      PutText(Name());
      PutText(Name());
      return true;
    case FUSE_LINK:
      Put(fuse_link_in{.oldnodeid = Inode()});
      PutText(Name());
      return true;
    default:
      return false;
  }
}

void FuseRequests::PutDataRequest(uint32_t opcode) {
  switch (opcode) {
    case FUSE_READ:
    case FUSE_READDIR:
    case FUSE_READDIRPLUS: {
      fuse_read_in in{};
      in.offset = Offset();
      in.size = Size();
      return Put(in);
    }
    case FUSE_WRITE: {
      fuse_write_in in{};
      in.offset = Offset();
      in.write_flags = input_.Byte() % 8;
      in.size = Size();
      Put(in);
      return PutText(Data(in.size), /*terminated=*/false);
    }
    case FUSE_FALLOCATE: {
      fuse_fallocate_in in{};
      in.mode = input_.Byte() % 64;
      in.offset = Offset();
      in.length = Offset();
      return Put(in);
    }
    case FUSE_LSEEK: {
      fuse_lseek_in in{};
      in.offset = Offset();
      in.whence = input_.Byte() % 6;
      return Put(in);
    }
    default: {
      fuse_copy_file_range_in in{};
      in.off_in = Offset();
      in.nodeid_out = Inode();
      in.off_out = Offset();
      in.len = Size();
      in.flags = input_.Byte() % 16 == 15 ? 1 : 0;
      return Put(in);
    }
  }
}

void FuseRequests::PutXattrRequest(uint32_t opcode) {
  if (opcode == FUSE_SETXATTR) {
    const std::string value(input_.Take(input_.Byte()));
    // The kernel sends the longer form only if the daemon has asked for it.
    const uint32_t fields[] = {static_cast<uint32_t>(value.size()), input_.Byte() % 4u};
    Put(fields);
    PutText(XattrName());
    return PutText(value, /*terminated=*/false);
  }
  if (opcode != FUSE_REMOVEXATTR) Put(fuse_getxattr_in{.size = input_.Byte() % 2 * Size()});
  if (opcode != FUSE_LISTXATTR) PutText(XattrName());
}

void FuseRequests::PutOtherRequest(uint32_t opcode) {
  switch (opcode) {
    case FUSE_SETATTR: {
      fuse_setattr_in in{};
      in.valid = static_cast<uint32_t>(input_.Number(2));
      in.size = Offset();
      in.mode = static_cast<uint32_t>(input_.Number(2));
      in.uid = static_cast<uint32_t>(input_.SmallOrAny(2));
      in.gid = static_cast<uint32_t>(input_.SmallOrAny(2));
      in.mtime = input_.AnyNumber();
      in.mtimensec = static_cast<uint32_t>(input_.AnyNumber());
      return Put(in);
    }
    case FUSE_FORGET:
      return Put(fuse_forget_in{.nlookup = input_.SmallOrAny(4)});
    case FUSE_BATCH_FORGET: {
      const uint32_t count = input_.Byte() % 4;
      Put(fuse_batch_forget_in{.count = count, .dummy = 0});
      for (uint32_t i = 0; i < count; ++i) Put(fuse_forget_one{.nodeid = Inode(), .nlookup = input_.SmallOrAny(4)});
      return;
    }
    default:
      // No other body of the protocol is longer.
      PutText(std::string(input_.Take(input_.Byte() % 64)) + std::string(200, '\0'), /*terminated=*/false);
  }
}

size_t FuseRequests::Next() {
  static constexpr uint32_t kOften[] = {
      FUSE_LOOKUP,      FUSE_CREATE, FUSE_WRITE,    FUSE_READ,      FUSE_MKDIR,           FUSE_SETATTR, FUSE_RENAME2,
      FUSE_FALLOCATE,   FUSE_UNLINK, FUSE_SETXATTR, FUSE_GETXATTR,  FUSE_COPY_FILE_RANGE, FUSE_LINK,    FUSE_READDIR,
      FUSE_READDIRPLUS, FUSE_FORGET, FUSE_WRITE,    FUSE_LISTXATTR, FUSE_MKNOD,           FUSE_TMPFILE};
  const uint8_t kind = input_.Byte();
  uint32_t opcode = kind < 160 ? kOften[kind % std::size(kOften)] : kind % 64u;
  // A request that cancels or answers another one has no answer of its own; and there is one INIT.
  if (opcode == FUSE_INTERRUPT || opcode == FUSE_NOTIFY_REPLY || opcode == FUSE_INIT) opcode = FUSE_GETATTR;
  Begin(opcode, Inode());
  switch (opcode) {
    case FUSE_READ:
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
    case FUSE_WRITE:
    case FUSE_FALLOCATE:
    case FUSE_LSEEK:
    case FUSE_COPY_FILE_RANGE:
      PutDataRequest(opcode);
      break;
    case FUSE_SETXATTR:
    case FUSE_GETXATTR:
    case FUSE_LISTXATTR:
    case FUSE_REMOVEXATTR:
      PutXattrRequest(opcode);
      break;
    default:
      if (!PutNamesRequest(opcode)) PutOtherRequest(opcode);
  }
  return End();
}

}  // namespace nram
