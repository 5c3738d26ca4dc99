#include "members/etcd_names.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "members/etcd/region_record.h"
#include "members/etcd_table.h"

namespace nram {
namespace {

constexpr size_t kHostsTried = 3;
constexpr int kSwaps = 4;  // of a key that changes meanwhile

std::string UtcNow() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return std::string(text, strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

std::string Encode(const NamedRegion& region) {
  RegionRecord record;
  record.id = Raw(region.id);
  for (const Endpoint& server : region.servers) record.servers.push_back(server.ToString());
  record.epoch = Raw(region.epoch);
  record.client = Printable(region.client, RegionRecord::kFieldBytesMax);
  record.time = UtcNow();
  return record.Encode();
}

absl::StatusOr<NamedRegion> Decode(const std::string& value) {
  NRAM_ASSIGN_OR_RETURN(RegionRecord record, RegionRecord::Decode(value));
  NamedRegion region{RegionId{record.id}, {}, std::move(record.client), Epoch{record.epoch}};
  for (const std::string& server : record.servers) {
    NRAM_ASSIGN_OR_RETURN(Endpoint endpoint, ParseEndpoint(server, kDefaultServerPort));
    if (endpoint.is_unix() || endpoint.port == 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", server, "\" is not a host and port"));
    }
    region.servers.push_back(std::move(endpoint));
  }
  return region;
}

class EtcdNames final : public NameArbiter {
 public:
  EtcdNames(const EtcdSpec& spec, std::function<std::unique_ptr<EtcdClient>()> connect, int64_t patience_ms)
      : spec_(spec), connect_(std::move(connect)), patience_ms_(patience_ms) {}

  absl::StatusOr<Standing> Claim(const KeptName& name, const NamedRegion& region, int64_t revision) override {
    const std::string value = Encode(region);
    NRAM_ASSIGN_OR_RETURN(const EtcdClient::Swapped swapped,
                          Ask<EtcdClient::Swapped>([&](EtcdClient* etcd, int64_t ns) {
                            return etcd->Swap(KeyOf(name), revision, value, ns);
                          }));
    Standing standing{swapped.done, swapped.now.revision, {}, {}, {}};
    if (standing.won || standing.revision == 0) return standing;
    absl::StatusOr<NamedRegion> holder = Decode(swapped.now.value);
    // An earlier attempt was done, and its answer was lost.
    standing.won = holder.ok() && holder->id == region.id;
    if (standing.won) return standing;
    standing.trouble = holder.status();
    if (holder.ok()) standing.holder = *std::move(holder);
    NRAM_ASSIGN_OR_RETURN(const EtcdClient::Listing listing,
                          Ask<EtcdClient::Listing>([&](EtcdClient* etcd, int64_t ns) {
                            return etcd->List(spec_.KeyPrefix(), static_cast<int64_t>(kPoolServersMax), ns);
                          }));
    EtcdTable table;
    for (const EtcdClient::Pair& pair : listing.pairs) (void)table.Put(pair.key, pair.value);
    for (Member& member : table.Members()) standing.members.push_back(std::move(member.endpoint));
    return standing;
  }

  absl::Status SetServers(const KeptName& name, const NamedRegion& region) override {
    return SwapIfHeld(name, region.id, &region);
  }

  absl::Status Release(const KeptName& name, RegionId id) override {
    const absl::Status status = SwapIfHeld(name, id, nullptr);
    return absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

  std::string PlaceOf(const KeptName& name) const override {
    return absl::StrCat(KeyOf(name), " in ", spec_.ToString());
  }

 private:
  std::string KeyOf(const KeptName& name) const { return spec_.RegionKey(name.tenant, name.name); }

  // `region`: its servers are to be there; null: the key is to go.
  absl::Status SwapIfHeld(const KeptName& name, RegionId id, const NamedRegion* region) {
    const std::optional<std::string> value = region == nullptr ? std::nullopt : std::optional(Encode(*region));
    const int64_t deadline_ns = DeadlineAfterMs(2 * patience_ms_);
    NRAM_ASSIGN_OR_RETURN(EtcdClient::Entry entry, Ask<EtcdClient::Entry>([&](EtcdClient* etcd, int64_t ns) {
                            return etcd->Get(KeyOf(name), ns);
                          }));
    for (int i = 0; i < kSwaps && MonotonicNs() < deadline_ns; ++i) {
      const absl::StatusOr<NamedRegion> holder = Decode(entry.value);
      if (entry.revision == 0 || !holder.ok() || holder->id != id) {
        return absl::NotFoundError(absl::StrCat(PlaceOf(name), " belongs to another region"));
      }
      if (region != nullptr && holder->epoch > region->epoch) {
        return absl::NotFoundError(absl::StrCat(PlaceOf(name), " belongs to a later owner"));
      }
      if (region != nullptr && holder->epoch == region->epoch && holder->servers == region->servers) {
        return absl::OkStatus();
      }
      NRAM_ASSIGN_OR_RETURN(EtcdClient::Swapped swapped, Ask<EtcdClient::Swapped>([&](EtcdClient* etcd, int64_t ns) {
                              return etcd->Swap(KeyOf(name), entry.revision, value, std::min(ns, deadline_ns));
                            }));
      if (swapped.done) return absl::OkStatus();
      entry = std::move(swapped.now);
    }
    return absl::UnavailableError(absl::StrCat(PlaceOf(name), " changes too often"));
  }

  // Asks one host after the other, until one answers.
  template <typename Answer, typename Call>
  absl::StatusOr<Answer> Ask(Call call) {
    const std::unique_ptr<EtcdClient> etcd = connect_();
    const size_t tries = std::clamp<size_t>(spec_.hosts.size(), 1, kHostsTried);
    absl::StatusOr<Answer> answer = absl::UnavailableError("etcd was not asked");
    for (size_t i = 0; i < tries; ++i) {
      answer = call(etcd.get(), DeadlineAfterMs(patience_ms_ / static_cast<int64_t>(tries)));
      if (!absl::IsUnavailable(answer.status()) && !absl::IsDeadlineExceeded(answer.status())) break;
    }
    return answer;
  }

  const EtcdSpec spec_;
  const std::function<std::unique_ptr<EtcdClient>()> connect_;
  const int64_t patience_ms_;  // for all hosts together
};

}  // namespace

std::unique_ptr<NameArbiter> NewEtcdNames(const EtcdSpec& spec, std::function<std::unique_ptr<EtcdClient>()> connect,
                                          int64_t patience_ms) {
  return std::make_unique<EtcdNames>(spec, std::move(connect), patience_ms);
}

}  // namespace nram
