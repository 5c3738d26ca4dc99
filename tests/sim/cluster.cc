#include "tests/sim/cluster.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace nram::sim {

Cluster::Cluster(uint64_t seed, const ClusterOptions& options) : world(seed) {
  for (int i = 0; i < options.servers; ++i) {
    servers.push_back(std::make_unique<SimServer>(&world, &network, i, options.server));
    servers.back()->on_death = [this, i] { checker.NoteDeath(i); };
    servers.back()->on_lease_ended = [this, i](const Lease& lease) {
      checker.Trace(absl::StrCat("server", i, ": lease ", FormatId(Raw(lease.id)), " ends"));
      checker.NoteLeaseEnded(i, lease.id);
    };
    servers.back()->on_lease_given_up = [this, i](const Lease& lease) {
      checker.Trace(absl::StrCat("server", i, ": gives up what lease ", FormatId(Raw(lease.id)), " has there"));
      checker.NoteLeaseEnded(i, lease.id, /*with_all=*/true);
    };
    servers.back()->on_remark = [this, i](const std::string& remark) {
      checker.Trace(absl::StrCat("server", i, ": ", remark));
    };
    servers.back()->on_sealed = [this](RegionId region, uint64_t page, const PageSeal& seal, uint32_t crc) {
      NoteSealed(region, page, seal, crc);
    };
    servers.back()->on_lie = [this, i](RegionId region, ChunkRange range, const char* lie) {
      checker.Trace(absl::StrCat("server", i, " lies: ", lie), region, range);
    };
    servers.back()->Start();
  }
  for (int i = 0; i < options.clients; ++i) clients.push_back(world.AddHost(absl::StrCat("client", i)));
}

void Cluster::NoteSealed(RegionId region, uint64_t page, const PageSeal& seal, uint32_t crc) {
  const std::pair<uint64_t, uint64_t> nonce(Raw(region), std::bit_cast<uint64_t>(seal.counter));
  const auto [it, is_new] = nonces_.try_emplace(nonce, page, crc);
  if (is_new || it->second == std::pair(page, crc)) return;
  checker.Fail(absl::StrCat("counter ", nonce.second, " of region ", FormatId(Raw(region)), " has sealed page ", page,
                            " and, with another content, page ", it->second.first));
}

Cluster::~Cluster() {
  for (auto& server : servers) {
    if (server->alive()) server->Kill(/*power_fails=*/true);
  }
}

}  // namespace nram::sim
