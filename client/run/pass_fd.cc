#include "client/run/pass_fd.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace nram {
namespace {

struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

}  // namespace

bool SendWithFd(int socket, absl::Span<const std::byte> bytes, int fd) {
  Control control;
  iovec part = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof(control.bytes);
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(fd));
  memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  ssize_t done;
  do {
    done = sendmsg(socket, &header, MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
  return done == static_cast<ssize_t>(bytes.size());
}

ssize_t ReceiveWithFd(int socket, absl::Span<std::byte> to, UniqueFd* fd) {
  Control control;
  iovec part = {to.data(), to.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = CMSG_LEN(sizeof(int));  // the padding behind it would have room for another one
  ssize_t done;
  do {
    done = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (done < 0 && errno == EINTR);
  if (done < 0 || header.msg_controllen < CMSG_LEN(sizeof(int))) return done;
  int received;
  memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(received));
  fd->reset(received);
  return done;
}

}  // namespace nram
