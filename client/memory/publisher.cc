#include "client/memory/publisher.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/signals.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr size_t kLanes = 16;
// How often to see whether the version has to be given up.
constexpr int64_t kTickMs = 20;
constexpr int64_t kLookAgainMs = 1'000;
// Protecting this many pages once more costs less than another system call, which interrupts all running threads.
constexpr uint64_t kProtectAcross = 128;

int64_t NowOfUnixNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

// That may be members of a version.
uint64_t CountServers(const Pool& pool) {
  uint64_t count = 0;
  for (size_t i = 0; i < pool.server_count(); ++i) {
    const ServerSession* const session = pool.session(i);
    if (!session->removed() && session->twin() == kNoServer) ++count;
  }
  return count;
}

}  // namespace

Publisher::Publisher(const PublisherOptions& options, Pool* pool, PublishGate* gate, Userfault* userfault,
                     Residency* residency, ChunkSums* sums, BoundCopies* copies, Counters* counters)
    : options_(options),
      pool_(pool),
      gate_(gate),
      userfault_(userfault),
      residency_(residency),
      sums_(sums),
      copies_(copies),
      counters_(counters) {
  const SignalsBlocked quiet;
  thread_ = std::thread([this] { Run(); });
}

Publisher::~Publisher() {
  {
    MutexLock lock(&mu_);
    CHECK(segments_.empty());
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void Publisher::AwaitTurn() {
  // Each publication takes as long as its pages need, and ends by its deadlines.
  while (busy_) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
  busy_ = true;
}

void Publisher::EndTurnLocked() {
  busy_ = false;
  changed_.SignalAll();
}

void Publisher::Add(Segment* segment, std::unique_ptr<Publication> former) {
  auto stream = std::make_unique<Stream>();
  stream->publication = std::move(former);
  if (stream->publication != nullptr) {
    // A later publication's history tells how long they are kept. If they cannot be listed now, they are kept until
    // they are dropped.
    auto records = stream->publication->List(DeadlineAfterMs(options_.io_timeout_ms));
    if (records.ok()) stream->kept.assign(records->begin(), records->end());
    stream->begun = stream->ended = stream->publication->NextNumber() - 1;
  }
  MutexLock lock(&mu_);
  segments_[segment->region()->id()] = segment;
  streams_[segment] = std::move(stream);
  segment->publishable = true;
}

void Publisher::Forget(Segment* segment, bool destroys) {
  std::unique_ptr<Stream> stream;
  {
    MutexLock lock(&mu_);
    AwaitTurn();
    segment->publishable = false;
    segments_.erase(segment->region()->id());
    if (const auto it = streams_.find(segment); it != streams_.end()) {
      stream = std::move(it->second);
      streams_.erase(it);
    }
    EndTurnLocked();
  }
  // If a server does not answer, it collects its part with the lease.
  if (destroys && stream != nullptr && stream->publication != nullptr) (void)stream->publication->Destroy();
}

// --- The part of the thread that calls Publish.

absl::StatusOr<Publisher::Stream*> Publisher::CheckRequest(const PublishRequest& request) {
  if (request.segments.empty() || request.segments.size() > kSegmentsMax || request.history < 1) {
    return absl::InvalidArgumentError(absl::StrCat("publishing ", request.segments.size(),
                                                   " mappings with a history of ", request.history, ": expected 1 to ",
                                                   kSegmentsMax, " mappings, and a history of 1 or more"));
  }
  if (request.most == 1) {
    return absl::InvalidArgumentError("at most 1 version: expected 2 or more (the last one, and the next), or 0");
  }
  std::set<const Segment*> once;
  for (const SegmentRef& segment : request.segments) {
    if (!once.insert(segment.get()).second) return absl::InvalidArgumentError("a mapping is published twice at once");
    const std::string name = segment->region()->name();
    if (name.empty()) return absl::InvalidArgumentError("only mappings with a name can be published");
    if (segment->read_only) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(name), " is attached read-only: its owner publishes"));
    }
    if (name.size() > Publication::kNameBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("the name of a publication has at most ",
                                                     Publication::kNameBytesMax, " bytes, and this one has ",
                                                     name.size()));
    }
    if (request.keep != VersionKeep::kWithOwner && !segment->keep) {
      return absl::InvalidArgumentError(absl::StrCat("a version of ", Quoted(name),
                                                     " cannot outlive this program, since the mapping ends with it: ",
                                                     "map it with NRAM_MAP_KEEP, or keep versions only with "
                                                     "their owner"));
    }
    if (!segment->publishable) return absl::InvalidArgumentError(absl::StrCat(Quoted(name), " is being unmapped"));
  }
  MutexLock lock(&mu_);
  const auto it = streams_.find(request.segments[0].get());
  if (it == streams_.end()) return absl::InvalidArgumentError("the mapping is being unmapped");
  return it->second.get();
}

absl::Status Publisher::OpenPublication(Job* job) {
  if (job->stream->publication != nullptr) return absl::OkStatus();
  const Segment& first = *job->request.segments[0].get();
  RegionOptions how;
  how.gc = !first.keep;
  const std::string name = first.region()->name();
  auto created = Publication::Create(pool_, name, how);
  if (absl::IsAlreadyExists(created.status())) {
    return absl::AlreadyExistsError(absl::StrCat("the pool has a region ", Quoted(name + ".versions"),
                                                 " already, the name of the list of versions of ",
                                                 Quoted(name), ": free it first"));
  }
  NRAM_RETURN_IF_ERROR(created.status());
  job->stream->publication = *std::move(created);
  return absl::OkStatus();
}

absl::Status Publisher::Begin(Job* job, int64_t deadline_ns) {
  NRAM_RETURN_IF_ERROR(OpenPublication(job));
  PublicationRecord* const record = &job->record;
  record->number = std::max(job->stream->publication->NextNumber(), job->stream->begun + 1);
  record->time_ns = NowOfUnixNs();
  record->step = job->request.step;
  record->header_json = job->request.header_json;
  record->arrays = job->request.arrays;
  const uint64_t servers = CountServers(*pool_);
  for (const SegmentRef& segment : job->request.segments) {
    // The servers' answers are filled in later, and take hardly more room: these fields are enough to check the others.
    // Servers that have nothing of a region are no members.
    const uint64_t copies = RoundUp(segment->length(), kSpanBytes) / kSpanBytes * kReplicasMax;
    const std::vector<uint64_t> members(std::min(servers, copies), UINT64_MAX);
    record->regions.push_back({segment->region()->name(), segment->region()->id(), kVersionNumberMax, members, 1});
    record->lengths.push_back(segment->length());
  }
  NRAM_RETURN_IF_ERROR(CheckRecord(*record));
  constexpr size_t kForOthers = 4 * kKiB;  // such as servers that join meanwhile
  if (const size_t bytes = EncodeRecord(*record).size(); bytes + kForOthers > kPublicationBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("the version's description has ", bytes, " bytes; at most ", kPublicationBytesMax - kForOthers,
                     " fit: shorten its header of ", record->header_json.size(),
                     " bytes, describe fewer than its ", record->arrays.size(), " arrays, or publish fewer than ",
                     record->regions.size(), " mappings on ", servers, " servers at once"));
  }
  NRAM_RETURN_IF_ERROR(MakeRoom(job->stream, job->request));
  // A wait for observers has its own time.
  deadline_ns = std::max(deadline_ns, DeadlineAfterMs(options_.io_timeout_ms));
  NRAM_RETURN_IF_ERROR(gate_->BeginPublish(job->request.segments, deadline_ns));
  Flip(*job);
  return absl::OkStatus();
}

void Publisher::Flip(const Job& job) {
  const GateAlone lock(gate_);
  for (const SegmentRef& segment : job.request.segments) {
    uint64_t bound = 0;
    uint64_t begin = 0, end = 0;  // pages to be protected
    const auto protect = [&] {
      if (end > begin) userfault_->Protect(segment->address(begin), (end - begin) * segment->page_bytes);
    };
    const auto find = [&](uint64_t page) {
      return segment->Find(page, PageState::kDirtyEmpty, PageState::kWriting);  // writable pages, and kWriting ones
    };
    for (uint64_t page = find(0); page < segment->pages(); page = find(page + 1)) {
      PageWord& word = segment->word(page);
      PageState state = word.state();
      while (IsDirty(state) && !word.Change(&state, BoundOf(state))) {
      }
      if (!IsDirty(state) && state != PageState::kWriting) continue;
      // The pages in between are protected already, or not there.
      if (page - end > kProtectAcross || end == begin) {
        protect();
        begin = page;
      }
      // A page that is being written may not be protected yet.
      end = page + 1;
      ++bound;
    }
    protect();
    segment->bound_pages = bound;
    segment->publishing = true;
  }
}

absl::StatusOr<uint64_t> Publisher::Publish(PublishRequest request) {
  {
    MutexLock lock(&mu_);
    AwaitTurn();
  }
  const int64_t deadline_ns = DeadlineAfterMs(3 * options_.io_timeout_ms);
  auto job = std::make_unique<Job>();
  absl::Status status;
  if (auto stream = CheckRequest(request); stream.ok()) {
    job->request = std::move(request);
    job->stream = *stream;
    status = Begin(job.get(), deadline_ns);
  } else {
    status = stream.status();
  }
  MutexLock lock(&mu_);
  if (!status.ok()) {
    EndTurnLocked();
    return status;
  }
  const uint64_t number = job->record.number;
  job->stream->begun = number;
  job_ = std::move(job);  // which has the turn now
  changed_.SignalAll();
  return number;
}

absl::Status Publisher::AwaitPublished(const Segment& segment, uint64_t version, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  const auto find = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> const Stream* {
    const auto it = streams_.find(&segment);
    return it == streams_.end() ? nullptr : it->second.get();
  };
  const Stream* stream = find();
  if (stream == nullptr || stream->begun == 0) {
    return absl::InvalidArgumentError(
        "no version was published under this mapping's name (the first mapping names a publication)");
  }
  if (version == 0) version = stream->begun;
  if (version > stream->begun) {
    return absl::InvalidArgumentError(absl::StrCat("version ", version, ": the last one is ", stream->begun));
  }
  while (stream != nullptr && stream->ended < version) {
    if (!changed_.WaitUntil(&mu_, deadline_ns) && (stream = find()) != nullptr && stream->ended < version) {
      return absl::DeadlineExceededError(absl::StrCat("version ", version, " is still being published"));
    }
    stream = find();
  }
  if (stream == nullptr) return absl::InvalidArgumentError("the mapping is being unmapped");
  const auto failure = stream->failures.find(version);
  if (failure != stream->failures.end()) return failure->second;
  if (version > stream->forgotten) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("version ", version, ": forgotten, since too many later versions have failed"));
}

absl::Status Publisher::Drop(const Segment& segment, uint64_t version) {
  Stream* stream = nullptr;
  {
    MutexLock lock(&mu_);
    AwaitTurn();
    if (const auto it = streams_.find(&segment); it != streams_.end()) stream = it->second.get();
  }
  absl::Status status =
      absl::NotFoundError(absl::StrCat("no version ", version, " is published under this mapping's name"));
  if (stream != nullptr) {
    const auto it = std::find_if(stream->kept.begin(), stream->kept.end(),
                                 [&](const PublicationRecord& record) { return record.number == version; });
    if (it != stream->kept.end()) {
      status = stream->publication->Forget(version, DeadlineAfterMs(options_.io_timeout_ms));
      if (status.ok()) {
        Hold(stream, std::move(*it));
        stream->kept.erase(it);
        DropHeld(stream);
      }
    }
  }
  MutexLock lock(&mu_);
  EndTurnLocked();
  return status;
}

// --- The part of the publisher's thread.

void Publisher::Run() {
  pthread_setname_np(pthread_self(), "nram-publish");
  while (true) {
    std::unique_ptr<Job> job;
    {
      MutexLock lock(&mu_);
      while (job_ == nullptr && !stopping_) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
      if (job_ == nullptr) return;
      job = std::move(job_);
    }
    const absl::Status status = Execute(job.get());
    // It has no segment from here on. An unmap waits for the turn.
    job->request.segments.clear();
    MutexLock lock(&mu_);
    Tell(job.get(), status);
    EndTurnLocked();
  }
}

void Publisher::Tell(Job* job, const absl::Status& status) {
  Stream* const stream = job->stream;
  stream->ended = job->record.number;
  // AwaitPublished gives these two another meaning: still under way, and no such version.
  const bool is_final = !absl::IsDeadlineExceeded(status) && !absl::IsInvalidArgument(status);
  if (!status.ok()) {
    stream->failures[job->record.number] = is_final ? status : absl::UnavailableError(status.message());
  }
  while (stream->failures.size() > kFailuresMax) {
    stream->forgotten = stream->failures.begin()->first;
    stream->failures.erase(stream->failures.begin());
  }
  changed_.SignalAll();
}

absl::Status Publisher::Execute(Job* job) {
  job->moved_ns = job->free_ns = MonotonicNs();
  absl::Status status;
  {
    PageOut out(gate_, userfault_, residency_, sums_, counters_, kLanes);
    status = Send(job, &out);
    if (!status.ok()) {
      GiveUp(job);
      {
        // Operations under way may take until their deadline.
        MutexLock lock(&mu_);
        Tell(job, status);
      }
      copies_->GiveUp();
    }
    CHECK(copies_->idle());
    copies_->Trim();
  }
  if (status.ok()) status = Seal(job);
  gate_->EndPublish(job->request.segments);
  if (status.ok()) return Commit(job);
  DropHeld(job->stream);
  return status;
}

absl::Status Publisher::Commit(Job* job) {
  Stream* const stream = job->stream;
  Publication* const publication = stream->publication.get();
  const absl::Status status = publication->Commit(job->record, DeadlineAfterMs(options_.io_timeout_ms));
  switch (publication->StandingOf(job->record.number)) {
    case Publication::Standing::kThere: {
      stream->kept.push_back(job->record);
      {
        // So are those of before that were in doubt.
        MutexLock lock(&mu_);
        std::erase_if(stream->failures, [](const auto& failure) { return absl::IsUnknown(failure.second); });
      }
      DropOld(job);
      return absl::OkStatus();
    }
    case Publication::Standing::kUnsure:
      // It is dropped in its turn, as those before it.
      stream->kept.push_back(job->record);
      return absl::UnknownError(absl::StrCat("version ", job->record.number,
                                             " may exist or not until the next one is published: ", status.message()));
    case Publication::Standing::kNotThere:
      break;
  }
  Hold(stream, job->record);
  DropHeld(stream);
  return status;
}

bool Publisher::IsStalled(Job* job, int64_t patience_ms) {
  const int64_t now_ns = MonotonicNs();
  uint64_t bound = 0;
  for (const SegmentRef& segment : job->request.segments) bound += segment->bound_pages;
  if (bound != job->bound_pages) job->moved_ns = now_ns;
  job->bound_pages = bound;
  if (!residency_->IsAwaited()) job->free_ns = now_ns;
  return now_ns - std::max(job->moved_ns, job->free_ns) > patience_ms * kNsPerMs;
}

absl::Status Publisher::Stalled() const {
  return absl::UnavailableError(
      "the version was abandoned: threads waited for local memory while servers did not store the version");
}

bool Publisher::SendSome(const SegmentRef& segment, uint64_t* page, PageOut* out) {
  const auto is_bound = [&](uint64_t i) { return IsBound(segment->word(i).state()); };
  *page = segment->Find(*page, PageState::kBoundEmpty, PageState::kBoundNoted);
  if (*page == segment->pages()) return false;
  uint64_t run = 1;
  while (run < PageOut::kRunPagesMax && *page + run < segment->pages() && is_bound(*page + run)) ++run;
  out->Add(segment, *page, run, PageOut::After::kKeep, /*may_stay=*/false, DeadlineAfterMs(kTickMs));
  *page += run;
  return true;
}

absl::Status Publisher::Send(Job* job, PageOut* out) {
  for (const SegmentRef& segment : job->request.segments) {
    uint64_t page = 0;
    while (segment->bound_pages > 0) {
      if (IsStalled(job, options_.patience_ms)) return Stalled();
      // Copies first: they make room for others.
      NRAM_RETURN_IF_ERROR(copies_->Pump());
      if (out->full()) {
        // Pages that wait for a lane are still bound: a thread that writes to one goes on with a copy.
        out->WaitAny(DeadlineAfterMs(kTickMs));
      } else if (!SendSome(segment, &page, out)) {
        page = 0;  // some may be bound again
        AwaitSome(segment.get(), out);
      }
      if (absl::Status failed = out->TakeError(); !failed.ok()) return failed;
    }
  }
  return absl::OkStatus();
}

void Publisher::AwaitSome(Segment* segment, PageOut* out) {
  if (!out->idle()) return out->WaitAny(DeadlineAfterMs(kTickMs));
  // The evictor has the last ones, or they are copies.
  const uint32_t seen = segment->ended.Prepare();
  if (segment->bound_pages == 0 || copies_->HasDone()) {
    segment->ended.Cancel();
  } else {
    segment->ended.WaitUntil(seen, DeadlineAfterMs(kTickMs));
  }
}

absl::Status Publisher::Seal(Job* job) {
  struct Sealing {
    Mutex mu;
    CondVar over;
    size_t left ABSL_GUARDED_BY(mu) = 0;
  } sealing;
  const auto& segments = job->request.segments;
  {
    MutexLock lock(&sealing.mu);
    sealing.left = segments.size();
  }
  std::deque<VersionSeal> seals(segments.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    segments[i]->region()->StartSeal(
        &seals[i], job->request.keep, {.timeout_ms = options_.io_timeout_ms, .io_class = IoClass::kUrgent},
        [](VersionSeal*, void* context) {
          auto* const all = static_cast<Sealing*>(context);
          MutexLock lock(&all->mu);
          --all->left;
          all->over.Signal();
        },
        &sealing);
  }
  while (true) {
    {
      MutexLock lock(&sealing.mu);
      if (sealing.left > 0) sealing.over.WaitUntil(&sealing.mu, DeadlineAfterMs(kTickMs));
      if (sealing.left == 0) break;
    }
    // A version that the servers seal then may have anything.
    if (!job->given_up && IsStalled(job, options_.seal_patience_ms)) GiveUp(job);
  }
  absl::Status status = job->given_up ? Stalled() : absl::OkStatus();
  PublicationRecord sealed = job->record;
  sealed.regions.clear();
  sealed.lengths.clear();
  for (size_t i = 0; i < segments.size(); ++i) {
    const absl::StatusOr<SealedVersion>& one = seals[i].result();
    if (!one.ok()) {
      if (status.ok()) status = one.status();
      continue;
    }
    sealed.regions.push_back({segments[i]->region()->name(), segments[i]->region()->id(), one->number,
                              one->incarnations, one->least_in_sync});
    sealed.lengths.push_back(segments[i]->length());
  }
  if (!job->given_up) Release(*job);
  if (status.ok()) {
    job->record = std::move(sealed);
  } else {
    Hold(job->stream, std::move(sealed));  // to be dropped
  }
  return status;
}

void Publisher::Release(const Job& job) {
  const GateAlone lock(gate_);
  for (const SegmentRef& segment : job.request.segments) {
    CHECK_EQ(segment->bound_pages.load(), 0u);
    segment->publishing = false;
  }
}

void Publisher::GiveUp(Job* job) {
  job->given_up = true;
  const GateAlone lock(gate_);
  for (const SegmentRef& segment : job->request.segments) {
    uint64_t run = 0;  // pages right before `page`, to be opened
    const auto open = [&](uint64_t page) {
      if (run > 0) userfault_->Unprotect(segment->address(page - run), run * segment->page_bytes);
      run = 0;
    };
    for (uint64_t page = 0; page < segment->pages(); ++page) {
      PageWord& word = segment->word(page);
      PageState state = word.state();
      // Only with the gate open does a page begin to be written.
      while (IsBound(state) && !word.Change(&state, UnboundOf(state))) {
      }
      if (!IsBound(state)) {
        open(page);
        continue;
      }
      word.Clear(PageWord::kWaiter);  // opening wakes them
      ++run;
    }
    open(segment->pages());
    segment->bound_pages = 0;
    segment->publishing = false;
  }
}

}  // namespace nram
