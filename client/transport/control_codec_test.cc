// What a client makes of a server's answers.

#include "client/transport/control_codec.h"

#include <string>

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
  // Of a release that knew no other fields.
  reply.add_copies()->set_client(11);
  const ServerStatistics statistics = ControlCodec("a:1").Parse(reply);
  ASSERT_EQ(statistics.copies.size(), 2u);
  EXPECT_EQ(statistics.copies[0], told);
  EXPECT_EQ(statistics.copies[1], CopiesReport{.client = 11});
  EXPECT_FALSE(ControlCodec::RenewLease(LeaseId{77}, {}).has_copies());
}

}  // namespace
}  // namespace nram
