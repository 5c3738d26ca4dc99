#include "memserver/options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/metrics/metrics_address.h"
#include "base/status.h"
#include "base/utf8.h"
#include "members/etcd/etcd_spec.h"
#include "memserver/listen.h"

namespace nram {
namespace {

// A flag for an int field.
void Int(ArgParser* parser, const char* name, int lo, int hi, int* target) {
  parser->Custom(name, [=](absl::string_view value) {
    int parsed = 0;
    if (!absl::SimpleAtoi(value, &parsed) || parsed < lo || parsed > hi) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", value, "\" is not accepted: expected a whole number from ", lo, " to ", hi));
    }
    *target = parsed;
    return absl::OkStatus();
  });
}

// "1GiB-8GiB", of which either end may be missing.
absl::Status ParseAuto(absl::string_view range, MemServerOptions* options) {
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(range, absl::MaxSplits('-', 1));
  if (!ends.first.empty()) {
    NRAM_ASSIGN_OR_RETURN(options->auto_floor_bytes, ParseByteSize(ends.first));
  }
  if (!ends.second.empty()) {
    NRAM_ASSIGN_OR_RETURN(options->auto_ceiling_bytes, ParseByteSize(ends.second));
  }
  const uint64_t most = options->auto_ceiling_bytes;
  const bool fits = most == 0 || (most >= MemServerOptions::kDonateMinBytes && most >= options->auto_floor_bytes);
  if (fits && absl::StrContains(range, '-')) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "\"auto:", range, "\" is not accepted: expected auto:FLOOR-CEILING, as in auto:1GiB-8GiB; the ceiling is ",
      FormatByteSize(MemServerOptions::kDonateMinBytes), " or more and not below the floor; either may be left out"));
}

constexpr char kHelp[] = R"(usage: nram-memserver --donate=SIZE|auto [flags]

Lends RAM of this machine to a pool: stores pages for clients on other machines (or this
one) in memory, up to a hard ceiling. `nram up` starts some for you; run this one directly
on a cluster node, or from systemd (deploy/nram-memserver.service).

How much
  --donate=SIZE            ceiling on everything the server takes, data and index and
                           itself; 64M or more, as in 8GiB
  --donate=auto[:FLOOR-CEILING]
                           what the host has available, less the reserve; it follows the
                           host's memory ten times a second, and gives back what the host's
                           own work needs, down to FLOOR (default 0), as in auto:1G-8G
  --reserve=SIZE           what is always left to the host (default: a tenth of its RAM, at
                           least 1 GiB)
  --give-back=off|idle|pressure
                           what goes back when the host or this server's cgroup is short of
                           memory. off: what nothing is stored in. idle: that, and frames are
                           moved together for it. pressure: clients are asked for what is
                           stored too, and move it elsewhere (default: pressure with auto,
                           else off; docs/giving-back.md)
  --orphans=keep|drop      whether regions that nobody owns may be destroyed when nothing
                           else gives the host memory (default keep)
  --drain                  start without taking anything new (see nram drain)
  --oom-score-adj=N        -1000..1000, which process the kernel ends first when memory runs
                           out (default 500: this one before the host's own work)
  --spill=off|swap         swap: when nothing else gives the host its memory back, pages go to
                           its swap, and come back when they are read. What clients have not
                           sealed lies on this host's disk in clear then (default off)

Where
  --listen=ADDRESS         numeric IPv4 or IPv6 address (default 127.0.0.1, where every user of
                           this machine comes in, unless there are certificates); none: on the
                           Unix sockets alone
  --port=N                 control port, what host files name (default 7070; 0 lets the
                           kernel choose)
  --data-port=N            port of the pages (default: the control port plus one)
  --socket=PATH            listen on Unix sockets PATH and PATH.data as well; clients on
                           this host then use them
  --tls-dir=DIR            certificates (nram keygen): ca.pem, server.pem, server.key. Clients
                           then come in by TLS and a certificate only, but for those on
                           this host by the Unix socket (default: $NRAM_TLS_DIR, else
                           /etc/nram/tls if that has a server's; none: without)
  --access=FILE            who may do what, by certificate or user (docs/security.md); looked
                           at again when it changes (default: this user and root all, and
                           holders of certificates all but to drain)
  --allow-unauthenticated  everybody who reaches the ports may do all: without certificates
                           needed for an address that other machines reach
  --metrics=HOST:PORT      answer Prometheus there, at /metrics, as in 10.0.0.7:9435. HOST is
                           numeric, IPv4, and whoever reaches it may read the figures, which name no
                           client and no region (docs/watching.md). Port 0: the kernel's choice
                           (default: none)
  --ready-file=PATH        write the ports there, as JSON, once it serves
  --register=etcd:HOST[:PORT],.../NAME
                           tell etcd of this server, for clients with the same --pool. The
                           key goes when the server ends, or 10 s after it has died
  --advertise=HOST[:PORT]  the address by which clients reach this server, for --register
                           (default: --listen and --port)
  --etcd-tls-dir=DIR       certificates for etcd: ca.pem, client.pem, client.key (default:
                           $NRAM_ETCD_TLS_DIR, else /etc/nram/etcd-tls; none: without)
  --domain=NAME            what fails together with other hosts: a rack, a power feed. Copies
                           of a page are on different hosts, and in different domains where
                           there are enough (default: each host is a domain of its own)
  --pretend-host=NAME      count as a machine of that name, to try copies on one machine; the
                           copies are then less safe than they look

How
  --lease-ttl-ms=N         100..3600000, after how long without a sign of life a client
                           counts as gone (default 10000)
  --workers=N              1..64 threads for each of bulk and urgent traffic (default: one
                           per processor, at most 8)
  --connections=N          2..65536 data connections at most (default 512); two for each
                           client. Half as many control connections and 32, at most 1024.
                           The limit of open files is raised to what that needs
  --spin=auto|off|on|US    poll up to US microseconds (0..10000) for the next request before
                           sleeping; auto: 50 where there are 4 processors or more, else off
  --leave-within-ms=N      0..86400000; after SIGTERM or Ctrl-C, clients have so long to move
                           what is stored here to other servers (default 0: it ends at once).
                           It ends earlier when all has moved, or nothing moves; a second
                           signal ends it at once
  --help                   this text

Logs to standard error. SIGTERM or Ctrl-C ends it; what it stores then is gone.

example: nram-memserver --donate=8GiB --listen=10.0.0.7 --allow-unauthenticated
)";

absl::Status CheckName(const char* flag, const std::string& name) {
  if (name.size() <= MemServerOptions::kNameBytesMax && IsPrintable(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": \"", Printable(name, 100),
                                                 "\" is not accepted: expected at most ",
                                                 MemServerOptions::kNameBytesMax, " bytes of printable characters"));
}

}  // namespace

void MemServerOptions::Register(MemServerOptions* options, ArgParser* parser) {
  parser->Custom("donate", [options](absl::string_view value) -> absl::Status {
    options->donate_auto = value == "auto" || absl::StartsWith(value, "auto:");
    if (value == "auto") return absl::OkStatus();
    if (options->donate_auto) return ParseAuto(value.substr(5), options);
    NRAM_ASSIGN_OR_RETURN(options->donate_bytes, ParseByteSize(value));
    return absl::OkStatus();
  });
  parser->Custom("give-back", [options](absl::string_view value) -> absl::Status {
    using Mode = GiveBackOptions::Mode;
    if (value == "off") options->give_back = Mode::kOff;
    if (value == "idle") options->give_back = Mode::kIdle;
    if (value == "pressure") options->give_back = Mode::kPressure;
    if (options->give_back.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not accepted: expected off, idle or pressure"));
  });
  parser->Custom("orphans", [options](absl::string_view value) -> absl::Status {
    options->drops_orphans = value == "drop";
    if (value == "drop" || value == "keep") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not accepted: expected keep or drop"));
  });
  parser->Integer("leave-within-ms", 0, 86'400'000, &options->leave_within_ms);
  parser->ByteSize("reserve", 0, kRegionBytesMax, &options->reserve_bytes);
  parser->String("listen", &options->listen);
  Int(parser, "port", 0, 65535, &options->port);
  Int(parser, "data-port", 0, 65535, &options->data_port);
  parser->String("socket", &options->socket_path);
  parser->String("tls-dir", &options->tls_dir);
  parser->String("access", &options->access_file);
  parser->Switch("allow-unauthenticated", &options->allow_unauthenticated);
  parser->String("register", &options->register_at);
  parser->String("advertise", &options->advertise);
  parser->String("etcd-tls-dir", &options->etcd_tls_dir);
  parser->String("domain", &options->domain);
  parser->String("pretend-host", &options->pretended_host);
  parser->Integer("lease-ttl-ms", 100, 3'600'000, &options->lease_ttl_ms);
  Int(parser, "workers", 1, 64, &options->workers_per_class);
  Int(parser, "connections", 2, 65536, &options->connections_max);
  Int(parser, "oom-score-adj", -1000, 1000, &options->oom_score_adj);
  parser->Switch("drain", &options->drain);
  parser->Custom("spill", [options](absl::string_view value) -> absl::Status {
    options->spills_to_swap = value == "swap";
    if (value == "swap" || value == "off") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("\"", value, "\" is not accepted: expected off or swap"));
  });
  parser->Custom("spin", [options](absl::string_view value) { return SpinOptions::Parse(value, &options->spin); });
  parser->String("metrics", &options->metrics);
  parser->String("ready-file", &options->ready_file);
}

GiveBackOptions::Mode MemServerOptions::GiveBackMode() const {
  using Mode = GiveBackOptions::Mode;
  return give_back.value_or(donate_auto ? Mode::kPressure : Mode::kOff);
}

absl::Status MemServerOptions::CheckRegistration() const {
  if (register_at.empty()) {
    if (advertise.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--advertise needs --register=etcd:HOST/NAME");
  }
  NRAM_RETURN_IF_ERROR(Annotate(EtcdSpec::Parse(register_at).status(), "--register"));
  if (!advertise.empty()) {
    const bool is_fit = advertise.size() <= 200 && IsPrintable(advertise) && advertise.find('/') == std::string::npos &&
                        !absl::StartsWith(advertise, "unix:");
    if (is_fit) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--advertise: \"", Printable(advertise, 100), "\" is not accepted: expected HOST or HOST:PORT"));
  }
  if (listen == kNoTcp || listen == "0.0.0.0" || listen == "::") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen=", listen, " names no address that clients could be told of: add --advertise=HOST[:PORT]"));
  }
  return absl::OkStatus();
}

absl::Status MemServerOptions::Validate() const {
  if (!metrics.empty()) {
    NRAM_RETURN_IF_ERROR(Annotate(ParseMetricsAddress(metrics).status(), "--metrics"));
  }
  NRAM_RETURN_IF_ERROR(CheckRegistration());
  if (!donate_auto && donate_bytes == 0) {
    return absl::InvalidArgumentError(
        "--donate is needed: how much RAM to lend, for example --donate=8GiB, or --donate=auto");
  }
  if (!donate_auto && donate_bytes < kDonateMinBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--donate: ", FormatByteSize(donate_bytes),
                                                   " is too little: expected ", FormatByteSize(kDonateMinBytes),
                                                   " or more"));
  }
  if (listen == kNoTcp) {
    if (socket_path.empty())
      return absl::InvalidArgumentError("--listen=none needs --socket=PATH, or nobody could come");
    NRAM_RETURN_IF_ERROR(CheckName("domain", domain));
    return CheckName("pretend-host", pretended_host);
  }
  NRAM_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(listen));
  if (!loopback && tls_dir.empty() && !allow_unauthenticated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen=", listen,
        " is reachable from other machines, and without certificates whoever reaches the port may read and write all "
        "pages. Make some (nram keygen DIR --host=",
        listen, ") and add --tls-dir=DIR; or, on a network of your own, add --allow-unauthenticated"));
  }
  if (!tls_dir.empty() && allow_unauthenticated) {
    return absl::InvalidArgumentError(
        "--tls-dir and --allow-unauthenticated contradict each other: with certificates nobody comes in without one");
  }
  NRAM_RETURN_IF_ERROR(CheckName("domain", domain));
  return CheckName("pretend-host", pretended_host);
}

const char* MemServerOptions::Help() { return kHelp; }

}  // namespace nram
