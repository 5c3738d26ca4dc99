#ifndef NRAM_TOOLS_NRAM_COPIES_REPORT_H_
#define NRAM_TOOLS_NRAM_COPIES_REPORT_H_

// The servers' figures of copies and of the room for them. Only PrintCopies does anything but compute.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/transport/control_client.h"
#include "nlohmann/json.hpp"

namespace nram {

using StatisticsAnswers = absl::Span<const absl::StatusOr<ServerStatistics>>;

// The sum of all clients' reports, each once. How long it takes: the longest.
CopiesReport SumOfCopies(StatisticsAnswers answers);

// Spans that hold nothing on a server, but move away from it because room is reserved for them there. A client's word
// counts as far as the server has reserved room for it.
uint64_t MovingReserved(const ServerStatistics& server);

// Without the client, and with `left`.
nlohmann::json CopiesToJson(const CopiesReport& copies);
// How far repair and moves are, and how long they still take; "" if nothing is left.
std::string ProgressOf(const CopiesReport& copies);
// A part of its own, after an empty line. Nothing if nothing was told.
void PrintCopies(const CopiesReport& copies);

// The hosts of a pool's servers, as they count for copies.
struct CopyHosts {
  struct Room {
    uint64_t free_bytes = 0;
    bool takes_new = false;  // a server there takes new pages; only those are in free_bytes
  };
  std::map<std::string, Room> rooms;  // by the name of the host, of servers that answer
  size_t silent = 0;                  // servers that do not answer
  size_t asking = 0;                  // servers that ask for memory back: they get no copy
  bool pretended = false;             // some server pretends its host

  // How much data has room, with `copies` copies on different hosts.
  uint64_t UsableBytes(int copies) const;
};
CopyHosts HostsOf(StatisticsAnswers answers);

// How many hosts may fail at once without loss of pages with several copies, as far as counts can tell. "" if no such
// page is left.
std::string WhoMayGo(const CopiesReport& copies, const CopyHosts& hosts);

// Why copies are missing, as far as one can tell from outside. Some must be.
std::string WhyDegraded(const CopiesReport& copies, const CopyHosts& hosts);

// A counter of docs/stats.md; 0 if the server has none of that name.
uint64_t CounterOf(const ServerStatistics& statistics, absl::string_view name);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_COPIES_REPORT_H_
