#include "client/pool/named_regions.h"

#include <poll.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

// The epoch of a region while it is made, and that of one that has been made on all servers.
constexpr Epoch kMaking{1};
constexpr Epoch kMade{2};
// Of a region with views that was just made.
constexpr uint64_t kFirstView = 1;
// For healthy servers to undo a creation that has failed at another one.
constexpr int64_t kUndoTimeoutMs = 3'000;
// One attempt of several to take a region over.
constexpr int64_t kRaiseTryMs = 2'000;
constexpr int kRaisePauseMs = 10;
// The limit of an attached region's table of spans: enough for 30 TiB, or for half a million spans that lie far from
// each other. Servers say where spans are, and are not trusted.
constexpr size_t kTableBytesMax = 256 * kMiB;

bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

void NoteCreated(Region* region, const CopyMap::Life& life) {
  if (CopyMap* const copies = region->map()->copies()) return copies->NoteMember(life);
  region->map()->NoteCreated(life.server, life.incarnation);
}

bool IsNewerView(const RegionInfo& a, const RegionInfo& b) {
  return std::pair(Raw(a.view_epoch), a.view) > std::pair(Raw(b.view_epoch), b.view);
}

// The newest version by the servers' words. A single server is believed only up to kJumpMax above the others: it may
// lie, and numbers are not used twice. If it was right, its seals are refused until they are above (adr/0019).
VersionNumber Plausible(std::vector<VersionNumber> newest) {
  constexpr uint64_t kJumpMax = uint64_t{1} << 24;
  if (newest.empty()) return VersionNumber{};
  std::sort(newest.rbegin(), newest.rend());
  if (newest.size() == 1) return newest[0];
  return VersionNumber{static_cast<uint32_t>(std::min<uint64_t>(Raw(newest[0]), Raw(newest[1]) + kJumpMax))};
}

absl::Status TooLarge(const std::string& name) {
  return absl::ResourceExhaustedError(absl::StrCat("region ", Quoted(name),
                                                   " has more spans than this client can track (",
                                                   FormatByteSize(kTableBytesMax), " of table)"));
}

}  // namespace

// A named region that is being created. Every server keeps the list of those lives of servers that it is on, so that a
// client that attaches it later can tell a hole from a loss. Until it is on all of them it belongs to a lease of its
// own. An undo ends that lease first: from then on no server executes a create that is still on its way.
struct NamedRegions::Making {
  CreateRegionArgs args;                 // of the server that is asked, its lease
  std::vector<ServerSession*> sessions;  // in the order of args.incarnations
  std::vector<LeaseId> leases;           // likewise
};

absl::StatusOr<std::unique_ptr<Region>> NamedRegions::Create(const RegionOptions& options) {
  const int64_t deadline_ns = DeadlineIn(options_->io_timeout_ms);
  NRAM_ASSIGN_OR_RETURN(const bool seals, seals_->Decide(options));
  NRAM_RETURN_IF_ERROR(AwaitUndone(options.name, deadline_ns));
  Making making;
  making.args = {LeaseId{},          RegionId{environment_->RandomId()},   kMaking,   options.gc, options.name, {},
                 options.size_bytes, static_cast<uint8_t>(options.copies), kFirstView};
  making.args.versioned = options.versioned;
  NamedSeals::Term term;
  if (seals) {
    SealManifest manifest{making.args.region, options.name, options.size_bytes, making.args.copies, {}};
    NRAM_ASSIGN_OR_RETURN(term, seals_->BeginOwner(std::move(manifest), kHoleVersion));
    making.args.pages_sealed = true;
    making.args.seal_manifest = term.manifest;
  }
  NRAM_RETURN_IF_ERROR(ChooseServers(options, &making));
  NRAM_RETURN_IF_ERROR(Make(making, deadline_ns));
  std::unique_ptr<Region> region =
      MakeRegion(making.args.region, kMade, options, CopiesReader::kNo, /*read_only=*/false, std::move(term.seal));
  Membership::View view{.number = kFirstView};
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    view.members.push_back({making.sessions[i]->index(), making.args.incarnations[i]});
    NoteCreated(region.get(), view.members.back());
  }
  view.out = {view.members};
  if (region->map()->copies() != nullptr) {
    membership_->Add(region->map(), {options.name, options.size_bytes, std::move(term.manifest)}, std::move(view));
  }
  region->BeginRepair();
  return region;
}

absl::Status NamedRegions::ChooseServers(const RegionOptions& options, Making* making) const {
  std::set<uint32_t> hosts;
  for (const auto& session : *sessions_) {
    if (!session->up() || session->removed()) continue;
    if (!session->MayUndo()) {
      return absl::UnavailableError(
          absl::StrCat("memory server ", session->name(), " has too many failed creates of named regions to undo"));
    }
    hosts.insert(session->host());
    making->sessions.push_back(session.get());
    making->leases.push_back(LeaseId{environment_->RandomId()});
    making->args.incarnations.push_back(session->incarnation());
  }
  if (making->sessions.empty()) return absl::UnavailableError("no memory server of the pool answers");
  if (hosts.size() < static_cast<size_t>(options.copies)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("each page needs ", options.copies, " copies on different hosts, and servers of ",
                     hosts.size(), " hosts answer: add servers on other hosts, or ask for fewer copies"));
  }
  return absl::OkStatus();
}

absl::Status NamedRegions::Make(const Making& making, int64_t deadline_ns) {
  KeptNames::Claim claim;
  if (!making.args.gc) {
    std::vector<Endpoint> servers;
    for (const ServerSession* const session : making.sessions) servers.push_back(session->endpoint());
    NRAM_ASSIGN_OR_RETURN(claim, names_->Begin(making.args.name, making.args.region, std::move(servers), deadline_ns));
    deadline_ns = DeadlineIn(options_->io_timeout_ms);  // however long that took
  }
  absl::Status status = MakeEverywhere(making, deadline_ns);
  if (status.ok() && !making.args.gc) status = names_->Confirm(claim);
  if (status.ok()) return status;
  const std::string left = UndoEverywhere(making);
  if (left.empty() && !making.args.gc) names_->GiveUp(claim);
  return absl::Status(status.code(), absl::StrCat(status.message(), left));
}

absl::Status NamedRegions::MakeEverywhere(const Making& making, int64_t deadline_ns) {
  // As long as it may take, and longer where the servers' usual is.
  const int64_t ttl_ms = std::max<int64_t>(2 * options_->io_timeout_ms, 10'000);
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    ControlClient* const control = making.sessions[i]->control();
    NRAM_ASSIGN_OR_RETURN(const LeaseInfo lease,
                          control->GrantLease(making.leases[i], options_->client_name, ttl_ms, deadline_ns));
    if (lease.incarnation != making.args.incarnations[i]) {
      return absl::UnavailableError(absl::StrCat("memory server ", making.sessions[i]->name(), " has just restarted"));
    }
    CreateRegionArgs args = making.args;
    args.lease = making.leases[i];
    NRAM_RETURN_IF_ERROR(control->CreateRegion(args, deadline_ns));
  }
  for (ServerSession* const session : making.sessions) {
    const AttachRegionArgs args{session->lease(), making.args.region, "", false, kMade, /*force=*/true};
    NRAM_RETURN_IF_ERROR(session->control()->AttachRegion(args, deadline_ns).status());
  }
  // It owns nothing any more. One that cannot be ended now ends by itself.
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    (void)making.sessions[i]->control()->EndLease(making.leases[i], deadline_ns);
  }
  return absl::OkStatus();
}

// Has every server undo it, and waits for those that answer. Returns text to be added to the error.
std::string NamedRegions::UndoEverywhere(const Making& making) {
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    making.sessions[i]->UndoCreate(
        {making.args.name, making.args.region, making.leases[i], making.args.incarnations[i]});
  }
  const int64_t deadline_ns = DeadlineIn(kUndoTimeoutMs);
  std::vector<std::string> left;
  for (ServerSession* const session : making.sessions) {
    if (!session->AwaitUndone(making.args.name, deadline_ns)) left.push_back(session->name());
  }
  if (left.empty()) return "";
  return absl::StrCat(" (the create is undone there when these servers answer: ", absl::StrJoin(left, ", "), ")");
}

absl::Status NamedRegions::AwaitUndone(const std::string& name, int64_t deadline_ns) {
  for (const auto& session : *sessions_) {
    if (session->AwaitUndone(name, deadline_ns)) continue;
    return absl::UnavailableError(absl::StrCat("a former create of region ", Quoted(name),
                                               " is still being undone at memory server ", session->name(),
                                               ", which does not answer"));
  }
  return absl::OkStatus();
}

// Collects, from each server that answers, its knowledge of regions of that name.
absl::StatusOr<NamedRegions::Found> NamedRegions::LookFor(const std::string& name, int64_t deadline_ns) {
  Found found;
  const size_t servers = sessions_->size();
  found.infos.resize(servers);
  found.alive.resize(servers);
  for (size_t i = 0; i < servers; ++i) {
    if (sessions_->at(i)->twin() != kNoServer) continue;  // it is asked by its other name
    if (!sessions_->at(i)->up()) {
      found.away = sessions_->at(i)->name();
      continue;
    }
    AttachRegionArgs args;
    args.lease = sessions_->at(i)->lease();  // a server tells the owner's lease to its owner alone
    args.name = name;
    args.read_only = true;
    const uint64_t incarnation = sessions_->at(i)->incarnation();
    absl::StatusOr<RegionInfo> info = sessions_->at(i)->control()->AttachRegion(args, deadline_ns);
    if (!info.ok() && info.status().code() != absl::StatusCode::kNotFound) return info.status();
    if (info.ok()) found.infos[i] = *std::move(info);
    found.alive[i] = incarnation;
  }
  return found;
}

absl::StatusOr<NamedRegions::Found> NamedRegions::FindNamed(const std::string& name, AttachLoss loss,
                                                            int64_t deadline_ns) {
  absl::StatusOr<Found> found = FindOnce(name, AttachLoss::kRefuse, deadline_ns);
  if (found.ok() || (loss == AttachLoss::kRefuse && !absl::IsDataLoss(found.status()))) return found;
  // A server may have been asked just before the region was created there, and another when it was on all.
  return FindOnce(name, loss, deadline_ns);
}

absl::StatusOr<NamedRegions::Found> NamedRegions::FindOnce(const std::string& name, AttachLoss loss,
                                                           int64_t deadline_ns) {
  NRAM_ASSIGN_OR_RETURN(const Found all, LookFor(name, deadline_ns));
  // If there are several regions of that name, all but one are being undone: the whole one counts, else the newest.
  std::vector<const RegionInfo*> newest_first;
  for (const RegionInfo& info : all.infos) {
    if (Raw(info.id) != 0) newest_first.push_back(&info);
  }
  if (newest_first.empty()) {
    if (!all.away.empty()) {
      return absl::UnavailableError(absl::StrCat("no server that answers has a region named ", Quoted(name), ", and ",
                                                 all.away, " does not answer"));
    }
    return absl::NotFoundError(absl::StrCat("no region named ", Quoted(name)));
  }
  std::stable_sort(newest_first.begin(), newest_first.end(),
                   [](const RegionInfo* a, const RegionInfo* b) { return Raw(a->epoch) > Raw(b->epoch); });
  absl::Status first_error;
  for (const AttachLoss accepted : {AttachLoss::kRefuse, loss}) {
    for (const RegionInfo* const info : newest_first) {
      Found found = all;
      const absl::Status status = Choose(name, info->id, accepted, &found);
      if (status.ok()) return found;
      if (first_error.ok()) first_error = status;
    }
  }
  return first_error;
}

absl::Status NamedRegions::Choose(const std::string& name, RegionId id, AttachLoss loss, Found* found) const {
  NRAM_ASSIGN_OR_RETURN(found->seal, seals_->Check(name, id, found->infos));
  Epoch epoch{};
  bool is_first = true;
  for (RegionInfo& info : found->infos) {
    if (info.id != id) {
      info = {};
      continue;
    }
    epoch = std::max(epoch, info.epoch);
    const bool is_newer = info.has_views() ? IsNewerView(info, found->newest) : info.epoch > found->newest.epoch;
    if (std::exchange(is_first, false) || is_newer) found->newest = info;
  }
  // No client has owned it since.
  found->left_in_order = found->newest.left_in_order > 0 && found->newest.epoch == epoch;
  NRAM_RETURN_IF_ERROR(CheckWhole(name, loss, found));
  found->newest.epoch = epoch;
  if (!found->newest.has_views()) return absl::OkStatus();
  // A server that is no member has nothing that counts.
  for (size_t i = 0; i < found->infos.size(); ++i) {
    if (!absl::c_linear_search(found->newest.incarnations, found->alive[i])) found->infos[i] = {};
  }
  return absl::OkStatus();
}

// Whether every life of a server that may hold part of the region is there and has it, or is not needed.
absl::Status NamedRegions::CheckWhole(const std::string& name, AttachLoss loss, Found* found) {
  const RegionInfo& newest = found->newest;
  absl::flat_hash_set<uint64_t> has_it;
  for (size_t i = 0; i < found->infos.size(); ++i) {
    if (found->infos[i].id == newest.id) has_it.insert(found->alive[i]);
  }
  if (newest.incarnations.empty()) {
    return absl::DataLossError(absl::StrCat("the servers of region ", Quoted(name), " are unknown"));
  }
  if (newest.copies > kReplicasMax) {
    return absl::FailedPreconditionError(absl::StrCat("region ", Quoted(name), " has ", newest.copies,
                                                      " copies, and this client supports at most ", kReplicasMax));
  }
  size_t over = 0;   // lives
  size_t freed = 0;  // lives that go on, and have not got it
  for (const uint64_t incarnation : newest.incarnations) {
    if (has_it.contains(incarnation)) continue;
    ++(absl::c_linear_search(found->alive, incarnation) ? freed : over);
  }
  if (over + freed == 0) return absl::OkStatus();
  if (over > 0 && !found->away.empty()) {
    // Of a copied region that was left in good order, a server that answers with nothing may be missed.
    const bool may_miss = found->left_in_order && newest.copies > 1;
    const absl::string_view mend = may_miss ? ": restart it, with or without its data" : "";
    return absl::UnavailableError(
        absl::StrCat("region ", Quoted(name), " is partly on a server that does not answer (", found->away, ")", mend));
  }
  found->misses = loss == AttachLoss::kAccept;
  if (found->misses) return absl::OkStatus();
  if (newest.epoch == kMaking) {
    return absl::UnavailableError(
        absl::StrCat("region ", Quoted(name), " is incomplete: it is being created, or undone after a failed create"));
  }
  // Each span has a copy that is newest where fewer are gone than that. A server that is not in this client's list of
  // the pool is not known to be gone.
  const bool knows_all = found->alive.size() >= newest.incarnations.size();
  if (freed == 0 && found->left_in_order && over < newest.left_in_order && knows_all) return absl::OkStatus();
  const absl::string_view may_be =
      newest.copies > 1 ? ". The other copies may be older: it can be attached only if loss is accepted" : "";
  return absl::DataLossError(absl::StrCat("region ", Quoted(name), " was partly on a server that has ",
                                          over > 0 ? "restarted since" : "freed its part", may_be));
}

absl::StatusOr<std::unique_ptr<Region>> NamedRegions::Attach(const std::string& name, AttachMode mode,
                                                             AttachLoss loss) {
  constexpr int kTries = 4;
  MutexLock lock(&attaching_);
  for (int i = 0; i < kTries; ++i) {
    bool again = false;
    absl::StatusOr<std::unique_ptr<Region>> region = TryAttach(name, mode, loss, &again);
    if (!again) return region;
  }
  return absl::UnavailableError(
      absl::StrCat("the servers of region ", Quoted(name), " changed during the attach: attach it again"));
}

// *again: its members have changed since they were looked at.
absl::StatusOr<std::unique_ptr<Region>> NamedRegions::TryAttach(const std::string& name, AttachMode mode,
                                                                AttachLoss loss, bool* again) {
  int64_t deadline_ns = DeadlineIn(options_->io_timeout_ms);
  NRAM_RETURN_IF_ERROR(AwaitUndone(name, deadline_ns));
  NRAM_ASSIGN_OR_RETURN(const Found found, FindNamed(name, loss, deadline_ns));
  const std::vector<RegionInfo>& infos = found.infos;
  const RegionInfo& newest = found.newest;
  const bool read_only = mode == AttachMode::kReadOnly;
  // Before any server lets go of the present owner: one may have ended its lease for a moment, and the others not.
  for (size_t i = 0; i < infos.size(); ++i) {
    const RegionInfo& info = infos[i];
    const bool is_own = info.lease == sessions_->at(i)->lease();
    if (mode == AttachMode::kOwner && Raw(info.id) != 0 && !info.orphan && !is_own) {
      return absl::FailedPreconditionError(absl::StrCat("region ", Quoted(name), " is in use by ", info.owner_name));
    }
  }
  if (!read_only && Raw(newest.epoch) == UINT32_MAX) {
    return absl::FailedPreconditionError(absl::StrCat("region ", Quoted(name), " has had its last epoch"));
  }
  NamedSeals::Term term;
  if (found.seal.has_value()) {
    // Pages that it has written before may have been lost, or be old.
    NRAM_ASSIGN_OR_RETURN(
        term, read_only ? seals_->BeginReader(*found.seal) : seals_->BeginOwner(*found.seal, kUnknownVersion));
  }
  // A reader sends epoch 0, which allows any owner, or the present epoch, whose end ends its knowledge. A region that
  // is still being made gets kMade, the epoch of made regions.
  const bool is_pinned = newest.copies > 1 && found.left_in_order;
  const Epoch epoch{!read_only ? std::max(Raw(newest.epoch) + 1, Raw(kMade)) : is_pinned ? Raw(newest.epoch) : 0};
  RegionInfo raised;
  if (!read_only) {
    const absl::Status status = RaiseEverywhere(infos, epoch, mode, term.manifest, &raised);
    // A server has none of it any more, or the former owner was there until now.
    *again = absl::IsNotFound(status) || (status.ok() && newest.has_views() && IsNewerView(raised, newest));
    if (*again) return nullptr;
    NRAM_RETURN_IF_ERROR(status);
  }
  const CopiesReader reader = !read_only  ? CopiesReader::kNo
                              : is_pinned ? CopiesReader::kPinned
                                          : CopiesReader::kConfirms;
  std::unique_ptr<Region> region = MakeAttached(name, found, epoch, reader, read_only, std::move(term.seal));
  region->map()->NoteVersion(raised.newest_version);
  // After the former owner is shut out, so that no span is missed.
  deadline_ns = DeadlineIn(options_->io_timeout_ms);
  if (!newest.has_views()) {
    NRAM_RETURN_IF_ERROR(LoadSpans(region.get(), deadline_ns));
  } else {
    NRAM_RETURN_IF_ERROR(LoadCopies(region.get(), found, deadline_ns));
    if (!read_only) {
      NRAM_RETURN_IF_ERROR(TakeOverView(region.get(), found, term.manifest, deadline_ns));
    } else if (!is_pinned) {
      // Data that a span had left before its server was asked may be where a new member was not.
      NRAM_ASSIGN_OR_RETURN(const Found now, FindNamed(name, loss, deadline_ns));
      *again = now.newest.id != newest.id || IsNewerView(now.newest, newest);
    }
  }
  // Not before: of a span of which a part is listed, an old copy would be the newest.
  region->BeginRepair();
  return region;
}

// Takes the region over on every server that has it. From the first success on there is no way back: the former owner's
// requests are refused there. So a server that does not answer now is asked again, and does not keep the others from
// being taken over; only a refusal for its owner's sake ends it at once.
absl::Status NamedRegions::RaiseEverywhere(const std::vector<RegionInfo>& infos, Epoch epoch, AttachMode mode,
                                           const std::string& manifest, RegionInfo* newest) {
  const int64_t deadline_ns = DeadlineIn(options_->io_timeout_ms);
  absl::Status refused;
  absl::Status unanswered;
  std::vector<size_t> left;
  std::vector<VersionNumber> sealed;
  size_t taken = 0;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (Raw(infos[i].id) != 0) left.push_back(i);
  }
  while (!left.empty()) {
    unanswered = absl::OkStatus();
    std::vector<size_t> again;
    for (const size_t i : left) {
      ServerSession* const session = sessions_->at(i);
      const AttachRegionArgs args{session->lease(), infos[i].id, "", false, epoch, mode == AttachMode::kTakeOver,
                                  manifest};
      const absl::StatusOr<RegionInfo> raised = RaiseAt(session, args, deadline_ns);
      const absl::Status& status = raised.status();
      if (raised.ok()) {
        ++taken;
        // The former owner may have sealed versions until now.
        sealed.push_back(raised->newest_version);
        if (taken == 1 || IsNewerView(*raised, *newest)) *newest = *raised;
      } else if (IsUnanswered(status)) {
        again.push_back(i);
        unanswered = status;
      } else {
        if (refused.ok()) refused = status;
        if (taken == 0 || mode == AttachMode::kOwner) return refused;
      }
    }
    left = std::move(again);
    if (left.empty() || environment_->NowNs() >= deadline_ns) break;
    poll(nullptr, 0, kRaisePauseMs);
  }
  newest->newest_version = Plausible(std::move(sealed));
  const absl::Status& error = refused.ok() ? unanswered : refused;
  if (left.empty() && refused.ok()) return absl::OkStatus();
  if (taken == 0) return error;
  return absl::Status(error.code(), absl::StrCat(error.message(), " (the region was taken over on ", taken,
                                                 " other servers: attach it again when this one answers)"));
}

absl::StatusOr<RegionInfo> NamedRegions::RaiseAt(ServerSession* session, const AttachRegionArgs& args,
                                                 int64_t deadline_ns) {
  const int64_t try_ns = std::min(deadline_ns, DeadlineIn(kRaiseTryMs));
  absl::StatusOr<RegionInfo> raised = session->control()->AttachRegion(args, try_ns);
  const bool is_not_found = absl::IsNotFound(raised.status());
  if (!absl::IsAborted(raised.status()) && !is_not_found) return raised;
  // An attempt without an answer may have done it. And NOT_FOUND may mean the lease, for a moment.
  AttachRegionArgs look;
  look.lease = session->lease();
  look.region = args.region;
  look.read_only = true;
  NRAM_ASSIGN_OR_RETURN(RegionInfo info, session->control()->AttachRegion(look, try_ns));
  if (is_not_found) {
    session->Suspect();
    return absl::UnavailableError(raised.status().message());
  }
  if (info.lease != session->lease() || info.epoch != args.epoch) return raised.status();
  return info;
}

absl::Status NamedRegions::LoadSpans(Region* region, int64_t deadline_ns) {
  for (const RegionMap::Target& target : region->map()->Whereabouts()) {
    NRAM_RETURN_IF_ERROR(sessions_->at(target.server)
                             ->control()
                             ->ListSpans(region->id(), deadline_ns, [&](uint64_t span, SpanGeneration) {
                               if (region->map()->Load(span, target.server, kTableBytesMax)) return absl::OkStatus();
                               return TooLarge(region->name());
                             }));
  }
  return absl::OkStatus();
}

absl::Status NamedRegions::LoadCopies(Region* region, const Found& found, int64_t deadline_ns) {
  CopyMap* const copies = region->map()->copies();
  for (size_t i = 0; i < found.infos.size(); ++i) {
    if (Raw(found.infos[i].id) == 0) continue;
    const CopyMap::Life life{static_cast<uint16_t>(i), found.alive[i]};
    const auto load = [&](uint64_t span, SpanGeneration generation) {
      if (generation == SpanGeneration{}) {
        return absl::DataLossError(absl::StrCat("region ", Quoted(region->name()), " has a span without a generation"));
      }
      if (copies->Load(span, life, generation, kTableBytesMax)) return absl::OkStatus();
      return TooLarge(region->name());
    };
    NRAM_RETURN_IF_ERROR(sessions_->at(i)->control()->ListSpans(region->id(), deadline_ns, load));
  }
  copies->EndLoad(!found.left_in_order && !region->read_only(), found.misses);
  return absl::OkStatus();
}

absl::Status NamedRegions::TakeOverView(Region* region, const Found& found, const std::string& manifest,
                                        int64_t deadline_ns) {
  Membership::View view;  // numbers begin anew with each owner
  for (const uint64_t incarnation : found.newest.incarnations) {
    const auto at = absl::c_find(found.alive, incarnation);
    const bool is_there = at != found.alive.end() && Raw(found.infos[at - found.alive.begin()].id) != 0;
    if (is_there) view.members.push_back({static_cast<uint16_t>(at - found.alive.begin()), incarnation});
  }
  view.out = {view.members};
  const Membership::Members members = view.members;
  if (membership_->Tell(region->map(), &view, members, /*left_in_order=*/0, deadline_ns) < members.size()) {
    return absl::UnavailableError(absl::StrCat("region ", Quoted(region->name()),
                                               " was taken over, but some of its servers did not answer: "
                                               "attach it again"));
  }
  membership_->Add(region->map(), {region->name(), region->size_bytes(), manifest}, std::move(view));
  return absl::OkStatus();
}

std::unique_ptr<Region> NamedRegions::MakeAttached(const std::string& name, const Found& found, Epoch epoch,
                                                   CopiesReader reader, bool read_only,
                                                   std::unique_ptr<RegionSeal> seal) const {
  RegionOptions options;
  options.gc = found.newest.gc;
  options.name = name;
  options.size_bytes = found.newest.size_bytes;
  options.copies = found.newest.copies;
  options.versioned = found.newest.versioned;
  std::unique_ptr<Region> region = MakeRegion(found.newest.id, epoch, options, reader, read_only, std::move(seal));
  for (size_t i = 0; i < found.infos.size(); ++i) {
    if (Raw(found.infos[i].id) != 0) NoteCreated(region.get(), {static_cast<uint16_t>(i), found.alive[i]});
  }
  return region;
}

std::unique_ptr<Region> NamedRegions::MakeRegion(RegionId id, Epoch epoch, const RegionOptions& options,
                                                 CopiesReader reader, bool read_only,
                                                 std::unique_ptr<RegionSeal> seal) const {
  RegionKey key{id, epoch, options.gc, /*named=*/true, options.placement, static_cast<uint8_t>(options.copies), reader};
  key.versioned = options.versioned;
  return std::make_unique<Region>(home_, key, options, read_only, std::move(seal));
}

}  // namespace nram
