#include "client/pool/publication_record.h"

#include <string>
#include <vector>

#include "base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

PublicationRecord Example() {
  PublicationRecord record;
  record.number = 7;
  record.time_ns = 1'700'000'000'123'456'789;
  record.step = UINT64_MAX;
  record.regions.push_back({"temperature", RegionId{0xFEDCBA9876543210}, VersionNumber{12}, {UINT64_MAX, 1}, 2});
  record.regions.push_back({"wind \"fast\" \xC3\xBC", RegionId{2}, kVersionNumberMax, {}, 0});
  record.lengths = {kGiB, kRegionBytesMax};
  record.arrays = {{"t", ElementType::kFloat64, false, {4, 4}, 1, 8 * kPageBytes},
                   {"wind \xC3\xBC", ElementType::kComplex128, true, {0, 3, 2}, 0, 16},
                   {"steps", ElementType::kInt64, false, {}, 0, 0}};
  record.header_json = R"({"arrays": [{"name": "t", "dtype": "float64", "shape": [4, 4]}]})";
  return record;
}

TEST(PublicationRecordTest, ARecordComesBackAsItWas) {
  const PublicationRecord record = Example();
  ASSERT_TRUE(CheckRecord(record).ok()) << CheckRecord(record);
  const std::string encoded = EncodeRecord(record);
  EXPECT_EQ(RecordNumber(encoded), 7u);
  for (const std::string& rest : {std::string(), std::string(1000, '\0'), std::string(1000, 'x')}) {
    const auto back = DecodeRecord(encoded + rest);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == record);
  }
}

TEST(PublicationRecordTest, APartOfARecordIsNone) {
  const std::string encoded = EncodeRecord(Example());
  for (size_t bytes = 0; bytes < encoded.size(); ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeRecord(encoded.substr(0, bytes)).status())) << bytes;
    std::string holes = encoded;
    holes.replace(bytes, std::string::npos, std::string(encoded.size() - bytes, '\0'));
    EXPECT_FALSE(DecodeRecord(holes).ok()) << bytes;
  }
  EXPECT_TRUE(absl::IsNotFound(DecodeRecord(std::string(kRecordSlotBytes, '\0')).status()));
}

TEST(PublicationRecordTest, EachChangedBitIsFound) {
  const std::string encoded = EncodeRecord(Example());
  for (size_t bit = 0; bit < 8 * encoded.size(); ++bit) {
    std::string changed = encoded;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(DecodeRecord(changed).ok()) << bit;
  }
}

TEST(PublicationRecordTest, ATextThatIsNoRecordIsRefused) {
  const std::string good = EncodeRecord(Example()).substr(24);
  ASSERT_TRUE(DecodeRecord(FrameRecord(7, good)).ok());
  EXPECT_THAT(DecodeRecord(FrameRecord(8, good)).status().ToString(), HasSubstr("two numbers"));
  const auto change = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return DecodeRecord(FrameRecord(7, text)).status();
  };
  EXPECT_TRUE(absl::IsDataLoss(change("\"step\"", "\"steps\"")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"version\":12", "\"version\":-12")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"version\":12", "\"version\":0")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"version\":12", "\"version\":4294967295")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"version\":12", "\"version\":1e3")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"least_in_sync\":2", "\"least_in_sync\":18446744073709551615")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"members\":[", "\"members\":[-1,")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"members\":[", "\"members\":[\"1\",")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"temperature\"", "\"\\u001b[2J\"")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"0xfedcba9876543210\"", "\"0x0000000000000000\"")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"header\":\"", "\"header\":\"x")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"arrays\":[", "\"arrays\":[[],")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"dims\":[4,4]", "\"dims\":[4,4294967296,4294967296]")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"dims\":[4,4]", "\"dims\":[4,-4]")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"dims\":[4,4]", "\"dims\":16")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"mapping\":1", "\"mapping\":2")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"mapping\":1", "\"mapping\":4294967296")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"offset\":32768", "\"offset\":18446744073709551608")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"type\":\"float64\"", "\"type\":\"float128\"")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"type\":\"float64\"", "\"type\":7")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"order\":\"Fortran\"", "\"order\":\"F\"")));
  EXPECT_TRUE(absl::IsDataLoss(change("\"name\":\"steps\"", "\"name\":\"t\"")));
  for (const std::string& text : {std::string(), std::string("null"), std::string("[]"), std::string("{}"),
                                  std::string(50'000, '['), std::string("{\"number\":7}"), good + "}"}) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeRecord(FrameRecord(7, text)).status())) << text.substr(0, 80);
  }
}

// Records of former publishers.
TEST(PublicationRecordTest, ARecordMayBeWithoutArrays) {
  PublicationRecord record = Example();
  record.arrays.clear();
  EXPECT_EQ(EncodeRecord(record).find("arrays\":[{\"dims"), std::string::npos);
  const auto back = DecodeRecord(EncodeRecord(record));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == record);
}

TEST(PublicationRecordTest, ArraysFitIntoTheirMapping) {
  const auto check = [](PublishedArray array) {
    array.name = "a";
    return std::string(CheckArrays({array}, {4096, 64}).message());
  };
  const auto kFloat64 = ElementType::kFloat64;
  EXPECT_EQ(check({"", kFloat64, false, {512}, 0, 0}), "");
  EXPECT_EQ(check({"", kFloat64, false, {8, 8, 8}, 0, 0}), "");
  EXPECT_EQ(check({"", kFloat64, false, {}, 1, 56}), "");
  EXPECT_EQ(check({"", ElementType::kComplex128, true, {3}, 1, 8}), "");
  EXPECT_EQ(check({"", kFloat64, false, {0, 512}, 0, 0}), "");
  EXPECT_THAT(check({"", kFloat64, false, {513}, 0, 0}), HasSubstr("array \"a\" (float64[513]) from byte 0 on"));
  EXPECT_THAT(check({"", kFloat64, false, {8, 8, 9}, 0, 0}), HasSubstr("does not fit into its mapping of 4096"));
  EXPECT_THAT(check({"", kFloat64, false, {0, 513}, 0, 0}), HasSubstr("does not fit"));
  EXPECT_THAT(check({"", kFloat64, false, {uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0}), HasSubstr("does not fit"));
  EXPECT_THAT(check({"", kFloat64, false, {}, 1, 64}), HasSubstr("does not fit"));
  EXPECT_THAT(check({"", kFloat64, false, {}, 1, UINT64_MAX - 7}), HasSubstr("does not fit"));
  EXPECT_THAT(check({"", kFloat64, false, {}, 1, 4}), HasSubstr("multiples of 8"));
  EXPECT_THAT(check({"", kFloat64, false, {}, 2, 0}), HasSubstr("is in mapping 2, and the version has 2"));
  EXPECT_THAT(check({"", ElementType{}, false, {}, 0, 0}), HasSubstr("type 0, which is unknown: expected 1 to 14"));
  EXPECT_THAT(check({"", ElementType{15}, false, {}, 0, 0}), HasSubstr("type 15"));
  EXPECT_THAT(check({"", kFloat64, false, std::vector<uint64_t>(9, 1), 0, 0}), HasSubstr("has 9 dimensions"));
  EXPECT_EQ(BytesOf({"", ElementType::kComplex64, false, {3, 5}, 0, 0}), 120u);
  EXPECT_EQ(FormatArrayType({"", ElementType::kBool, true, {3, 5}, 0, 0}), "bool[3, 5] in Fortran's order");
}

TEST(PublicationRecordTest, WhatCannotBePublishedIsRefused) {
  const auto check = [](auto change) {
    PublicationRecord record = Example();
    change(&record);
    return std::string(CheckRecord(record).message());
  };
  EXPECT_EQ(check([](PublicationRecord*) {}), "");
  EXPECT_THAT(check([](PublicationRecord* r) { r->number = 0; }), HasSubstr("begins with 1"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->time_ns = -1; }), HasSubstr("before 1970"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->lengths.pop_back(); }), HasSubstr("2 regions and 1 lengths"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->regions.clear(), r->lengths.clear(); }), HasSubstr("0 regions"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->lengths[1] = kRegionBytesMax + 1; }), HasSubstr("2^62"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->header_json = "{"; }), HasSubstr("must be JSON"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->header_json = "\"\xFF\""; }), HasSubstr("must be JSON"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->regions[0].name = "a\nb"; }), HasSubstr("printable"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->regions[0].name = std::string(256, 'n'); }), HasSubstr("printable"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->regions[1].number = {}; }), HasSubstr("version 0"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->arrays[0].name = "a\nb"; }), HasSubstr("printable"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->arrays[1].name = "t"; }), HasSubstr("appears twice"));
  EXPECT_THAT(check([](PublicationRecord* r) { r->arrays.resize(513, r->arrays[0]); }), HasSubstr("has 513 arrays"));
}

TEST(PublicationRecordTest, TheHeadNamesTheNewest) {
  for (const PublicationHead head : {PublicationHead{0, 0}, PublicationHead{UINT64_MAX, kRecordSlots - 1}}) {
    const std::string chunk = EncodeHead(head);
    EXPECT_EQ(chunk.size(), kChunkBytes);
    const auto back = DecodeHead(chunk);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == head);
    for (size_t bit = 0; bit < 8 * 24; ++bit) {
      std::string changed = chunk;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
      EXPECT_TRUE(absl::IsDataLoss(DecodeHead(changed).status())) << bit;
    }
  }
  EXPECT_TRUE(DecodeHead(std::string(kChunkBytes, '\0')).value() == PublicationHead());
  EXPECT_TRUE(absl::IsDataLoss(DecodeHead("").status()));
  EXPECT_TRUE(absl::IsDataLoss(DecodeHead(EncodeHead({1, kRecordSlots})).status()));
}

}  // namespace
}  // namespace nram
