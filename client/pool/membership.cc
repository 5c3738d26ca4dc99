#include "client/pool/membership.h"

#include <glog/logging.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "client/pool/io.h"

namespace nram {

using Life = CopyMap::Life;

Membership::~Membership() {
  std::thread thread;
  {
    MutexLock lock(&mu_);
    CHECK(held_.empty()) << "a region outlives its pool";
    stops_ = true;
    thread = std::move(thread_);
  }
  stopped_.SignalAll();
  if (thread.joinable()) thread.join();
}

void Membership::Add(RegionMap* map, Told told, View view) {
  MutexLock lock(&mu_);
  held_.push_back({map->Share(), std::move(told), std::move(view), {}});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void Membership::Run() {
  MutexLock lock(&mu_);
  while (!stops_) {
    for (Held& held : held_) Look(&held);
    if (!stops_) stopped_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
  }
}

std::vector<uint64_t> Membership::Incarnations(const Members& members) {
  std::vector<uint64_t> incarnations;
  for (const Life& member : members) incarnations.push_back(member.incarnation);
  return incarnations;
}

Membership::Standing Membership::StandingOf(const RegionMap& map, const Life& member) const {
  CopyMap* const copies = map.copies();
  const ServerSession* const session = member.server == kNoServer ? nullptr : home_->sessions->at(member.server);
  const uint64_t present = session == nullptr ? 0 : session->incarnation();
  if (present != 0 && present != member.incarnation) copies->Bury(member);
  // Data that it alone had is missed for ever, and it with that.
  if (session == nullptr || copies->IsGone(member)) return copies->HasLoss() ? Standing::kMissed : Standing::kGoes;
  const bool leaves = session->capacity().leaving || session->AwayNs() >= home_->options->replace_after_ms * kNsPerMs;
  if (leaves && !copies->IsUsed(member.server)) return Standing::kGoes;
  return copies->IsMember(member) || leaves || !session->usable() ? Standing::kStays : Standing::kComesBack;
}

bool Membership::Create(const Held& held, ServerSession* session, const Members& members) const {
  const RegionKey& key = held.map->key();
  const Told& told = held.told;
  CreateRegionArgs args{session->lease(), key.id, key.epoch, key.gc, told.name, Incarnations(members), told.size_bytes};
  args.copies = key.copies;
  args.pages_sealed = held.map->seal() != nullptr;
  args.seal_manifest = told.seal_manifest;
  args.view = held.view.number;
  args.versioned = key.versioned;
  absl::Status status = session->control()->CreateRegion(args, DeadlineNs());
  if (absl::IsAlreadyExists(status)) {
    // It was a member before, in the same life; or another client owns the data there.
    status = session->control()->DestroyView(session->lease(), key.id, key.epoch, args.view, DeadlineNs()).status();
    if (absl::IsFailedPrecondition(status)) held.map->NoteFenced();
    if (status.ok()) status = session->control()->CreateRegion(args, DeadlineNs());
  }
  // The region may have been destroyed meanwhile.
  if (!held.map->CheckUsable().ok()) {
    (void)session->control()->DestroyView(session->lease(), key.id, key.epoch, args.view, DeadlineNs());
    return false;
  }
  return status.ok();
}

bool Membership::MayTell(const View& view, const Members& members) const {
  const auto answers = [&](const Members& list) {
    return absl::c_any_of(list, [&](const Life& life) {
      return life.server != kNoServer && home_->sessions->at(life.server)->usable() &&
             home_->sessions->at(life.server)->incarnation() == life.incarnation;
    });
  };
  return absl::c_all_of(view.out, answers) && answers(members) &&
         (view.out.size() < kOutMax || absl::c_linear_search(view.out, members));
}

size_t Membership::Tell(RegionMap* map, View* view, const Members& members, uint32_t left_in_order,
                        int64_t deadline_ns) const {
  if (!MayTell(*view, members)) return 0;
  const RegionKey& key = map->key();
  SetViewArgs args{LeaseId{}, key.id, key.epoch, ++view->number, Incarnations(members), left_in_order};
  Members asked = members;
  for (const Members& list : view->out) {
    for (const Life& life : list) {
      if (!absl::c_linear_search(asked, life)) asked.push_back(life);
    }
  }
  Members told;
  for (const Life& life : asked) {
    ServerSession* const session = life.server == kNoServer ? nullptr : home_->sessions->at(life.server);
    if (session == nullptr || !session->up() || session->incarnation() != life.incarnation) continue;
    args.lease = session->lease();
    const absl::Status status = session->control()->SetView(args, std::min(deadline_ns, DeadlineNs()));
    if (status.ok()) told.push_back(life);
    if (absl::IsFailedPrecondition(status)) map->NoteFenced();
  }
  const auto has_told = [&](const Members& list) {
    return absl::c_any_of(list, [&](const Life& life) { return absl::c_linear_search(told, life); });
  };
  if (map->is_fenced() || !has_told(members) || !absl::c_all_of(view->out, has_told)) {
    if (!absl::c_linear_search(view->out, members)) view->out.push_back(members);
    return 0;
  }
  view->members = members;
  view->out = {members};
  return static_cast<size_t>(absl::c_count_if(members, [&](const Life& l) { return absl::c_linear_search(told, l); }));
}

void Membership::NoteServers(Held* held, const Members& more) const {
  if (held->map->key().gc) return;
  std::set<uint16_t> servers;
  for (const Life& life : more) servers.insert(life.server);
  for (const Members& list : held->view.out) {
    for (const Life& life : list) servers.insert(life.server);
  }
  // Of one that this pool does not know the list there may have the address.
  if (servers.contains(kNoServer) || servers == held->named) return;
  std::vector<Endpoint> endpoints;
  for (const uint16_t server : servers) endpoints.push_back(home_->sessions->at(server)->endpoint());
  const RegionKey& key = held->map->key();
  names_->SetServers(held->told.name, key.id, key.epoch, std::move(endpoints));
  held->named = std::move(servers);
}

void Membership::Look(Held* held) {
  RegionMap* const map = held->map.get();
  if (!map->CheckUsable().ok()) return;
  NoteServers(held, {});
  CopyMap* const copies = map->copies();
  Members members;
  Members gone;
  Members added;  // to be used from the next view on
  for (const Life& member : held->view.members) {
    const Standing standing = StandingOf(*map, member);
    // No span is placed there from now on; then it is looked at again.
    const bool goes = standing == Standing::kGoes && copies->EndMember(member);
    (goes ? gone : members).push_back(member);
    if (standing == Standing::kComesBack) added.push_back(member);
  }
  Members news;
  for (const auto& session : *home_->sessions) {
    const Life life{session->index(), session->incarnation()};
    const ServerCapacity capacity = session->capacity();
    if (!session->usable() || capacity.draining || capacity.leaving || absl::c_linear_search(members, life)) continue;
    const auto refused = held->refused_ns.find(life.incarnation);
    if (refused == held->refused_ns.end() || NowNs() - refused->second > kCreateAgainMs * kNsPerMs)
      news.push_back(life);
  }
  if (gone.empty() && added.empty() && news.empty()) return;
  Members all = members;
  all.insert(all.end(), news.begin(), news.end());
  if (!news.empty() && MayTell(held->view, all)) {
    NoteServers(held, all);
    // Each of them may keep this list, whatever it answers.
    ++held->view.number;
    if (!absl::c_linear_search(held->view.out, all)) held->view.out.push_back(all);
    std::erase_if(news, [&](const Life& life) {
      const bool created = copies->NotePerhaps(life) && Create(*held, home_->sessions->at(life.server), all);
      if (!created) held->refused_ns[life.incarnation] = NowNs();
      return !created;
    });
    members.insert(members.end(), news.begin(), news.end());
    added.insert(added.end(), news.begin(), news.end());
  }
  if (Tell(map, &held->view, members, /*left_in_order=*/0, NowNs() + 2 * kTellMs * kNsPerMs) == 0) return;
  for (const Life& life : added) copies->NoteMember(life);
  for (const Life& life : gone) {
    if (absl::c_linear_search(held->view.members, life)) continue;  // it was made a member again
    ServerSession* const session = life.server == kNoServer ? nullptr : home_->sessions->at(life.server);
    if (session == nullptr || !session->usable() || session->incarnation() != life.incarnation) continue;
    // If the server does not answer, its data has no owner. It is destroyed if the server becomes a member again.
    (void)session->control()->DestroyView(session->lease(), map->key().id, map->key().epoch, held->view.number,
                                          DeadlineNs());
  }
}

bool Membership::Settle(const IoPlace& place, int64_t deadline_ns) const {
  CopyMap* const copies = place.map->copies();
  uint64_t span = 0;
  while (NowNs() < deadline_ns) {
    span = copies->NextToSettle(span);
    if (span == UINT64_MAX) return true;
    IoRequest request;
    request.op = Op::kWrite;
    request.repair = RepairWork::kSettle;
    request.range = {span * kChunksPerSpan, kChunksPerSpan};
    request.deadline_ns = deadline_ns;
    if (!Io::Run(place, request).ok()) return false;
    ++span;
  }
  return false;
}

void Membership::Leave(const IoPlace& place) {
  RegionMap* const map = place.map;
  map->NoteClosing();
  repairer_->Forget(*map);
  Held held;
  {
    MutexLock lock(&mu_);
    const auto it = absl::c_find_if(held_, [&](const Held& other) { return other.map.get() == map; });
    if (it == held_.end()) return;
    held = std::move(*it);
    held_.erase(it);
  }
  if (!map->CheckUsable().ok()) return;  // it is destroyed
  // The region's own reference, and the one here.
  const int64_t let_go_ns = NowNs() + kLetGoMs * kNsPerMs;
  while (map->references() > 2 && NowNs() < let_go_ns) SleepMs(1);
  const int64_t deadline_ns = NowNs() + home_->options->io_timeout_ms * kNsPerMs;
  const bool is_quiet = map->references() <= 2 && Settle(place, deadline_ns);
  // A member may be away for a moment. A view that only the others have is lost with them.
  const Members all = held.view.members;
  const int64_t patience_ns = std::min(deadline_ns, NowNs() + kTellMs * kNsPerMs);
  size_t told = 0;
  while (is_quiet) {
    Members members;
    for (const Life& member : all) {
      const bool is_there = member.server != kNoServer && home_->sessions->at(member.server)->usable() &&
                            home_->sessions->at(member.server)->incarnation() == member.incarnation;
      if (is_there && map->copies()->IsMember(member)) members.push_back(member);
    }
    const int least = map->copies()->LeastInSync(members);
    if (map->is_fenced()) return;  // it is another client's to leave
    if (least > 0) told = Tell(map, &held.view, members, static_cast<uint32_t>(least), deadline_ns);
    if (told == all.size() || NowNs() >= patience_ns) break;
    SleepMs(10);
  }
  if (map->is_fenced()) return;
  if (told == 0) {
    LOG(WARNING) << "region \"" << held.told.name
                 << "\" could not be left in order: until it is attached again, none of its servers may restart";
  } else if (told < all.size()) {
    LOG(WARNING) << "region \"" << held.told.name << "\" was left in order on only " << told << " of its "
                 << all.size() << " servers: until it is attached again, these must not restart";
  }
}

}  // namespace nram
