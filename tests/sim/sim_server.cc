#include "tests/sim/sim_server.h"

#include <glog/logging.h>

#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "memserver/session.h"
#include "proto/message_reader.h"
#include "proto/message_service.h"

namespace nram::sim {
namespace {

constexpr uint64_t kFixedBytes = kMiB;
constexpr size_t kReadAheadBytes = 4096;
constexpr int64_t kTryAgainNs = kNsPerMs;
constexpr int64_t kStallNs = 10 * kNsPerSecond;
constexpr int64_t kStarvedStallNs = 2 * kNsPerSecond;
constexpr int64_t kPatienceNs = 3 * kNsPerSecond;
constexpr uint64_t kTicksPerCompaction = 4;
constexpr size_t kScattered = 3;
constexpr size_t kStride = 61;

}  // namespace

// The counterpart of memserver/connection.h, which uses a socket.
class SimServer::ServerConnection : public Network::Receiver, private MessageReader::Handler {
 public:
  ServerConnection(SimServer* server, Network::ConnectionId id)
      : server_(server), id_(id), session_(server->core_->ContextOf(server->core_->tenants().Of(0))) {}

  void OnBytes(absl::Span<const std::byte> bytes) override {
    if (closed_) return;
    progress_ns_ = server_->world_->NowNs();
    if (!waiting_.empty()) {
      waiting_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      return;
    }
    Feed(bytes);
  }

  void OnEnd() override { CloseLater(); }

  // As Connection::CheckStall: a peer that stops in the middle of a message holds frames that others need.
  void CheckStall(bool starved) {
    const bool stalls = reader_.mid_message() || !session_.bound() || session_.fenced() || !session_.live();
    const int64_t limit_ns = starved && reader_.mid_message() ? kStarvedStallNs : kStallNs;
    if (stalls && waiting_.empty() && server_->world_->NowNs() - progress_ns_ > limit_ns) CloseLater();
  }
  bool starved() const { return !waiting_.empty(); }

 private:
  void Feed(absl::Span<const std::byte> bytes) {
    size_t taken = 0;
    const absl::StatusOr<bool> all = reader_.Feed(bytes, &taken, this);
    if (!all.ok()) return CloseLater();
    if (*all) return;
    // It is short of landing frames, which others hold.
    waiting_.assign(reinterpret_cast<const char*>(bytes.data()) + taken, bytes.size() - taken);
    waiting_.push_back(0);  // so that it is never empty while there is something to do
    server_->world_->After(kTryAgainNs, server_->host_, [this, server = server_, id = id_] {
      if (!server->connections_.contains(id)) return;
      std::string bytes = std::exchange(waiting_, "");
      bytes.pop_back();
      if (!closed_) Feed({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()});
    });
  }

  void CloseLater() {
    if (std::exchange(closed_, true)) return;
    server_->Remove(id_);
  }

  absl::StatusOr<bool> OnHeader(const MessageHeader& header, const PayloadTables& tables, Landing* landing) override {
    NRAM_ASSIGN_OR_RETURN(const bool begun, session_.Begin(header, tables, kMessageBytesMax, landing));
    if (begun) {
      masks_.assign(tables.masks.begin(), tables.masks.end());
      seals_.assign(tables.seals.begin(), tables.seals.end());
      landed_ = *landing;
    }
    return begun;
  }

  absl::Status OnMessage(const MessageHeader& header, absl::Span<const uint32_t> page_crcs) override {
    if (header.op == Op::kWrite && !seals_.empty()) NoteSealed(header, page_crcs);
    ReplyBuffer reply{server_->reply_bytes_.get(), kMessageBytesMax, 0};
    NRAM_RETURN_IF_ERROR(session_.Execute(header, page_crcs, &reply));
    CHECK(!session_.busy());
    session_.Replied();
    std::string bytes(reinterpret_cast<const char*>(reply.data), reply.used);
    const char* const lie = server_->evil_.Twist(&bytes, server_->evil_one_in_);
    if (lie != nullptr && server_->on_lie != nullptr) server_->on_lie(header.region(), header.range(), lie);
    server_->network_->Send(id_, Network::kServer, std::move(bytes));
    return absl::OkStatus();
  }

  void NoteSealed(const MessageHeader& header, absl::Span<const uint32_t> page_crcs) {
    std::string chunks;
    for (const iovec& piece : landed_.pieces()) chunks.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    const uint64_t first_page = header.range().first_page();
    server_->evil_.NoteWrite(header.region(), first_page, {masks_, seals_},
                             {reinterpret_cast<const std::byte*>(chunks.data()), chunks.size()});
    for (size_t i = 0; server_->on_sealed != nullptr && i < seals_.size(); ++i) {
      const bool is_sent = masks_.empty() || masks_[i] != 0;
      if (is_sent) server_->on_sealed(header.region(), first_page + i, seals_[i], page_crcs[i]);
    }
  }

  void OnCorrupt(const MessageHeader&) override {}

  SimServer* const server_;
  const Network::ConnectionId id_;
  MessageReader reader_{kReadAheadBytes};
  Session session_;
  // Of the request that has begun.
  std::vector<ChunkMask> masks_;
  std::vector<PageSeal> seals_;
  Landing landed_;
  std::string waiting_;  // bytes that the reader has not taken yet
  int64_t progress_ns_ = server_->world_->NowNs();
  bool closed_ = false;
};

SimServer::SimServer(World* world, Network* network, int index, const SimServerOptions& options)
    : world_(world),
      network_(network),
      index_(index),
      options_(options),
      host_(world->AddHost(absl::StrCat("server", index))),
      evil_(world->rng().Next()),
      reply_bytes_(new std::byte[kMessageBytesMax]) {}

SimServer::~SimServer() {
  if (alive()) Kill(/*power_fails=*/true);
}

void SimServer::Start() {
  CHECK(!alive());
  ServerCoreOptions options;
  options.incarnation = world_->rng().Next() | 1;
  options.ceiling_bytes = options_.ceiling_bytes;
  options.fixed_bytes = kFixedBytes;
  options.lease_ttl_ms = options_.lease_ttl_ms;
  options.give_back.patience_ns = kPatienceNs;
  options.give_back.compact_ns = std::numeric_limits<int64_t>::max() / 2;  // real time decides nothing
  core_ = ServerCore::Create(options, world_).value();
  core_->tenants().Set(0, "local", TenantLimits());
  compactor_ = std::make_unique<Compactor>(&core_->arena(), &core_->store(), /*landing=*/nullptr);
  Scatter();
  control_ = std::make_unique<ControlService>(core_.get(), [this] {
    Surroundings around;
    around.boot_id = around.hostname = around.address = name();
    around.data_port = 1;
    return around;
  });
  network_->SetPower(host_, true);
  network_->Listen(host_, this);
  Tick();
}

void SimServer::Kill(bool power_fails) {
  CHECK(alive());
  if (on_death != nullptr) on_death();
  network_->Listen(host_, nullptr);
  network_->SetPower(host_, !power_fails);
  network_->CloseAll(host_, /*silently=*/power_fails);
  world_->EndLife(host_);
  connections_.clear();
  control_.reset();
  compactor_.reset();
  core_.reset();
  filling_.emplace();
  filled_pages_ = 0;
  allowed_bytes_.reset();
  was_pressed_ = false;
}

void SimServer::ScheduleTick() {
  world_->After(ServerCore::kTickMs * kNsPerMs, host_, [this] { Tick(); });
}

void SimServer::Tick() {
  const int64_t now_ns = world_->NowNs();
  const ServerCore::Leases ended = core_->Tick(now_ns, now_ns);
  if (on_lease_ended != nullptr) {
    for (const auto& lease : ended) on_lease_ended(*lease);
  }
  core_->store().FreeSome(std::numeric_limits<int64_t>::max());
  if (++ticks_ % kTicksPerCompaction == 0) compactor_->Run(~uint64_t{0}, std::numeric_limits<int64_t>::max());
  if (was_pressed_) GiveBackSome();
  bool starved = false;
  for (const auto& [id, connection] : connections_) starved |= connection->starved();
  for (const auto& [id, connection] : connections_) connection->CheckStall(starved);
  ScheduleTick();
}

void SimServer::GiveBackSome() {
  // Its host's other programs change.
  if (pressed() && world_->rng().OneIn(20)) *allowed_bytes_ += world_->rng().Below(*allowed_bytes_ / 8 + 1);
  if (pressed() && world_->rng().OneIn(20)) *allowed_bytes_ -= world_->rng().Below(*allowed_bytes_ / 8 + 1);
  const auto expendable = core_->leases().Expendable();
  std::vector<std::string> remarks;
  core_->give_back().Tick(allowed_bytes_.value_or(options_.ceiling_bytes), world_->NowNs(), &remarks);
  for (const std::string& remark : remarks) {
    if (on_remark != nullptr) on_remark(remark);
  }
  for (const auto& lease : expendable) {
    if (!lease->live() && on_lease_given_up != nullptr) on_lease_given_up(*lease);
  }
}

void SimServer::Press(uint64_t percent) {
  CHECK(alive());
  const ArenaUsage usage = core_->arena().usage();
  allowed_bytes_ = (usage.fixed_bytes + usage.index_bytes + usage.extent_bytes) * percent / 100;
  was_pressed_ = true;
}

void SimServer::Unpress() { allowed_bytes_.reset(); }

void SimServer::Scatter() {
  FrameArena& arena = core_->arena();
  std::vector<FrameLoc> frames;
  scattered_.clear();
  while (scattered_.size() < kScattered) {
    const FrameLoc frame = arena.Allocate(kChunksPerPage);
    if (frame == kNoFrame) break;
    const auto is_near = [&](FrameLoc other) { return FrameArena::ExtentOf(frame) == FrameArena::ExtentOf(other); };
    (absl::c_any_of(scattered_, is_near) ? frames : scattered_).push_back(frame);
  }
  // The frame that is freed last is taken first.
  for (size_t first = 0; first < kStride; ++first) {
    for (size_t i = first; i < frames.size(); i += kStride) arena.Free(frames[i]);
  }
}

uint64_t SimServer::page_frame_bytes() const {
  return core_->arena().usage().frame_bytes - (core_->landing().size() + scattered_.size()) * kPageBytes;
}

void SimServer::Fill(uint64_t leave_pages) {
  CHECK(alive());
  const uint64_t free_pages = core_->arena().usage().free_bytes / kReservationBytesPerPage;
  if (free_pages <= leave_pages) return;
  if (core_->arena().Reserve(free_pages - leave_pages, &*filling_)) filled_pages_ += free_pages - leave_pages;
}

void SimServer::Unfill() {
  if (filled_pages_ > 0) core_->arena().Unreserve(filled_pages_, &*filling_);
  filled_pages_ = 0;
}

bool SimServer::FlipBit(RegionId region, uint64_t page) {
  bool flipped = false;
  const ChunkRange range{page * kChunksPerPage, kChunksPerPage};
  core_->store().ReadInPlace(
      {.region = {region, 0}, .range = range, .generation = std::nullopt}, [&](const PageStore::Stored& stored) {
        if (stored.chunks.empty()) return;
        const iovec& piece = stored.chunks[world_->rng().Below(stored.chunks.size())];
        auto* const bytes = static_cast<uint8_t*>(piece.iov_base);
        bytes[world_->rng().Below(piece.iov_len)] ^= static_cast<uint8_t>(1 << world_->rng().Below(8));
        flipped = true;
      });
  return flipped;
}

Network::Receiver* SimServer::Accept(Network::ConnectionId id) {
  auto& connection = connections_[id];
  connection = std::make_unique<ServerConnection>(this, id);
  return connection.get();
}

void SimServer::Remove(Network::ConnectionId id) {
  network_->Close(id, Network::kServer);
  world_->After(0, host_, [this, id] { connections_.erase(id); });
}

}  // namespace nram::sim
