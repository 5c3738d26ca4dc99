// nram-bench-copies: the cost of copies. Writes and reads a region of one copy and a region of several in turn, in the
// same pool. Prints medians and ratios, one line each.
//
//   nram-bench-copies SPEC COPIES [ROUNDS]
//   nram-bench-copies SPEC COPIES --driven MIB
//
// Driven (by copies_rows.py), it fills a region of MIB mebibytes, says "ready", and obeys each line of its input:
// "reads", "writes" or "both", SECONDS and THREADS. A line of JSON gives the time of 4 KiB at random places.
//
// The pool must have a host for each copy (`nram up --servers=3 --pretend-hosts`). Its servers share this machine's
// processors with the client, unlike servers on hosts of their own.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"

namespace nram {
namespace {

constexpr uint64_t kRegionBytes = 128 * kMiB;
constexpr int kSmallCount = 2'000;
constexpr uint64_t kStreamPiece = kMiB;
constexpr int kDepth = 4;
constexpr int kThreadsMax = 64;
constexpr int kSecondsMax = 600;

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// One region, full of random bytes.
class Subject {
 public:
  static absl::StatusOr<std::unique_ptr<Subject>> Create(Pool* pool, int copies, uint64_t bytes = kRegionBytes) {
    std::unique_ptr<Subject> subject(new Subject(bytes));
    NRAM_ASSIGN_OR_RETURN(subject->region_, pool->CreateRegion({.gc = true, .copies = copies, .seal = Seal::kNo}));
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
      NRAM_ASSIGN_OR_RETURN(const double took_us, One(write, random_(), buffer_.data()));
      took.push_back(took_us);
    }
    return Median(took);
  }

  // Microseconds of each read and of each write until the deadline, at random places, by one thread.
  struct Times {
    std::vector<double> reads;
    std::vector<double> writes;
    absl::Status status;
  };
  Times Load(bool reads, bool writes, int64_t deadline_ns, uint64_t seed) {
    Times times;
    std::mt19937_64 random(seed);
    std::vector<std::byte> page(buffer_.data(), buffer_.data() + kPageBytes);
    while (MonotonicNs() < deadline_ns) {
      const bool write = writes && (!reads || random() % 2 == 0);
      const absl::StatusOr<double> took_us = One(write, random(), page.data());
      if (!took_us.ok()) {
        times.status = took_us.status();
        break;
      }
      (write ? times.writes : times.reads).push_back(*took_us);
    }
    return times;
  }

  // MB a second.
  absl::StatusOr<double> Stream(bool write) {
    std::array<Io, kDepth> ios;
    const int64_t began_ns = MonotonicNs();
    const uint64_t pieces = bytes_ / kStreamPiece;
    for (uint64_t i = 0; i < pieces + kDepth; ++i) {
      Io* const io = &ios[i % kDepth];
      if (i >= kDepth) NRAM_RETURN_IF_ERROR(io->Wait());
      if (i >= pieces) continue;
      std::byte* const at = buffer_.data() + i % kDepth * kStreamPiece;
      if (write) {
        region_->StartWrite(io, i * kStreamPiece, {at, kStreamPiece});
      } else {
        region_->StartRead(io, i * kStreamPiece, {at, kStreamPiece});
      }
    }
    return static_cast<double>(bytes_) / 1e6 / (static_cast<double>(MonotonicNs() - began_ns) / 1e9);
  }

  size_t memory_bytes() const { return region_->memory_bytes(); }

 private:
  explicit Subject(uint64_t bytes) : bytes_(bytes) {}
  // Microseconds of one operation.
  absl::StatusOr<double> One(bool write, uint64_t random, std::byte* page) {
    const uint64_t offset = random % (bytes_ / kPageBytes) * kPageBytes;
    const int64_t began_ns = MonotonicNs();
    const IoOptions options{.io_class = IoClass::kUrgent};
    NRAM_RETURN_IF_ERROR(write ? region_->Write(offset, {page, kPageBytes}, options)
                               : region_->Read(offset, {page, kPageBytes}, options));
    return static_cast<double>(MonotonicNs() - began_ns) / 1e3;
  }

  const uint64_t bytes_;
  std::unique_ptr<Region> region_;
  Mapping buffer_;
  std::mt19937_64 random_{2};
};

struct Row {
  const char* name;
  bool write;
  bool stream;
};

absl::StatusOr<std::unique_ptr<Pool>> Open(const std::string& spec) {
  PoolOptions options;
  NRAM_ASSIGN_OR_RETURN(options.servers, ParsePoolSpec(spec));
  NRAM_ASSIGN_OR_RETURN(options.tls, FindClientTls(options.servers));
  options.ExpectCopies();
  return Pool::Open(options);
}

// Obeys a line of the input: "both 5 1".
absl::Status Drive(Subject* subject, const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  int seconds = 0;
  int threads = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &seconds) || !absl::SimpleAtoi(words[2], &threads) ||
      seconds < 1 || seconds > kSecondsMax || threads < 1 || threads > kThreadsMax ||
      (words[0] != "reads" && words[0] != "writes" && words[0] != "both")) {
    return absl::InvalidArgumentError(absl::StrCat("\"", line, "\": expected reads|writes|both SECONDS THREADS"));
  }
  std::vector<Subject::Times> times(threads);
  std::vector<std::thread> running;
  const int64_t deadline_ns = DeadlineAfterMs(seconds * 1000);
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      times[i] = subject->Load(words[0] != "writes", words[0] != "reads", deadline_ns, static_cast<uint64_t>(i) + 3);
    });
  }
  for (std::thread& thread : running) thread.join();
  Subject::Times all;
  for (Subject::Times& some : times) {
    NRAM_RETURN_IF_ERROR(some.status);
    all.reads.insert(all.reads.end(), some.reads.begin(), some.reads.end());
    all.writes.insert(all.writes.end(), some.writes.begin(), some.writes.end());
  }
  const auto json = [](std::vector<double>* took) {
    std::sort(took->begin(), took->end());
    const auto at = [&](double share) {
      return took->empty() ? 0.0 : (*took)[static_cast<size_t>(static_cast<double>(took->size() - 1) * share)];
    };
    return absl::StrCat("{\"count\": ", took->size(), ", \"p50\": ", at(0.5), ", \"p99\": ", at(0.99), "}");
  };
  std::cout << "{\"read\": " << json(&all.reads) << ", \"write\": " << json(&all.writes) << "}" << std::endl;
  return absl::OkStatus();
}

absl::Status RunDriven(const std::string& spec, int copies, uint64_t mib) {
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, Open(spec));
  NRAM_ASSIGN_OR_RETURN(const auto subject, Subject::Create(pool.get(), copies, mib * kMiB));
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) NRAM_RETURN_IF_ERROR(Drive(subject.get(), line));
  return absl::OkStatus();
}

absl::Status Run(const std::string& spec, int copies, int rounds) {
  NRAM_ASSIGN_OR_RETURN(const std::unique_ptr<Pool> pool, Open(spec));
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
  uint64_t mib = 0;
  const bool driven = argc == 5 && std::string(argv[3]) == "--driven";
  if (argc < 3 || !absl::SimpleAtoi(argv[2], &copies) ||
      (driven ? !absl::SimpleAtoi(argv[4], &mib) || mib < kDepth : argc > 3 && !absl::SimpleAtoi(argv[3], &rounds))) {
    std::cerr << "usage: nram-bench-copies SPEC COPIES [ROUNDS]\n"
                 "       nram-bench-copies SPEC COPIES --driven MIB"
              << std::endl;
    return 2;
  }
  const absl::Status status = driven ? RunDriven(argv[1], copies, mib) : Run(argv[1], copies, std::max(rounds, 1));
  if (status.ok()) return 0;
  std::cerr << "nram-bench-copies: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Main(argc, argv); }
