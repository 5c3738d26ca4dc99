#include "members/etcd/etcd_spec.h"

#include <sys/stat.h>

#include "base/clock.h"
#include "base/tls/test_certificates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "members/etcd/etcd_client.h"
#include "members/etcd/region_record.h"
#include "members/etcd/server_record.h"

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

TEST(EtcdSpecTest, ARegionsKeyHasItsNameEscaped) {
  const auto spec = EtcdSpec::Parse("etcd:a/render").value();
  EXPECT_EQ(spec.RegionKey("local", "Az09.-_"), "/nram/render/regions/local/Az09.-_");
  EXPECT_EQ(spec.RegionKey("a/b", "c d"), "/nram/render/regions/a%2fb/c%20d");
  EXPECT_EQ(spec.RegionKey("", "%"), "/nram/render/regions//%25");
  EXPECT_EQ(EscapeKeyWord(std::string("\0\xff\n", 3)), "%00%ff%0a");
  EXPECT_EQ(EscapeKeyWord("caf\xC3\xA9"), "caf%c3%a9");
  EXPECT_NE(EscapeKeyWord("/"), EscapeKeyWord("%2f"));
}

TEST(RegionRecordTest, ComesBackAsItWas) {
  const RegionRecord record{
      0xc0ffee, {"node1:7070", "[::1]:7070"}, 3, "sort on node7, pid 4242", "2026-01-02T03:04:05Z"};
  EXPECT_EQ(RegionRecord::Decode(record.Encode()).value(), record);
  const auto later = RegionRecord::Decode(R"({"id": "0x07", "servers": ["a:1"], "later": [1, 2]})");
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_EQ(*later, (RegionRecord{7, {"a:1"}, 0, "", ""}));
}

TEST(RegionRecordTest, BadValuesAreRefused) {
  std::string many = R"({"id": "7", "servers": ["a:1")";
  for (int i = 0; i < 4096; ++i) many += R"(, "a:1")";
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  for (const std::string& bad : {std::string(),
                                 std::string("x"),
                                 std::string("[]"),
                                 std::string("{}"),
                                 std::string(R"({"id": "7"})"),
                                 std::string(R"({"servers": ["a:1"]})"),
                                 std::string(R"({"id": "7", "servers": []})"),
                                 std::string(R"({"id": 7, "servers": ["a:1"]})"),
                                 std::string(R"({"id": "0", "servers": ["a:1"]})"),
                                 std::string(R"({"id": "g", "servers": ["a:1"]})"),
                                 std::string(R"({"id": "7", "servers": "a:1"})"),
                                 std::string(R"({"id": "7", "servers": [7]})"),
                                 std::string(R"({"id": "7", "servers": ["a\u0007"]})"),
                                 std::string(R"({"id": "7", "servers": ["a:1"], "client": 7})"),
                                 std::string(R"({"id": "7", "servers": ["a:1"], "client": "\u001b[2J"})"),
                                 std::string(R"({"id": "7", "servers": ["a:1"], "epoch": -1})"),
                                 std::string(R"({"id": "7", "servers": ["a:1"], "epoch": 4294967296})"),
                                 std::string(R"({"id": "7", "servers": ["a:1"], "epoch": 1.5})"),
                                 R"({"id": "7", "servers": [")" + std::string(256, 'x') + "\"]}",
                                 many + "]}",
                                 deep,
                                 R"({"id": "7", "servers": ["a:1"], "x": ")" + std::string(1 << 20, 'x') + "\"}"}) {
    EXPECT_EQ(RegionRecord::Decode(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad.substr(0, 80);
  }
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

// As memory servers and pools do with theirs. No etcd is needed: the key is looked at first.
TEST(EtcdClientTest, APrivateKeyThatOthersMayReadIsNotUsed) {
  const TestCertificates certificates("etcd-key");
  chmod((certificates.directory() + "/client.key").c_str(), 0604);
  const auto client = EtcdClient::Create({"127.0.0.1:1"}, certificates.directory());
  const absl::Status refused = client->List("x", 1, DeadlineAfterMs(2'000)).status();
  EXPECT_TRUE(absl::IsPermissionDenied(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("other users may read this private key"));
}

}  // namespace
}  // namespace nram
