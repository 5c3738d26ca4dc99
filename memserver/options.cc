#include "memserver/options.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
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

// --port=N, and the port of --listen=HOST:PORT.
absl::Status TakePort(absl::string_view text, MemServerOptions* options) {
  int port = 0;
  if (!absl::SimpleAtoi(text, &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not accepted: expected a whole number from 0 to 65535"));
  }
  if (options->has_port_flag) {
    return absl::InvalidArgumentError("the port is there twice: expected either --port=N or --listen=HOST:PORT");
  }
  options->has_port_flag = true;
  options->port = port;
  return absl::OkStatus();
}

// "10.0.0.7", "10.0.0.7:7070", "::1", "[::1]:7070"; Validate looks at the address.
absl::Status TakeListen(absl::string_view text, MemServerOptions* options) {
  const size_t colon = text.rfind(':');
  const bool has_brackets = absl::StartsWith(text, "[");
  // A bare IPv6 address has more than one colon.
  const bool has_port =
      colon != absl::string_view::npos && (has_brackets ? text[colon - 1] == ']' : text.find(':') == colon);
  if (has_port) NRAM_RETURN_IF_ERROR(TakePort(text.substr(colon + 1), options));
  absl::string_view host = has_port ? text.substr(0, colon) : text;
  if (has_brackets && absl::ConsumeSuffix(&host, "]")) absl::ConsumePrefix(&host, "[");
  options->listen = std::string(host);
  return absl::OkStatus();
}

constexpr char kHelp[] = R"(usage: nram-memserver --donate=SIZE|auto [flags]

Lends RAM of this machine to a pool: stores pages in memory, up to a ceiling, for clients
on other machines or on this one. `nram up` starts memory servers on one machine. On a cluster
node, run this program directly or from systemd (deploy/nram-memserver.service).

How much
  --donate=SIZE            ceiling on the server's resident memory: pages, index, buffers and the
                           server itself; 64M or more, as in 8GiB
  --donate=auto[:FLOOR-CEILING]
                           the memory that the host has available, less the reserve. The
                           server looks at the host ten times a second and gives back memory
                           that the host's own programs need, down to FLOOR (default 0), as in
                           auto:1G-8G
  --reserve=SIZE           memory that always remains available to the host's own programs
                           (default: a tenth of its RAM, at least 1 GiB)
  --give-back=off|idle|pressure
                           memory that the server gives back when the host or the server's
                           cgroup is short of memory. off: extents without stored pages. idle:
                           the server also compacts pages to empty more extents. pressure: the
                           server also asks its clients to move stored pages to other servers
                           (default: pressure with auto, else off; docs/giving-back.md)
  --orphans=keep|drop      drop: if no other step gives the host enough memory, the server may
                           destroy orphans, that is regions without a living owner (default
                           keep)
  --drain                  start without accepting new spans (see nram drain)
  --oom-score-adj=N        -1000..1000, the server's score for the kernel's OOM killer (default
                           500: the kernel kills the server before the host's own programs)
  --spill=off|swap         swap: if no other step gives the host enough memory, the server moves
                           pages to the host's swap and reads them back on demand. Pages that
                           clients have not sealed are then in clear text on the host's disk
                           (default off)

Where
  --listen=HOST[:PORT]     numeric IPv4 or IPv6 address, as in 10.0.0.7, 10.0.0.7:7070 or
                           [fd00::7]:7070 (default 127.0.0.1, open to every user of this machine
                           unless the server has certificates); none: Unix sockets only
  --port=N                 control port, the one in host files, instead of a port in --listen
                           (default 7070; 0: the kernel chooses)
  --data-port=N            port for page traffic (default: the control port plus one)
  --socket=PATH            also listen on the Unix sockets PATH and PATH.data; clients on this
                           host then use them
  --tls-dir=DIR            certificates (nram keygen): ca.pem, server.pem, server.key. TCP clients
                           then need TLS and a certificate; clients on this host may still use
                           the Unix socket without (default: $NRAM_TLS_DIR, else /etc/nram/tls if
                           it holds a server's certificate; none: no certificates)
  --access=FILE            access rules by certificate or user (docs/security.md), reread when the
                           file changes (default: this user and root may do everything, holders
                           of certificates everything except drain)
  --allow-unauthenticated  every client that reaches the ports may do everything. Needed, without
                           certificates, for an address that other machines can reach
  --metrics=HOST:PORT      serve Prometheus metrics there, at /metrics, as in 10.0.0.7:9435. HOST
                           is a numeric IPv4 address. Every host that reaches it may read the
                           figures, which name no client and no region (docs/watching.md).
                           Port 0: the kernel chooses (default: none)
  --ready-file=PATH        write the ports to PATH, as JSON, once the server accepts clients
  --register=etcd:HOST[:PORT],.../NAME
                           register this server in etcd, for clients with the same --pool. The
                           server removes its key when it ends; if it dies, the key expires
                           after 10 s
  --advertise=HOST[:PORT]  the address at which clients reach this server, for --register
                           (default: --listen and --port)
  --etcd-tls-dir=DIR       certificates for etcd: ca.pem, client.pem, client.key (default:
                           $NRAM_ETCD_TLS_DIR, else /etc/nram/etcd-tls; none: no certificates)
  --domain=NAME            failure domain of this host, such as a rack or power feed. Copies of a
                           page are on different hosts, and in different domains if there are
                           enough (default: each host is its own domain)
  --pretend-host=NAME      count as a host of that name, to try copies on one machine; the copies
                           are then less safe than they look

How
  --lease-ttl-ms=N         100..3600000; a client that sends nothing for N ms loses its lease
                           (default 10000)
  --workers=N              1..64 threads each for bulk and for urgent traffic (default: one per
                           processor, at most 8)
  --connections=N          2..65536 data connections at most (default 512); each client needs
                           two. Control connections: half of N plus 32, but 64 to 1024. The
                           server raises its limit of open files accordingly
  --spin=auto|off|on|US    poll up to US microseconds (0..10000) for the next request before
                           sleeping; on: 50; auto: 50 with 4 processors or more, else off
                           (default auto)
  --leave-within-ms=N      0..86400000; after SIGTERM or Ctrl-C, clients have N ms to move the
                           stored pages to other servers (default 0: the server ends at once).
                           The server ends earlier if all pages are moved or if nothing moves;
                           a second signal ends it at once
  --help                   this text

Logs to standard error. SIGTERM or Ctrl-C ends the server. Pages that it still stores are lost.

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
  parser->Custom("listen", [options](absl::string_view value) { return TakeListen(value, options); });
  parser->Custom("port", [options](absl::string_view value) { return TakePort(value, options); });
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
    return absl::InvalidArgumentError(
        absl::StrCat("--listen=", listen, " is no address that clients could dial: add --advertise=HOST[:PORT]"));
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
      return absl::InvalidArgumentError("--listen=none needs --socket=PATH: without it, no client could connect");
    NRAM_RETURN_IF_ERROR(CheckName("domain", domain));
    return CheckName("pretend-host", pretended_host);
  }
  NRAM_ASSIGN_OR_RETURN(const bool loopback, IsLoopback(listen));
  if (!loopback && tls_dir.empty() && !allow_unauthenticated) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen=", listen,
        " is reachable from other machines. Without certificates, every host that reaches the port may read and write "
        "all pages. Make certificates (nram keygen DIR --host=NAME-THAT-CLIENTS-DIAL) and add --tls-dir=DIR; or, on a "
        "private network, add --allow-unauthenticated"));
  }
  if (!tls_dir.empty() && allow_unauthenticated) {
    return absl::InvalidArgumentError(
        "--tls-dir and --allow-unauthenticated contradict each other: with certificates, every TCP client needs one");
  }
  NRAM_RETURN_IF_ERROR(CheckName("domain", domain));
  return CheckName("pretend-host", pretended_host);
}

const char* MemServerOptions::Help() { return kHelp; }

}  // namespace nram
