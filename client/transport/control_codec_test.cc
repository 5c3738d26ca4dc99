// The client's reading of a server's answers.

#include "client/transport/control_codec.h"

#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "gtest/gtest.h"
#include "proto/wire.h"

namespace nram {
namespace {

v1::HelloReply Reply() {
  v1::HelloReply reply;
  reply.set_version(kWireVersion);
  reply.set_incarnation(1);
  return reply;
}

TEST(ControlCodecTest, AHostIsWhatTheServerSays) {
  v1::HelloReply reply = Reply();
  reply.mutable_host()->set_boot_id("boot");
  ServerHost host = ControlCodec("a:1").Parse(reply).value().host;
  EXPECT_EQ(host.counts_as(), "boot");
  EXPECT_EQ(host.domain, "");
  reply.mutable_host()->set_pretended_host("pretended");
  reply.mutable_host()->set_domain("rack 7");
  host = ControlCodec("a:1").Parse(reply).value().host;
  EXPECT_EQ(host.boot_id, "boot");
  EXPECT_EQ(host.counts_as(), "pretended");
  EXPECT_EQ(host.domain, "rack 7");
}

TEST(ControlCodecTest, NamesOfAHostAreBoundedAndPrintable) {
  v1::HelloReply reply = Reply();
  reply.mutable_host()->set_pretended_host("a\nb");
  reply.mutable_host()->set_domain(std::string(1000, 'x'));
  const ServerHost host = ControlCodec("a:1").Parse(reply).value().host;
  EXPECT_TRUE(IsPrintable(host.pretended_host));
  EXPECT_EQ(host.domain, std::string(255, 'x'));
}

TEST(ControlCodecTest, ARegionsNewestVersionIsOneThatCanBe) {
  v1::AttachRegionReply reply;
  reply.mutable_region()->set_region_id(7);
  AttachRegionArgs args;
  args.region = RegionId{7};
  reply.mutable_region()->set_newest_version(Raw(kVersionNumberMax));
  EXPECT_EQ(ControlCodec("a:1").Parse(reply, args).value().newest_version, kVersionNumberMax);
  reply.mutable_region()->set_newest_version(Raw(kVersionNumberMax) + 1);
  EXPECT_FALSE(ControlCodec("a:1").Parse(reply, args).ok());
}

TEST(ControlCodecTest, WhatAClientTellsOfCopiesComesBackAsItWas) {
  const CopiesReport told{.client = 1,
                          .in_sync = 2,
                          .degraded = 3,
                          .repairing = 4,
                          .lost = 5,
                          .moving = 6,
                          .made = 7,
                          .left_ms = 8,
                          .wanted = 9,
                          .done = 10};
  v1::Statistics reply;
  *reply.add_copies() = ControlCodec::RenewLease(LeaseId{77}, told).copies();
  // A release that knew no other fields.
  reply.add_copies()->set_client(11);
  const ServerStatistics statistics = ControlCodec("a:1").Parse(reply);
  ASSERT_EQ(statistics.copies.size(), 2u);
  EXPECT_EQ(statistics.copies[0], told);
  EXPECT_EQ(statistics.copies[1], CopiesReport{.client = 11});
  EXPECT_FALSE(ControlCodec::RenewLease(LeaseId{77}, {}).has_copies());
}

TEST(ControlCodecTest, VersionsComeInOrder) {
  const ControlCodec codec("a:1");
  v1::ListVersionsReply reply;
  reply.set_incarnation(7);
  v1::VersionInfo* const first = reply.add_versions();
  first->set_number(3);
  first->set_keep(UINT32_MAX);
  first->set_holds(2);
  first->set_own_bytes(~uint64_t{0});
  reply.add_versions()->set_number(5);
  const auto list = codec.Parse(reply);
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->incarnation, 7u);
  ASSERT_EQ(list->versions.size(), 2u);
  EXPECT_EQ(list->versions[0].number, VersionNumber{3});
  EXPECT_EQ(list->versions[0].keep, VersionKeep::kUntilDropped);
  EXPECT_EQ(list->versions[0].holds, 2u);
  EXPECT_LE(list->versions[0].own_bytes, uint64_t{1} << 60);
  reply.mutable_versions(0)->set_number(5);
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.Parse(reply).status())) << "no order";
  reply.mutable_versions(0)->set_number(0);
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.Parse(reply).status())) << "no number";
  reply.mutable_versions(0)->set_number(3);
}

TEST(ControlCodecTest, ChangesHaveAMapForEachSpanAndGoOn) {
  const ControlCodec codec("a:1");
  v1::ListChangesRequest request = ControlCodec::ListChanges(RegionId{1}, VersionNumber{2}, VersionNumber{3});
  EXPECT_EQ(request.from_version(), 2u);
  EXPECT_EQ(request.to_version(), 3u);
  v1::ListChangesReply reply;
  reply.add_spans(4);
  ChangedPages pages{1, 2, 3, 4};
  reply.set_maps(reinterpret_cast<const char*>(pages.data()), sizeof pages);
  reply.set_next_span(9);
  std::vector<std::pair<uint64_t, ChangedPages>> seen;
  const auto visit = [&](uint64_t span, const ChangedPages& changed) {
    seen.emplace_back(span, changed);
    return absl::OkStatus();
  };
  ASSERT_TRUE(codec.VisitPage(reply, &request, visit).value());
  EXPECT_EQ(seen, (std::vector<std::pair<uint64_t, ChangedPages>>{{4, pages}}));
  EXPECT_EQ(request.from_span(), 9u);
  // The page is empty, and the server has looked on.
  reply.Clear();
  reply.set_next_span(10);
  EXPECT_TRUE(codec.VisitPage(reply, &request, visit).value());
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.VisitPage(reply, &request, visit).status())) << "it stands still";
  reply.Clear();
  EXPECT_FALSE(codec.VisitPage(reply, &request, visit).value());
  reply.add_spans(11);
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.VisitPage(reply, &request, visit).status())) << "no map";
  reply.set_maps(std::string(32, 'x'));
  reply.set_spans(0, 9);
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.VisitPage(reply, &request, visit).status())) << "no order";
}

TEST(ControlCodecTest, OfAVersionAPageOfSpansMayBeEmpty) {
  const ControlCodec codec("a:1");
  v1::ListSpansReply reply;
  reply.set_next_span(5);
  const auto visit = [](uint64_t, SpanGeneration) { return absl::OkStatus(); };
  v1::ListSpansRequest request = ControlCodec::ListSpans(RegionId{1});
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.VisitPage(reply, &request, visit).status()));
  request = ControlCodec::ListSpans(RegionId{1}, VersionNumber{2});
  EXPECT_TRUE(codec.VisitPage(reply, &request, visit).value());
  EXPECT_TRUE(absl::IsFailedPrecondition(codec.VisitPage(reply, &request, visit).status())) << "it stands still";
}

}  // namespace
}  // namespace nram
