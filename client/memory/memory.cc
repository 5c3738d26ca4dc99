#include "client/memory/memory.h"

#include <glog/logging.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/signals.h"
#include "base/status.h"
#include "base/units.h"
#include "client/memory/memory_figures.h"
#include "client/memory/stderr_lines.h"

namespace nram {
namespace {

uint64_t MachineBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Replaces bounds that are 0 by their defaults.
absl::Status ChooseBounds(MemoryOptions* options) {
  const BudgetShape shape{options->page_bytes, options->handlers};
  uint64_t* const floor = &options->budget_min_bytes;
  uint64_t* const ceiling = &options->budget_max_bytes;
  const bool has_floor = *floor != 0;
  if (!has_floor) *floor = std::max(MemoryOptions::kFloorBytes, shape.LeastBytes());
  if (*ceiling == 0) *ceiling = std::max(*floor, MachineBytes());
  // A small ceiling says that the usual floor is too much.
  if (!has_floor) *floor = std::min(*floor, std::max(*ceiling, shape.LeastBytes()));
  if (*floor < shape.LeastBytes() || *ceiling > BudgetShape::kBytesMax || *floor > *ceiling) {
    return absl::InvalidArgumentError(
        absl::StrCat("budget from ", FormatByteSize(*floor), " to ", FormatByteSize(*ceiling), ": expected ",
                     FormatByteSize(shape.LeastBytes()), " or more, at most ", FormatByteSize(BudgetShape::kBytesMax),
                     ", and the floor not above the ceiling"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Memory>> Memory::Open(MemoryOptions options) {
  if (options.page_bytes == 0 || options.page_bytes % kPageBytes != 0 ||
      options.page_bytes > MemoryOptions::kPageBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("page size ", options.page_bytes, ": expected a multiple of 4096 up to 1 MiB"));
  }
  if (options.handlers < 1 || options.handlers > 64) {
    return absl::InvalidArgumentError(absl::StrCat(options.handlers, " handlers: expected 1 to 64"));
  }
  if (options.copies < 1 || options.copies > MemoryOptions::kCopiesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.copies, " copies: expected 1 to ", MemoryOptions::kCopiesMax));
  }
  std::unique_ptr<AutoBudget> auto_budget;
  if (options.budget_auto) {
    NRAM_RETURN_IF_ERROR(ChooseBounds(&options));
    NRAM_ASSIGN_OR_RETURN(auto_budget, AutoBudget::New(options.budget_min_bytes, options.budget_max_bytes));
    options.budget_bytes = auto_budget->first_bytes();
  }
  const uint64_t least = BudgetShape{options.page_bytes, options.handlers}.LeastBytes();
  if (options.budget_bytes < least || options.budget_bytes > BudgetShape::kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("budget of ", FormatByteSize(options.budget_bytes), ": expected ",
                                                   FormatByteSize(least), " or more with pages of ",
                                                   FormatByteSize(options.page_bytes), " and ", options.handlers,
                                                   " handlers, at most ", FormatByteSize(BudgetShape::kBytesMax)));
  }
  if (options.on_loss == nullptr) {
    options.on_loss = [lines = &StderrLines::Get()](void* address, size_t, const std::string& reason) {
      lines->Write(absl::StrCat("nram: the page at 0x", absl::Hex(reinterpret_cast<uintptr_t>(address)),
                                " cannot be fetched: ", reason, "; a program that touches it gets SIGBUS"));
    };
  }
  auto memory = std::unique_ptr<Memory>(new Memory(std::move(options), std::move(auto_budget)));
  NRAM_RETURN_IF_ERROR(memory->Start());
  return memory;
}

absl::Status Memory::Start() {
  // The pool's threads take no signals either: a page that the program's handler touches may be theirs to bring.
  const SignalsBlocked quiet;
  NRAM_ASSIGN_OR_RETURN(userfault_, Userfault::Open());
  NRAM_ASSIGN_OR_RETURN(pool_, Pool::Open(options_.pool));
  NRAM_RETURN_IF_ERROR(CheckHosts(*pool_, static_cast<int>(options_.copies), options_.copies_setting));
  const BudgetShape shape{options_.page_bytes, options_.handlers};
  const uint64_t most = MostBudget();
  const uint64_t window_pages = shape.WindowPages(options_.budget_bytes);
  const uint64_t limit_pages = shape.LimitPages(options_.budget_bytes);
  // Structures that may grow have their addresses now, and take memory as they are used.
  NRAM_ASSIGN_OR_RETURN(
      residency_, Residency::New(options_.policy, limit_pages, window_pages, most / options_.page_bytes, &index_));
  NRAM_ASSIGN_OR_RETURN(sums_, ChunkSums::New(options_.page_bytes, limit_pages));
  NRAM_ASSIGN_OR_RETURN(copies_, BoundCopies::New(options_.page_bytes, most / options_.page_bytes, &publish_gate_,
                                                  userfault_.get(), residency_.get(), sums_.get(), &counters_));
  PageInOptions in;
  in.page_bytes = options_.page_bytes;
  in.window_pages = window_pages;
  in.most_window_pages = shape.WindowPages(most);
  in.buffers = BudgetShape::kBuffers;
  in.timeout_ms = options_.pool.io_timeout_ms;
  in.on_loss = options_.on_loss;
  NRAM_ASSIGN_OR_RETURN(page_in_, PageIn::New(in, &publish_gate_, userfault_.get(), &index_, residency_.get(),
                                              sums_.get(), copies_.get(), &counters_));
  advice_ = std::make_unique<Advice>(options_.pool.io_timeout_ms, &publish_gate_, userfault_.get(), residency_.get(),
                                     sums_.get(), page_in_.get(), &counters_);
  budget_ = std::make_unique<Budget>(shape, options_.budget_bytes, most, residency_.get(), sums_.get(), page_in_.get(),
                                     advice_.get(), options_.on_budget);
  evictor_ = std::make_unique<Evictor>(&publish_gate_, userfault_.get(), residency_.get(), sums_.get(), &index_,
                                       &counters_, [budget = budget_.get()] { budget->AtRest(); });
  const PublisherOptions publishing{.io_timeout_ms = options_.pool.io_timeout_ms,
                                    .patience_ms = options_.publish_patience_ms,
                                    .seal_patience_ms = 4 * options_.publish_patience_ms,
                                    .versions_max = options_.publish_versions_max};
  publisher_ = std::make_unique<Publisher>(publishing, pool_.get(), &publish_gate_, userfault_.get(), residency_.get(),
                                           sums_.get(), copies_.get(), &counters_);
  observer_ =
      std::make_unique<Observer>(options_.pool.io_timeout_ms, pool_.get(), &index_, page_in_.get(), advice_.get());
  stop_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!stop_fd_.valid()) return ErrnoStatus(errno, "eventfd");
  for (uint32_t i = 0; i < options_.handlers; ++i) handlers_.emplace_back([this] { HandleFaults(); });
  if (auto_budget_ != nullptr) {
    // Pinned pages may raise the budget: the program asked for them.
    auto_budget_->Start([this] { return resident_bytes(); },
                        [this](uint64_t bytes) { (void)budget_->SetBeyondPins(bytes); });
  }
  if (!options_.metrics_file.empty()) {
    NRAM_ASSIGN_OR_RETURN(metrics_, MetricsFile::Start(options_.metrics_file,
                                                       [this](Figures* figures) { AddMemoryFigures(*this, figures); }));
  }
  return absl::OkStatus();
}

uint64_t Memory::MostBudget() const {
  if (options_.budget_auto) return options_.budget_max_bytes;
  return std::min(BudgetShape::kBytesMax, std::max(options_.budget_bytes, MachineBytes()));
}

absl::Status Memory::SetBudget(uint64_t bytes) {
  if (auto_budget_ == nullptr) return budget_->Set(bytes);
  const uint64_t least = BudgetShape{options_.page_bytes, options_.handlers}.LeastBytes();
  if (bytes < least || bytes > options_.budget_max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("ceiling of ", FormatByteSize(bytes), ": expected ",
                                                   FormatByteSize(least), " to ",
                                                   FormatByteSize(options_.budget_max_bytes)));
  }
  auto_budget_->SetCeiling(bytes);
  return absl::OkStatus();
}

void Memory::HandleFaults() {
  pthread_setname_np(pthread_self(), "nram-fault");
  absl::StatusOr<Mapping> buffer = Mapping::Anonymous(options_.page_bytes);
  CHECK(buffer.ok()) << buffer.status();
  // One handler is woken for one fault, and always the same one if it is free: its caches are warm.
  const UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  PCHECK(epoll.valid());
  for (const int fd : {userfault_->fd(), page_in_->ahead()->arrived_fd(), stop_fd_.get()}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (fd != stop_fd_.get()) event.events |= EPOLLEXCLUSIVE;
    PCHECK(epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0);
  }
  while (true) {
    epoll_event events[3];
    const int count = epoll_wait(epoll.get(), events, 3, -1);
    PCHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_fd_.get()) return;
      pool_->wake_latency()->Count();
      if (fd == page_in_->ahead()->arrived_fd()) page_in_->ahead()->HandleArrived();
      if (Userfault::Fault fault; fd == userfault_->fd() && userfault_->Read(&fault, 1) == 1) {
        page_in_->Handle(fault, buffer->data());
      }
    }
  }
}

Memory::~Memory() { (void)Close(); }

absl::Status Memory::Close() {
  metrics_.reset();
  absl::Status first_error;
  while (std::byte* const base = index_.First()) {
    absl::Status status = UnmapSegment(base);
    if (!status.ok() && index_.Find(reinterpret_cast<uintptr_t>(base))) {
      // The region is kept, but cannot be written: the handle is closed all the same.
      if (first_error.ok()) first_error = status;
      index_.Find(reinterpret_cast<uintptr_t>(base))->abandoned = true;
      status = UnmapSegment(base);
    }
    if (first_error.ok()) first_error = status;
  }
  auto_budget_.reset();
  if (stop_fd_.valid() && !handlers_.empty()) {
    const uint64_t one = 1;
    PCHECK(write(stop_fd_.get(), &one, sizeof(one)) == sizeof(one));
    for (std::thread& handler : handlers_) handler.join();
    handlers_.clear();
  }
  publisher_.reset();
  evictor_.reset();
  return first_error;
}

uint32_t Memory::KeptCopies() const {
  if (options_.kept_copies != 0) return options_.kept_copies;
  // A region that outlives the process is not scratch that can be made again.
  return pool_->CountHosts(/*with_away=*/false) > 1 ? std::max(options_.copies, 2u) : options_.copies;
}

absl::StatusOr<std::unique_ptr<Region>> Memory::OpenRegion(const MapRequest& request, uint64_t* length) {
  if (request.kind == MapKind::kNew) {
    RegionOptions how;
    how.gc = !request.keep;
    how.name = request.name;
    how.copies = static_cast<int>(request.keep ? KeptCopies() : options_.copies);
    how.size_bytes = *length;
    how.versioned = !request.name.empty();
    return pool_->CreateRegion(how);
  }
  NRAM_ASSIGN_OR_RETURN(
      auto region,
      pool_->AttachRegion(request.name, request.kind == MapKind::kReadOnly ? AttachMode::kReadOnly : AttachMode::kOwner,
                          request.accepts_loss ? AttachLoss::kAccept : AttachLoss::kRefuse));
  const uint64_t size = RoundUp(region->size_bytes(), options_.page_bytes);
  if (request.length == 0) *length = size;
  if (*length == 0 || *length > size) {
    return absl::InvalidArgumentError(absl::StrCat("length ", request.length, ": region \"", request.name, "\" has ",
                                                   region->size_bytes(), " bytes"));
  }
  return region;
}

absl::StatusOr<std::byte*> Memory::Map(const MapRequest& request) {
  const bool attaches = request.kind != MapKind::kNew;
  if (request.length > kRegionBytesMax / 2 || (request.length == 0 && !attaches)) {
    return absl::InvalidArgumentError(absl::StrCat("length ", request.length, ": expected 1 to 2^61 bytes"));
  }
  if (request.name.size() > 255 || (request.name.empty() && (attaches || request.keep))) {
    return absl::InvalidArgumentError("a region that is attached or kept needs a name, of 1 to 255 bytes");
  }
  const bool writes_name = !request.name.empty() && request.kind != MapKind::kReadOnly;
  if (writes_name) {
    MutexLock lock(&names_mu_);
    if (!written_names_.insert(request.name).second) {
      const std::string text = absl::StrCat("this handle has mapped region \"", request.name, "\" already");
      return attaches ? absl::FailedPreconditionError(text) : absl::AlreadyExistsError(text);
    }
  }
  absl::StatusOr<std::byte*> base = MapRegion(request);
  if (writes_name && !base.ok()) ForgetName(request.name);
  return base;
}

void Memory::ForgetName(const std::string& name) {
  MutexLock lock(&names_mu_);
  written_names_.erase(name);
}

absl::StatusOr<std::unique_ptr<Publication>> Memory::TakeOverVersions(const MapRequest& request) {
  if (request.kind != MapKind::kAttach || request.name.size() > Publication::kNameBytesMax) return nullptr;
  auto former = Publication::Attach(pool_.get(), request.name, AttachMode::kOwner);
  // All versions are lost with the region that lists them.
  const bool lost = request.accepts_loss && absl::IsDataLoss(former.status());
  if (absl::IsNotFound(former.status()) || lost) return nullptr;
  return former;
}

absl::StatusOr<std::byte*> Memory::MapRegion(const MapRequest& request) {
  uint64_t length = RoundUp(request.length, options_.page_bytes);
  // Before the region itself: else a former owner could say that a version is there which is dropped here.
  NRAM_ASSIGN_OR_RETURN(auto former, TakeOverVersions(request));
  NRAM_ASSIGN_OR_RETURN(auto region, OpenRegion(request, &length));
  if (former != nullptr) {
    // Versions that are not dropped only cost room; the next owner tries again.
    (void)former->DropUnrecorded(region.get(), DeadlineAfterMs(options_.pool.io_timeout_ms));
  }
  return MapOpened(request, length, std::move(region), std::move(former));
}

absl::StatusOr<std::byte*> Memory::MapOpened(const MapRequest& request, uint64_t length, std::unique_ptr<Region> region,
                                             std::unique_ptr<Publication> former) {
  const bool attaches = request.kind != MapKind::kNew;
  const auto abandon = [&](absl::Status status) {
    if (request.kind == MapKind::kNew) (void)region->Destroy();
    return status;
  };
  // Local things first: they cost nothing to give back.
  const uint64_t align = std::max(request.align, std::bit_ceil(options_.page_bytes));
  auto space = Mapping::Anonymous(length, align, PROT_NONE);
  auto words = Mapping::Anonymous(RoundUp(length / options_.page_bytes, 4096));
  if (!space.ok() || !words.ok()) {
    return abandon(absl::ResourceExhaustedError(
        absl::StrCat("no address space is left in this process for ", FormatByteSize(length), " (",
                     (space.ok() ? words : space).status().message(), "; is ulimit -v set?)")));
  }
  if (request.kind != MapKind::kReadOnly) {
    absl::Status status = region->Reserve(0, length);
    // Stored pages need no room to be written again, and servers do not tell how many they are.
    if (attaches && status.code() == absl::StatusCode::kResourceExhausted) status = absl::OkStatus();
    // The last server that refused says nothing of the others.
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      const uint64_t free_bytes = pool_->Capacity().free_bytes;
      if (length > free_bytes) {
        status = absl::ResourceExhaustedError(absl::StrCat("the pool has ", FormatByteSize(free_bytes), " free"));
      }
    }
    if (!status.ok()) return abandon(Annotate(status, absl::StrCat("mapping ", FormatByteSize(length))));
  }
  // A child of fork(2) would see zeros only; it is to see nothing.
  PCHECK(madvise(space->data(), length, MADV_DONTFORK) == 0);
  (void)madvise(space->data(), length, MADV_NOHUGEPAGE);  // EINVAL: the kernel has none
  const bool read_only = request.kind == MapKind::kReadOnly;
  if (absl::Status status = userfault_->Register(space->data(), length, !read_only); !status.ok()) {
    return abandon(status);
  }
  // The range is opened only now, when its faults are told: under mlockall(MCL_FUTURE) the kernel fills memory that may
  // be touched with zeros. And mprotect(2) would try to fill locked memory.
  if (munlock(space->data(), length) != 0 ||
      mprotect(space->data(), length, read_only ? PROT_READ : PROT_READ | PROT_WRITE) != 0) {
    return abandon(ErrnoStatus(errno, absl::StrCat("opening ", FormatByteSize(length), " to the program")));
  }
  auto segment =
      std::make_unique<Segment>(*std::move(space), *std::move(words), options_.page_bytes, std::move(region));
  segment->read_only = read_only;
  segment->keep = request.keep;
  segment->owner = request.owner;
  if (attaches) {
    for (uint64_t page = 0; page < segment->pages(); ++page) {
      segment->word(page).Change(PageState::kEmpty, PageState::kRemote);
    }
  }
  std::byte* const base = segment->base();
  if (!read_only && !request.name.empty()) publisher_->Add(segment.get(), std::move(former));
  index_.Add(std::move(segment));
  mapped_bytes_ += length;
  return base;
}

absl::Status Memory::Unmap(const void* base) {
  if (IsHeap(base)) return absl::InvalidArgumentError("this address is the heap's: nram_free() is for blocks");
  return UnmapSegment(base);
}

absl::Status Memory::UnmapSegment(const void* base) {
  SegmentRef found = index_.Find(reinterpret_cast<uintptr_t>(base));
  if (!found || found->base() != base) {
    return absl::InvalidArgumentError("no nram mapping begins at this address");
  }
  if (found->keep && !found->read_only && !found->abandoned) {
    const uint64_t pages = found->pages();
    NRAM_RETURN_IF_ERROR(advice_->Flush({found.Share(), 0, pages}));
  }
  if (found->publishable) publisher_->Forget(found.get(), /*destroys=*/!found->keep);
  observer_->Forget(found.get());
  std::unique_ptr<Segment> segment = index_.Remove(base);
  found.Reset();
  if (segment == nullptr) return absl::InvalidArgumentError("no nram mapping begins at this address any more");
  page_in_->Forget(segment.get());
  segment->AwaitUnused();
  page_in_->Forget(segment.get());  // streams that operations under way have still noted
  residency_->Remove(*segment);
  uint64_t resident = 0;
  for (uint64_t page = 0; page < segment->pages(); ++page) resident += IsResident(segment->word(page).state());
  advice_->Forget(*segment);
  mapped_bytes_ -= segment->length();
  segment->Unmap();
  residency_->ReturnBudget(resident);
  if (segment->read_only) return absl::OkStatus();
  // If a server does not answer, it collects its part with the lease.
  if (!segment->keep) (void)segment->region()->Destroy();
  ForgetName(segment->region()->name());
  return absl::OkStatus();
}

absl::StatusOr<Pages> Memory::FindPages(void* address, uint64_t length, bool inner) const {
  Pages pages;
  const auto begin = reinterpret_cast<uintptr_t>(address);
  pages.segment = index_.Find(begin);
  if (!pages.segment || length > pages.segment->length() ||
      (length > 0 && !pages.segment->Contains(begin + length - 1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("[", absl::Hex(begin), ", +", length, ") does not lie in one nram mapping"));
  }
  const uint64_t offset = begin - reinterpret_cast<uintptr_t>(pages.segment->base());
  const uint64_t unit = pages.segment->page_bytes;
  pages.first = (offset + (inner ? unit - 1 : 0)) / unit;
  const uint64_t end = (offset + length + (inner ? 0 : unit - 1)) / unit;
  pages.count = end > pages.first ? end - pages.first : 0;
  return pages;
}

absl::Status Memory::SetReadAhead(void* address, ReadAhead mode) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, 0));
  pages.segment->read_ahead = mode;
  return absl::OkStatus();
}

absl::Status Memory::Prefetch(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  return advice_->Prefetch(pages);
}

absl::Status Memory::Evict(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  return advice_->Evict(pages);
}

absl::Status Memory::Flush(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  return advice_->Flush(pages);
}

absl::Status Memory::Pin(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  return advice_->Pin(pages, length);
}

absl::Status Memory::Unpin(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  advice_->Unpin(pages);
  return absl::OkStatus();
}

absl::Status Memory::Drop(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length, /*inner=*/true));
  if (pages.segment->read_only) return absl::InvalidArgumentError("this mapping is read-only");
  return advice_->Drop(pages);
}

absl::StatusOr<SegmentRef> Memory::FindMapping(const void* base) const {
  SegmentRef segment = index_.Find(reinterpret_cast<uintptr_t>(base));
  if (!segment || segment->base() != base || segment->owner != SegmentOwner::kProgram) {
    return absl::InvalidArgumentError("no nram mapping begins at this address");
  }
  return segment;
}

absl::StatusOr<uint64_t> Memory::Publish(const VersionRequest& request) {
  PublishRequest publish;
  for (const void* const base : request.bases) {
    NRAM_ASSIGN_OR_RETURN(SegmentRef segment, FindMapping(base));
    publish.segments.push_back(std::move(segment));
  }
  publish.keep = request.keep;
  publish.history = request.history;
  publish.step = request.step;
  publish.header_json = request.header_json;
  publish.most = request.most;
  publish.when_full = request.when_full;
  publish.wait_ms = request.wait_ms;
  publish.arrays = request.arrays;
  return publisher_->Publish(std::move(publish));
}

absl::Status Memory::AwaitPublished(const void* base, uint64_t version, int64_t deadline_ns) {
  NRAM_ASSIGN_OR_RETURN(const SegmentRef segment, FindMapping(base));
  return publisher_->AwaitPublished(*segment.get(), version, deadline_ns);
}

absl::Status Memory::DropVersion(const void* base, uint64_t version) {
  NRAM_ASSIGN_OR_RETURN(const SegmentRef segment, FindMapping(base));
  return publisher_->Drop(*segment.get(), version);
}

absl::StatusOr<Observed> Memory::Observe(const std::string& name, uint64_t version, bool all) {
  NRAM_ASSIGN_OR_RETURN(Observer::Opened opened, observer_->Open(name, version, all));
  const PublicationRecord& record = *opened.view->record;
  Observed observed{.version = record.number, .bases = {}};
  absl::Status status;
  for (size_t i = 0; i < opened.regions.size() && status.ok(); ++i) {
    MapRequest request;
    request.name = record.regions[i].name;
    request.kind = MapKind::kReadOnly;
    const uint64_t length = RoundUp(record.lengths[i], options_.page_bytes);
    auto base = MapOpened(request, length, std::move(opened.regions[i]), nullptr);
    status = base.status();
    if (!status.ok()) break;
    observed.bases.push_back(*base);
    opened.view->segments.push_back(index_.Find(reinterpret_cast<uintptr_t>(*base)).get());
  }
  if (!status.ok()) {
    for (std::byte* const base : observed.bases) (void)UnmapSegment(base);
    return status;
  }
  observer_->Add(std::move(opened.view));
  return observed;
}

absl::StatusOr<uint64_t> Memory::Next(const void* base, int64_t deadline_ns) {
  NRAM_ASSIGN_OR_RETURN(const SegmentRef segment, FindMapping(base));
  return observer_->Next(segment, deadline_ns);
}

std::shared_ptr<const PublicationRecord> Memory::ObservedRecord(const void* base) const {
  const auto segment = FindMapping(base);
  return segment.ok() ? observer_->RecordOf(segment->get()) : nullptr;
}

absl::StatusOr<const std::byte*> Memory::ObservedData(const void* base, const PublishedArray& array) const {
  NRAM_ASSIGN_OR_RETURN(const SegmentRef segment, FindMapping(base));
  return observer_->DataOf(segment.get(), array);
}

uint64_t Memory::LengthOf(const void* base) const {
  const SegmentRef segment = index_.Find(reinterpret_cast<uintptr_t>(base));
  return segment && segment->base() == base && segment->owner == SegmentOwner::kProgram ? segment->length() : 0;
}

bool Memory::Contains(const void* address) const {
  return static_cast<bool>(index_.Find(reinterpret_cast<uintptr_t>(address)));
}

bool Memory::IsHeap(const void* address) const {
  const SegmentRef segment = index_.Find(reinterpret_cast<uintptr_t>(address));
  return segment && segment->owner == SegmentOwner::kHeap;
}

bool Memory::SameSegment(const void* a, const void* b) const {
  return index_.Find(reinterpret_cast<uintptr_t>(a)).get() == index_.Find(reinterpret_cast<uintptr_t>(b)).get();
}

uint64_t Memory::resident_bytes() const {
  return residency_->resident_pages() * options_.page_bytes + page_in_->buffer_bytes() + sums_->memory_bytes() +
         options_.handlers * options_.page_bytes;
}

uint64_t Memory::metadata_bytes() const {
  uint64_t bytes = residency_->metadata_bytes();
  index_.ForEach([&](const Segment& segment) {
    bytes += sizeof(segment) + segment.pages() * sizeof(PageWord) + segment.region()->memory_bytes();
  });
  return bytes;
}

}  // namespace nram
