// Requests that the adapter reads without libfuse.

#include "fsd/fuse_adapter.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/fd.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(FuseAdapterTest, ArbitraryRequestsGetOneReplyOrNone) {
  std::mt19937_64 random(TestSeed());
  const auto store = NewMemoryStore(kMiB);
  FilesystemOptions options;
  options.names.inodes_max = 100;
  Filesystem filesystem(store.get(), options);
  FuseAdapter adapter(&filesystem, {});
  FuseWorker worker;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  int made = 0;
  for (int i = 0; i < 20'000; ++i) {
    const size_t bytes = sizeof(fuse_in_header) + random() % 64;
    for (size_t at = 0; at < 256; ++at) worker.request()[at] = static_cast<std::byte>(random());
    fuse_in_header header{};
    memcpy(&header, worker.request(), sizeof header);
    if (random() % 4 != 0) header.opcode = random() % 2 == 0 ? 51 : header.opcode % 64;
    if (random() % 2 == 0) header.nodeid = random() % 3;
    memcpy(worker.request(), &header, sizeof header);
    const bool handled = adapter.HandleUnknown(writer.get(), worker, bytes);
    EXPECT_EQ(handled, header.opcode == 51 && bytes >= sizeof header + sizeof(fuse_create_in));
    char reply[1024];
    const ssize_t n = read(reader.get(), reply, sizeof reply);
    if (!handled) {
      EXPECT_EQ(n, -1);
      continue;
    }
    fuse_out_header out{};
    ASSERT_GE(n, static_cast<ssize_t>(sizeof out));
    memcpy(&out, reply, sizeof out);
    EXPECT_EQ(out.len, static_cast<uint32_t>(n));
    EXPECT_EQ(out.unique, header.unique);
    made += out.error == 0;
  }
  EXPECT_EQ(made, 99) << "as many as there may be inodes beside the root";
}

}  // namespace
}  // namespace nram
