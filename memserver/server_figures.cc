#include "memserver/server_figures.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "base/version.h"

namespace nram {
namespace {

constexpr double kMsPerSecond = 1000;

struct Figure {
  const char* name;
  const char* help;
  double value;
};

double Of(uint64_t value) { return static_cast<double>(value); }

void AddRoom(const v1::Capacity& capacity, Figures* figures) {
  const Figure gauges[] = {
      {"nram_server_donated_bytes", "The ceiling on everything that the server takes.", Of(capacity.donated_bytes())},
      {"nram_server_used_bytes", "Frames and index in use.", Of(capacity.used_bytes())},
      {"nram_server_reserved_bytes", "Reserved by clients and not used yet.", Of(capacity.reserved_bytes())},
      {"nram_server_free_bytes", "Bytes that clients can reserve now; 0 while the server asks for memory back.",
       Of(capacity.free_bytes())},
      {"nram_server_overhead_bytes", "Donated memory that the server needs for itself.", Of(capacity.overhead_bytes())},
      {"nram_server_asked_back_bytes", "Bytes that the server asks its clients to give back.",
       Of(capacity.asked_back_bytes())},
      {"nram_server_draining", "1: the server accepts no new spans.", Of(capacity.draining())},
      {"nram_server_leaving", "1: clients move the stored pages to other servers.", Of(capacity.leaving())},
      {"nram_server_pressed", "1: the donor needs its memory, or has needed it within the last 30 s.",
       Of(capacity.pressed())},
  };
  for (const Figure& figure : gauges) figures->Gauge(figure.name, figure.help, figure.value);
}

void AddGauges(const v1::Statistics& statistics, Figures* figures) {
  const Figure gauges[] = {
      {"nram_server_uptime_seconds", "Time since the process started.", Of(statistics.uptime_ms()) / kMsPerSecond},
      {"nram_server_asked_back_seconds", "Time for which the server has asked for memory back; 0: it does not ask.",
       Of(statistics.asked_back_ms()) / kMsPerSecond},
      {"nram_server_resident_bytes", "The process's resident set.", Of(statistics.resident_bytes())},
      {"nram_server_index_bytes", "Memory of the index.", Of(statistics.index_bytes())},
      {"nram_server_stored_bytes", "Stored chunks that are not zero.",
       Of(statistics.stored_chunks()) * static_cast<double>(kChunkBytes)},
      {"nram_server_pages", "Stored pages.", Of(statistics.pages())},
      {"nram_server_regions", "Regions with a part on this server.", Of(statistics.regions())},
      {"nram_server_orphans", "Regions not in GC mode whose owner's lease has ended.", Of(statistics.orphans())},
      {"nram_server_versions", "Versions of regions on this server.", Of(statistics.versions())},
      {"nram_server_version_bytes", "Bytes kept only for versions.", Of(statistics.version_bytes())},
      {"nram_server_connections", "Data connections, two for each client.", Of(statistics.connections())},
      {"nram_server_host_total_bytes", "The donor's memory.", Of(statistics.host().total_bytes())},
      {"nram_server_host_available_bytes", "The donor's MemAvailable.", Of(statistics.host().available_bytes())},
      {"nram_server_host_reserve_bytes", "Memory reserved for the donor's own programs.",
       Of(statistics.host().reserve_bytes())},
  };
  for (const Figure& figure : gauges) figures->Gauge(figure.name, figure.help, figure.value);
}

void AddCounters(const v1::Statistics& statistics, Figures* figures) {
  const Figure counters[] = {
      {"nram_server_reads_total", "Reads executed.", Of(statistics.reads())},
      {"nram_server_writes_total", "Writes executed.", Of(statistics.writes())},
      {"nram_server_trims_total", "Trims executed.", Of(statistics.trims())},
      {"nram_server_read_bytes_total", "Chunk bytes read; holes do not count.", Of(statistics.bytes_read())},
      {"nram_server_written_bytes_total", "Chunk bytes written; holes do not count.", Of(statistics.bytes_written())},
      {"nram_server_zero_chunks_elided_total", "Chunks written as zeros, which take no memory.",
       Of(statistics.zero_chunks_elided())},
      {"nram_server_connections_closed_for_error_total", "Peers cut off for malformed or stalled traffic.",
       Of(statistics.connections_closed_for_error())},
      {"nram_server_regions_collected_total", "GC regions freed after their owner's lease ended.",
       Of(statistics.regions_collected())},
      {"nram_server_given_back_bytes_total", "Bytes given back to the donor while it was short of memory.",
       Of(statistics.given_back_bytes())},
      {"nram_server_pages_compacted_total", "Pages moved to other frames, so that extents could be given back.",
       Of(statistics.pages_compacted())},
      {"nram_server_versions_yielded_total", "Versions dropped because their memory was needed for other data.",
       Of(statistics.versions_yielded())},
      {"nram_server_regions_given_up_total", "Regions destroyed because the donor needed their memory.",
       Of(statistics.regions_given_up())},
  };
  for (const Figure& figure : counters) figures->Counter(figure.name, figure.help, figure.value);
  constexpr char kRefused[] = "nram_server_refused_total";
  constexpr char kHelp[] = "Requests refused. full: no room; stale: an old epoch.";
  figures->Counter(kRefused, kHelp, Of(statistics.refused_full()), {{"reason", "full"}});
  figures->Counter(kRefused, kHelp, Of(statistics.refused_stale()), {{"reason", "stale"}});
}

// Each client tells all servers of its copies, in the whole pool: the pool's number is the largest of its servers'.
void AddCopies(const v1::Statistics& statistics, Figures* figures) {
  uint64_t in_sync = 0, degraded = 0, repairing = 0, lost = 0, moving = 0, made = 0, left_ms = 0;
  for (const v1::Copies& copies : statistics.copies()) {
    in_sync += copies.in_sync();
    degraded += copies.degraded();
    repairing += copies.repairing();
    lost += copies.lost();
    moving += copies.moving();
    made += copies.made();
    left_ms = std::max(left_ms, copies.left_ms());
  }
  for (const auto& [state, spans] :
       {std::pair("in_sync", in_sync), std::pair("degraded", degraded), std::pair("repairing", repairing),
        std::pair("lost", lost), std::pair("moving", moving)}) {
    figures->Gauge(
        "nram_server_told_spans",
        "Spans with several copies in the whole pool, as reported by clients with a lease here. moving: part of "
        "in_sync. All servers report the same spans: do not add them up.",
        Of(spans), {{"state", state}});
  }
  figures->Gauge("nram_server_told_copies_made", "Copies restored or moved by clients with a lease here.",
                 Of(made));
  figures->Gauge("nram_server_told_repair_left_seconds",
                 "Time until the slowest client has finished repair and moves; 0: nothing to do, or unknown.",
                 Of(left_ms) / kMsPerSecond);
}

}  // namespace

void AddServerFigures(const v1::Statistics& statistics, const LeaseFigures& leases, Figures* figures) {
  figures->Gauge(
      "nram_server_info", "1; the labels identify the server.", 1,
      {{"version", kVersion}, {"host", statistics.host().hostname()}, {"domain", statistics.host().domain()}});
  AddRoom(statistics.capacity(), figures);
  AddGauges(statistics, figures);
  AddCounters(statistics, figures);
  figures->Gauge("nram_server_leases", "Clients with a live lease.", Of(statistics.leases()));
  figures->Gauge("nram_server_leases_late", "Leases with less than half of their time left.", Of(leases.late));
  figures->Counter("nram_server_leases_expired_total", "Leases that ended without a renewal.",
                   Of(leases.expired));
  figures->Gauge("nram_server_lease_ttl_seconds", "Time after which a lease without renewal ends.",
                 static_cast<double>(leases.ttl_ms) / kMsPerSecond);
  AddCopies(statistics, figures);
}

}  // namespace nram
