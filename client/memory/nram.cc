// nram.h over Memory and Heap: turns errors into errno and a text, and does nothing else.

#include "client/memory/nram.h"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/host/host_memory.h"
#include "base/host/node_share.h"
#include "base/status.h"
#include "base/units.h"
#include "client/memory/handle.h"
#include "client/memory/memory.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool_spec.h"
#include "client/pool/seal_choice.h"

namespace {

// How many forks lead to this process since a pool was first opened: a handle with another count is a parent's.
std::atomic<uint32_t> forks{0};

}  // namespace

namespace nram {

bool ApiUsable(const nram_t* n) {
  if (n == nullptr) {
    ApiFail(EINVAL, "the nram handle is null");
    return false;
  }
  if (n->forks != forks) {
    ApiFail(ENOTSUP, "this nram handle was opened before fork(): only the parent may use it");
    return false;
  }
  return true;
}

}  // namespace nram

using nram::ApiFail;
using nram::ApiResult;
using nram::ApiUsable;

namespace {

// `given`: the option, which is 0 if the environment decides.
absl::Status ChooseCopies(uint32_t given, nram::MemoryOptions* options) {
  options->copies = std::max(given, 1u);
  options->kept_copies = given;
  options->copies_setting = "nram_options.copies";
  if (given > nram::MemoryOptions::kCopiesMax) {
    return absl::InvalidArgumentError(absl::StrCat("nram_options.copies is ", given, ": expected 1 to ",
                                                   nram::MemoryOptions::kCopiesMax, ", or 0 for $NRAM_COPIES"));
  }
  const char* const text = std::getenv("NRAM_COPIES");
  if (given != 0 || text == nullptr || *text == '\0') return absl::OkStatus();
  uint32_t* const copies = &options->copies;
  if (!absl::SimpleAtoi(text, copies) || *copies < 1 || *copies > nram::MemoryOptions::kCopiesMax) {
    return absl::InvalidArgumentError(absl::StrCat("$NRAM_COPIES: \"", text, "\" is not accepted: expected a whole ",
                                                   "number from 1 to ", nram::MemoryOptions::kCopiesMax));
  }
  options->kept_copies = *copies;
  options->copies_setting = "$NRAM_COPIES";
  return absl::OkStatus();
}

// "512M", "auto" or "auto:256M-4G", each also as "512M/node": of this machine, for all ranks of a parallel program
// here.
absl::Status ParseBudget(absl::string_view text, nram::MemoryOptions* options) {
  absl::string_view rest = text;
  NRAM_ASSIGN_OR_RETURN(const int sharers, nram::ConsumeNodeShare(&rest));
  if (!absl::ConsumePrefix(&rest, "auto")) {
    NRAM_ASSIGN_OR_RETURN(const uint64_t bytes, nram::ParseByteSize(rest));
    options->budget_bytes = bytes / sharers;
    return absl::OkStatus();
  }
  options->budget_auto = true;
  if (rest.empty() && sharers == 1) return absl::OkStatus();
  if (rest.empty()) {
    NRAM_ASSIGN_OR_RETURN(const nram::HostMemory host, nram::ReadHostMemory());
    options->budget_max_bytes = host.total_bytes / sharers;
    return absl::OkStatus();
  }
  const bool has_bounds = absl::ConsumePrefix(&rest, ":");
  const std::vector<absl::string_view> bounds = absl::StrSplit(rest, '-');
  if (!has_bounds || bounds.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not accepted: expected a size, \"auto\", or \"auto:FLOOR-CEILING\""));
  }
  NRAM_ASSIGN_OR_RETURN(options->budget_min_bytes, nram::ParseByteSize(bounds[0]));
  NRAM_ASSIGN_OR_RETURN(options->budget_max_bytes, nram::ParseByteSize(bounds[1]));
  options->budget_min_bytes /= sharers;
  options->budget_max_bytes /= sharers;
  if (options->budget_min_bytes == 0 || options->budget_max_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not accepted: a bound is 0"));
  }
  return absl::OkStatus();
}

absl::Status ChooseBudget(const nram_options& given, nram::MemoryOptions* options) {
  if (given.budget_bytes == NRAM_BUDGET_AUTO) {
    options->budget_auto = true;
  } else if (given.budget_bytes != 0) {
    options->budget_bytes = given.budget_bytes;
    if (given.budget_min_bytes != 0 || given.budget_max_bytes != 0) {
      return absl::InvalidArgumentError(
          "nram_options.budget_min_bytes and budget_max_bytes are for NRAM_BUDGET_AUTO: budget_bytes is a fixed size");
    }
  } else if (const char* text = std::getenv("NRAM_BUDGET"); text != nullptr && *text != '\0') {
    NRAM_RETURN_IF_ERROR(nram::Annotate(ParseBudget(text, options), "$NRAM_BUDGET"));
  }
  if (given.budget_min_bytes != 0) options->budget_min_bytes = given.budget_min_bytes;
  if (given.budget_max_bytes != 0) options->budget_max_bytes = given.budget_max_bytes;
  if (given.on_budget != nullptr) {
    options->on_budget = [on_budget = given.on_budget, context = given.on_budget_context](
                             uint64_t old_bytes, uint64_t new_bytes) { on_budget(old_bytes, new_bytes, context); };
  }
  return absl::OkStatus();
}

absl::StatusOr<nram::MemoryOptions> ToOptions(const char* pool, const nram_options& given) {
  nram::MemoryOptions options;
  absl::StatusOr<std::string> spec = nram::ChoosePoolSpec(pool == nullptr ? "" : pool);
  if (!spec.ok()) return absl::NotFoundError(spec.status().message());
  NRAM_RETURN_IF_ERROR(nram::UsePool(*spec, &options.pool));
  NRAM_RETURN_IF_ERROR(ChooseBudget(given, &options));
  NRAM_ASSIGN_OR_RETURN(options.pool.seal, nram::ChooseSeal(std::nullopt));
  NRAM_ASSIGN_OR_RETURN(options.pool.key_file, nram::ChooseKeyFile(given.key_file == nullptr ? "" : given.key_file));
  NRAM_RETURN_IF_ERROR(ChooseCopies(given.copies, &options));
  if (given.page_bytes != 0) options.page_bytes = given.page_bytes;
  if (given.handlers != 0) options.handlers = given.handlers;
  if (given.timeout_ms != 0) options.pool.io_timeout_ms = given.timeout_ms;
  if (const char* text = std::getenv("NRAM_FAST_WAKE"); text != nullptr && *text != '\0') {
    NRAM_RETURN_IF_ERROR(nram::Annotate(nram::ParseFastWake(text, &options.pool.fast_wake), "$NRAM_FAST_WAKE"));
  }
  if (const char* text = std::getenv("NRAM_METRICS"); text != nullptr) options.metrics_file = text;
  // A server is lost when the timeout says so, not before.
  options.pool.fail_fast_after_ms = options.pool.io_timeout_ms;
  if (options.copies > 1) options.pool.ExpectCopies();
  switch (given.policy) {
    case NRAM_POLICY_DEFAULT:
    case NRAM_POLICY_SECOND_CHANCE:
      options.policy = nram::Policy::kSecondChance;
      break;
    case NRAM_POLICY_FIFO:
      options.policy = nram::Policy::kFifo;
      break;
    case NRAM_POLICY_RANDOM:
      options.policy = nram::Policy::kRandom;
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat("policy ", static_cast<int>(given.policy), ": expected 0 to 3"));
  }
  if (given.on_loss != nullptr) {
    options.on_loss = [on_loss = given.on_loss, context = given.on_loss_context](void* address, size_t length,
                                                                                 const std::string& reason) {
      const nram_loss loss = {address, length, reason.c_str()};
      on_loss(&loss, context);
    };
  }
  return options;
}

absl::StatusOr<nram_t*> Open(const char* pool, const nram_options* options) {
  if (forks != 0) {
    return absl::UnimplementedError(
        "this process was forked from one with an open pool and lacks its threads: exec first");
  }
  nram_options given;
  nram_options_init(&given);
  if (options != nullptr) {
    // An older program has shorter options, which end with the last field that it knows; a newer one has longer ones.
    if (options->size < offsetof(nram_options, on_loss)) {
      return absl::InvalidArgumentError(
          absl::StrCat("nram_options.size is ", options->size, ": call nram_options_init()"));
    }
    const auto* const bytes = reinterpret_cast<const char*>(options);
    if (std::any_of(bytes + std::min(options->size, sizeof(given)), bytes + options->size,
                    [](char byte) { return byte != 0; })) {
      return absl::InvalidArgumentError(
          "an option is set that this libnram does not know: it is older than the nram.h "
          "that the program was built with; install a newer one");
    }
    memcpy(&given, options, std::min(options->size, sizeof(given)));
  }
  NRAM_ASSIGN_OR_RETURN(nram::MemoryOptions how, ToOptions(pool, given));
  auto handle = std::make_unique<nram_handle>();
  NRAM_ASSIGN_OR_RETURN(handle->memory, nram::Memory::Open(std::move(how)));
  handle->local_below = given.local_below;
  handle->forks = forks;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  (void)registered;
  return handle.release();
}

absl::Status Advise(nram::Memory* memory, void* address, size_t length, nram_advice advice) {
  switch (advice) {
    case NRAM_NORMAL:
      return memory->SetReadAhead(address, nram::ReadAhead::kNormal);
    case NRAM_SEQUENTIAL:
      return memory->SetReadAhead(address, nram::ReadAhead::kSequential);
    case NRAM_RANDOM:
      return memory->SetReadAhead(address, nram::ReadAhead::kNever);
    case NRAM_WILL_NEED:
      return memory->Prefetch(address, length);
    case NRAM_DONT_NEED:
      return memory->Evict(address, length);
    case NRAM_PIN:
      return memory->Pin(address, length);
    case NRAM_UNPIN:
      return memory->Unpin(address, length);
    case NRAM_DROP:
      return memory->Drop(address, length);
  }
  return absl::InvalidArgumentError(absl::StrCat("advice ", static_cast<int>(advice), ": expected 0 to 7"));
}

}  // namespace

nram_t* nram_open(const char* pool, const struct nram_options* options) { return nram::ApiResult(Open(pool, options)); }

int nram_close(nram_t* n) {
  if (!ApiUsable(n)) return -1;
  {
    nram::MutexLock lock(&n->heap_mu);
    n->heap.reset();
  }
  const absl::Status status = n->memory->Close();
  delete n;
  return ApiResult(status);
}

int nram_set_budget(nram_t* n, uint64_t bytes) { return ApiUsable(n) ? ApiResult(n->memory->SetBudget(bytes)) : -1; }

const char* nram_error(void) { return nram::ApiError(); }

void* nram_mmap(nram_t* n, size_t length, const char* name, int flags) {
  if (!ApiUsable(n)) return nullptr;
  constexpr int kKnown = NRAM_MAP_READ_ONLY | NRAM_MAP_ATTACH | NRAM_MAP_KEEP | NRAM_MAP_ACCEPT_LOSS;
  constexpr int kAttaches = NRAM_MAP_READ_ONLY | NRAM_MAP_ATTACH;
  const bool reads_only = (flags & NRAM_MAP_READ_ONLY) != 0;
  if ((flags & ~kKnown) != 0 || (reads_only && (flags & (NRAM_MAP_ATTACH | NRAM_MAP_KEEP)) != 0)) {
    ApiFail(EINVAL, "flags: NRAM_MAP_READ_ONLY alone, or NRAM_MAP_ATTACH and NRAM_MAP_KEEP");
    return nullptr;
  }
  if ((flags & NRAM_MAP_ACCEPT_LOSS) != 0 && (flags & kAttaches) == 0) {
    ApiFail(EINVAL, "flags: NRAM_MAP_ACCEPT_LOSS goes with NRAM_MAP_READ_ONLY or NRAM_MAP_ATTACH");
    return nullptr;
  }
  if (name != nullptr && *name == '\0') {
    ApiFail(EINVAL, "the name is empty: pass NULL for memory without a name");
    return nullptr;
  }
  nram::MapRequest request;
  request.length = length;
  request.name = name == nullptr ? "" : name;
  request.keep = (flags & NRAM_MAP_KEEP) != 0;
  request.accepts_loss = (flags & NRAM_MAP_ACCEPT_LOSS) != 0;
  request.kind = reads_only                       ? nram::MapKind::kReadOnly
                 : (flags & NRAM_MAP_ATTACH) != 0 ? nram::MapKind::kAttach
                                                  : nram::MapKind::kNew;
  return ApiResult(n->memory->Map(request));
}

int nram_munmap(nram_t* n, void* address) { return ApiUsable(n) ? ApiResult(n->memory->Unmap(address)) : -1; }

size_t nram_length(nram_t* n, const void* address) { return ApiUsable(n) ? n->memory->LengthOf(address) : 0; }

int nram_advise(nram_t* n, void* address, size_t length, enum nram_advice advice) {
  return ApiUsable(n) ? ApiResult(Advise(n->memory.get(), address, length, advice)) : -1;
}

int nram_prefetch(nram_t* n, void* address, size_t length) { return nram_advise(n, address, length, NRAM_WILL_NEED); }

int nram_flush(nram_t* n, void* address, size_t length) {
  return ApiUsable(n) ? ApiResult(n->memory->Flush(address, length)) : -1;
}

int nram_get_stats(nram_t* n, struct nram_stats* stats) {
  if (!ApiUsable(n)) return -1;
  if (stats == nullptr || stats->size < offsetof(nram_stats, faults)) {
    return ApiFail(EINVAL, "nram_stats.size must be sizeof(struct nram_stats)");
  }
  const nram::Memory& memory = *n->memory;
  const nram::Counters& counters = memory.counters();
  const nram_stats all = {.size = stats->size,
                          .budget_bytes = memory.budget().bytes(),
                          .mapped_bytes = memory.mapped_bytes(),
                          .resident_bytes = memory.resident_bytes(),
                          .faults = counters.faults,
                          .write_faults = counters.write_faults,
                          .hits = counters.hits,
                          .zero_pages = counters.zero_pages,
                          .fetched_bytes = counters.fetched_bytes,
                          .prefetched_bytes = counters.prefetched_bytes,
                          .prefetch_wasted_bytes = counters.prefetch_wasted_bytes,
                          .written_bytes = counters.written_bytes,
                          .evicted_pages = counters.evicted_pages,
                          .lost_pages = counters.lost_pages,
                          .wait_ns = counters.wait_ns,
                          .metadata_bytes = memory.metadata_bytes(),
                          .budget_shrank = memory.budget().shrank(),
                          .budget_grew = memory.budget().grew()};
  // Fields that an older library does not know are 0.
  if (stats->size > sizeof(all)) memset(stats, 0, stats->size);
  memcpy(stats, &all, std::min<size_t>(all.size, sizeof(all)));
  return 0;
}
