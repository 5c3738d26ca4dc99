#include "client/pool/pool_versions.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

// As that of an attached region.
constexpr size_t kTableBytesMax = 256 * kMiB;

std::string Named(const VersionPlace& place) {
  const std::string region =
      place.name.empty() ? FormatId(Raw(place.region)) : absl::StrCat("\"", Printable(place.name, 1000), "\"");
  return absl::StrCat("version ", Raw(place.number), " of region ", region);
}

// Of a record that says them twice, too.
size_t CountLives(const VersionPlace& place) {
  return std::set<uint64_t>(place.incarnations.begin(), place.incarnations.end()).size();
}

absl::Status Gone(const VersionPlace& place, size_t there) {
  if (there == 0) return absl::DataLossError(absl::StrCat(Named(place), " is gone on all its servers"));
  return absl::DataLossError(absl::StrCat(
      Named(place), " is gone on too many of its servers: ", CountLives(place) - std::min(there, CountLives(place)),
      " of ", CountLives(place)));
}

absl::Status CheckPlace(const VersionPlace& place) {
  const bool fits = IsRegionId(Raw(place.region)) && place.number != VersionNumber{} &&
                    place.number <= kVersionNumberMax && !place.incarnations.empty() && place.least_in_sync > 0;
  return fits ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrCat(Named(place), " is invalid: a version has a region, a number ",
                                                        "from 1 on, members, and a copy of each span there"));
}

// Where a version is, by the number of the server; 0: not there.
std::vector<uint64_t> LivesOf(const CopyMap& copies, size_t servers) {
  std::vector<uint64_t> lives(servers);
  for (const CopyMap::Whereabout& at : copies.Whereabouts()) {
    if (!copies.IsGone(at.life)) lives[at.life.server] = at.life.incarnation;
  }
  return lives;
}

}  // namespace

int64_t PoolVersions::DeadlineNs() const {
  return home_->environment->NowNs() + home_->options->io_timeout_ms * kNsPerMs;
}

absl::Status PoolVersions::HoldAt(const VersionPlace& place, ServerSession* session, int64_t deadline_ns, Held* held) {
  absl::StatusOr<VersionHolds::Hold> hold =
      holds_.Take(session, session->incarnation(), place.region, place.number, deadline_ns);
  if (hold.ok()) {
    held->push_back(*std::move(hold));
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(hold.status())) return hold.status();
  // It may be the lease that is not there, for a moment.
  const absl::StatusOr<VersionList> list = session->control()->ListVersions(place.region, deadline_ns);
  const bool is_there = list.ok() && absl::c_any_of(list->versions, [&](const VersionInfo& version) {
                          return version.number == place.number;
                        });
  if (is_there) return absl::UnavailableError(hold.status().message());
  return list.ok() || absl::IsNotFound(list.status()) ? hold.status() : list.status();
}

absl::StatusOr<PoolVersions::Members> PoolVersions::HoldAll(const VersionPlace& place, int64_t deadline_ns,
                                                            Held* held) {
  Members members;
  std::string away;
  for (const auto& session : *home_->sessions) {
    if (session->twin() != kNoServer) continue;  // it is asked by its other name
    const uint64_t incarnation = session->incarnation();
    if (!absl::c_linear_search(place.incarnations, incarnation)) {
      if (!session->up()) away = session->name();
      continue;
    }
    const auto unanswered = [&](absl::string_view why) {
      return absl::UnavailableError(
          absl::StrCat(Named(place), " is partly on a server that does not answer (", session->name(), "): ", why));
    };
    if (!session->up()) return unanswered(session->last_error().message());
    absl::Status status = HoldAt(place, session.get(), deadline_ns, held);
    if (absl::IsNotFound(status)) continue;
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return unanswered(status.message());
    if (!status.ok()) return status;
    Member member{session.get(), {session->index(), incarnation}, {}};
    AttachRegionArgs look;
    look.lease = session->lease();
    look.region = place.region;
    look.read_only = true;
    absl::StatusOr<RegionInfo> info = session->control()->AttachRegion(look, deadline_ns);
    if (absl::IsNotFound(info.status())) continue;
    if (!info.ok()) return unanswered(info.status().message());
    member.info = *std::move(info);
    members.push_back(std::move(member));
  }
  if (members.size() + place.least_in_sync > CountLives(place)) return members;
  // One that was not there yet may have it.
  if (!away.empty()) {
    return absl::UnavailableError(absl::StrCat(Named(place), " may be on a server that does not answer (", away, ")"));
  }
  return Gone(place, members.size());
}

absl::Status PoolVersions::MakeSeal(const VersionPlace& place, const Members& members,
                                    std::unique_ptr<RegionSeal>* seal) const {
  std::vector<RegionInfo> infos;
  bool sealed = false;
  for (const Member& member : members) {
    sealed = sealed || member.info.pages_sealed;
    infos.push_back(member.info);
  }
  if (place.name.empty()) {
    if (!sealed) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(Named(place), " is sealed, and its region has no name: only its owner can read it"));
  }
  NRAM_ASSIGN_OR_RETURN(const std::optional<SealManifest> manifest, seals_->Check(place.name, place.region, infos));
  if (!manifest.has_value()) return absl::OkStatus();
  NRAM_ASSIGN_OR_RETURN(NamedSeals::Term term, seals_->BeginReader(*manifest));
  *seal = std::move(term.seal);
  return absl::OkStatus();
}

absl::Status PoolVersions::Load(const VersionPlace& place, const Members& members, int64_t deadline_ns,
                                CopyMap* copies) const {
  size_t there = 0;
  for (const Member& member : members) {
    const auto load = [&](uint64_t span, SpanGeneration generation) {
      if (generation == SpanGeneration{}) {
        return absl::DataLossError(
            absl::StrCat(Named(place), " has a span without a generation at memory server ", member.session->name()));
      }
      // A copy that was catching up, or had been told to refuse: others have the span.
      if (Raw(generation) % 2 != 0) return absl::OkStatus();
      if (copies->Load(span, member.life, generation, kTableBytesMax)) return absl::OkStatus();
      return absl::ResourceExhaustedError(absl::StrCat(Named(place), " has more spans than this client can track (",
                                                       FormatByteSize(kTableBytesMax), " of table)"));
    };
    copies->NoteMember(member.life);
    const absl::Status status = member.session->control()->ListSpans(place.region, deadline_ns, load, place.number);
    if (absl::IsNotFound(status)) {
      copies->Bury(member.life);  // it has yielded meanwhile
      continue;
    }
    NRAM_RETURN_IF_ERROR(status);
    ++there;
  }
  copies->EndLoad(/*doubtful=*/false, /*loses=*/false);
  if (there + place.least_in_sync > CountLives(place)) return absl::OkStatus();
  return Gone(place, there);
}

absl::StatusOr<std::unique_ptr<Region>> PoolVersions::Open(const VersionPlace& place) {
  NRAM_RETURN_IF_ERROR(CheckPlace(place));
  const int64_t deadline_ns = DeadlineNs();
  auto held = std::make_shared<Held>();
  NRAM_ASSIGN_OR_RETURN(const Members members, HoldAll(place, deadline_ns, held.get()));
  std::unique_ptr<RegionSeal> seal;
  NRAM_RETURN_IF_ERROR(MakeSeal(place, members, &seal));
  RegionOptions options;
  options.name = place.name;
  RegionKey key{.id = place.region, .named = true, .copies = 1, .reader = CopiesReader::kVersion, .versioned = true};
  key.version = place.number;
  for (const Member& member : members) {
    options.size_bytes = std::max(options.size_bytes, member.info.size_bytes);
    key.copies = static_cast<uint8_t>(std::clamp<int>(member.info.copies, key.copies, kReplicasMax));
  }
  auto region = std::make_unique<Region>(home_, key, options, /*read_only=*/true, std::move(seal), std::move(held));
  NRAM_RETURN_IF_ERROR(Load(place, members, deadline_ns, region->map()->copies()));
  return region;
}

absl::StatusOr<std::vector<ServerVersions>> PoolVersions::List(RegionId region, int64_t deadline_ns) const {
  std::vector<ServerVersions> servers;
  absl::Status unanswered;
  for (const auto& session : *home_->sessions) {
    if (!session->up()) {
      unanswered = session->last_error();
      continue;
    }
    absl::StatusOr<VersionList> list = session->control()->ListVersions(region, deadline_ns);
    if (list.ok()) {
      servers.push_back({session.get(), list->incarnation, std::move(list->versions)});
    } else if (!absl::IsNotFound(list.status())) {
      unanswered = list.status();
    }
  }
  if (!servers.empty()) return servers;
  if (!unanswered.ok()) return absl::UnavailableError(unanswered.message());
  return absl::NotFoundError(absl::StrCat("no server of the pool has region ", FormatId(Raw(region))));
}

absl::Status PoolVersions::VisitChanges(const Region& from, const Region& to,
                                        absl::FunctionRef<void(uint64_t span, const ChangedPages& pages)> visit) const {
  if (from.version() == VersionNumber{} || from.id() != to.id() || to.version() <= from.version()) {
    return absl::InvalidArgumentError("changes are listed between a version of a region and a newer one of the same");
  }
  using Changes = absl::flat_hash_map<uint64_t, ChangedPages>;
  const CopyMap& before = *from.map()->copies();
  const CopyMap& after = *to.map()->copies();
  const int64_t deadline_ns = DeadlineNs();
  // Asks the servers that have both.
  std::vector<uint64_t> both = LivesOf(before, home_->sessions->size());
  const std::vector<uint64_t> later = LivesOf(after, home_->sessions->size());
  for (size_t i = 0; i < both.size(); ++i) {
    if (both[i] != later[i]) both[i] = 0;
  }
  std::map<size_t, Changes> told;
  const auto changes_at = [&](size_t server) -> const Changes* {
    if (const auto it = told.find(server); it != told.end()) return &it->second;
    Changes changes;
    ServerSession* const session = home_->sessions->at(server);
    const absl::Status status = session->control()->ListChanges(
        from.id(), from.version(), to.version(), deadline_ns, [&](uint64_t span, const ChangedPages& pages) {
          // Other spans are not asked for.
          const bool is_there = before.NextSpan(span) == span || after.NextSpan(span) == span;
          if (is_there) changes[span] = pages;
          return absl::OkStatus();
        });
    if (!status.ok() || session->incarnation() != both[server]) {
      both[server] = 0;
      return nullptr;
    }
    return &told.emplace(server, std::move(changes)).first->second;
  };
  ChangedPages all;
  all.fill(~uint64_t{0});
  for (uint64_t span = 0;; ++span) {
    const uint64_t next_before = before.NextSpan(span);
    const uint64_t next_after = after.NextSpan(span);
    span = std::min(next_before, next_after);
    if (span == UINT64_MAX) return absl::OkStatus();
    const CopyMap::Servers had = before.ServersOf(span);
    const CopyMap::Servers has = after.ServersOf(span);
    // Needs one server that had a copy that counts in both versions. If the span was a hole, every member knows that.
    const Changes* changes = nullptr;
    for (size_t server = 0; server < both.size() && changes == nullptr; ++server) {
      const bool counts = both[server] != 0 && (next_before != span || absl::c_linear_search(had, server)) &&
                          (next_after != span || absl::c_linear_search(has, server));
      if (counts) changes = changes_at(server);
    }
    if (changes == nullptr) {
      visit(span, all);
    } else if (const auto it = changes->find(span); it != changes->end()) {
      visit(span, it->second);
    }
  }
}

}  // namespace nram
