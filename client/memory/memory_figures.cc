#include "client/memory/memory_figures.h"

#include "base/clock.h"
#include "client/pool/pool_figures.h"

namespace nram {
namespace {

double Of(uint64_t value) { return static_cast<double>(value); }

}  // namespace

void AddMemoryFigures(const Memory& memory, Figures* figures) {
  const Counters& counters = memory.counters();
  const struct {
    const char* name;
    const char* help;
    uint64_t value;
  } gauges[] = {
      {"nram_memory_budget_bytes", "Limit of the resident set.", memory.budget().bytes()},
      {"nram_memory_mapped_bytes", "Mappings and heap.", memory.mapped_bytes()},
      {"nram_memory_resident_bytes", "Local pages, buffers of pages in transfer, and checksums.",
       memory.resident_bytes()},
      {"nram_memory_metadata_bytes", "Bookkeeping outside the budget.", memory.metadata_bytes()},
  };
  for (const auto& gauge : gauges) figures->Gauge(gauge.name, gauge.help, Of(gauge.value));
  const struct {
    const char* name;
    const char* help;
    uint64_t value;
  } counts[] = {
      {"nram_memory_faults_total", "Times that a thread has waited for nram.", counters.faults},
      {"nram_memory_write_faults_total", "Faults by first writes to a local page.", counters.write_faults},
      {"nram_memory_hits_total", "Faults whose page was local or in transfer.", counters.hits},
      {"nram_memory_zero_pages_total", "Pages filled with zeros without a server.", counters.zero_pages},
      {"nram_memory_fetched_bytes_total", "Bytes fetched from servers.", counters.fetched_bytes},
      {"nram_memory_prefetched_bytes_total", "Bytes fetched by read-ahead.", counters.prefetched_bytes},
      {"nram_memory_prefetch_wasted_bytes_total", "Bytes fetched by read-ahead and evicted unused.",
       counters.prefetch_wasted_bytes},
      {"nram_memory_written_bytes_total", "Bytes written to servers.", counters.written_bytes},
      {"nram_memory_evicted_pages_total", "Pages evicted from local memory.", counters.evicted_pages},
      {"nram_memory_lost_pages_total", "Pages that are lost.", counters.lost_pages},
  };
  for (const auto& count : counts) figures->Counter(count.name, count.help, Of(count.value));
  figures->Counter("nram_memory_fault_wait_seconds_total",
                   "Total time of faults; divided by the faults, the mean.",
                   Of(counters.wait_ns) / kNsPerSecond);
  AddPoolFigures(memory.pool(), figures);
}

}  // namespace nram
