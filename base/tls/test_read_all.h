#ifndef NRAM_BASE_TLS_TEST_READ_ALL_H_
#define NRAM_BASE_TLS_TEST_READ_ALL_H_

#include <sys/socket.h>

#include <array>
#include <string>

namespace nram {

// The bytes of a blocking socket until its other end is closed. Blocks until then.
inline std::string ReadAll(int fd) {
  std::string all;
  std::array<char, 10'000> some;
  for (ssize_t n; (n = recv(fd, some.data(), some.size(), 0)) > 0;) all.append(some.data(), n);
  return all;
}

}  // namespace nram

#endif  // NRAM_BASE_TLS_TEST_READ_ALL_H_
