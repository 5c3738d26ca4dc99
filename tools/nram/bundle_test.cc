#include "tools/nram/bundle.h"

#include <string>

#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(BundleTest, WhatIsNoSecretStays) {
  const std::string text =
      "I20260102 lending 8.00 GiB; control port 7070\n"
      "--tls-dir=/etc/nram/tls --key-file=/etc/nram/key\n"
      "NRAM_KEY_FILE=/home/me/key\n"
      "incarnation: 0x0123456789abcdef\n"
      "region 0123456789abcdef0123456789abcdef\n"
      "/a/very/long/path/of/words/that/has/more/bytes/than/any/run/of/digits\n"
      "\n";
  EXPECT_EQ(WithoutSecrets(text), text);
  EXPECT_EQ(WithoutSecrets(""), "");
  EXPECT_EQ(WithoutSecrets("no end"), "no end");
}

TEST(BundleTest, BlocksInPemGo) {
  EXPECT_EQ(WithoutSecrets("before\n-----BEGIN PRIVATE KEY-----\nMIIE\nvQIB\n-----END PRIVATE KEY-----\nbehind\n"),
            "before\n(left out)\nbehind\n");
  // A key that is cut off ends at the end of the text.
  EXPECT_EQ(WithoutSecrets("before\n-----BEGIN EC PRIVATE KEY-----\nMIIE\n"), "before\n(left out)");
}

TEST(BundleTest, WhatIsNamedASecretGoes) {
  EXPECT_EQ(WithoutSecrets("NRAM_TOKEN=abc\nDB_PASSWORD: hunter2\nmy_secret = x"),
            "NRAM_TOKEN= (left out)\nDB_PASSWORD: (left out)\nmy_secret = (left out)");
  EXPECT_EQ(WithoutSecrets("key=0123\n"), "key= (left out)\n");
}

TEST(BundleTest, LongRunsOfDigitsGo) {
  const std::string hex = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  EXPECT_EQ(WithoutSecrets("the key is " + hex + ", so"), "the key is (left out), so");
  EXPECT_EQ(WithoutSecrets("MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MA==\n"), "(left out)\n");
}

TEST(BundleTest, OfALongLogTheEndIsKept) {
  EXPECT_EQ(LastOf("one\ntwo\n", 100), "one\ntwo\n");
  EXPECT_EQ(LastOf("one\ntwo\nthree\n", 8), "(8 bytes before this are left out)\nthree\n");
}

TEST(BundleTest, FilesThatAreNeverRead) {
  for (const char* const path : {"/etc/nram/tls/server.pem", "/etc/nram/client.key", "/etc/nram/tls.conf",
                                 "/etc/nram/keys", "/etc/nram/my-secret.conf"}) {
    EXPECT_TRUE(MayBeSecret(path)) << path;
  }
  for (const char* const path : {"/etc/nram/pool", "/etc/nram/memserver.conf", "/run/nram/fsd-1.log"}) {
    EXPECT_FALSE(MayBeSecret(path)) << path;
  }
}

}  // namespace
}  // namespace nram
