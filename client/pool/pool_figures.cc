#include "client/pool/pool_figures.h"

#include <utility>

#include "base/clock.h"

namespace nram {
namespace {

double Of(uint64_t value) { return static_cast<double>(value); }
double Seconds(int64_t ns) { return static_cast<double>(ns) / kNsPerSecond; }

void AddServer(const ServerSession& session, Figures* figures) {
  const Figures::Labels server = {{"server", session.name()}};
  const ServerSession::LeaseTime lease = session.lease_time();
  figures->Gauge("nram_client_server_up", "1: this client can use the server.", session.usable(), server);
  figures->Gauge("nram_client_server_away_seconds", "Time for which the server has been away; 0: it is not away.",
                 Seconds(session.AwayNs()), server);
  figures->Gauge("nram_client_server_silent", "1: a call got no answer in time within the last 10 s.",
                 session.was_silent(), server);
  figures->Gauge("nram_client_server_asks", "1: the server asks for memory back; no new spans are placed there.",
                 session.asks(), server);
  figures->Counter("nram_client_server_connects_total", "Times that the server has become usable.", session.times_up(),
                   server);
  const SlowWaits::Totals waits = session.waits();
  for (const Waiter::For what : {Waiter::For::kConnection, Waiter::For::kRoom, Waiter::For::kReservedRoom}) {
    const SlowWaits::Total& total = waits[static_cast<size_t>(what)];
    const Figures::Labels labels = {{"server", session.name()}, {"for", SlowWaits::NameOf(what)}};
    figures->Counter("nram_client_waits_total",
                     "Operations that have waited before they could be sent.", Of(total.count),
                     labels);
    figures->Counter("nram_client_wait_seconds_total", "Total time of these waits.", Seconds(total.ns), labels);
  }
  figures->Gauge("nram_client_lease_ttl_seconds", "Time after which this client's lease there ends without a renewal.",
                 Seconds(lease.whole_ns), server);
  figures->Gauge("nram_client_lease_left_seconds", "Remaining time of the lease. Less than half: renewals are late.",
                 Seconds(lease.left_ns), server);
}

}  // namespace

void AddPoolFigures(const Pool& pool, Figures* figures) {
  const PoolCapacity capacity = pool.Capacity();
  figures->Gauge("nram_client_pool_size_bytes", "Bytes that the answering servers can store.",
                 Of(capacity.total_bytes));
  figures->Gauge("nram_client_pool_free_bytes", "Bytes that this client can still store there.",
                 Of(capacity.free_bytes));
  for (size_t i = 0; i < pool.server_count(); ++i) AddServer(*pool.session(i), figures);
  const CopiesReport copies = pool.copies();
  for (const auto& [state, spans] :
       {std::pair("in_sync", copies.in_sync), std::pair("degraded", copies.degraded),
        std::pair("repairing", copies.repairing), std::pair("lost", copies.lost), std::pair("moving", copies.moving)}) {
    figures->Gauge("nram_client_spans", "Spans with several copies in this client's regions. moving: part of in_sync.",
                   Of(spans), {{"state", state}});
  }
  figures->Counter("nram_client_copies_made_total", "Copies that this client has restored or moved.", Of(copies.made));
  figures->Gauge("nram_client_repair_left_seconds",
                 "Time until repair and moves are done; 0: nothing to do, or unknown.",
                 static_cast<double>(copies.left_ms) / 1000);
}

}  // namespace nram
