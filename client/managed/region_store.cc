#include "client/managed/region_store.h"

#include <utility>

#include "base/signals.h"
#include "base/status.h"
#include "client/managed/runs.h"

namespace nram {
namespace {

// The most parts of one operation under way: 1 MiB.
constexpr size_t kParts = 4;
// The end of a program waits no longer for a server, whose part is then collected with the lease.
constexpr int64_t kEndTimeoutMs = 2'000;
// A run up to this size precedes blocks fetched ahead.
constexpr size_t kUrgentBytes = kRunBytes;

IoOptions ClassOf(size_t bytes, bool awaited) {
  return {.io_class = awaited && bytes <= kUrgentBytes ? IoClass::kUrgent : IoClass::kBulk};
}

}  // namespace

class RegionStore::RegionOp : public ManagedStore::Op {
 public:
  absl::Status Wait() override { return io.Wait(); }
  static void OnDone(Io*, void* context) {
    auto* const op = static_cast<RegionOp*>(context);
    op->callback(op, op->context);
  }

  Io io{kParts};
  Callback callback = nullptr;
  void* context = nullptr;
};

absl::StatusOr<std::unique_ptr<RegionStore>> RegionStore::Open(const PoolOptions& options, int copies,
                                                               absl::string_view setting) {
  const SignalsBlocked quiet;  // the pool's threads are not the program's
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool, Pool::Open(options));
  NRAM_RETURN_IF_ERROR(CheckHosts(*pool, copies, setting));
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool->CreateRegion({.gc = true, .copies = copies}));
  return std::unique_ptr<RegionStore>(new RegionStore(std::move(pool), std::move(region)));
}

RegionStore::RegionStore(std::unique_ptr<Pool> pool, std::unique_ptr<Region> region)
    : pool_(std::move(pool)), region_(std::move(region)) {}

// A server that does not answer collects its part with the lease.
RegionStore::~RegionStore() { (void)region_->Destroy(); }

void RegionStore::End() { (void)region_->Destroy({.timeout_ms = kEndTimeoutMs}); }

absl::Status RegionStore::Reserve(uint64_t offset, uint64_t length) { return region_->Reserve(offset, length); }

std::unique_ptr<ManagedStore::Op> RegionStore::NewOp() { return std::make_unique<RegionOp>(); }

void RegionStore::StartRead(Op* op, uint64_t offset, absl::Span<std::byte> to, Callback callback, void* context) {
  auto* const mine = static_cast<RegionOp*>(op);
  mine->callback = callback;
  mine->context = context;
  region_->StartRead(&mine->io, offset, to, ClassOf(to.size(), callback == nullptr),
                     callback == nullptr ? nullptr : &RegionOp::OnDone, mine);
}

void RegionStore::StartWrite(Op* op, uint64_t offset, absl::Span<const std::byte> from, Callback callback,
                             void* context) {
  auto* const mine = static_cast<RegionOp*>(op);
  mine->callback = callback;
  mine->context = context;
  region_->StartWrite(&mine->io, offset, from, ClassOf(from.size(), callback == nullptr),
                      callback == nullptr ? nullptr : &RegionOp::OnDone, mine);
}

}  // namespace nram
