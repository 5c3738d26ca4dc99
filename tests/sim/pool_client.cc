#include "tests/sim/pool_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/sim_edge.h"

namespace nram::sim {
namespace {

constexpr int kPort = 7070;
constexpr int64_t kWatchNs = 50 * kNsPerMs;

PoolOptions OptionsOf(const Cluster& cluster, size_t index, const WorkloadOptions& options) {
  PoolOptions pool;
  for (const auto& server : cluster.servers) pool.servers.push_back({server->name(), kPort, ""});
  pool.client_name = absl::StrCat("client", index);
  pool.reserve_step_bytes = options.reserve_step_bytes;
  pool.silence_limit_ms = options.silence_limit_ms;
  if (options.survives) pool.ExpectCopies();
  pool.replace_after_ms = options.replace_after_ms;
  pool.repair_bytes_per_s = options.repair_bytes_per_s;
  pool.moves = options.moves;
  pool.expendable = options.expendable;
  return pool;
}

}  // namespace

struct PoolClient::Handle {
  enum class Ending { kNone, kDestroy, kDrop };

  std::unique_ptr<Region> region;
  ChunkRange window;      // all operations are there
  bool reserves = false;  // room for the whole window
  bool reserve_asked = false;
  bool gc = false;
  bool copied = false;
  bool sealed = false;  // whole pages alone
  size_t under_way = 0;
  Ending ending = Ending::kNone;
};

struct PoolClient::Operation {
  PoolClient* client = nullptr;
  Handle* handle = nullptr;
  std::function<void()> done;
  Checker::Operation checked;
  Io io;
  std::unique_ptr<Sweep> sweep;
  std::unique_ptr<Reservation> reservation;
  std::vector<std::byte> bytes;
  std::vector<ChunkMask> masks;

  static void OnIo(Io* io, void* context) {
    auto* const operation = static_cast<Operation*>(context);
    operation->client->End(operation, io->Wait());
  }
  static void OnSweep(Sweep* sweep, void* context) {
    auto* const operation = static_cast<Operation*>(context);
    operation->client->End(operation, sweep->Wait());
  }
  static void OnReservation(Reservation* reservation, void* context) {
    auto* const operation = static_cast<Operation*>(context);
    operation->client->End(operation, reservation->Wait());
  }
};

PoolClient::PoolClient(Cluster* cluster, size_t index, const WorkloadOptions& options)
    : cluster_(cluster),
      world_(&cluster->world),
      checker_(&cluster->checker),
      host_(cluster->clients[index]),
      options_(options) {
  const auto on_request = [this](int server, const MessageHeader& request) {
    if (request.op == Op::kWrite) checker_->NoteSent(server, request.region());
  };
  pool_ =
      Pool::Make(OptionsOf(*cluster, index, options), std::make_unique<SimEdge>(cluster, host_, on_request)).value();
  for (size_t i = 0; i < options.regions; ++i) {
    handles_.push_back(std::make_unique<Handle>());
    MakeRegion(handles_.back().get());
  }
  Watch();
}

PoolClient::~PoolClient() {
  CHECK_EQ(under_way_, 0u);
  world_->Cancel(watch_);
  handles_.clear();
  pool_.reset();
}

bool PoolClient::up() const {
  for (size_t i = 0; i < pool_->server_count(); ++i) {
    if (!pool_->session(i)->up()) return false;
  }
  return true;
}

bool PoolClient::settled() const {
  for (size_t i = 0; i < pool_->server_count(); ++i) {
    if (pool_->session(i)->room()->unsettled()) return false;
  }
  return true;
}

bool PoolClient::whole() const {
  std::vector<CopyMap::Donor> donors;
  for (const auto& server : cluster_->servers) {
    if (!server->alive() || !pool_->session(server->index())->usable()) return false;
    donors.emplace_back();
  }
  for (const auto& handle : handles_) {
    if (handle->region == nullptr || handle->region->map()->copies() == nullptr) continue;
    bool whole = true;
    const auto look = [&](uint64_t, CopyMap::Health health, const CopyMap::Plan&) {
      whole = whole && health == CopyMap::Health::kInSync;
    };
    for (uint64_t span = 0; span != UINT64_MAX && whole;) {
      span = handle->region->map()->copies()->Walk(
          span, kSpansPerBlock, donors,
          [&](uint16_t server) { return cluster_->servers[server]->core()->incarnation(); }, look);
    }
    if (!whole) return false;
  }
  return true;
}

void PoolClient::CheckCopies() {
  for (const auto& handle : handles_) {
    const CopyMap* const copies = handle->region == nullptr ? nullptr : handle->region->map()->copies();
    if (copies == nullptr) continue;
    for (uint64_t span = copies->NextSpan(0); span != UINT64_MAX; span = copies->NextSpan(span + 1)) {
      for (uint64_t page = span * kPagesPerSpan; page < (span + 1) * kPagesPerSpan; ++page) {
        CheckPage(handle->region->id(), *copies, {page * kChunksPerPage, kChunksPerPage});
      }
    }
  }
}

void PoolClient::CheckPage(RegionId region, const CopyMap& copies, ChunkRange range) {
  CopyMap::Legs legs;
  bool unsettled = false;
  if (checker_->WasDamaged(region, range.first_page())) return;
  if (copies.LookForRead(range, &legs, &unsettled) != CopyMap::ReadState::kPlaced || unsettled) return;
  std::optional<std::string> first;
  for (const CopyMap::Leg& leg : legs) {
    SimServer& server = *cluster_->servers[leg.life.server];
    // No client has asked a server since it died, or freed the region with its lease.
    if (!server.alive() || server.core()->incarnation() != leg.life.incarnation) continue;
    ChunkMask mask = 0;
    uint32_t crc = 0;
    std::string bytes(kPageBytes, '\0');
    size_t got = 0;
    PageSeal seal;
    bool sealed = false;
    const Reason reason =
        server.core()->store().Read({.region = {region, 0}, .range = range, .generation = leg.generation}, &mask, &crc,
                                    reinterpret_cast<std::byte*>(bytes.data()), &got, &seal, &sealed);
    if (reason != Reason::kOk) continue;
    // A server may store zeros, or have a hole.
    std::string page(kPageBytes, '\0');
    for (size_t chunk = 0, from = 0; chunk < kChunksPerPage; ++chunk) {
      if ((mask >> chunk & 1) != 0)
        page.replace(chunk * kChunkBytes, kChunkBytes, bytes, kChunkBytes * from++, kChunkBytes);
    }
    if (sealed) page.append(reinterpret_cast<const char*>(&seal), sizeof seal);
    if (!first.has_value()) first = page;
    if (*first != page) {
      return checker_->Fail(absl::StrCat("at rest, the copies of page ", range.first / kChunksPerPage, " of region ",
                                         FormatId(Raw(region)), " differ, the one at ", server.name(),
                                         " from another"));
    }
  }
}

void PoolClient::MakeRegion(Handle* handle) {
  Rng& rng = world_->rng();
  *handle = Handle();
  RegionOptions options;
  options.gc = handle->gc = rng.OneIn(2);
  uint64_t first_span = rng.OneIn(2) ? 0 : rng.Below(uint64_t{1} << 30);
  if (rng.OneIn(3)) {
    options.placement = PlacementPolicy::kBlocked;
    first_span = (first_span / kSpansPerBlock + 1) * kSpansPerBlock - 2;  // so that its spans are of two blocks
  }
  const size_t servers = pool_->server_count();
  if (options_.copied_one_in > 0 && servers > 1 && rng.OneIn(options_.copied_one_in)) {
    handle->copied = true;
    const bool more = rng.OneIn(4) && !options_.survives;
    options.copies = 2 + static_cast<int>(more ? rng.Below(std::min<size_t>(servers, 4) - 1) : 0);
  }
  handle->sealed = options_.sealed_one_in > 0 && rng.OneIn(options_.sealed_one_in);
  options.seal = handle->sealed ? Seal::kYes : Seal::kNo;
  handle->window = {first_span * kChunksPerSpan, (2 + rng.Below(4)) * kChunksPerSpan};
  if (options_.reserve_one_in > 0 && rng.OneIn(options_.reserve_one_in)) {
    handle->reserves = true;
    handle->window.count = (32 + rng.Below(256)) * kChunksPerPage;
    // Across the end of a span.
    handle->window.first += kChunksPerSpan - rng.Below(kPagesPerSpan / 2) * kChunksPerPage;
  }
  handle->region = pool_->CreateRegion(options).value();
  std::vector<LeaseId> leases;
  for (size_t i = 0; i < pool_->server_count(); ++i) leases.push_back(lease(i));
  checker_->AddRegion(handle->region->id(), handle->window, std::move(leases), options.gc);
  cluster_->regions.push_back(handle->region->id());
}

void PoolClient::Forget(const Handle& handle) {
  checker_->RemoveRegion(handle.region->id());
  std::erase(cluster_->regions, handle.region->id());
}

PoolClient::Handle* PoolClient::Choose() {
  const size_t first = world_->rng().Below(handles_.size());
  for (size_t i = 0; i < handles_.size(); ++i) {
    Handle* const handle = handles_[(first + i) % handles_.size()].get();
    if (handle->ending == Handle::Ending::kNone) return handle;
  }
  return nullptr;
}

ChunkRange PoolClient::ChooseRange(const Handle& handle) const {
  Rng& rng = world_->rng();
  const uint64_t at = rng.Below(1000);
  if (handle.reserves && at < 100) return handle.window;
  const uint64_t longest = at < 700 ? 8 : at < 950 ? 48 : at < 997 ? 256 : 2 * kChunksPerSpan;
  // Most operations are at the same places as others.
  const uint64_t space = rng.OneIn(3) ? handle.window.count : options_.hot_chunks;
  uint64_t offset = rng.Below(space);
  uint64_t count = 1 + rng.Below(longest);
  if (handle.sealed) {
    offset = offset / kChunksPerPage * kChunksPerPage;
    count = (count + kChunksPerPage - 1) / kChunksPerPage * kChunksPerPage;
  }
  return {handle.window.first + offset, std::min(count, handle.window.count - offset)};
}

IoOptions PoolClient::ChooseOptions() const {
  Rng& rng = world_->rng();
  IoOptions options;
  options.io_class = rng.OneIn(2) ? IoClass::kUrgent : IoClass::kBulk;
  if (rng.OneIn(2)) options.timeout_ms = rng.Between(5'000, 10'000);
  if (!calm_ && options_.impatient_one_in > 0 && rng.OneIn(options_.impatient_one_in))
    options.timeout_ms = rng.Between(1, 2'000 >> rng.Below(8));
  return options;
}

int64_t PoolClient::DeadlineOf(const IoOptions& options) const {
  const int64_t timeout_ms = options.timeout_ms > 0 ? options.timeout_ms : pool_->options().io_timeout_ms;
  return world_->NowNs() + timeout_ms * kNsPerMs;
}

bool PoolClient::StartSome(std::function<void()> done) {
  Rng& rng = world_->rng();
  Handle* const handle = Choose();
  if (handle == nullptr) return false;
  if (!calm_ && rng.OneIn(options_.destroy_one_in)) {
    const bool drops = options_.drops && rng.OneIn(8);
    handle->ending = drops ? Handle::Ending::kDrop : Handle::Ending::kDestroy;
    CloseIfIdle(handle);
    return StartSome(std::move(done));
  }
  Operation* const operation = NewOperation(handle, std::move(done));
  const ChunkRange range = ChooseRange(*handle);
  const uint64_t at = rng.Below(100);
  if (handle->reserves && (!handle->reserve_asked || at == 0)) {
    handle->reserve_asked = true;
    StartReserve(operation, rng.OneIn(8) ? range : handle->window);
  } else if (at < 48) {
    StartRead(operation, range);
  } else if (at < 88) {
    StartWrite(operation, range);
  } else {
    StartTrim(operation, range);
  }
  return true;
}

void PoolClient::StartReads(std::function<void()> done) {
  for (const auto& handle : handles_) {
    const ChunkRange& window = handle->window;
    StartRead(NewOperation(handle.get(), done), {window.first, options_.hot_chunks});
    for (int i = 0; i < 2; ++i) {
      uint64_t offset = world_->rng().Below(window.count);
      if (handle->sealed) offset = offset / kChunksPerPage * kChunksPerPage;
      StartRead(NewOperation(handle.get(), done),
                {window.first + offset, std::min<uint64_t>(256, window.count - offset)});
    }
  }
}

void PoolClient::DestroyAll(std::function<void()> done) {
  stopping_ = true;
  for (const auto& handle : handles_) {
    handle->ending = Handle::Ending::kDestroy;
    StartDestroy(NewOperation(handle.get(), done));
  }
}

PoolClient::Operation* PoolClient::NewOperation(Handle* handle, std::function<void()> done) {
  if (unused_.empty()) {
    operations_.push_back(std::make_unique<Operation>());
    unused_.push_back(operations_.back().get());
  }
  Operation* const operation = unused_.back();
  unused_.pop_back();
  operation->client = this;
  operation->handle = handle;
  operation->done = std::move(done);
  ++handle->under_way;
  ++under_way_;
  return operation;
}

void PoolClient::StartRead(Operation* operation, ChunkRange range) {
  Region* const region = operation->handle->region.get();
  const IoOptions options = ChooseOptions();
  operation->bytes.resize(std::max<size_t>(operation->bytes.size(), range.bytes()));
  operation->checked = checker_->BeginRead(region->id(), range, host_, DeadlineOf(options));
  region->StartRead(&operation->io, range.first * kChunkBytes, {operation->bytes.data(), range.bytes()}, options,
                    &Operation::OnIo, operation);
}

void PoolClient::StartWrite(Operation* operation, ChunkRange range) {
  Region* const region = operation->handle->region.get();
  const IoOptions options = ChooseOptions();
  Rng& rng = world_->rng();
  operation->masks.clear();
  if (rng.OneIn(4)) {
    for (uint64_t i = 0; i < range.pages(); ++i) {
      ChunkMask mask = MaskOfPage(range, range.first_page() + i) & static_cast<ChunkMask>(rng.Next());
      if (operation->handle->sealed) mask = (mask & 1) != 0 ? kAllChunks : ChunkMask{0};
      operation->masks.push_back(mask);
    }
  }
  operation->bytes.resize(std::max<size_t>(operation->bytes.size(), range.bytes()));
  operation->checked =
      checker_->BeginWrite(region->id(), range, host_, DeadlineOf(options), operation->bytes.data(), operation->masks);
  const absl::Span<const std::byte> from(operation->bytes.data(), range.bytes());
  if (operation->masks.empty()) {
    region->StartWrite(&operation->io, range.first * kChunkBytes, from, options, &Operation::OnIo, operation);
  } else {
    region->StartWriteChunks(&operation->io, range.first * kChunkBytes, from, operation->masks, options,
                             &Operation::OnIo, operation);
  }
}

void PoolClient::StartTrim(Operation* operation, ChunkRange range) {
  Handle* const handle = operation->handle;
  const RegionId id = handle->region->id();
  const IoOptions options = ChooseOptions();
  const bool keeps = options_.reserve_one_in > 0 && world_->rng().OneIn(8) != handle->reserves;
  keeps_trims_ = keeps_trims_ || keeps;
  if (!keeps) checker_->UnsetRoomy(id);
  operation->checked = checker_->BeginOther(Checker::Kind::kTrim, id, range, host_, DeadlineOf(options));
  operation->sweep = std::make_unique<Sweep>();
  handle->region->StartTrim(operation->sweep.get(), range.first * kChunkBytes, range.bytes(), options,
                            keeps ? Region::TrimRoom::kKeep : Region::TrimRoom::kFree, &Operation::OnSweep, operation);
}

void PoolClient::StartReserve(Operation* operation, ChunkRange range) {
  Handle* const handle = operation->handle;
  const IoOptions options = ChooseOptions();
  if (world_->rng().OneIn(8)) {
    checker_->UnsetRoomy(handle->region->id());
    handle->region->Unreserve(range.first * kChunkBytes, world_->rng().Below(2 * handle->window.bytes()));
  }
  operation->checked =
      checker_->BeginOther(Checker::Kind::kReserve, handle->region->id(), range, host_, DeadlineOf(options));
  operation->reservation = std::make_unique<Reservation>();
  handle->region->StartReserve(operation->reservation.get(), range.first * kChunkBytes, range.bytes(), options,
                               &Operation::OnReservation, operation);
}

void PoolClient::StartDestroy(Operation* operation) {
  Region* const region = operation->handle->region.get();
  const IoOptions options = ChooseOptions();
  std::erase(cluster_->regions, region->id());
  operation->checked = checker_->BeginOther(Checker::Kind::kDestroy, region->id(), {}, host_, DeadlineOf(options));
  operation->sweep = std::make_unique<Sweep>();
  region->StartDestroy(operation->sweep.get(), options, &Operation::OnSweep, operation);
}

void PoolClient::End(Operation* operation, const absl::Status& status) {
  Handle* const handle = operation->handle;
  const Checker::Operation& checked = operation->checked;
  std::vector<int> servers;
  if (!status.ok() && handle->region->map()->copies() != nullptr) {
    // The copy that has missed a message is not known here.
    for (const auto& server : cluster_->servers) servers.push_back(server->index());
  } else if (!status.ok() && checked.range.count > 0) {
    const uint64_t last_span = (checked.range.end() - 1) / kChunksPerSpan;
    for (uint64_t span = checked.range.first / kChunksPerSpan; span <= last_span; ++span) {
      for (const uint16_t server : handle->region->ServersOf(span * kSpanBytes)) servers.push_back(server);
    }
  }
  checker_->End(checked, status, operation->bytes.data(), servers);
  --handle->under_way;
  --under_way_;
  if (checked.kind == Checker::Kind::kReserve && status.ok() && checked.range == handle->window &&
      absl::c_all_of(cluster_->servers, [this](const auto& server) { return KnownLease(server.get()) != nullptr; })) {
    checker_->SetRoomy(checked);
  }
  // Lost bytes remain lost.
  if (absl::IsDataLoss(status) && !calm_ && handle->ending == Handle::Ending::kNone && world_->rng().OneIn(4)) {
    handle->ending = Handle::Ending::kDestroy;
  }
  const bool was_destroyed = checked.kind == Checker::Kind::kDestroy;
  operation->sweep.reset();
  operation->reservation.reset();
  const std::function<void()> done = std::move(operation->done);
  operation->done = nullptr;
  unused_.push_back(operation);
  if (was_destroyed) {
    Forget(*handle);
    handle->region.reset();
    if (!stopping_) MakeRegion(handle);
  } else {
    CloseIfIdle(handle);
  }
  CheckNoMoreRoom();
  if (done != nullptr) done();
}

void PoolClient::CloseIfIdle(Handle* handle) {
  if (handle->under_way > 0 || stopping_) return;
  switch (handle->ending) {
    case Handle::Ending::kNone:
      return;
    case Handle::Ending::kDrop:
      if (handle->gc) {
        has_dropped_gc_ = true;
      } else {
        dropped_.push_back(handle->region->id());
      }
      Forget(*handle);
      handle->region.reset();
      return MakeRegion(handle);
    case Handle::Ending::kDestroy:
      return StartDestroy(NewOperation(handle, nullptr));
  }
}

std::shared_ptr<Lease> PoolClient::KnownLease(SimServer* server) const {
  if (!server->alive()) return nullptr;
  std::shared_ptr<Lease> lease = server->core()->leases().Find(this->lease(server->index()));
  const bool known = lease != nullptr && lease->live() &&
                     pool_->session(server->index())->room()->IsPresent(server->core()->incarnation(), lease->term());
  return known ? lease : nullptr;
}

void PoolClient::CheckNoMoreRoom() {
  // A region counts the room that its unanswered writes have used as present: only the server knows better.
  if (under_way_ > 0 || (options_.reserve_one_in > 0 && !options_.all_answered)) return;
  for (const auto& server : cluster_->servers) {
    const Room& room = *pool_->session(server->index())->room();
    const std::shared_ptr<Lease> lease = KnownLease(server.get());
    if (lease == nullptr || room.unsettled()) continue;
    const auto reservation = static_cast<int64_t>(server->core()->arena().left_bytes(lease->reservation));
    // The server reports the room that trims keep in whole chunks: it may report the rest as free, and reserve it
    // again.
    const auto rest = static_cast<int64_t>(options_.reserve_one_in > 0 ? handles_.size() * kChunkBytes : 0);
    if (room.free_bytes() + room.reserved_bytes() <= reservation + rest) continue;
    checker_->Fail(absl::StrCat(world_->NameOf(host_), " counts on more room at ", server->name(),
                                " than there is: free ", room.free_bytes(), ", reserved ", room.reserved_bytes(),
                                ", reservation ", reservation));
  }
}

void PoolClient::Watch() {
  CheckNoMoreRoom();
  watch_ = world_->After(kWatchNs, host_, [this] { Watch(); });
}

void PoolClient::CheckRoom(SimServer* server) {
  Room* const room = pool_->session(server->index())->room();
  const auto lease = server->core()->leases().Find(this->lease(server->index()));
  if (lease == nullptr || !lease->live()) return checker_->Fail("a client that is up has no lease");
  const uint64_t reservation = server->core()->arena().left_bytes(lease->reservation);
  const int64_t free_bytes = room->free_bytes();
  const int64_t reserved_bytes = room->reserved_bytes();
  const auto fail = [&](absl::string_view what) {
    checker_->Fail(absl::StrCat(world_->NameOf(host_), " at ", server->name(), ": ", what, ": free ", free_bytes,
                                ", reserved ", reserved_bytes, ", reservation ", reservation));
  };
  // A region may be unsure of the room that its trims have kept, as long as it exists.
  if (keeps_trims_ && !stopping_) return;
  if (!room->Hear(reservation, room->Look())) return fail("something is granted or held");
  if (free_bytes + reserved_bytes != static_cast<int64_t>(reservation)) return fail("the account is wrong");
  if (stopping_ && reserved_bytes != 0) return fail("room is reserved for no region");
}

}  // namespace nram::sim
