#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/episode.h"
#include "tests/sim/publish_observer.h"
#include "tests/sim/publish_owner.h"
#include "tests/sim/publish_world.h"

namespace nram::sim {
namespace {

// The time until all programs have ended; none waits longer.
constexpr int64_t kEndNs = 400 * kNsPerSecond;
constexpr int64_t kSettleNs = 60 * kNsPerSecond;
constexpr uint64_t kEventsMax = 30'000'000;

class PublishEpisode {
 public:
  explicit PublishEpisode(const EpisodeOptions& options) : world_(options) {}

  EpisodeResult Run() {
    for (const auto& server : world_.cluster.servers) empty_index_.push_back(IndexBytes(*server));
    BeginObservers();
    Watch();
    world_.faults.lease_of = [this](size_t client, size_t server) {
      return client == 0 ? owners_.back()->lease(server) : observers_[client - 1]->lease(server);
    };
    world_.faults.Begin();
    (void)RunUntil([] { return false; }, world_.cluster.world.NowNs() + world_.plan.lasts_ns);
    world_.faults.EndAll();
    world_.stopping = true;
    const auto have_ended = [&] {
      return std::all_of(observers_.begin(), observers_.end(), [](const auto& one) { return one->over(); }) &&
             std::all_of(owners_.begin(), owners_.end(), [](const auto& one) { return one->is_over(); });
    };
    Await(have_ended, "a program does not end");
    Settle();
    Finish();
    if (!world_.failed()) CheckEmpty();
    return Result();
  }

 private:
  template <typename Predicate>
  bool RunUntil(const Predicate& is_done, int64_t until_ns) {
    while (!world_.failed() && !is_done()) {
      if (!world_.cluster.world.Step(until_ns)) return false;
      if (world_.cluster.world.event_count() > kEventsMax) world_.Fail("it goes on and on");
    }
    return true;
  }
  template <typename Predicate>
  void Await(const Predicate& is_done, const char* what) {
    if (!RunUntil(is_done, world_.cluster.world.NowNs() + kEndNs)) world_.Fail(what);
  }
  // Dead clients' leases end, and servers free the dropped versions.
  void Settle() {
    (void)RunUntil([] { return false; }, world_.cluster.world.NowNs() + kSettleNs);
  }

  void BeginObservers() {
    for (size_t i = 0; i < world_.plan.observers; ++i) {
      const HostId host = world_.cluster.clients[1 + i];
      observers_.push_back(std::make_unique<PublishObserver>(&world_, host));
      world_.fibers.Start(host, [observer = observers_.back().get()] { observer->Run(); });
    }
  }

  PublishOwner* BeginOwner() {
    const uint64_t number = owners_.size() + 1;
    // A dead owner's host belongs to no other, and faults concern the live ones.
    const HostId host = world_.cluster.world.AddHost(absl::StrCat("owner", number));
    world_.cluster.clients[0] = host;
    owners_.push_back(std::make_unique<PublishOwner>(&world_, host, number));
    return owners_.back().get();
  }

  // Keeps an owner running.
  void Watch() {
    world_.cluster.world.After(world_.rng().Between(1, 100) * kNsPerMs, World::kNobody, [this] { Watch(); });
    if (world_.ends()) return;
    const int64_t now_ns = world_.cluster.world.NowNs();
    const bool shuts_out = world_.plan.takeover_ns > 0 && now_ns - began_ns_ > world_.plan.takeover_ns;
    if (!owners_.empty() && !owners_.back()->is_over() && !shuts_out) return;
    // Not too many at a time.
    const auto alive = std::count_if(owners_.begin(), owners_.end(), [](const auto& one) { return !one->is_over(); });
    if (alive > 1) return;
    began_ns_ = now_ns;
    PublishOwner* const owner = BeginOwner();
    world_.fibers.Start(world_.cluster.clients[0], [owner] { owner->Run(); });
  }

  // No more faults: all present data can be read, and is freed.
  void Finish() {
    if (world_.failed()) return;
    world_.Trace("--- the end");
    world_.fibers.Start(world_.cluster.clients[1], [this] {
      last_observer_ = std::make_unique<PublishObserver>(&world_, world_.cluster.clients[1]);
      last_observer_->CheckAll();
    });
    Await([&] { return last_observer_ != nullptr && last_observer_->over(); }, "the last observer does not end");
    if (world_.failed()) return;
    bool closed = false;
    PublishOwner* owner = BeginOwner();
    world_.fibers.Start(world_.cluster.clients[0], [&] {
      const int64_t until_ns = world_.cluster.world.NowNs() + kEndNs / 2;
      // An attempt that has got a part has used its number.
      while (!world_.failed() && !owner->Open(until_ns) && world_.cluster.world.NowNs() < until_ns) {
        owner->Close();
        owner = BeginOwner();
      }
      if (!world_.failed() && !owner->opened()) world_.Fail("the last owner does not get the region");
      if (!world_.failed()) owner->CheckHead();
      if (!world_.failed()) owner->DropAll(until_ns);
      if (!world_.failed()) owner->CheckHead();
      if (!world_.failed()) owner->DestroyAll();
      owner->Close();
      closed = true;
    });
    Await([&] { return closed; }, "the last owner does not end");
    Settle();
  }

  static uint64_t IndexBytes(const SimServer& server) {
    return const_cast<SimServer&>(server).core()->arena().usage().index_bytes;
  }

  void CheckEmpty() {
    for (const auto& server : world_.cluster.servers) {
      // Destroys the regions that have lost their owners, as an administrator would.
      if (!world_.KeepsAll()) DestroyOrphans(server.get());
      ServerCore* const core = server->core();
      core->store().FreeSome(INT64_MAX);
      const ArenaUsage usage = core->arena().usage();
      const StoreCounters& counters = core->store().counters();
      const int64_t index = static_cast<int64_t>(usage.index_bytes - empty_index_[server->index()]);
      if (counters.regions == 0 && server->page_frame_bytes() == 0 && usage.reserved_bytes == 0 && index == 0 &&
          counters.versions.bytes == 0 && core->leases().count() == 0) {
        continue;
      }
      world_.Fail(absl::StrCat(server->name(), " is not empty when all is gone: ", counters.regions.load(),
                               " regions, ", server->page_frame_bytes(), " bytes of frames, ", usage.reserved_bytes,
                               " reserved, ", index, " of index, ", counters.versions.bytes.load(), " of versions, ",
                               core->leases().count(), " leases"));
    }
  }

  void DestroyOrphans(SimServer* server) {
    v1::ListRegionsReply regions;
    (void)server->control()->ListRegions(server->caller(), v1::ListRegionsRequest(), &regions);
    for (const auto& region : regions.regions()) {
      v1::DestroyRegionRequest request;
      request.set_region_id(region.region_id());
      request.set_force(true);
      v1::DestroyRegionReply reply;
      (void)server->control()->DestroyRegion(server->caller(), request, &reply);
    }
  }

  EpisodeResult Result() {
    EpisodeResult result;
    result.failure = world_.cluster.checker.failure();
    if (!result.failure.empty()) result.report = world_.cluster.checker.Report();
    result.operations = world_.operations;
    result.events = world_.cluster.world.event_count();
    result.digest = world_.cluster.world.digest();
    result.virtual_ns = world_.cluster.world.NowNs();
    // The dead have no end, and neither have operations under way after a failure.
    for (auto& owner : owners_) {
      if (owner->dead() || world_.failed()) (void)owner.release();
    }
    for (auto& observer : observers_) {
      if (world_.failed()) (void)observer.release();
    }
    if (world_.failed()) (void)last_observer_.release();
    return result;
  }

  PublishWorld world_;
  int64_t began_ns_ = 0;  // the present owner
  std::vector<std::unique_ptr<PublishOwner>> owners_;
  std::vector<std::unique_ptr<PublishObserver>> observers_;
  std::unique_ptr<PublishObserver> last_observer_;
  std::vector<uint64_t> empty_index_;  // by server
};

}  // namespace

EpisodeResult RunPublishEpisode(const EpisodeOptions& options) { return PublishEpisode(options).Run(); }

}  // namespace nram::sim
