// Clients of the control plane hold all connections and calls that they can get. Another client still connects, gets a
// lease, writes and reads.

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/transport/control_client.h"
#include "gtest/gtest.h"
#include "proto/message.h"
#include "tests/util/http2_peer.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

void ExpectServed(const PoolOptions& options) {
  auto pool = TestPool::Open(options);
  ASSERT_NE(pool, nullptr);
  auto region = pool->CreateRegion({.gc = true});
  ASSERT_TRUE(region.ok()) << region.status();
  const std::string data = Pattern(64 * 1024, 1);
  const absl::Status written = (*region)->Write(0, Bytes(data));
  ASSERT_TRUE(written.ok()) << written;
  const auto back = Read(region->get(), 0, data.size());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == data);
  const auto listed = pool->session(0)->control()->ListRegions(false, false, DeadlineAfterMs(20'000));
  EXPECT_TRUE(listed.ok()) << listed.status();
}

// Ensures that the test's own descriptors do not run out before the server's.
void AllowManyDescriptors() {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

class ControlCrowdTest : public ::testing::Test {
 protected:
  ControlCrowdTest() { AllowManyDescriptors(); }

  std::vector<std::unique_ptr<Http2Peer>> crowd_;
};

TEST_F(ControlCrowdTest, IdleConnectionsGiveWay) {
  TestPool servers(1);
  auto before = servers.Open();
  for (int i = 0; i < 1'500; ++i) {
    crowd_.push_back(std::make_unique<Http2Peer>(servers.server(0).control_port()));
    if (i % 3 == 1) crowd_.back()->Greet(65535);
    if (i % 3 == 2) {
      crowd_.back()->Greet(65535);
      crowd_.back()->Call("Drain", "");
    }
  }
  ExpectServed(servers.Options());
  EXPECT_TRUE(before->session(0)->control()->RenewLease(before->session(0)->lease(), {}, DeadlineAfterMs(20'000)).ok());
}

// More calls than there are threads, whose answers the server cannot send.
TEST_F(ControlCrowdTest, CallsWhoseAnswersAreNotTakenHoldNobodyUp) {
  TestPool servers(1);
  for (int i = 0; i < 20; ++i) {
    crowd_.push_back(std::make_unique<Http2Peer>(servers.server(0).control_port()));
    crowd_.back()->Greet(0);
    for (int call = 0; call < 8; ++call) crowd_.back()->Call("Hello", "\x08\x01\x10\x7f");
    for (int call = 0; call < 8; ++call) crowd_.back()->Call("GetStatistics", "");
  }
  ExpectServed(servers.Options());
}

// Long lists that no client takes, as many as the server keeps. A client that asks for a list gets it when the server
// cuts these off.
TEST_F(ControlCrowdTest, ListsThatAreNotTakenGiveWay) {
  TestPool servers(1);
  const auto lease = servers.server(0)
                         .leases()
                         .Grant({.tenant = servers.server(0).core().tenants().Of(0),
                                 .id = LeaseId{1},
                                 .client_name = std::string(255, 'o')})
                         .value();
  for (uint64_t id = 1; id <= 1'500; ++id) {
    const RegionManifest manifest{absl::StrCat(std::string(200, 'n'), id), {}, 0};
    ASSERT_TRUE(servers.server(0).store().CreateNamed(lease.get(), RegionId{id}, 1, false, manifest).ok());
  }
  for (int i = 0; i < 20; ++i) {
    crowd_.push_back(std::make_unique<Http2Peer>(servers.server(0).control_port()));
    crowd_.back()->Greet(0);
    for (int call = 0; call < 4; ++call) crowd_.back()->Call("ListRegions", "");
  }
  const auto control = ControlClient::Create({"127.0.0.1", servers.server(0).control_port(), ""});
  const int64_t deadline_ns = DeadlineAfterMs(40'000);
  auto regions = control->ListRegions(false, false, deadline_ns);
  while (regions.status().code() == absl::StatusCode::kUnavailable && MonotonicNs() < deadline_ns) {
    poll(nullptr, 0, 50);
    regions = control->ListRegions(false, false, deadline_ns);
  }
  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_EQ(regions->size(), 1'500);
}

TEST_F(ControlCrowdTest, WhatARequestMayHaveIsBounded) {
  TestPool servers(1);
  const auto control = ControlClient::Create({"127.0.0.1", servers.server(0).control_port(), ""});
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  ASSERT_TRUE(control->GrantLease(LeaseId{1}, std::string(5'000, 'o'), 0, deadline_ns).ok());
  EXPECT_EQ(servers.server(0).leases().Find(LeaseId{1})->client_name.size(), 255);
  CreateRegionArgs args;
  args.lease = LeaseId{1};
  args.region = RegionId{1};
  args.epoch = Epoch{1};
  args.name = "many";
  args.incarnations.assign(5'000, 1);
  EXPECT_EQ(control->CreateRegion(args, deadline_ns).code(), absl::StatusCode::kInvalidArgument);
  args.incarnations.assign(4'096, ~uint64_t{0});
  EXPECT_TRUE(control->CreateRegion(args, deadline_ns).ok());
  args.region = RegionId{2};
  args.incarnations.assign(50'000, ~uint64_t{0});
  EXPECT_FALSE(control->CreateRegion(args, deadline_ns).ok()) << "half a megabyte";
  args.incarnations.clear();
  for (const std::string& name : {std::string(256, 'n'), std::string("\x1b[2J"), std::string("two\nlines"),
                                  std::string("\xc2\x9b"), std::string("\xe2\x80\xae")}) {
    args.name = name;
    EXPECT_EQ(control->CreateRegion(args, deadline_ns).code(), absl::StatusCode::kInvalidArgument) << name.size();
  }
  args.name = "Übung 1";
  EXPECT_TRUE(control->CreateRegion(args, deadline_ns).ok());
}

TEST_F(ControlCrowdTest, OwnersAreCleaned) {
  TestPool servers(1);
  const auto control = ControlClient::Create({"127.0.0.1", servers.server(0).control_port(), ""});
  ASSERT_TRUE(control->GrantLease(LeaseId{1}, "me\x1b[31m\nE0000 forged", 0, DeadlineAfterMs(20'000)).ok());
  EXPECT_EQ(servers.server(0).leases().Find(LeaseId{1})->client_name, "me\\x1B[31m\\x0AE0000 forged");
}

// A client that knows a lease's id can act as the lease's client.
TEST_F(ControlCrowdTest, ALeasesIdIsToldToItsClientAlone) {
  TestPool servers(1);
  constexpr LeaseId kSecret{0x5ec2e75ec2e75ec2};
  const auto control = ControlClient::Create({"127.0.0.1", servers.server(0).control_port(), ""});
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  ASSERT_TRUE(control->GrantLease(kSecret, "owner", 0, deadline_ns).ok());
  CreateRegionArgs args;
  args.lease = kSecret;
  args.region = RegionId{1};
  args.epoch = Epoch{1};
  args.name = "named";
  ASSERT_TRUE(control->CreateRegion(args, deadline_ns).ok());
  const auto regions = control->ListRegions(false, false, deadline_ns);
  ASSERT_TRUE(regions.ok());
  ASSERT_EQ(regions->size(), 1);
  EXPECT_EQ(Raw((*regions)[0].lease), 0);
  AttachRegionArgs attach;
  attach.name = "named";
  attach.read_only = true;
  EXPECT_EQ(Raw(control->AttachRegion(attach, deadline_ns)->lease), 0);
  attach.lease = LeaseId{1};
  EXPECT_EQ(Raw(control->AttachRegion(attach, deadline_ns)->lease), 0);
  attach.lease = kSecret;
  EXPECT_EQ(control->AttachRegion(attach, deadline_ns)->lease, kSecret);
  // Refusals do not tell the id either.
  std::string messages(control->RenewLease(LeaseId{7}, {}, deadline_ns).status().message());
  ASSERT_TRUE(control->GrantLease(LeaseId{1}, "other", 0, deadline_ns).ok());
  attach = {LeaseId{1}, RegionId{1}, "", false, Epoch{2}, false};
  absl::StrAppend(&messages, control->AttachRegion(attach, deadline_ns).status().message());
  absl::StrAppend(&messages, control->DestroyRegion(LeaseId{1}, RegionId{1}, false, deadline_ns).status().message());
  EXPECT_TRUE(absl::StrContains(messages, "in use by owner")) << messages;
  EXPECT_FALSE(absl::StrContains(messages, FormatId(Raw(kSecret)))) << messages;
}

// Lists come in parts; all parts together are the whole list.
TEST_F(ControlCrowdTest, ALongListIsWhole) {
  TestPool servers(1);
  const auto lease = servers.server(0)
                         .leases()
                         .Grant({.tenant = servers.server(0).core().tenants().Of(0),
                                 .id = LeaseId{1},
                                 .client_name = std::string(255, 'o')})
                         .value();
  for (uint64_t id = 1; id <= 2'500; ++id) {
    RegionManifest manifest{absl::StrCat(std::string(200, 'n'), id), std::vector<uint64_t>(100), 0};
    ASSERT_TRUE(servers.server(0).store().CreateNamed(lease.get(), RegionId{id}, 1, false, manifest).ok());
  }
  const auto control = ControlClient::Create({"127.0.0.1", servers.server(0).control_port(), ""});
  const auto regions = control->ListRegions(false, false, DeadlineAfterMs(20'000));
  ASSERT_TRUE(regions.ok()) << regions.status();
  ASSERT_EQ(regions->size(), 2'500);
  for (uint64_t id = 1; id <= 2'500; ++id) EXPECT_EQ(Raw((*regions)[id - 1].id), id);
}

}  // namespace
}  // namespace nram
