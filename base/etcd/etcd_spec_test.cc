#include "base/etcd/etcd_spec.h"

#include "base/etcd/etcd_client.h"
#include "base/etcd/server_record.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(EtcdSpecTest, HostsWithAndWithoutPorts) {
  const auto spec = EtcdSpec::Parse("etcd:a, b:1234,[::1]:5,[fe80::2]/render-1").value();
  EXPECT_THAT(spec.hosts, ElementsAre("a:2379", "b:1234", "[::1]:5", "[fe80::2]:2379"));
  EXPECT_EQ(spec.name, "render-1");
  EXPECT_EQ(spec.KeyPrefix(), "/nram/render-1/servers/");
  EXPECT_EQ(EtcdSpec::Parse(spec.ToString())->hosts, spec.hosts);
}

TEST(EtcdSpecTest, WhatIsWrongIsRefusedWithAnExample) {
  for (const char* bad : {"etcd:a", "etcd:/x", "etcd:a/", "etcd:a/x/y", "etcd:a:0/x", "etcd:a:70000/x", "etcd:a:b/x",
                          "etcd:a,,b/x", "etcd:[::1/x", "etcd:[]/x", "dns:a", "etcd:a b/x", "etcd:a/x\n"}) {
    const auto spec = EtcdSpec::Parse(bad);
    EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr("expected etcd:HOST")) << bad;
  }
  std::string many = "etcd:h";
  for (int i = 0; i < 16; ++i) many += ",h";
  EXPECT_FALSE(EtcdSpec::Parse(many + "/x").ok());
  EXPECT_FALSE(EtcdSpec::Parse("etcd:a/" + std::string(64, 'x')).ok());
}

TEST(EtcdSpecTest, TheRangeOfAPrefixEndsBehindIt) {
  EXPECT_EQ(EtcdRangeEnd("ab"), "ac");
  EXPECT_EQ(EtcdRangeEnd("a\xff"), "b");
  EXPECT_EQ(EtcdRangeEnd("\xff"), std::string(1, '\0'));
}

TEST(ServerRecordTest, ComesBackAsItWas) {
  const ServerRecord record{"node1:7070", "node1", "rack7", "9", "serves", "12ab"};
  EXPECT_EQ(ServerRecord::Decode(record.Encode()).value(), record);
  EXPECT_EQ(ServerRecord::Decode(R"({"address": "a:1", "later": [1, 2]})")->address, "a:1");
}

TEST(ServerRecordTest, BadValuesAreRefused) {
  for (const std::string& bad :
       {std::string(), std::string("x"), std::string("[]"), std::string("{}"), std::string(R"({"address": 7})"),
        std::string(R"({"address": "a\u0007"})"),
        std::string(R"({"address": "a:1", "host": ")") + std::string(300, 'x') + "\"}",
        std::string(R"({"address": "a:1", "x": ")") + std::string(5000, 'x') + "\"}", std::string("{\"address\"")}) {
    EXPECT_EQ(ServerRecord::Decode(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad.substr(0, 80);
  }
}

}  // namespace
}  // namespace nram
