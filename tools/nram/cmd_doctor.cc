// nram doctor: whether this machine is set up well for its use of the pool.

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/host/host_memory.h"
#include "base/host/programs.h"
#include "base/host/wake_latency.h"
#include "base/tls/authority.h"
#include "base/tls/tls_dir.h"
#include "base/units.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"
#include "swap/swap_area.h"
#include "swap/swap_guard.h"
#include "tools/nram/command.h"
#include "tools/nram/copies_report.h"
#include "tools/nram/doors.h"
#include "tools/nram/mounts.h"

namespace nram {
namespace {

// 0 if the file or the field is not there.
uint64_t FieldOf(const std::string& path, absl::string_view field) {
  return NumberField(ReadFile(path).value_or(""), field).value_or(0);
}

// The kernel's emergency reserve: sockets and the kernel's side of the daemon get it when all other programs wait.
Finding CheckReserve(uint64_t ram_bytes) {
  const uint64_t have = ReadNumber("/proc/sys/vm/min_free_kbytes").value_or(0) * kKiB;
  const uint64_t want = std::clamp<uint64_t>(ram_bytes / 100, 64 * kMiB, kGiB);
  const std::string what = absl::StrCat("vm.min_free_kbytes keeps ", FormatByteSize(have), " free");
  if (have >= want * 9 / 10) return {Verdict::kGood, what, ""};
  return {Verdict::kAdvice, what,
          absl::StrCat("sending a page to a server needs memory; with less than ", FormatByteSize(want),
                       " in reserve it can get slow under pressure. sysctl -w vm.min_free_kbytes=", want / kKiB)};
}

// When the kernel has had to break up large blocks, it raises its minimum of free memory for a while. Threads that may
// not use the reserve then wait although memory is free, perhaps for ever; the loop device's thread is one of them.
Finding CheckBoost() {
  const uint64_t factor = ReadNumber("/proc/sys/vm/watermark_boost_factor").value_or(0);
  const std::string what = absl::StrCat("vm.watermark_boost_factor is ", factor);
  if (factor == 0) return {Verdict::kGood, what, ""};
  return {Verdict::kAdvice, what,
          "a machine without free memory can stall on it: sysctl -w vm.watermark_boost_factor=0"};
}

Finding CheckBackup(const std::vector<SwapArea>& areas) {
  const auto table = ReadFile("/proc/swaps");
  if (!table.ok()) return {Verdict::kAdvice, "/proc/swaps cannot be read", "is swap built into this kernel?"};
  int lowest = 32767;
  for (const SwapArea& area : areas) lowest = std::min(lowest, area.priority);
  bool any = false;
  for (const absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int priority = 0;
    if (words.size() < 5 || !absl::SimpleAtoi(words[4], &priority)) continue;
    const bool ours =
        std::any_of(areas.begin(), areas.end(), [&](const SwapArea& area) { return words[0] == area.device; });
    if (ours) continue;
    any = true;
    if (priority >= lowest) {
      return {Verdict::kAdvice, absl::StrCat(words[0], " has no lower priority than the pool's area"),
              "the kernel fills it before network RAM, or alternates: nram swapon --priority=N with a larger N"};
    }
  }
  if (any) return {Verdict::kGood, "there is other swap with a lower priority than the pool's", ""};
  return {Verdict::kAdvice, "there is no other swap",
          "when the area is full, the kernel kills programs; swap on a disk with a lower priority would take the rest: "
          "swapon --priority 0 DEVICE"};
}

// The lowest limit of the process's memory cgroup and the groups above it, including the limit above which the group is
// slowed down (memory.high). 0: there is none.
uint64_t CgroupLimit(const std::string& process) {
  return LowestInCgroups(process, {"/memory.limit_in_bytes", "/memory.max", "/memory.high"}).value_or(0);
}

// `of_swap`: the pool is a swap area's.
Finding CheckServers(StatisticsAnswers answers, const std::string& whose, bool of_swap) {
  size_t away = 0, own = 0, pretending = 0;
  for (const auto& answer : answers) {
    if (!answer.ok()) {
      ++away;
    } else if (answer->host.boot_id == BootId()) {
      ++own;
    } else if (!answer->host.pretended_host.empty()) {
      ++pretending;
    }
  }
  const auto refusal = absl::c_find_if(answers, [](const auto& answer) { return IsOfTrust(answer.status()); });
  if (refusal != answers.end()) {
    return {Verdict::kBad, absl::StrCat(whose, "a server cannot be used by this client"),
            std::string(refusal->status().message())};
  }
  if (away > 0) {
    return {Verdict::kBad, absl::StrCat(whose, away, " of ", answers.size(), " servers do not answer"),
            "their pages are lost or delayed; `nram df` lists the servers"};
  }
  if (own > 0) {
    return {of_swap ? Verdict::kBad : Verdict::kAdvice,
            absl::StrCat(whose, own, " of ", answers.size(), " servers run on this machine"),
            of_swap
                ? "swapping to them frees none of its RAM, and a server that is swapped out to itself loses all that "
                  "it stores: nram swapoff, and nram swapon with --pool= of servers on other machines"
                : "data there frees none of this machine's RAM; nram swapon refuses them"};
  }
  if (pretending > 0) {
    return {Verdict::kAdvice, absl::StrCat(whose, pretending, " of ", answers.size(), " servers use --pretend-host"),
            "copies of a page may be on one machine: start nram-memserver without --pretend-host"};
  }
  return {Verdict::kGood, absl::StrCat(whose, "all ", answers.size(), " servers answer, all on other machines"), ""};
}

// When the certificates end that this machine has: a client's, a server's.
void CheckCertificates(std::vector<Finding>* findings) {
  constexpr int64_t kSoonS = 30 * 86'400;
  const char* const named = std::getenv(kTlsDirVariable);
  const std::string directory = named != nullptr && *named != '\0' ? named : kTlsDirDefault;
  for (const char* const name : {"client.pem", "server.pem", "tls.crt"}) {
    const std::string path = absl::StrCat(directory, "/", name);
    const absl::StatusOr<std::string> pem = ReadFile(path);
    const absl::StatusOr<int64_t> ends_s = pem.ok() ? ExpiryOf(*pem) : pem.status();
    if (!pem.ok()) continue;
    const int64_t left_s = ends_s.ok() ? *ends_s - time(nullptr) : 0;
    if (!ends_s.ok()) {
      findings->push_back(
          {Verdict::kBad, absl::StrCat(path, " cannot be used"), std::string(ends_s.status().message())});
    } else if (left_s <= 0) {
      findings->push_back({Verdict::kBad, absl::StrCat(path, " has expired"),
                           "make a new one with `nram keygen` and copy it; no restart is needed"});
    } else if (left_s < kSoonS) {
      findings->push_back({Verdict::kAdvice, absl::StrCat(path, " expires in ", FormatTimeLeft(left_s)),
                           "make a new one with `nram keygen` and copy it; no restart is needed"});
    } else {
      findings->push_back({Verdict::kGood, absl::StrCat(path, " is good for ", FormatTimeLeft(left_s)), ""});
    }
  }
}

void CheckCopies(StatisticsAnswers answers, const std::string& whose, std::vector<Finding>* findings) {
  const CopiesReport copies = SumOfCopies(answers);
  const CopyHosts hosts = HostsOf(answers);
  if (copies.lost > 0) {
    findings->push_back({Verdict::kBad, absl::StrCat(whose, copies.lost, " spans of 1 MiB have lost all their copies"),
                         "all servers with a copy were lost before a new copy was complete. Reads there fail until the "
                         "data is written again: delete the files, or restart the job; `nram regions` shows owners"});
  }
  const std::string who = WhoMayGo(copies, hosts);
  if (!who.empty()) {
    std::string why;
    if (copies.degraded + copies.repairing > 0) {
      why = WhyDegraded(copies, hosts);
    } else if (hosts.silent > 0) {
      why = "the clients' report is some seconds old, or they reach these servers; `nram df` lists the servers";
    }
    findings->push_back({why.empty() ? Verdict::kGood : Verdict::kAdvice, whose + who, why});
  }
  const bool stores =
      absl::c_any_of(answers, [](const auto& answer) { return answer.ok() && CounterOf(*answer, "pages") > 0; });
  if (who.empty() && copies.lost == 0 && stores && hosts.rooms.size() > 1) {
    findings->push_back({Verdict::kAdvice, whose + "no client of the pool reports several copies",
                         "data with one copy is lost with its server: --copies=2 of nram mount, swapon or sort keeps "
                         "it on two hosts"});
  }
}

void CheckLeaving(absl::Span<const PoolMember> members, StatisticsAnswers answers, const std::string& whose,
                  std::vector<Finding>* findings) {
  const uint64_t moving = SumOfCopies(answers).moving;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok() || !answers[i]->capacity.leaving) continue;
    const uint64_t pages = CounterOf(*answers[i], "pages");
    if (pages == 0) continue;
    const std::string name = members[i].endpoint.ToString();
    findings->push_back(
        {Verdict::kAdvice,
         absl::StrCat(whose, name, " is being emptied, and still holds ", FormatByteSize(pages * kPageBytes)),
         absl::StrCat("do not switch it off yet: ",
                      moving > 0 ? absl::StrCat("clients still move ", moving, " spans")
                                 : "clients report no moves; the remaining pages may be unable to move",
                      ". `nram drain ", name, " --move` waits until it is empty")});
  }
}

void CheckPool(const std::string& pool, const std::string& tls_dir, const std::string& whose, bool of_swap,
               std::vector<Finding>* findings) {
  const auto members = OpenMembers(pool, tls_dir);
  if (!members.ok()) {
    const bool has_one = ChoosePoolSpec(pool).ok();
    findings->push_back({has_one ? Verdict::kBad : Verdict::kAdvice,
                         whose + (has_one ? "the pool cannot be used from here" : "no pool is known here"),
                         std::string(members.status().message())});
    return;
  }
  const auto answers = AskStatistics(*members);
  findings->push_back(CheckServers(answers, whose, of_swap));
  CheckCopies(answers, whose, findings);
  CheckLeaving(*members, answers, whose, findings);
}

// Whether programs of this user may ask the kernel to keep processors awake.
Finding CheckFastWake() {
  if (access(WakeLatency::kDevice, W_OK) == 0) {
    return {Verdict::kGood, "this user may keep processors awake while programs wait for the pool", ""};
  }
  return {Verdict::kAdvice, absl::StrCat("this user may not write to ", WakeLatency::kDevice),
          "if idle processors sleep deeply, programs that wait for the pool wake late, and a page may take twice as "
          "long: join the group nram of the package's udev rule, or as root `setfacl -m u:USER:rw "
          "/dev/cpu_dma_latency` after each boot"};
}

// If a server dies, its slots, or the copies that it had, need room on the others.
void CheckSpareRoom(const SwapArea& area, std::vector<Finding>* findings) {
  const auto members = OpenMembers(area.pool, area.tls_dir);
  if (!members.ok()) return;
  const auto answers = AskStatistics(*members);
  uint64_t free_bytes = 0, largest_bytes = 0, servers = 0;
  for (const auto& answer : answers) {
    if (!answer.ok()) continue;
    ++servers;
    free_bytes += answer->capacity.free_bytes;
    largest_bytes = std::max(largest_bytes, answer->capacity.free_bytes);
  }
  // The server with most room may be the one that dies; its share is about as large as the others'.
  const uint64_t share_bytes = servers == 0 ? 0 : area.size_bytes * static_cast<uint64_t>(area.copies) / servers;
  const bool good = servers > 1 && free_bytes - largest_bytes >= share_bytes;
  findings->push_back(
      {good ? Verdict::kGood : Verdict::kAdvice,
       absl::StrCat(area.name, ": ",
                    good ? "the other servers have room for a dead server's share"
                         : "the other servers have no room for a dead server's share"),
       good ? ""
            : absl::StrCat(area.copies == 1 ? "when a server dies, writes to its slots fail until nram swapoff; donate "
                                            : "when a server dies, there is no room for new copies of its pages; "
                                              "donate ",
                           FormatByteSize(share_bytes), " more than the area on other machines")});
}

bool HasGuard(int daemon_pid) {
  const std::vector<int> pids = ListProcesses();
  return std::any_of(pids.begin(), pids.end(), [&](int pid) {
    return ProcessName(pid) == kGuardName &&
           FieldOf(absl::StrCat("/proc/", pid, "/fdinfo/", kGuardFd), "Pid") == static_cast<uint64_t>(daemon_pid);
  });
}

void CheckArea(const SwapArea& area, std::vector<Finding>* findings) {
  const auto add = [&](bool good, Verdict bad, const std::string& what, const std::string& why) {
    findings->push_back({good ? Verdict::kGood : bad, absl::StrCat(area.name, ": ", what), good ? "" : why});
  };
  add(area.daemon_alive, Verdict::kBad,
      area.daemon_alive ? absl::StrCat("its daemon runs, pid ", area.daemon_pid) : "its daemon is gone",
      "swapped-out pages are lost; nram swapoff --force removes the area");
  if (!area.daemon_alive) return;
  add(HasGuard(area.daemon_pid), Verdict::kBad, "a guard watches its daemon",
      "without a guard, the kernel keeps the area if its daemon dies: nram swapoff and nram swapon again");
  const std::string process = absl::StrCat("/proc/", area.daemon_pid);
  const uint64_t locked = FieldOf(process + "/status", "VmLck") * kKiB;
  const uint64_t resident = FieldOf(process + "/status", "VmRSS") * kKiB;
  add(locked + 4 * kMiB >= resident && locked > 0, Verdict::kBad,
      absl::StrCat("its memory is locked (", FormatByteSize(locked), ")"),
      "it may be swapped out to itself: end it and use nram swapon");
  add(ReadLine(process + "/oom_score_adj") == "-1000", Verdict::kBad, "the OOM killer spares it",
      absl::StrCat("echo -1000 > ", process, "/oom_score_adj"));
  const uint64_t direct =
      ReadNumber(absl::StrCat("/sys/block/", area.device.substr(std::min<size_t>(5, area.device.size())), "/loop/dio"))
          .value_or(0);
  add(direct == 1, Verdict::kBad, "its loop device uses direct I/O",
      "with the page cache in between, freeing memory needs memory: nram swapoff and nram swapon again");
  const uint64_t limit = CgroupLimit(process);
  const bool limited = limit > 0 && limit < uint64_t{1} << 60;
  add(!limited || limit > 4 * resident, Verdict::kBad,
      limited ? absl::StrCat("its memory cgroup allows ", FormatByteSize(limit)) : "no memory cgroup limits it",
      absl::StrCat("it shares the limit with the programs that swap: echo ", area.daemon_pid,
                   " into the cgroup.procs of one without a limit"));
  if (!area.pool.empty()) CheckPool(area.pool, area.tls_dir, area.name + ": ", /*of_swap=*/true, findings);
  if (!area.pool.empty()) CheckSpareRoom(area, findings);
}

struct DoctorFlags {
  std::string pool;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
    parser->Switch("json", &json, {"", "the findings in JSON"});
  }
};

int Run(DoctorFlags& flags, const Invocation& given) {
  const std::vector<std::string>& words = given.words;
  int code = 0;
  if (words.size() > 1 || (words.size() == 1 && words[0] != "swap")) {
    return ToExitCode(absl::InvalidArgumentError("expected nram doctor or nram doctor swap"), "nram doctor");
  }
  // First, while this process has one thread.
  std::vector<Finding> findings = CheckDoors();
  findings.push_back(CheckFastWake());
  std::vector<std::string> mounts;
  for (const MountPoint& mount : FindMounts("self")) mounts.push_back(mount.directory);
  absl::c_move(CheckMounts(mounts, kAskTimeoutMs), std::back_inserter(findings));
  absl::c_move(CheckServersHere(), std::back_inserter(findings));
  const std::vector<SwapArea> areas = FindSwaps();
  // The pool of each area is checked with it; here, the pool that commands find.
  if (areas.empty() || ChoosePoolSpec(flags.pool).ok()) CheckPool(flags.pool, "", "", /*of_swap=*/false, &findings);
  CheckCertificates(&findings);
  if (!areas.empty() || !words.empty()) {
    findings.push_back(CheckReserve(FieldOf("/proc/meminfo", "MemTotal") * kKiB));
    findings.push_back(CheckBoost());
    findings.push_back(CheckBackup(areas));
    for (const SwapArea& area : areas) CheckArea(area, &findings);
  }
  nlohmann::json out = nlohmann::json::array();
  for (const Finding& finding : findings) {
    static constexpr const char* kWords[] = {"good", "advice", "bad"};
    const char* const verdict = kWords[static_cast<int>(finding.verdict)];
    if (finding.verdict == Verdict::kBad) code = 1;
    if (flags.json) {
      out.push_back({{"verdict", verdict}, {"what", finding.what}, {"why", finding.why}});
    } else {
      printf("%-7s %s\n%s%s%s", verdict, finding.what.c_str(), finding.why.empty() ? "" : "        ",
             finding.why.c_str(), finding.why.empty() ? "" : "\n");
    }
  }
  if (flags.json) PrintJson(out);
  return code;
}

}  // namespace

Command DoctorCommand() {
  return DefineCommand<DoctorFlags>({"doctor", "check the setup of this machine", R"(usage: nram doctor [swap] [flags]

Checks what this user may do here: mount, use the memory API and nram run, lock keys for sealed
pages, keep processors awake. Checks whether mounts answer, whether memory servers of this machine
may be swapped out, and certificates. Checks the pool as seen from here; its copies (can a host
fail without loss, which spans lack copies or are lost, and why); and servers that are being
emptied. With the word swap, or if there are swap areas, it also checks the
safety of a machine that swaps to them: the kernel's reserve of free memory, other swap of lower
priority, and the areas' daemons. Prints what to change, and why. Changes nothing.

Running clients report the copies. Data with one copy is lost with its server.

)",
                                     R"(
Exit code 1 if a finding is bad; advice does not count.

example: nram doctor swap
)"},
                                    Words::kAny, &Run);
}

}  // namespace nram
