#include "tools/bench/load_bench.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "base/sync.h"
#include "client/pool/pool.h"

namespace nram {
namespace {

constexpr uint64_t kBytesEach = 8 * kMiB;

// Every chunk names itself and the round that wrote it.
void Fill(std::byte* chunk, uint64_t number, uint64_t round) {
  for (size_t i = 0; i < kChunkBytes; i += 16) {
    memcpy(chunk + i, &number, 8);
    memcpy(chunk + i + 8, &round, 8);
  }
}

struct Shared {
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> operations{0}, bytes{0}, errors{0}, wrong{0};
  Mutex mu;
  std::string first_error ABSL_GUARDED_BY(mu);

  void Fail(const absl::Status& status) {
    ++errors;
    MutexLock lock(&mu);
    if (first_error.empty()) first_error = std::string(status.message());
  }
};

void RunClient(Pool* pool, uint64_t seed, Shared* shared) {
  const auto region = pool->CreateRegion({.gc = true, .seal = Seal::kNo});
  if (!region.ok()) return shared->Fail(region.status());
  std::mt19937_64 random(seed);
  std::vector<uint64_t> rounds(kBytesEach / kChunkBytes, 0);  // 0: never written
  std::vector<std::byte> buffer(kMiB);
  std::vector<std::byte> expected(kChunkBytes);
  for (uint64_t round = 1; !shared->stop; ++round) {
    const uint64_t count = uint64_t{1} << random() % 12;  // 512 bytes to 1 MiB
    const uint64_t first = random() % (rounds.size() - count + 1);
    const absl::Span<std::byte> at(buffer.data(), count * kChunkBytes);
    absl::Status status;
    if (random() % 2 == 0) {
      for (uint64_t i = 0; i < count; ++i) Fill(buffer.data() + i * kChunkBytes, first + i, round);
      status = (*region)->Write(first * kChunkBytes, at);
      if (status.ok()) std::fill_n(rounds.begin() + first, count, round);
    } else {
      status = (*region)->Read(first * kChunkBytes, at);
      for (uint64_t i = 0; i < count && status.ok(); ++i) {
        if (rounds[first + i] == 0) {
          std::fill(expected.begin(), expected.end(), std::byte{0});
        } else {
          Fill(expected.data(), first + i, rounds[first + i]);
        }
        if (memcmp(expected.data(), buffer.data() + i * kChunkBytes, kChunkBytes) != 0) ++shared->wrong;
      }
    }
    if (!status.ok()) return shared->Fail(status);
    ++shared->operations;
    shared->bytes += at.size();
  }
  if (const absl::Status status = (*region)->Destroy(); !status.ok()) shared->Fail(status);
}

// Median and 99th percentile of urgent reads until `deadline_ns`, a few thousand a second at most.
absl::Status Measure(Region* region, int64_t deadline_ns, double* p50_us, double* p99_us) {
  std::vector<int64_t> took_ns;
  std::vector<std::byte> page(kPageBytes);
  std::mt19937_64 random(7);
  while (MonotonicNs() < deadline_ns) {
    const uint64_t offset = random() % (kBytesEach / kPageBytes) * kPageBytes;
    const int64_t began_ns = MonotonicNs();
    NRAM_RETURN_IF_ERROR(region->Read(offset, absl::MakeSpan(page), {.io_class = IoClass::kUrgent}));
    took_ns.push_back(MonotonicNs() - began_ns);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  std::sort(took_ns.begin(), took_ns.end());
  *p50_us = took_ns[took_ns.size() / 2] / 1e3;
  *p99_us = took_ns[took_ns.size() * 99 / 100] / 1e3;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadBenchResult> RunLoadBench(const PoolOptions& pool_options, const LoadBenchOptions& options) {
  LoadBenchResult result;
  NRAM_ASSIGN_OR_RETURN(const auto measuring, Pool::Open(pool_options));
  NRAM_ASSIGN_OR_RETURN(const auto region, measuring->CreateRegion({.gc = true, .seal = Seal::kNo}));
  const std::vector<std::byte> data(kBytesEach, std::byte{1});
  NRAM_RETURN_IF_ERROR(region->Write(0, data));
  NRAM_RETURN_IF_ERROR(
      Measure(region.get(), DeadlineAfterMs(options.seconds * 200), &result.idle_p50_us, &result.idle_p99_us));

  std::vector<std::unique_ptr<Pool>> pools;
  for (int i = 0; i < options.clients; ++i) {
    NRAM_ASSIGN_OR_RETURN(auto pool, Pool::Open(pool_options));
    pools.push_back(std::move(pool));
  }
  Shared shared;
  std::vector<std::thread> threads;
  for (int i = 0; i < options.clients; ++i) threads.emplace_back([&, i] { RunClient(pools[i].get(), i, &shared); });
  const int64_t end_ns = DeadlineAfterMs(options.seconds * 1000);
  threads.emplace_back([&] {
    while (MonotonicNs() < end_ns) {
      if (options.server_pid != 0) {
        result.resident_bytes.push_back(ReadProcessMemory(options.server_pid).resident_bytes);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(options.seconds * 100));
    }
  });
  const absl::Status measured = Measure(region.get(), end_ns, &result.loaded_p50_us, &result.loaded_p99_us);
  shared.stop = true;
  for (auto& thread : threads) thread.join();
  NRAM_RETURN_IF_ERROR(measured);
  result.operations = shared.operations;
  result.bytes = shared.bytes;
  result.errors = shared.errors;
  result.wrong_bytes = shared.wrong;
  MutexLock lock(&shared.mu);
  result.first_error = shared.first_error;
  return result;
}

}  // namespace nram
