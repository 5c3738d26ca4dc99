#include "tests/sim/cluster.h"

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
    servers.back()->Start();
  }
  for (int i = 0; i < options.clients; ++i) clients.push_back(world.AddHost(absl::StrCat("client", i)));
}

Cluster::~Cluster() {
  for (auto& server : servers) {
    if (server->alive()) server->Kill(/*power_fails=*/true);
  }
}

}  // namespace nram::sim
