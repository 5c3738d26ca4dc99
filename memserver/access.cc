#include "memserver/access.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status.h"
#include "base/units.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr size_t kRulesMax = 10'000;
constexpr size_t kTenantsMax = 60'000;
constexpr size_t kTenantNameMax = 64;
constexpr char kAnyIdentity[] = "*";
constexpr char kNoTenant[] = "-";
constexpr char kOwnTenant[] = "local";

absl::StatusOr<Role> ParseRole(absl::string_view word) {
  if (word == "monitor") return Role::kMonitor;
  if (word == "user") return Role::kUser;
  if (word == "operator") return Role::kOperator;
  if (word == "none") return Role::kNobody;
  return absl::InvalidArgumentError(absl::StrCat("\"", Printable(std::string(word), kTenantNameMax),
                                                 "\" is not a role: expected none, monitor, user or operator"));
}

absl::Status CheckIdentity(absl::string_view identity) {
  if (identity == kAnyIdentity || identity == "anyone") return absl::OkStatus();
  if (absl::StartsWith(identity, "spiffe://")) {
    // "spiffe://site/ci*" would be "spiffe://site/ci-of-another-team" too.
    if (!absl::EndsWith(identity, "*") || absl::EndsWith(identity, "/*")) return absl::OkStatus();
    return absl::InvalidArgumentError("in a URI, a \"*\" must follow a \"/\"");
  }
  if (absl::StartsWith(identity, "cn:") && identity.size() > 3) return absl::OkStatus();
  uint32_t uid = 0;
  if (absl::StartsWith(identity, "uid:") && absl::SimpleAtoi(identity.substr(4), &uid)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", Printable(std::string(identity), 255),
                                                 "\" is not an identity: expected cn:NAME, spiffe://..., uid:N, "
                                                 "anyone or *"));
}

absl::Status CheckTenant(absl::string_view tenant, Role role) {
  if (tenant == kNoTenant) {
    if (role <= Role::kMonitor) return absl::OkStatus();
    return absl::InvalidArgumentError("the roles user and operator need a tenant");
  }
  const bool fits = tenant.size() <= kTenantNameMax && absl::c_all_of(tenant, [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
                    });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError("a tenant's name is 1 to 64 letters, digits, \"_\", \"-\" and \".\"");
}

absl::Status ParseLimit(absl::string_view word, TenantLimits* limits) {
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
  const auto& [name, value] = parts;
  if (name == "quota") {
    NRAM_ASSIGN_OR_RETURN(limits->bytes, ParseByteSize(value));
    return absl::OkStatus();
  }
  uint64_t* const limit = name == "connections" ? &limits->connections
                          : name == "leases"    ? &limits->leases
                          : name == "regions"   ? &limits->regions
                          : name == "calls"     ? &limits->calls
                                                : nullptr;
  const uint64_t least = limit == &limits->connections ? 2 : 1;  // a client has two
  if (limit == nullptr || !absl::SimpleAtoi(value, limit) || *limit < least) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Printable(std::string(word), 255),
                                                   "\" is not a limit: expected quota=BYTES, or connections=, leases=, "
                                                   "regions= or calls= and a number from 1 (connections: 2)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<AccessRule> ParseRule(const std::vector<absl::string_view>& words) {
  if (words.size() < 3) return absl::InvalidArgumentError("a rule needs an identity, a tenant and a role");
  AccessRule rule;
  rule.identity = std::string(words[0]);
  rule.tenant = std::string(words[1]);
  NRAM_RETURN_IF_ERROR(CheckIdentity(rule.identity));
  NRAM_ASSIGN_OR_RETURN(rule.role, ParseRole(words[2]));
  NRAM_RETURN_IF_ERROR(CheckTenant(rule.tenant, rule.role));
  for (size_t i = 3; i < words.size(); ++i) NRAM_RETURN_IF_ERROR(ParseLimit(words[i], &rule.limits));
  return rule;
}

}  // namespace

absl::StatusOr<std::vector<AccessRule>> ParseAccessRules(absl::string_view text) {
  std::vector<AccessRule> rules;
  absl::flat_hash_map<std::string, TenantLimits> limits;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = line.substr(0, line.find('#'));
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    absl::StatusOr<AccessRule> rule = ParseRule(words);
    if (rule.ok() && rules.size() == kRulesMax) rule = absl::InvalidArgumentError("more than 10000 rules");
    // Limits are the tenant's, so rules of one tenant must agree.
    if (rule.ok() && rule->limits != TenantLimits()) {
      const auto [it, is_first] = limits.try_emplace(rule->tenant, rule->limits);
      if (!is_first && it->second != rule->limits) {
        rule = absl::InvalidArgumentError(
            absl::StrCat("tenant ", rule->tenant, " has other limits above: give a tenant's limits once"));
      }
    }
    if (!rule.ok()) return Annotate(rule.status(), absl::StrCat("line ", number));
    rules.push_back(*std::move(rule));
  }
  if (rules.empty()) return absl::InvalidArgumentError("it has no rule, so every client would be refused");
  return rules;
}

absl::StatusOr<std::unique_ptr<Access>> Access::Create(const Options& options) {
  std::unique_ptr<Access> access(new Access(options));
  if (options.file.empty()) {
    NRAM_RETURN_IF_ERROR(access->Use(access->DefaultRules()));
    return access;
  }
  NRAM_ASSIGN_OR_RETURN(std::string text, ReadFile(options.file));
  absl::StatusOr<std::vector<AccessRule>> rules = ParseAccessRules(text);
  if (!rules.ok()) return Annotate(rules.status(), options.file);
  NRAM_RETURN_IF_ERROR(access->Use(*std::move(rules)));
  MutexLock lock(&access->mu_);
  access->looked_ = access->judged_ = std::move(text);
  return access;
}

std::vector<AccessRule> Access::DefaultRules() const {
  std::vector<AccessRule> rules = {{absl::StrCat("uid:", options_.uid), kOwnTenant, Role::kOperator, {}},
                                   {"uid:0", kOwnTenant, Role::kOperator, {}},
                                   {"cn:*", kOwnTenant, Role::kUser, {}},
                                   {"spiffe:*", kOwnTenant, Role::kUser, {}}};
  if (options_.lets_anyone_in) rules.push_back({kAnyIdentity, kOwnTenant, Role::kOperator, {}});
  return rules;
}

absl::Status Access::Use(std::vector<AccessRule> rules) {
  MutexLock lock(&mu_);
  const auto is_new = [&](const AccessRule& rule)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !numbers_.contains(rule.tenant); };
  // A number must never stand for two tenants.
  if (names_.size() + absl::c_count_if(rules, is_new) > kTenantsMax) {
    return absl::ResourceExhaustedError("too many tenants have used this server since it started");
  }
  limits_.clear();
  has_several_ = false;
  const auto a_tenant = absl::c_find_if(rules, [](const AccessRule& rule) { return rule.tenant != kNoTenant; });
  const std::string first = a_tenant == rules.end() ? "" : a_tenant->tenant;
  for (const AccessRule& rule : rules) {
    const auto [it, added] = numbers_.try_emplace(rule.tenant, static_cast<TenantNumber>(names_.size()));
    if (added) names_.push_back(rule.tenant);
    if (rule.limits != TenantLimits()) limits_[it->second] = rule.limits;
    has_several_ |= rule.tenant != kNoTenant && rule.tenant != first;
  }
  for (size_t i = 0; options_.declare != nullptr && i < names_.size(); ++i) {
    const auto number = static_cast<TenantNumber>(i);
    options_.declare(number, names_[i], LimitsLocked(number));
  }
  rules_ = std::move(rules);
  version_.fetch_add(1, std::memory_order_acq_rel);
  return absl::OkStatus();
}

void Access::Reload() {
  if (options_.file.empty()) return;
  absl::StatusOr<std::string> text = ReadFile(options_.file);
  if (!text.ok()) {
    LOG_EVERY_N(ERROR, 60) << "the access rules are unchanged: " << text.status().message();
    return;
  }
  {
    MutexLock lock(&mu_);
    const bool is_settled = std::exchange(looked_, *text) == *text;
    if (!is_settled || *text == judged_) return;
    judged_ = *text;
  }
  absl::StatusOr<std::vector<AccessRule>> rules = ParseAccessRules(*text);
  if (!rules.ok()) {
    LOG(ERROR) << options_.file
               << " has an error, so the access rules are unchanged: " << rules.status().message();
    return;
  }
  const size_t count = rules->size();
  if (const absl::Status used = Use(*std::move(rules)); !used.ok()) {
    LOG(ERROR) << options_.file << ": " << used.message() << "; the access rules are unchanged";
    return;
  }
  LOG(INFO) << options_.file << ": " << count << " access rules loaded";
}

Principal Access::Judge(absl::string_view identity) const {
  Principal principal{std::string(identity)};
  if (identity.empty() || identity.size() > kIdentityBytesMax) return principal;
  const auto fits = [&](absl::string_view rule) {
    return absl::EndsWith(rule, "*") ? absl::StartsWith(identity, rule.substr(0, rule.size() - 1)) : rule == identity;
  };
  MutexLock lock(&mu_);
  for (const AccessRule& rule : rules_) {
    if (!fits(rule.identity)) continue;
    principal.tenant = numbers_.at(rule.tenant);
    principal.role = rule.role;
    break;
  }
  return principal;
}

absl::Status Access::Check(const Principal& principal, Action action) {
  Role least = Role::kUser;
  const char* what = "";
  switch (action) {
    case Action::kHello:
    case Action::kStatistics:
      least = Role::kMonitor;
      what = "see this server";
      break;
    case Action::kLease:
    case Action::kRegion:
      what = "store here";
      break;
    case Action::kAllRegions:
      least = Role::kOperator;
      what = "see or destroy regions of other tenants";
      break;
    case Action::kDrain:
      least = Role::kOperator;
      what = "drain this server";
      break;
  }
  if (principal.role >= least) return absl::OkStatus();
  if (principal.role == Role::kNobody) {
    if (principal.identity.empty()) {
      return absl::UnauthenticatedError(
          "this server identifies its clients: over TCP by a certificate (--tls-dir=DIR at the client; nram keygen)");
    }
    return absl::PermissionDeniedError(
        absl::StrCat(principal.identity, " may not use this server: no rule lets it in (--access, docs/security.md)"));
  }
  return absl::PermissionDeniedError(absl::StrCat(principal.identity, " may not ", what, ": that needs the role ",
                                                  least == Role::kOperator ? "operator" : "user",
                                                  " (--access, docs/security.md)"));
}

TenantLimits Access::limits(TenantNumber tenant) const {
  MutexLock lock(&mu_);
  return LimitsLocked(tenant);
}

TenantLimits Access::LimitsLocked(TenantNumber tenant) const {
  const auto it = limits_.find(tenant);
  TenantLimits limits = it == limits_.end() ? TenantLimits() : it->second;
  if (!has_several_) return limits;
  const TenantLimits& whole = options_.whole;
  const auto bound = [](uint64_t all, uint64_t* limit) {
    if (*limit == TenantLimits::kNone && all != TenantLimits::kNone) *limit = std::max<uint64_t>(all / 2, 2);
  };
  bound(whole.connections, &limits.connections);
  bound(whole.leases, &limits.leases);
  bound(whole.regions, &limits.regions);
  bound(whole.calls, &limits.calls);
  return limits;
}

absl::string_view Access::RoleName(Role role) {
  switch (role) {
    case Role::kNobody:
      return "none";
    case Role::kMonitor:
      return "monitor";
    case Role::kUser:
      return "user";
    case Role::kOperator:
      return "operator";
  }
  return "";
}

std::string Access::TenantName(TenantNumber tenant) const {
  MutexLock lock(&mu_);
  return tenant < names_.size() ? names_[tenant] : "";
}

}  // namespace nram
