// nram-bench-work: the workloads of `nram bench` that no other program offers. Each prints one line of JSON.
//
//   nram-bench-work lines BYTES SEED             seeded lines of 64 bytes to the standard output
//   nram-bench-work pages DIR COUNT              writes COUNT pages of 4 KiB in order, then reads and verifies them
//   nram-bench-work pages-pool SPEC COUNT        the same through the pool's API
//   nram-bench-work stxxl DIR BYTES MEMORY       an external sort of 8-byte keys by STXXL, verified

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "tools/bench/stxxl_sort.h"
#include "tools/bench/work_done.h"

namespace nram {
namespace {

using Page = std::array<uint64_t, kPageBytes / sizeof(uint64_t)>;

double Seconds(int64_t from_ns, int64_t to_ns) { return static_cast<double>(to_ns - from_ns) / kNsPerSecond; }

void FillPage(uint64_t number, Page* page) {
  for (size_t i = 0; i < page->size(); ++i) (*page)[i] = (number + 1) * 0x9E3779B97F4A7C15u + i;
}

absl::Status MakeLines(uint64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string block;
  for (uint64_t written = 0; written < bytes;) {
    block.clear();
    while (block.size() < (1 << 20)) {
      char line[65];
      snprintf(line, sizeof line, "%016llx%016llx%016llx%015llx\n", static_cast<unsigned long long>(random()),
               static_cast<unsigned long long>(random()), static_cast<unsigned long long>(random()),
               static_cast<unsigned long long>(random() >> 4));
      block.append(line, 64);
    }
    block.resize(std::min<uint64_t>(block.size(), (bytes - written + 63) / 64 * 64));
    if (fwrite(block.data(), 1, block.size(), stdout) != block.size()) return ErrnoStatus(errno, "write");
    written += block.size();
  }
  return fflush(stdout) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "write");
}

absl::Status RunPages(uint64_t count, const std::function<absl::Status(uint64_t, const Page&)>& write,
                      const std::function<absl::Status()>& store,
                      const std::function<absl::Status(uint64_t, Page*)>& read) {
  Page page;
  const Work before_writing = WorkSoFar();
  const int64_t began_ns = MonotonicNs();
  for (uint64_t i = 0; i < count; ++i) {
    FillPage(i, &page);
    NRAM_RETURN_IF_ERROR(write(i, page));
  }
  NRAM_RETURN_IF_ERROR(store());
  const int64_t written_ns = MonotonicNs();
  const Work writing = WorkSince(before_writing);
  const Work before_reading = WorkSoFar();
  Page expected;
  for (uint64_t i = 0; i < count; ++i) {
    NRAM_RETURN_IF_ERROR(read(i, &page));
    FillPage(i, &expected);
    if (page != expected) return absl::DataLossError(absl::StrCat("page ", i, " is not as it was written"));
  }
  const int64_t read_ns = MonotonicNs();
  const Work reading = WorkSince(before_reading);
  printf("{\"write_s\":%.6f,\"write_cpu_s\":%.6f,\"write_busy\":%.4f,", Seconds(began_ns, written_ns), writing.cpu_s,
         writing.busy);
  printf("\"read_s\":%.6f,\"read_cpu_s\":%.6f,\"read_busy\":%.4f}\n", Seconds(written_ns, read_ns), reading.cpu_s,
         reading.busy);
  return absl::OkStatus();
}

absl::Status PagesInDirectory(const std::string& directory, uint64_t count) {
  const std::string path = directory + "/pages";
  UniqueFd fd(open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, "create " + path);
  return RunPages(
      count,
      [&](uint64_t i, const Page& page) {
        const ssize_t n = pwrite(fd.get(), page.data(), sizeof page, static_cast<off_t>(i * sizeof page));
        return n == sizeof page ? absl::OkStatus() : ErrnoStatus(n < 0 ? errno : ENOSPC, "write " + path);
      },
      // Write the file back and, if the filesystem has a backing store, drop it from the page cache.
      [&] {
        if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync " + path);
        (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
        return absl::OkStatus();
      },
      [&](uint64_t i, Page* page) {
        const ssize_t n = pread(fd.get(), page->data(), sizeof *page, static_cast<off_t>(i * sizeof *page));
        return n == sizeof *page ? absl::OkStatus() : ErrnoStatus(n < 0 ? errno : EIO, "read " + path);
      });
}

absl::Status PagesInPool(const std::string& spec, uint64_t count) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(options.servers, ParsePoolSpec(spec));
  NRAM_ASSIGN_OR_RETURN(options.tls, FindClientTls(options.servers));
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, Pool::Open(options));
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Region> region, pool->CreateRegion({.gc = true, .seal = Seal::kNo}));
  const absl::Status status = RunPages(
      count,
      [&](uint64_t i, const Page& page) {
        return region->Write(i * kPageBytes, {reinterpret_cast<const std::byte*>(page.data()), sizeof page});
      },
      [] { return absl::OkStatus(); },
      [&](uint64_t i, Page* page) {
        return region->Read(i * kPageBytes, {reinterpret_cast<std::byte*>(page->data()), sizeof *page});
      });
  (void)region->Destroy();
  return status;
}

int Main(const std::vector<std::string>& args) {
  uint64_t numbers[3] = {0, 0, 0};
  const auto has = [&](const char* name, size_t first_number) {
    if (args.size() < 2 || args[0] != name) return false;
    for (size_t i = first_number; i < args.size() && i - first_number < 3; ++i) {
      if (!absl::SimpleAtoi(args[i], &numbers[i - first_number])) return false;
    }
    return true;
  };
  absl::Status status = absl::InvalidArgumentError("usage: nram-bench-work lines|pages|pages-pool|stxxl ...");
  if (args.size() == 3 && has("lines", 1)) status = MakeLines(numbers[0], numbers[1]);
  if (args.size() == 3 && has("pages", 2)) status = PagesInDirectory(args[1], numbers[0]);
  if (args.size() == 3 && has("pages-pool", 2)) status = PagesInPool(args[1], numbers[0]);
  if (args.size() == 4 && has("stxxl", 2)) status = SortWithStxxl(args[1], numbers[0], numbers[1]);
  if (status.ok()) return 0;
  std::cerr << "nram-bench-work: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Main({argv + 1, argv + argc}); }
