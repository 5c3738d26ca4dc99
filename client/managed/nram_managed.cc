// nram/managed.h over Manager: turns errors into errno and a text, and does nothing else.

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/host/host_memory.h"
#include "base/host/node_share.h"
#include "base/status.h"
#include "base/units.h"
#include "client/managed/fork_count.h"
#include "client/managed/managed_handle.h"
#include "client/managed/region_store.h"
#include "client/memory/api_error.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"

namespace {

using nram::ApiFail;
using nram::ApiResult;
using nram::Manager;

constexpr uint32_t kCopiesMax = 4;

const char* Environment(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr || *text == '\0' ? nullptr : text;
}

absl::StatusOr<uint64_t> ChooseBudget(uint64_t given) {
  const char* const text = Environment("NRAM_BUDGET");
  if (given != 0) return given;
  if (text == nullptr) return nram::ManagedOptions().budget_bytes;
  absl::string_view rest = text;
  const absl::StatusOr<int> sharers = nram::ConsumeNodeShare(&rest);
  if (!sharers.ok()) return nram::Annotate(sharers.status(), "$NRAM_BUDGET");
  if (absl::StartsWith(rest, "auto")) {
    NRAM_ASSIGN_OR_RETURN(const nram::HostMemory host, nram::ReadHostMemory());
    return std::max(host.available_bytes / 2 / *sharers, nram::ManagedOptions::kLeastBudgetBytes);
  }
  const absl::StatusOr<uint64_t> bytes = nram::ParseByteSize(rest);
  if (!bytes.ok()) return nram::Annotate(bytes.status(), "$NRAM_BUDGET");
  return *bytes / *sharers;
}

absl::StatusOr<int> ChooseCopies(uint32_t given) {
  uint32_t copies = std::max(given, 1u);
  if (const char* const text = Environment("NRAM_COPIES"); given == 0 && text != nullptr) {
    if (!absl::SimpleAtoi(text, &copies)) copies = 0;
  }
  if (copies < 1 || copies > kCopiesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("copies (of the options or of $NRAM_COPIES): expected 1 to ", kCopiesMax));
  }
  return static_cast<int>(copies);
}

absl::StatusOr<nram_managed_t*> Open(const char* pool, const nram_managed_options* options) {
  if (nram::ForkCount() != 0) {
    return absl::UnimplementedError(
        "this process was forked from one with an open pool and lacks its threads: exec first");
  }
  nram_managed_options given;
  nram_managed_options_init(&given);
  if (options != nullptr) {
    // An older program has shorter options, which end with the last field that it knows; a newer one has longer ones.
    if (options->size < sizeof(given)) {
      return absl::InvalidArgumentError(
          absl::StrCat("nram_managed_options.size is ", options->size, ": call nram_managed_options_init()"));
    }
    const auto* const bytes = reinterpret_cast<const char*>(options);
    if (std::any_of(bytes + sizeof(given), bytes + options->size, [](char byte) { return byte != 0; })) {
      return absl::InvalidArgumentError(
          "an option is set that this libnram does not know: it is older than the nram/managed.h that the program was "
          "built with; install a newer one");
    }
    memcpy(&given, options, sizeof(given));
  }
  nram::PoolOptions how;
  absl::StatusOr<std::string> spec = nram::ChoosePoolSpec(pool == nullptr ? "" : pool);
  if (!spec.ok()) return absl::NotFoundError(spec.status().message());
  NRAM_RETURN_IF_ERROR(nram::UsePool(*spec, &how));
  NRAM_ASSIGN_OR_RETURN(how.seal, nram::ChooseSeal(std::nullopt));
  if (given.timeout_ms != 0) how.io_timeout_ms = given.timeout_ms;
  how.fail_fast_after_ms = how.io_timeout_ms;  // a server is lost when the timeout says so, not before
  if (const char* const text = Environment("NRAM_FAST_WAKE"); text != nullptr) {
    NRAM_RETURN_IF_ERROR(nram::Annotate(nram::ParseFastWake(text, &how.fast_wake), "$NRAM_FAST_WAKE"));
  }
  NRAM_ASSIGN_OR_RETURN(const int copies, ChooseCopies(given.copies));
  if (copies > 1) how.ExpectCopies();
  nram::ManagedOptions managed;
  NRAM_ASSIGN_OR_RETURN(managed.budget_bytes, ChooseBudget(given.budget_bytes));
  managed.waits = given.no_wait == 0;
  if (given.wait_ms != 0) managed.wait_ms = given.wait_ms;
  const char* const setting = given.copies == 0 ? "$NRAM_COPIES" : "nram_managed_options.copies";
  NRAM_ASSIGN_OR_RETURN(auto store, nram::RegionStore::Open(how, copies, setting));
  NRAM_ASSIGN_OR_RETURN(auto manager, Manager::New(std::move(store), managed));
  return new nram_managed{std::move(manager)};
}

Manager::Object Of(const nram_managed_object& object) {
  return {static_cast<nram::Block*>(object.block), object.offset};
}

// Not inlined, as HoldOrFail.
ABSL_ATTRIBUTE_NOINLINE bool FailNull() {
  ApiFail(EINVAL, "the nram_managed handle is null");
  return false;
}

bool Usable(const nram_managed_t* m) { return m != nullptr || FailNull(); }

// Guards calls that take the manager's lock, which a thread of the parent may have held at fork().
bool Mine(const nram_managed_t* m) {
  if (!Usable(m)) return false;
  if (m->manager->is_parents()) {
    ApiFail(ENOTSUP, "this nram_managed handle was opened before fork(): only the parent may use it");
    return false;
  }
  return true;
}

Manager::Room RoomOf(int flags) {
  return (flags & NRAM_MANAGED_BEYOND) != 0 ? Manager::Room::kBeyondIfNeeded : Manager::Room::kBudget;
}

// Not inlined: the fast path, which finds the object here, must not pay for this stack frame.
ABSL_ATTRIBUTE_NOINLINE bool HoldOrFail(nram_managed_t* m, nram::Block* block, int flags) {
  const absl::Status status = m->manager->Hold(block, (flags & NRAM_MANAGED_WRITE) != 0, RoomOf(flags));
  if (!status.ok()) ApiResult(status);
  return status.ok();
}

nram::Mutex default_mu;
nram_managed_t* default_opened ABSL_GUARDED_BY(default_mu) = nullptr;  // never closed

// At the end of the program. A signal handler may end it while a thread holds the lock.
void EndDefault() {
  if (!default_mu.TryLock()) return;
  nram_managed_t* const opened = default_opened;
  default_mu.Unlock();
  opened->manager->EndWithLastObject();
}

}  // namespace

nram_managed_t* nram_managed_open(const char* pool, const nram_managed_options* options) {
  return ApiResult(Open(pool, options));
}

int nram_managed_close(nram_managed_t* m) {
  // A child does not close it: the objects, threads and connections are the parent's.
  if (!Mine(m)) return -1;
  {
    nram::MutexLock lock(&default_mu);
    if (m == default_opened) {
      ApiFail(EINVAL, "the default nram_managed handle is never closed");
      return -1;
    }
  }
  delete m;
  return 0;
}

nram_managed_t* nram_managed_default() {
  nram::MutexLock lock(&default_mu);
  if (default_opened != nullptr) return default_opened;
  default_opened = nram_managed_open(nullptr, nullptr);
  // Static objects that were made before this run their destructors after it, and may be managed.
  if (default_opened != nullptr) (void)std::atexit(&EndDefault);
  return default_opened;
}

int nram_managed_new(nram_managed_t* m, size_t bytes, int flags, nram_managed_object* object) {
  nram_managed_guard guard;
  void* const data = nram_managed_new_aligned(m, bytes, alignof(max_align_t), flags, object, &guard);
  if (data == nullptr) return -1;
  memset(data, 0, bytes);
  nram_managed_release(m, &guard);
  return 0;
}

void* nram_managed_new_aligned(nram_managed_t* m, size_t bytes, size_t alignment, int flags,
                               nram_managed_object* object, nram_managed_guard* guard) {
  if (!Mine(m)) return nullptr;
  const absl::StatusOr<Manager::Object> made = m->manager->Create(bytes, alignment, (flags & NRAM_MANAGED_FIXED) != 0);
  if (!made.ok()) {
    ApiResult(made.status());
    return nullptr;
  }
  *object = {made->block, made->offset};
  *guard = {made->block, m->manager->Taker()};
  return Manager::AddressOf(*made);
}

void nram_managed_delete(nram_managed_t* m, const nram_managed_object* object) { m->manager->Delete(Of(*object)); }

void* nram_managed_adhere(nram_managed_t* m, const nram_managed_object* object, int flags, nram_managed_guard* guard) {
  const Manager::Object wanted = Of(*object);
  if (!Usable(m)) return nullptr;
  nram::ThreadRecord* const me = m->manager->Taker();
  const bool is_here = m->manager->HoldIfHere(wanted.block, (flags & NRAM_MANAGED_WRITE) != 0, me);
  if (!is_here && !HoldOrFail(m, wanted.block, flags)) return nullptr;
  *guard = {wanted.block, me};
  return Manager::AddressOf(wanted);
}

int nram_managed_adhere_all(nram_managed_t* m, size_t count, const nram_managed_object* const* objects,
                            const int* flags, nram_managed_guard* guards, void** addresses) {
  if (!Usable(m)) return -1;
  std::vector<Manager::Want> wants;
  Manager::Room room = Manager::Room::kBudget;
  for (size_t i = 0; i < count; ++i) {
    wants.push_back({Of(*objects[i]).block, (flags[i] & NRAM_MANAGED_WRITE) != 0});
    if ((flags[i] & NRAM_MANAGED_BEYOND) != 0) room = Manager::Room::kBeyondIfNeeded;
  }
  if (const absl::Status status = m->manager->Hold(wants, room); !status.ok()) return ApiResult(status);
  for (size_t i = 0; i < count; ++i) {
    guards[i] = {objects[i]->block, m->manager->Taker()};
    addresses[i] = Manager::AddressOf(Of(*objects[i]));
  }
  return 0;
}

void nram_managed_release(nram_managed_t* m, const nram_managed_guard* guard) {
  m->manager->Release(static_cast<nram::Block*>(guard->block), static_cast<nram::ThreadRecord*>(guard->taker));
}

void nram_managed_start(nram_managed_t* m, const nram_managed_object* object) {
  m->manager->Start(static_cast<nram::Block*>(object->block));
}

int nram_managed_set_budget(nram_managed_t* m, uint64_t bytes) {
  return Mine(m) ? ApiResult(m->manager->SetBudget(bytes)) : -1;
}

void nram_managed_set_waits(nram_managed_t* m, int waits) { m->manager->SetWaits(waits != 0); }

int nram_managed_set_ahead(nram_managed_t* m, uint32_t percent) {
  return Mine(m) ? ApiResult(m->manager->SetAhead(percent)) : -1;
}

int nram_managed_get_stats(nram_managed_t* m, nram_managed_stats* stats) {
  if (!Mine(m)) return -1;
  if (stats->size < offsetof(nram_managed_stats, misses)) {
    return ApiFail(EINVAL, "nram_managed_stats.size must be sizeof(struct nram_managed_stats)");
  }
  const nram::ManagedCounters counters = m->manager->counters();
  const nram_managed_stats all = {.size = stats->size,
                                  .budget_bytes = counters.budget_bytes,
                                  .managed_bytes = counters.managed_bytes,
                                  .local_bytes = counters.local_bytes,
                                  .remote_bytes = counters.remote_bytes,
                                  .metadata_bytes = counters.metadata_bytes,
                                  .misses = counters.misses,
                                  .ahead_hits = counters.ahead_hits,
                                  .ahead_wasted = counters.ahead_wasted,
                                  .fetched_bytes = counters.fetched_bytes,
                                  .ahead_bytes = counters.ahead_bytes,
                                  .written_bytes = counters.written_bytes,
                                  .evictions = counters.evictions,
                                  .room_waits = counters.room_waits,
                                  .over_budget = counters.over_budget,
                                  .failed_reads = counters.failed_reads,
                                  .failed_writes = counters.failed_writes};
  // Fields that an older library does not know are 0.
  if (stats->size > sizeof(all)) memset(stats, 0, stats->size);
  memcpy(stats, &all, std::min<size_t>(all.size, sizeof(all)));
  return 0;
}

const char* nram_managed_error() { return nram::ApiError(); }
