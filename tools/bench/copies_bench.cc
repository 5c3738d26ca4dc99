// nram-bench-copies: what copies cost. Writes and reads of a region of one copy and of a region of several in turn, in
// the same pool, and the speed at which lost copies are made anew. Prints medians and ratios, one line each.
//
//   nram-bench-copies SPEC COPIES [ROUNDS]
//
// The pool must have a host for each copy (`nram up --servers=3 --pretend-hosts`). Its servers share this machine's
// processors with the client, which hosts of their own do not.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"

namespace nram {
namespace {

constexpr uint64_t kRegionBytes = 128 * kMiB;
constexpr int kSmallCount = 2'000;
constexpr uint64_t kStreamPiece = kMiB;
constexpr int kDepth = 4;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One region, full of random bytes.
class Subject {
 public:
  static absl::StatusOr<std::unique_ptr<Subject>> Create(Pool* pool, int copies) {
    std::unique_ptr<Subject> subject(new Subject);
    NRAM_ASSIGN_OR_RETURN(subject->region_, pool->CreateRegion({.gc = true, .copies = copies}));
    NRAM_ASSIGN_OR_RETURN(subject->buffer_, Mapping::Anonymous(kDepth * kStreamPiece));
    std::mt19937_64 random(1);
    for (size_t i = 0; i < subject->buffer_.size(); i += 8) {
      const uint64_t word = random();
      memcpy(subject->buffer_.data() + i, &word, 8);
    }
    NRAM_RETURN_IF_ERROR(subject->Stream(true).status());
    return subject;
  }
  ~Subject() {
    if (region_ != nullptr) (void)region_->Destroy();
  }

  // Microseconds: the median of operations at random places, one at a time.
  absl::StatusOr<double> Small(bool write) {
    std::vector<double> took;
    for (int i = 0; i < kSmallCount; ++i) {
      const uint64_t offset = random_() % (kRegionBytes / kPageBytes) * kPageBytes;
      const int64_t began_ns = MonotonicNs();
      const IoOptions options{.io_class = IoClass::kUrgent};
      NRAM_RETURN_IF_ERROR(write ? region_->Write(offset, {buffer_.data(), kPageBytes}, options)
                                 : region_->Read(offset, {buffer_.data(), kPageBytes}, options));
      took.push_back(static_cast<double>(MonotonicNs() - began_ns) / 1e3);
    }
    return Median(took);
  }

  // MB a second.
  absl::StatusOr<double> Stream(bool write) {
    std::array<Io, kDepth> ios;
    const int64_t began_ns = MonotonicNs();
    constexpr uint64_t kPieces = kRegionBytes / kStreamPiece;
    for (uint64_t i = 0; i < kPieces + kDepth; ++i) {
      Io* const io = &ios[i % kDepth];
      if (i >= kDepth) NRAM_RETURN_IF_ERROR(io->Wait());
      if (i >= kPieces) continue;
      std::byte* const at = buffer_.data() + i % kDepth * kStreamPiece;
      if (write) {
        region_->StartWrite(io, i * kStreamPiece, {at, kStreamPiece});
      } else {
        region_->StartRead(io, i * kStreamPiece, {at, kStreamPiece});
      }
    }
    return static_cast<double>(kRegionBytes) / 1e6 / (static_cast<double>(MonotonicNs() - began_ns) / 1e9);
  }

  size_t memory_bytes() const { return region_->memory_bytes(); }

 private:
  Subject() = default;
  std::unique_ptr<Region> region_;
  Mapping buffer_;
  std::mt19937_64 random_{2};
};

struct Row {
  const char* name;
  bool write;
  bool stream;
};

absl::Status Run(const std::string& spec, int copies, int rounds) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(options.servers, ParsePoolSpec(spec));
  options.ExpectCopies();
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, Pool::Open(options));
  NRAM_ASSIGN_OR_RETURN(const auto one, Subject::Create(pool.get(), 1));
  NRAM_ASSIGN_OR_RETURN(const auto several, Subject::Create(pool.get(), copies));
  for (const Row& row : {Row{"4 KiB writes, us", true, false}, Row{"4 KiB reads, us", false, false},
                         Row{"stream of writes, MB/s", true, true}, Row{"stream of reads, MB/s", false, true}}) {
    std::vector<double> of_one;
    std::vector<double> of_several;
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round) {
      NRAM_ASSIGN_OR_RETURN(const double first, row.stream ? one->Stream(row.write) : one->Small(row.write));
      NRAM_ASSIGN_OR_RETURN(const double second, row.stream ? several->Stream(row.write) : several->Small(row.write));
      of_one.push_back(first);
      of_several.push_back(second);
      ratios.push_back(second / first);
    }
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    printf("%-24s one copy %8.1f, %d copies %8.1f, ratio %.2f (%.2f to %.2f)\n", row.name, Median(of_one), copies,
           Median(of_several), Median(ratios), *least, *most);
  }
  printf("client memory of %llu MiB: one copy %zu bytes, %d copies %zu bytes\n",
         static_cast<unsigned long long>(kRegionBytes / kMiB), one->memory_bytes(), copies, several->memory_bytes());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  int copies = 0;
  int rounds = 9;
  if (argc < 3 || !absl::SimpleAtoi(argv[2], &copies) || (argc > 3 && !absl::SimpleAtoi(argv[3], &rounds))) {
    std::cerr << "usage: nram-bench-copies SPEC COPIES [ROUNDS]" << std::endl;
    return 2;
  }
  const absl::Status status = Run(argv[1], copies, std::max(rounds, 1));
  if (status.ok()) return 0;
  std::cerr << "nram-bench-copies: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Main(argc, argv); }
