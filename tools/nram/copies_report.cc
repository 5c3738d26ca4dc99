#include "tools/nram/copies_report.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/units.h"
#include "client/pool/pool_room.h"

namespace nram {
namespace {

std::string SilentServers(size_t silent) {
  return absl::StrCat(silent, silent == 1 ? " server does" : " servers do", " not answer");
}

uint64_t SecondsOf(const CopiesReport& copies) { return (copies.left_ms + 999) / 1000; }

}  // namespace

CopiesReport SumOfCopies(StatisticsAnswers answers) {
  std::map<uint64_t, CopiesReport> clients;
  for (const auto& answer : answers) {
    if (!answer.ok()) continue;
    for (const CopiesReport& told : answer->copies) {
      CopiesReport& client = clients[told.client];
      if (told.made >= client.made) client = told;  // a server that was away may have heard less
    }
  }
  CopiesReport sum;
  for (const auto& [client, told] : clients) {
    sum.in_sync += told.in_sync;
    sum.degraded += told.degraded;
    sum.repairing += told.repairing;
    sum.lost += told.lost;
    sum.moving += told.moving;
    sum.made += told.made;
    sum.left_ms = std::max(sum.left_ms, told.left_ms);
    sum.done += told.done;
    // A client of an older release does not say it; two at least.
    const bool has_spans = told.in_sync + told.degraded + told.repairing + told.lost > 0;
    const uint64_t wanted = told.wanted == 0 && has_spans ? 2 : told.wanted;
    if (wanted > 0) sum.wanted = sum.wanted == 0 ? wanted : std::min(sum.wanted, wanted);
  }
  return sum;
}

uint64_t MovingReserved(const ServerStatistics& server) {
  uint64_t moving = 0;
  for (const CopiesReport& client : server.copies) {
    moving += std::min(client.moving, (client.reserved_bytes + kPageBytes - 1) / kPageBytes);
  }
  return moving;
}

nlohmann::json CopiesToJson(const CopiesReport& copies) {
  return {{"wanted", copies.wanted},     {"in_sync", copies.in_sync},
          {"degraded", copies.degraded}, {"repairing", copies.repairing},
          {"lost", copies.lost},         {"moving", copies.moving},
          {"left", copies.left()},       {"left_ms", copies.left_ms},
          {"done", copies.done},         {"made", copies.made}};
}

std::string ProgressOf(const CopiesReport& copies) {
  if (copies.left() == 0) return "";
  const double all = static_cast<double>(copies.done) + static_cast<double>(copies.left());
  const auto percent = static_cast<int>(100 * static_cast<double>(copies.done) / all);
  return absl::StrCat(percent, " % (", copies.done, " of ", copies.done + copies.left(), "), ",
                      copies.left_ms == 0 ? "rate unknown yet" : absl::StrCat("about ", SecondsOf(copies), " s left"));
}

void PrintCopies(const CopiesReport& copies) {
  if (copies == CopiesReport()) return;
  printf("\nspans of 1 MiB with several copies\n");
  printf("  %-30s %llu\n", "copies wanted, at least", static_cast<unsigned long long>(copies.wanted));
  printf("  %-30s %llu\n", "in sync", static_cast<unsigned long long>(copies.in_sync));
  printf("  %-30s %llu\n", "degraded", static_cast<unsigned long long>(copies.degraded));
  printf("  %-30s %llu\n", "repairing", static_cast<unsigned long long>(copies.repairing));
  printf("  %-30s %llu\n", "lost", static_cast<unsigned long long>(copies.lost));
  printf("  %-30s %llu\n", "moving", static_cast<unsigned long long>(copies.moving));
  printf("  %-30s %llu\n", "copies restored or moved", static_cast<unsigned long long>(copies.made));
  if (copies.left() > 0) printf("  %-30s %s\n", "repair and moves, done", ProgressOf(copies).c_str());
}

uint64_t CopyHosts::UsableBytes(int copies) const {
  std::vector<uint64_t> free;
  for (const auto& [host, room] : rooms) free.push_back(room.free_bytes);
  return nram::UsableBytes(free, copies);
}

CopyHosts HostsOf(StatisticsAnswers answers) {
  CopyHosts hosts;
  for (const auto& answer : answers) {
    if (!answer.ok()) {
      ++hosts.silent;
      continue;
    }
    hosts.asking += answer->capacity.asked_back_bytes > 0 ? 1 : 0;
    hosts.pretended = hosts.pretended || !answer->host.pretended_host.empty();
    CopyHosts::Room& room = hosts.rooms[answer->host.counts_as()];
    if (answer->capacity.draining) continue;
    room.takes_new = true;
    room.free_bytes += answer->capacity.free_bytes;
  }
  return hosts;
}

std::string WhoMayGo(const CopiesReport& copies, const CopyHosts& hosts) {
  const uint64_t lacking = copies.degraded + copies.repairing;
  const uint64_t all = copies.in_sync + lacking;
  if (all == 0) return "";
  const char* const pretended = hosts.pretended ? " (pretended hosts)" : "";
  if (lacking > 0) {
    return absl::StrCat(lacking, " of ", all, " spans with several copies lack copies: no host", pretended,
                        " may be switched off now without risk of loss");
  }
  const std::string whole = absl::StrCat("all spans with several copies are complete (", all, " spans): ");
  // Clients told it some seconds ago.
  if (hosts.silent > 0) {
    return absl::StrCat(whole, "but ", SilentServers(hosts.silent), " here: no host", pretended,
                        " may be switched off before the reason is known");
  }
  if (copies.wanted > 2) {
    return absl::StrCat(whole, copies.wanted - 1, " hosts", pretended, " may fail at any time, but the loss of ",
                        copies.wanted, " at once may lose data; data with one copy is lost with its server");
  }
  return absl::StrCat(whole, hosts.rooms.size() == 2 ? "one of the two hosts" : "one host", pretended,
                      " may fail at any time, ",
                      hosts.rooms.size() == 2 ? "but not both" : "but the loss of two at once may lose data",
                      "; data with one copy is lost with its server");
}

std::string WhyDegraded(const CopiesReport& copies, const CopyHosts& hosts) {
  size_t taking = 0, with_room = 0;
  uint64_t free_bytes = 0;
  for (const auto& [host, room] : hosts.rooms) {
    taking += room.takes_new ? 1 : 0;
    with_room += room.free_bytes >= kSpanBytes ? 1 : 0;
    free_bytes += room.free_bytes;
  }
  const uint64_t need_bytes = copies.degraded * kSpanBytes;
  std::vector<std::string> reasons;
  if (hosts.silent > 0) reasons.push_back(SilentServers(hosts.silent));
  if (hosts.asking > 0) {
    reasons.push_back(absl::StrCat(hosts.asking, hosts.asking == 1 ? " server asks" : " servers ask",
                                   " for memory back: the donor needs it, so no copy is placed there"));
  }
  if (copies.degraded == 0) {
    reasons.push_back("the copies are being made");
  } else if (taking < 2) {
    reasons.push_back(taking == 0
                          ? "too few hosts: none accepts new spans"
                          : "too few hosts: only one accepts new spans, and spans with a copy there get no other");
  } else if (with_room < 2) {
    reasons.push_back(with_room == 0 ? "no room: all hosts are full"
                                     : "no room: all hosts but one are full, and spans with a copy there get no other");
  } else if (free_bytes < need_bytes) {
    reasons.push_back(absl::StrCat("perhaps too little room: new copies need up to ", FormatByteSize(need_bytes),
                                   ", and ", FormatByteSize(free_bytes), " are free"));
  } else if (hosts.silent == 0 && hosts.asking == 0) {
    reasons.push_back(
        "a server was away or has restarted, and clients restore the copies; if this lasts, the hosts without a copy "
        "may lack room, or clients do not reach them");
  }
  if (copies.left_ms > 0) {
    reasons.push_back(absl::StrCat("about ", SecondsOf(copies), " s until all copies are restored"));
  }
  return absl::StrJoin(reasons, "; ");
}

uint64_t CounterOf(const ServerStatistics& statistics, absl::string_view name) {
  for (const auto& [counter, value] : statistics.counters) {
    if (counter == name) return value;
  }
  return 0;
}

}  // namespace nram
