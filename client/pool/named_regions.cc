#include "client/pool/named_regions.h"

#include <poll.h>

#include <algorithm>
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
// For healthy servers to undo what another one's failure has made useless.
constexpr int64_t kUndoTimeoutMs = 3'000;
// One attempt of several to take a region over.
constexpr int64_t kRaiseTryMs = 2'000;
constexpr int kRaisePauseMs = 10;
// Of an attached region's table of spans: 30 TiB, or half a million spans that lie far from each other. Servers say
// where they are.
constexpr size_t kTableBytesMax = 256 * kMiB;

bool IsUnanswered(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

std::string Quoted(const std::string& name) { return absl::StrCat("\"", Printable(name, 1000), "\""); }

}  // namespace

// A named region that is being created. Every server keeps the list of those lives of servers that it is on, so that
// whoever attaches it later can tell a hole from a loss. Until it is on all of them it belongs to a lease of its own.
// Whoever undoes it ends that lease first: from then on no server executes a create that is still on its way.
struct NamedRegions::Making {
  CreateRegionArgs args;
  std::vector<ServerSession*> sessions;  // in the order of args.incarnations
};

absl::StatusOr<std::unique_ptr<Region>> NamedRegions::Create(const RegionOptions& options) {
  const int64_t deadline_ns = DeadlineIn(options_->io_timeout_ms);
  NRAM_RETURN_IF_ERROR(AwaitUndone(options.name, deadline_ns));
  Making making;
  making.args = {LeaseId{environment_->RandomId()},
                 RegionId{environment_->RandomId()},
                 kMaking,
                 options.gc,
                 options.name,
                 {},
                 options.size_bytes};
  for (const auto& session : *sessions_) {
    if (!session->up()) continue;
    if (!session->MayUndo()) {
      return absl::UnavailableError(
          absl::StrCat("memory server ", session->name(), " has too many failed creates of named regions to undo"));
    }
    making.sessions.push_back(session.get());
    making.args.incarnations.push_back(session->incarnation());
  }
  if (making.sessions.empty()) return absl::UnavailableError("no memory server of the pool answers");
  const absl::Status status = MakeEverywhere(making, deadline_ns);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(status.message(), UndoEverywhere(making)));
  std::unique_ptr<Region> region = MakeRegion(making.args.region, kMade, options, /*read_only=*/false);
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    region->map()->NoteCreated(making.sessions[i]->index(), making.args.incarnations[i]);
  }
  return region;
}

absl::Status NamedRegions::MakeEverywhere(const Making& making, int64_t deadline_ns) {
  // As long as it may take, and longer where the servers' usual is.
  const int64_t ttl_ms = std::max<int64_t>(2 * options_->io_timeout_ms, 10'000);
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    ControlClient* const control = making.sessions[i]->control();
    NRAM_ASSIGN_OR_RETURN(const LeaseInfo lease,
                          control->GrantLease(making.args.lease, options_->client_name, ttl_ms, deadline_ns));
    if (lease.incarnation != making.args.incarnations[i]) {
      return absl::UnavailableError(absl::StrCat("memory server ", making.sessions[i]->name(), " has just restarted"));
    }
    NRAM_RETURN_IF_ERROR(control->CreateRegion(making.args, deadline_ns));
  }
  for (ServerSession* const session : making.sessions) {
    const AttachRegionArgs args{lease_, making.args.region, "", false, kMade, /*force=*/true};
    NRAM_RETURN_IF_ERROR(session->control()->AttachRegion(args, deadline_ns).status());
  }
  // It owns nothing any more. One that cannot be ended now ends by itself.
  for (ServerSession* const session : making.sessions)
    (void)session->control()->EndLease(making.args.lease, deadline_ns);
  return absl::OkStatus();
}

// Has every server undo it, and waits for those that answer. Returns what to add to the error.
std::string NamedRegions::UndoEverywhere(const Making& making) {
  for (size_t i = 0; i < making.sessions.size(); ++i) {
    making.sessions[i]->UndoCreate(
        {making.args.name, making.args.region, making.args.lease, making.args.incarnations[i]});
  }
  const int64_t deadline_ns = DeadlineIn(kUndoTimeoutMs);
  std::vector<std::string> left;
  for (ServerSession* const session : making.sessions) {
    if (!session->AwaitUndone(making.args.name, deadline_ns)) left.push_back(session->name());
  }
  if (left.empty()) return "";
  return absl::StrCat(" (what was created is undone when it answers: ", absl::StrJoin(left, ", "), ")");
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

// What each server that answers knows of the region of that name, by server; empty infos where it is not.
absl::StatusOr<std::vector<RegionInfo>> NamedRegions::FindNamed(const std::string& name, int64_t deadline_ns) {
  std::vector<RegionInfo> infos(sessions_->size());
  std::vector<uint64_t> alive(sessions_->size());  // the lives that were asked; one that comes up meanwhile was not
  std::string away;
  for (size_t i = 0; i < sessions_->size(); ++i) {
    if (!sessions_->at(i)->up()) {
      away = sessions_->at(i)->name();
      continue;
    }
    AttachRegionArgs args;
    args.lease = lease_;  // a server tells the owner's lease to its owner alone
    args.name = name;
    args.read_only = true;
    alive[i] = sessions_->at(i)->incarnation();
    absl::StatusOr<RegionInfo> info = sessions_->at(i)->control()->AttachRegion(args, deadline_ns);
    if (info.ok()) {
      infos[i] = *std::move(info);
    } else if (info.status().code() != absl::StatusCode::kNotFound) {
      return info.status();
    }
  }
  // Of several regions of that name, all but one are being undone: the whole one counts, else the newest.
  std::vector<const RegionInfo*> newest_first;
  for (const RegionInfo& info : infos) {
    if (Raw(info.id) != 0) newest_first.push_back(&info);
  }
  if (newest_first.empty()) {
    if (!away.empty()) {
      return absl::UnavailableError(
          absl::StrCat("no server that answers has a region named ", Quoted(name), ", and ", away, " does not answer"));
    }
    return absl::NotFoundError(absl::StrCat("no region named ", Quoted(name)));
  }
  std::stable_sort(newest_first.begin(), newest_first.end(),
                   [](const RegionInfo* a, const RegionInfo* b) { return Raw(a->epoch) > Raw(b->epoch); });
  absl::Status first_error;
  for (const RegionInfo* const newest : newest_first) {
    const absl::Status status = CheckWhole(name, infos, alive, *newest, away);
    if (first_error.ok()) first_error = status;
    if (!status.ok()) continue;
    const RegionId id = newest->id;
    for (RegionInfo& info : infos) {
      if (info.id != id) info = {};
    }
    return infos;
  }
  return first_error;
}

// Whether every life of a server that holds part of `newest` is there and has it.
absl::Status NamedRegions::CheckWhole(const std::string& name, const std::vector<RegionInfo>& infos,
                                      const std::vector<uint64_t>& alive, const RegionInfo& newest,
                                      const std::string& away) {
  absl::flat_hash_set<uint64_t> has_it;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].id == newest.id) has_it.insert(alive[i]);
  }
  if (newest.incarnations.empty()) {
    return absl::DataLossError(absl::StrCat("nobody knows which servers region ", Quoted(name), " is on"));
  }
  bool all_alive = true;
  bool whole = true;
  for (const uint64_t incarnation : newest.incarnations) {
    whole = whole && has_it.contains(incarnation);
    all_alive = all_alive && absl::c_linear_search(alive, incarnation);
  }
  if (whole) return absl::OkStatus();
  if (!all_alive && !away.empty()) {
    return absl::UnavailableError(
        absl::StrCat("region ", Quoted(name), " is partly on a server that does not answer (", away, ")"));
  }
  if (!all_alive) {
    return absl::DataLossError(
        absl::StrCat("region ", Quoted(name), " was partly on a server that has restarted since"));
  }
  if (newest.epoch == kMaking) {
    return absl::UnavailableError(
        absl::StrCat("region ", Quoted(name), " is not whole: it is being created, or undone after a failed create"));
  }
  return absl::DataLossError(absl::StrCat("region ", Quoted(name), " was partly on a server that has freed its part"));
}

absl::StatusOr<std::unique_ptr<Region>> NamedRegions::Attach(const std::string& name, AttachMode mode) {
  int64_t deadline_ns = DeadlineIn(options_->io_timeout_ms);
  NRAM_RETURN_IF_ERROR(AwaitUndone(name, deadline_ns));
  NRAM_ASSIGN_OR_RETURN(const std::vector<RegionInfo> infos, FindNamed(name, deadline_ns));
  const RegionInfo& newest = *std::max_element(
      infos.begin(), infos.end(), [](const RegionInfo& a, const RegionInfo& b) { return Raw(a.epoch) < Raw(b.epoch); });
  const bool read_only = mode == AttachMode::kReadOnly;
  RegionOptions options;
  options.gc = newest.gc;
  options.name = name;
  options.size_bytes = newest.size_bytes;
  // Before any server lets go of the present owner: one may have ended its lease for a moment, and the others not.
  for (const RegionInfo& info : infos) {
    if (mode == AttachMode::kOwner && Raw(info.id) != 0 && !info.orphan && info.lease != lease_) {
      return absl::FailedPreconditionError(absl::StrCat("region ", Quoted(name), " is in use by ", info.owner_name));
    }
  }
  if (!read_only && Raw(newest.epoch) == UINT32_MAX) {
    return absl::FailedPreconditionError(absl::StrCat("region ", Quoted(name), " has had its last epoch"));
  }
  // A reader sends epoch 0: it reads whoever owns the region. A region that is just being made keeps the epoch of those
  // that are.
  const Epoch epoch{read_only ? 0 : std::max(Raw(newest.epoch) + 1, Raw(kMade))};
  if (!read_only) NRAM_RETURN_IF_ERROR(RaiseEverywhere(infos, epoch, mode));
  std::unique_ptr<Region> region = MakeRegion(newest.id, epoch, options, read_only);
  for (size_t i = 0; i < infos.size(); ++i) {
    if (Raw(infos[i].id) != 0) region->map()->NoteCreated(static_cast<uint16_t>(i), sessions_->at(i)->incarnation());
  }
  // After the former owner is shut out, so that no span is missed.
  NRAM_RETURN_IF_ERROR(LoadSpans(region.get(), DeadlineIn(options_->io_timeout_ms)));
  return region;
}

// Takes the region over on every server that has it. From the first success on there is no way back: the former owner's
// requests are refused there. So a server that does not answer now is asked again, and does not keep the others from
// being taken over; only a refusal for its owner's sake ends it at once.
absl::Status NamedRegions::RaiseEverywhere(const std::vector<RegionInfo>& infos, Epoch epoch, AttachMode mode) {
  const int64_t deadline_ns = DeadlineIn(options_->io_timeout_ms);
  absl::Status refused;
  absl::Status unanswered;
  std::vector<size_t> left;
  size_t taken = 0;
  for (size_t i = 0; i < infos.size(); ++i) {
    if (Raw(infos[i].id) != 0) left.push_back(i);
  }
  while (!left.empty()) {
    unanswered = absl::OkStatus();
    std::vector<size_t> again;
    for (const size_t i : left) {
      const AttachRegionArgs args{lease_, infos[i].id, "", false, epoch, mode == AttachMode::kTakeOver};
      const absl::Status status = RaiseAt(sessions_->at(i), args, deadline_ns);
      if (status.ok()) {
        ++taken;
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
  const absl::Status& error = refused.ok() ? unanswered : refused;
  if (left.empty() && refused.ok()) return absl::OkStatus();
  if (taken == 0) return error;
  return absl::Status(error.code(), absl::StrCat(error.message(), " (the region was taken over on ", taken,
                                                 " other servers: attach it again when this one answers)"));
}

absl::Status NamedRegions::RaiseAt(ServerSession* session, const AttachRegionArgs& args, int64_t deadline_ns) {
  const int64_t try_ns = std::min(deadline_ns, DeadlineIn(kRaiseTryMs));
  const absl::Status status = session->control()->AttachRegion(args, try_ns).status();
  if (!absl::IsAborted(status)) return status;
  // An attempt without an answer may have done it.
  AttachRegionArgs look;
  look.lease = lease_;
  look.region = args.region;
  look.read_only = true;
  NRAM_ASSIGN_OR_RETURN(const RegionInfo info, session->control()->AttachRegion(look, try_ns));
  return info.lease == lease_ && info.epoch == args.epoch ? absl::OkStatus() : status;
}

absl::Status NamedRegions::LoadSpans(Region* region, int64_t deadline_ns) {
  for (const RegionMap::Target& target : region->map()->Whereabouts()) {
    NRAM_RETURN_IF_ERROR(
        sessions_->at(target.server)->control()->ListSpans(region->id(), deadline_ns, [&](uint64_t span) {
          if (region->map()->Load(span, target.server, kTableBytesMax)) return absl::OkStatus();
          return absl::ResourceExhaustedError(absl::StrCat("region ", Quoted(region->name()),
                                                           " has more spans than this client can keep (",
                                                           FormatByteSize(kTableBytesMax), " of table)"));
        }));
  }
  return absl::OkStatus();
}

std::unique_ptr<Region> NamedRegions::MakeRegion(RegionId id, Epoch epoch, const RegionOptions& options,
                                                 bool read_only) const {
  const RegionKey key{id, epoch, options.gc, /*named=*/true, options.placement};
  return std::make_unique<Region>(home_, key, options, read_only);
}

}  // namespace nram
