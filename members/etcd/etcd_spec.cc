#include "members/etcd/etcd_spec.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

absl::Status Refuse(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", Printable(text, 200), "\" is not accepted: ", why,
                   "; expected etcd:HOST[:PORT][,HOST[:PORT]...]/NAME, as in etcd:node1:2379,node2:2379/render"));
}

bool IsNameByte(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.'; }

bool IsHostByte(char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_'; }

bool IsPort(absl::string_view text) {
  int port = 0;
  return absl::SimpleAtoi(text, &port) && port > 0 && port <= 65535;
}

// "host", "host:port", "[v6]" or "[v6]:port" with a port; "": it is none of these.
std::string WithPort(absl::string_view word) {
  absl::string_view host = word;
  absl::string_view port;
  const size_t end = absl::StartsWith(word, "[") ? word.find(']') : word.find(':');
  if (absl::StartsWith(word, "[")) {
    if (end == absl::string_view::npos) return "";
    host = word.substr(0, end + 1);
    port = word.substr(end + 1);
    const absl::string_view digits = host.substr(1, host.size() - 2);
    const auto is_v6 = [](char c) { return absl::ascii_isxdigit(c) || c == ':' || c == '.' || c == '%'; };
    if (digits.empty() || !std::all_of(digits.begin(), digits.end(), is_v6)) return "";
  } else {
    host = word.substr(0, end);
    port = end == absl::string_view::npos ? "" : word.substr(end);
    if (host.empty() || !std::all_of(host.begin(), host.end(), IsHostByte)) return "";
  }
  if (port.empty()) return absl::StrCat(host, ":", EtcdSpec::kDefaultPort);
  if (!absl::ConsumePrefix(&port, ":") || !IsPort(port)) return "";
  return absl::StrCat(host, ":", port);
}

}  // namespace

absl::StatusOr<EtcdSpec> EtcdSpec::Parse(absl::string_view text) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, kScheme)) return Refuse(text, "it does not begin with etcd:");
  const size_t slash = rest.find('/');
  if (slash == absl::string_view::npos) return Refuse(text, "it names no pool");
  EtcdSpec spec;
  spec.name = std::string(rest.substr(slash + 1));
  if (spec.name.empty() || spec.name.size() > kNameBytesMax ||
      !std::all_of(spec.name.begin(), spec.name.end(), IsNameByte)) {
    return Refuse(text,
                  absl::StrCat("a pool's name is 1 to ", kNameBytesMax, " letters, digits, \"-\", \"_\" or \".\""));
  }
  for (absl::string_view word : absl::StrSplit(rest.substr(0, slash), ',')) {
    std::string host = WithPort(absl::StripAsciiWhitespace(word));
    if (host.empty()) return Refuse(text, absl::StrCat("\"", Printable(word, 100), "\" is not a host"));
    if (spec.hosts.size() >= kHostsMax) return Refuse(text, absl::StrCat("more than ", kHostsMax, " hosts"));
    spec.hosts.push_back(std::move(host));
  }
  return spec;
}

std::string EtcdSpec::KeyPrefix() const { return absl::StrCat("/nram/", name, "/servers/"); }

std::string EtcdSpec::RegionKey(absl::string_view tenant, absl::string_view region) const {
  return absl::StrCat("/nram/", name, "/regions/", EscapeKeyWord(tenant), "/", EscapeKeyWord(region));
}

std::string EtcdSpec::ToString() const { return absl::StrCat(kScheme, absl::StrJoin(hosts, ","), "/", name); }

std::string EscapeKeyWord(absl::string_view text) {
  std::string word;
  for (const char c : text) {
    if (IsNameByte(c)) {
      word.push_back(c);
    } else {
      absl::StrAppend(&word, "%", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
  return word;
}

}  // namespace nram
