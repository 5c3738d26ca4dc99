#include <glog/logging.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/args.h"
#include "base/units.h"
#include "base/utf8.h"
#include "client/pool/pool_spec.h"
#include "members/dns.h"
#include "members/etcd/etcd_spec.h"
#include "members/etcd/server_record.h"
#include "memserver/access.h"
#include "tests/fuzz/targets.h"

namespace nram {

void FuzzText(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)ParseByteSize(text);
  if (const auto id = ParseId(text); id.ok()) CHECK_EQ(*ParseId(FormatId(*id)), *id);
  (void)ParseHostFile(text, "fuzz");
  (void)EtcdSpec::Parse(text);
  (void)ServerRecord::Decode(text);
  (void)ParseDnsSpec(text);
  if (IsMemberSpec(text)) return;  // the members would be looked up
  // With a slash or an @ it would name a file.
  if (text.find('/') == absl::string_view::npos && text.find('@') == absl::string_view::npos) (void)ParsePoolSpec(text);
  if (const auto rules = ParseAccessRules(text); rules.ok()) {
    CHECK(!rules->empty());
    for (const AccessRule& rule : *rules) CHECK(rule.role <= Role::kMonitor || rule.tenant != "-");
  }
  const std::string clean = ToUtf8(std::string(text), 255);
  CHECK_LE(clean.size(), size_t{255});
  CHECK(ToUtf8(clean, 255) == clean);
  ArgParser parser("fuzz");
  bool flag = false;
  int64_t number = 0;
  uint64_t bytes = 0;
  parser.Switch("switch", &flag);
  parser.Integer("number", 0, 9, &number);
  parser.ByteSize("bytes", 0, 1 << 20, &bytes);
  std::vector<std::string> words;
  (void)parser.Parse({"--" + std::string(text), std::string(text)}, &words);
  CHECK_GE(number, 0);
  CHECK_LE(number, 9);
  CHECK_LE(bytes, uint64_t{1} << 20);
}

}  // namespace nram
