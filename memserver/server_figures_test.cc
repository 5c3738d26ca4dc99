#include "memserver/server_figures.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

std::string TextOf(const v1::Statistics& statistics, const LeaseFigures& leases = {}) {
  Figures figures;
  AddServerFigures(statistics, leases, &figures);
  return figures.ToText();
}

TEST(ServerFiguresTest, EveryCounterOfStatusIsThere) {
  const v1::Statistics empty;
  const auto* const descriptor = empty.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* const field = descriptor->field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_UINT64) continue;
    // The process is Prometheus' target; its lives are told by the time for which it runs.
    if (field->name() == "incarnation" || field->name() == "pid") continue;
    v1::Statistics statistics;
    statistics.GetReflection()->SetUInt64(&statistics, field, 1'234'000);
    EXPECT_NE(TextOf(statistics), TextOf(empty)) << field->name();
  }
  const auto* const capacity = v1::Capacity::descriptor();
  for (int i = 0; i < capacity->field_count(); ++i) {
    const auto* const field = capacity->field(i);
    if (field->name() == "urgent") continue;  // of a server that is leaving
    if (field->name().starts_with("quota_")) continue;  // of a tenant
    v1::Statistics statistics;
    auto* const told = statistics.mutable_capacity();
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_UINT64) {
      told->GetReflection()->SetUInt64(told, field, 1'234'000);
    } else {
      told->GetReflection()->SetBool(told, field, true);
    }
    EXPECT_NE(TextOf(statistics), TextOf(empty)) << field->name();
  }
}

TEST(ServerFiguresTest, UnitsAreBytesAndSeconds) {
  v1::Statistics statistics;
  statistics.set_uptime_ms(2'500);
  statistics.set_stored_chunks(10);
  statistics.set_refused_stale(7);
  statistics.mutable_host()->set_hostname("node1");
  statistics.mutable_host()->set_domain("rack1");
  const std::string text = TextOf(statistics, {.late = 2, .expired = 5, .ttl_ms = 10'000});
  for (const char* const line : {"\nnram_server_uptime_seconds 2.5\n", "\nnram_server_stored_bytes 5120\n",
                                 "\nnram_server_refused_total{reason=\"stale\"} 7\n", "\nnram_server_leases_late 2\n",
                                 "\nnram_server_leases_expired_total 5\n", "\nnram_server_lease_ttl_seconds 10\n",
                                 "host=\"node1\",domain=\"rack1\"} 1\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(ServerFiguresTest, CopiesAreSummedOverClients) {
  v1::Statistics statistics;
  for (const uint64_t spans : {3u, 4u}) {
    v1::Copies* const copies = statistics.add_copies();
    copies->set_client(spans);
    copies->set_degraded(spans);
    copies->set_made(10 * spans);
    copies->set_left_ms(1'000 * spans);
  }
  const std::string text = TextOf(statistics);
  EXPECT_THAT(text, HasSubstr("\nnram_server_told_spans{state=\"degraded\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("\nnram_server_told_copies_made 70\n"));
  EXPECT_THAT(text, HasSubstr("\nnram_server_told_repair_left_seconds 4\n"));
}

}  // namespace
}  // namespace nram
