#include "fsd/options.h"

#include <unistd.h>

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/metrics/metrics_address.h"
#include "base/status.h"
#include "base/tls/tls_dir.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr int64_t kCopiesMax = 4;  // as many as the pool can keep

absl::Status ParseRepairRate(absl::string_view value, uint64_t* bytes_per_s) {
  if (value == "max") {
    *bytes_per_s = UINT64_MAX;
    return absl::OkStatus();
  }
  const absl::StatusOr<uint64_t> rate = ParseByteSize(value);
  if (!rate.ok() || *rate < kMiB) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", value, "\" is not accepted: expected bytes a second, at least 1M, or max"));
  }
  *bytes_per_s = *rate;
  return absl::OkStatus();
}

constexpr char kHelp[] = R"(usage: nram-fsd DIRECTORY [flags]

Mounts a temporary filesystem on DIRECTORY whose files are in the RAM of a pool of memory
servers. `nram mount` starts it in the background. This is the daemon itself, for systemd and
for running it in the foreground. `umount DIRECTORY`, `nram umount`, SIGTERM and Ctrl-C end
it; the files are then gone.

What
  --pool=SPEC          host:port,host:port,..., a host file, dns:NAME[:PORT], or
                       etcd:HOST[:PORT],.../NAME (default: $NRAM_POOL, else the
                       local pool of `nram up`, else /etc/nram/pool)
  --tls-dir=DIR        certificates (nram keygen), for servers that require them (default:
                       $NRAM_TLS_DIR, else /etc/nram/tls)
  --size=SIZE          limit on the files' data, 1M or more (default: as much as the pool has)
  --copies=N           1..4 copies of each page, on servers of different hosts (default 1). The
                       files survive the loss of N-1 of these hosts and take N times their
                       size of the pool; `df` and --size count a page once
  --seal, --no-seal    whether pages are sealed: servers get only ciphertext, and a changed or
                       replayed page is an error (default: $NRAM_SEAL, else yes with --swap or
                       if some server is on another machine; see docs/security.md)
  --repair-rate=RATE   bandwidth for restoring lost copies: bytes a second, at least 1M, or max
                       (default: repair works a quarter of the time)
  --inodes=N           1..4294967294 files and directories (default: half as many as this
                       machine's RAM has pages)
  --memory=SIZE        limit on this daemon's own memory: names, attributes and the bookkeeping of
                       data (docs/design.md). Beyond it, new files and new pages are refused
                       (ENOSPC); not with --swap (default: half of this machine's memory, or of
                       the limit of its cgroup)
  --gc, --no-gc        whether servers free the files if this daemon dies (default: yes; with
                       --no-gc they become orphans, which `nram regions --orphans` lists)
  --expendable         the files can be made again: servers may destroy them when their hosts
                       need the memory and nothing else helps (docs/giving-back.md); not with
                       --swap or --no-gc
  --mode=OCTAL         mode of DIRECTORY (default 1777 for root, else 0755)
  --backend=WHAT       pool (default); memory: this process's own memory, for comparison; null:
                       discard all data, to measure the cost of FUSE

Where and for whom
  --nonempty           allow a DIRECTORY that has files; the mount hides them
  --read-only          mount read-only
  --allow-other        other users may use the mount (default for root; others need
                       user_allow_other in /etc/fuse.conf); --no-allow-other: only this user
  --mount-options=LIST more options for the kernel, as in noexec,nosuid,noatime (strictatime
                       is refused)

How
  --foreground         stay in the foreground and log to standard error
  --log-file=PATH      log file (default in the background: in the state directory, see
                       nram up --help)
  --pid-file=PATH      write the process id there once the filesystem is mounted
  --metrics=HOST:PORT  serve Prometheus metrics there, at /metrics, as in 127.0.0.1:9436. HOST is
                       a numeric IPv4 address; every host that reaches it may read the figures
                       (docs/watching.md). Port 0: the kernel chooses, and the log tells
                       (default: none)
  --threads=N          4..256 requests at once (default 16). Read-ahead and write-back use at
                       most N-4 of them. Each request takes up to 2 MiB
  --readahead=SIZE     0..64M of read-ahead by the kernel for sequential readers (default 4M;
                       needs root)
  --writeback, --no-writeback
                       whether the kernel collects writes before it sends them (default: yes);
                       fsync and close then report the errors
  --swap               the files hold swap (`nram swapon` uses this). All memory is allocated and
                       locked at the start, the daemon never waits for the kernel to free
                       memory, and holes keep their room. Needs CAP_SYS_RESOURCE and
                       CAP_SYS_NICE. SIGTERM does not end the daemon, umount does
  --unprotected        swap without these privileges: memory is locked, but under pressure the
                       kernel may make this daemon write pages out, or kill it
  --io-timeout-ms=N    100..600000; if a server does not answer within N ms, the operation fails
                       with an I/O error (default 10000)
  --fast-wake=WHEN     auto, on or off: keep this machine's idle processors from sleeping while
                       requests are frequent (default auto: on with up to 16 processors). Root
                       may do so, other users need a udev rule
  --spin=WHEN          auto, off, on or microseconds (0..10000): how long the leading thread
                       polls for answers and requests before it sleeps, if they usually arrive
                       within that time (default 20; with --swap: never)
  --help               this text

example: nram-fsd /mnt/nram --size=4GiB --foreground
)";

}  // namespace

void FsdOptions::Register(FsdOptions* options, ArgParser* parser) {
  parser->String("pool", &options->pool);
  parser->Custom("tls-dir", &SetTlsDir);
  const auto set_backend = [options](absl::string_view value) {
    if (value == "pool") {
      options->backend = Backend::kPool;
    } else if (value == "memory") {
      options->backend = Backend::kMemory;
    } else if (value == "null") {
      options->backend = Backend::kNull;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not accepted: expected pool, memory or null"));
    }
    return absl::OkStatus();
  };
  parser->Custom("backend", set_backend, {"WHERE", "", "pool memory null"});
  parser->ByteSize("size", kMiB, kRegionBytesMax, &options->size_bytes);
  parser->ByteSize("memory", kMiB, kRegionBytesMax, &options->memory_bytes);
  parser->Custom("inodes", [options](absl::string_view value) {
    if (!absl::SimpleAtoi(value, &options->inodes) || options->inodes < 1 || options->inodes >= UINT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", value, "\" is not accepted: expected a whole number from 1 to 4294967294"));
    }
    return absl::OkStatus();
  });
  parser->Integer("copies", 1, kCopiesMax, &options->copies);
  parser->Custom("repair-rate",
                 [options](absl::string_view value) { return ParseRepairRate(value, &options->repair_bytes_per_s); });
  parser->Switch("seal", &options->seal);
  parser->Switch("gc", &options->gc);
  parser->Switch("expendable", &options->expendable);
  parser->Switch("writeback", &options->writeback);
  parser->Switch("nonempty", &options->nonempty);
  parser->Switch("foreground", &options->foreground);
  parser->Switch("allow-other", &options->allow_other);
  parser->Switch("read-only", &options->read_only);
  parser->Switch("swap", &options->swap);
  parser->Switch("unprotected", &options->unprotected);
  parser->Integer("threads", 4, 256, &options->threads);
  parser->ByteSize("readahead", 0, 64 * kMiB, &options->readahead_bytes);
  parser->Integer("io-timeout-ms", 100, 600'000, &options->io_timeout_ms);
  parser->Custom("mode", [options](absl::string_view value) {
    uint32_t mode = 0;
    for (const char c : value) {
      if (c < '0' || c > '7' || mode > 07777) mode = 0x10000;
      mode = mode * 8 + static_cast<uint32_t>(c - '0');
    }
    if (value.empty() || mode == 0 || mode > 07777) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", value, "\" is not accepted: expected an octal mode up to 7777"));
    }
    options->mode = mode;
    return absl::OkStatus();
  });
  parser->String("log-file", &options->log_file);
  parser->String("pid-file", &options->pid_file);
  parser->String("metrics", &options->metrics);
  parser->Custom("mount-options", [options](absl::string_view value) {
    for (const absl::string_view word : absl::StrSplit(value, ',', absl::SkipEmpty())) {
      options->AddMountOption(word);
    }
    return absl::OkStatus();
  });
  parser->Custom("spin", [options](absl::string_view value) { return SpinOptions::Parse(value, &options->spin); },
                 {"WHEN", "", "auto off on"});
  parser->Custom("fast-wake", [options](absl::string_view value) { return ParseFastWake(value, &options->fast_wake); },
                 {"WHEN", "", "auto on off"});
}

void FsdOptions::AddMountOption(absl::string_view option) {
  if (option == "relatime") return;  // the only kind there is
  if (option == "nodiratime") {
    directory_access_times = false;
  } else {
    mount_options.emplace_back(option);
  }
}

uint64_t FsdOptions::LeastMemoryBytes() const { return (64 + 4 * static_cast<uint64_t>(threads)) * kMiB; }

absl::Status FsdOptions::Validate() const {
  if (directory.empty()) return absl::InvalidArgumentError("expected a directory, as in nram-fsd /mnt/nram");
  if (!metrics.empty()) {
    NRAM_RETURN_IF_ERROR(Annotate(ParseMetricsAddress(metrics).status(), "--metrics"));
  }
  if (backend != Backend::kPool && !pool.empty()) {
    return absl::InvalidArgumentError("--pool needs --backend=pool");
  }
  if (backend != Backend::kPool && copies > 1) {
    return absl::InvalidArgumentError("--copies needs --backend=pool");
  }
  if (backend != Backend::kPool && seal.value_or(false)) {
    return absl::InvalidArgumentError("--seal needs --backend=pool");
  }
  if (backend != Backend::kPool && expendable) {
    return absl::InvalidArgumentError("--expendable needs --backend=pool");
  }
  if (memory_bytes > 0 && swap) {
    return absl::InvalidArgumentError("--memory and --swap contradict each other: swap's memory is set at the start");
  }
  if (memory_bytes > 0 && memory_bytes < LeastMemoryBytes()) {
    return absl::InvalidArgumentError(absl::StrCat("--memory=", FormatByteSize(memory_bytes), " is too little for ",
                                                   threads, " threads: expected ", LeastMemoryBytes() / kMiB,
                                                   "M or more"));
  }
  if (expendable && swap) {
    return absl::InvalidArgumentError(
        "--expendable and --swap contradict each other: swapped-out pages cannot be made again");
  }
  if (expendable && !gc) {
    return absl::InvalidArgumentError(
        "--expendable and --no-gc contradict each other: expendable files must not outlive this daemon");
  }
  for (const std::string& option : mount_options) {
    // The kernel answers most reads out of its cache and does not tell.
    if (option == "strictatime" || option == "norelatime") {
      return absl::InvalidArgumentError(absl::StrCat("the mount option ", option,
                                                     " is not supported: reads from the kernel's cache leave no ",
                                                     "access time. Without it, access times are as with relatime"));
    }
  }
  if (swap && backend == Backend::kNull) {
    return absl::InvalidArgumentError("--backend=null discards all data and cannot hold swap: expected pool or memory");
  }
  return absl::OkStatus();
}

absl::StatusOr<FsdOptions> FsdOptions::ParseMountHelper(const std::vector<std::string>& args) {
  FsdOptions options;
  ArgParser parser("mount.fuse.nram");
  Register(&options, &parser);
  const std::vector<std::string> names = parser.names();
  const std::set<std::string> ours(names.begin(), names.end());
  // Words for mount(8) and fstab alone.
  static const auto* const kIgnored = new std::set<std::string>{
      "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail", "defaults", "rw"};
  std::vector<std::string> words, flags, kernel;
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] != "-o") {
      if (args[i] == "-N" || args[i] == "-t") {
        ++i;  // a namespace, which mount(8) has entered, and the type
      } else if (!absl::StartsWith(args[i], "-")) {
        words.push_back(args[i]);
      }
      continue;  // -s, -f, -n, -v: nothing to do
    }
    if (++i == args.size()) return absl::InvalidArgumentError("-o needs options after it");
    for (const absl::string_view option : absl::StrSplit(args[i], ',', absl::SkipEmpty())) {
      const std::string name(option.substr(0, option.find('=')));
      if (ours.count(name) > 0 || (absl::StartsWith(name, "no-") && ours.count(name.substr(3)) > 0)) {
        flags.push_back(absl::StrCat("--", option));
      } else if (kIgnored->count(name) == 0 && !absl::StartsWith(name, "x-")) {
        kernel.emplace_back(option);
      }
    }
  }
  if (words.size() != 2) {
    return absl::InvalidArgumentError("usage: mount.fuse.nram POOL DIRECTORY [-o OPTIONS]");
  }
  std::vector<std::string> positional;
  NRAM_RETURN_IF_ERROR(parser.Parse(flags, &positional));
  options.directory = words[1];
  if (words[0] != "nram" && words[0] != "none") options.pool = words[0];
  for (const std::string& option : kernel) options.AddMountOption(option);
  return options;
}

const char* FsdOptions::Help() { return kHelp; }

std::string ClientName(const std::string& what, const std::string& directory, int pid) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return absl::StrCat(what, " ", directory, " on ", host, ", pid ", pid);
}

}  // namespace nram
