#include "tools/nram/checkpoint_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class CheckpointDirTest : public ::testing::Test {
 protected:
  CheckpointDirTest() : random_(TestSeed()) {
    const char* const given = getenv("TEST_TMPDIR");
    made_ = absl::StrCat(given == nullptr ? "/tmp" : given, "/checkpoints-XXXXXX");
    EXPECT_NE(mkdtemp(made_.data()), nullptr);
    directory_ = made_ + "/all";
    manifest_ = {"my/run%", 12, 3, 4, "{\"a\": \"\xC3\xBC\"}", {{"t", 3 * kMiB + 5 * kPageBytes}, {"p", kPageBytes}}};
    for (const auto& mapping : manifest_.mappings) data_.emplace_back(mapping.bytes);
    // Mostly holes.
    for (auto& data : data_) {
      for (uint64_t page = 0; page * kPageBytes < data.size(); ++page) {
        if (random_() % 8 == 0) data[page * kPageBytes + random_() % kPageBytes] = std::byte{1};
      }
    }
  }
  ~CheckpointDirTest() override { std::filesystem::remove_all(made_); }

  std::unique_ptr<CheckpointWriter> Create() {
    auto writer = CheckpointWriter::Create(directory_, manifest_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }
  absl::Span<std::byte> Block(size_t mapping, uint64_t block) {
    return absl::MakeSpan(data_[mapping])
        .subspan(block * kCheckpointBlockBytes, manifest_.BytesOfBlock(mapping, block));
  }
  // Writes blocks that were not there, at most `most`. Returns how many were written.
  int WriteBlocks(CheckpointWriter* writer, int most = 1000) {
    int written = 0;
    for (size_t mapping = 0; mapping < data_.size(); ++mapping) {
      for (uint64_t block = 0; block < manifest_.blocks(mapping); ++block) {
        if (writer->Has(mapping, block) || written == most) continue;
        EXPECT_TRUE(writer->Write(mapping, block, Block(mapping, block)).ok());
        ++written;
      }
    }
    return written;
  }
  void ExpectWhole() {
    auto reader = CheckpointReader::Open(path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->manifest() == manifest_);
    for (size_t mapping = 0; mapping < data_.size(); ++mapping) {
      for (uint64_t block = 0; block < manifest_.blocks(mapping); ++block) {
        std::vector<std::byte> back(manifest_.BytesOfBlock(mapping, block));
        const absl::Status status = (*reader)->Read(mapping, block, absl::MakeSpan(back));
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_EQ(memcmp(back.data(), Block(mapping, block).data(), back.size()), 0) << mapping << " " << block;
      }
    }
  }
  absl::Status OpenError() { return CheckpointReader::Open(path()).status(); }
  std::string path() const { return directory_ + "/my%2Frun%25-12"; }
  // Changes a byte of a file, or its length.
  void Change(const std::string& file, long offset) {
    std::fstream stream(path() + "/" + file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(offset);
    const int byte = stream.get();
    stream.seekp(offset);
    stream.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(stream.good()) << file;
  }

  std::mt19937_64 random_;
  std::string made_;
  std::string directory_;
  CheckpointManifest manifest_;
  std::vector<std::vector<std::byte>> data_;
};

TEST_F(CheckpointDirTest, WhatIsWrittenIsReadBack) {
  auto writer = Create();
  EXPECT_EQ(writer->path(), path());
  EXPECT_EQ(WriteBlocks(writer.get()), 5);
  EXPECT_TRUE(absl::IsNotFound(OpenError())) << OpenError();
  ASSERT_TRUE(writer->Finish().ok());
  ExpectWhole();
  EXPECT_TRUE(ReadFile(path() + "/manifest.json").ok());
  struct stat stat;
  ASSERT_EQ(::stat((path() + "/mapping-0.raw").c_str(), &stat), 0);
  EXPECT_LT(static_cast<uint64_t>(stat.st_blocks) * 512, data_[0].size() / 2) << "it is not sparse";
}

TEST_F(CheckpointDirTest, WhatWasBegunGoesOn) {
  WriteBlocks(Create().get(), 2);
  auto writer = Create();
  EXPECT_FALSE(writer->complete());
  const absl::Status early = writer->Finish();
  EXPECT_TRUE(absl::IsFailedPrecondition(early)) << early;
  EXPECT_EQ(WriteBlocks(writer.get(), 1), 1);
  writer.reset();
  // A file that has not reached the disk, or only in part, is written again.
  Change("mapping-0.raw", 17);
  Change("sums", 8 + 1);
  writer = Create();
  EXPECT_EQ(WriteBlocks(writer.get()), 4);
  ASSERT_TRUE(writer->Finish().ok());
  writer.reset();
  ExpectWhole();
  // Once it is whole, nothing is written.
  writer = Create();
  EXPECT_TRUE(writer->complete());
  EXPECT_EQ(WriteBlocks(writer.get()), 0);
  EXPECT_TRUE(writer->Finish().ok());
}

TEST_F(CheckpointDirTest, WhatWasBegunOfSomethingElseIsThrownAway) {
  WriteBlocks(Create().get(), 4);
  manifest_.step += 1;
  data_[0].assign(data_[0].size(), std::byte{0});
  auto writer = Create();
  EXPECT_EQ(WriteBlocks(writer.get()), 5);
  ASSERT_TRUE(writer->Finish().ok());
  writer.reset();
  ExpectWhole();
  manifest_.step += 1;
  EXPECT_TRUE(absl::IsAlreadyExists(CheckpointWriter::Create(directory_, manifest_).status()));
}

TEST_F(CheckpointDirTest, OneWritesItAtATime) {
  auto writer = Create();
  const absl::Status second = CheckpointWriter::Create(directory_, manifest_).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  WriteBlocks(writer.get());
  ASSERT_TRUE(writer->Finish().ok());
  ExpectWhole();
}

TEST_F(CheckpointDirTest, WhatWasChangedIsFound) {
  {
    auto writer = Create();
    WriteBlocks(writer.get());
    ASSERT_TRUE(writer->Finish().ok());
  }
  ASSERT_NO_FATAL_FAILURE(Change("mapping-0.raw", static_cast<long>(kMiB) + 3));
  auto reader = CheckpointReader::Open(path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (uint64_t block = 0; block < 4; ++block) {
    std::vector<std::byte> back(manifest_.BytesOfBlock(0, block));
    const absl::Status status = (*reader)->Read(0, block, absl::MakeSpan(back));
    EXPECT_EQ(status.ok(), block != 1) << status;
    if (block != 1) continue;
    EXPECT_THAT(status.ToString(), HasSubstr("mapping-0.raw: MiB 1 has a wrong checksum"));
  }
  ASSERT_EQ(truncate((path() + "/mapping-1.raw").c_str(), 5), 0);
  EXPECT_THAT(OpenError().ToString(), HasSubstr("has 5 bytes instead of 4096"));
  ASSERT_EQ(unlink((path() + "/mapping-1.raw").c_str()), 0);
  EXPECT_THAT(OpenError().ToString(), HasSubstr("is missing"));
  std::ofstream(path() + "/manifest.json") << "{\"format\": 1}";
  EXPECT_THAT(OpenError().ToString(), HasSubstr("manifest.json is damaged"));
}

TEST_F(CheckpointDirTest, ArraysAreKept) {
  manifest_.arrays = {{"u", ElementType::kFloat64, true, {512, 256}, 0, 4096},
                      {"n", ElementType::kInt64, false, {}, 1, 8}};
  auto writer = Create();
  WriteBlocks(writer.get());
  ASSERT_TRUE(writer->Finish().ok());
  writer.reset();
  ExpectWhole();
  EXPECT_TRUE(Create()->complete());
  // One that would go beyond its mapping is not believed.
  std::string text = ReadFile(path() + "/manifest.json").value();
  const size_t at = text.find("256");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 3, "999");
  std::ofstream(path() + "/manifest.json") << text;
  EXPECT_THAT(OpenError().ToString(), HasSubstr("manifest.json is damaged"));
}

TEST_F(CheckpointDirTest, WhatCannotBeWrittenIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(CheckpointWriter::Create(directory_, {}).status()));
  auto writer = Create();
  EXPECT_TRUE(absl::IsInvalidArgument(writer->Write(0, 0, Block(1, 0))));
  CheckpointManifest large = manifest_;
  large.mappings[0].bytes = kRegionBytesMax;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckpointWriter::Create(directory_, large).status()));
  CheckpointManifest long_name = manifest_;
  long_name.name = std::string(100, '/');
  EXPECT_THAT(CheckpointWriter::Create(directory_, long_name).status().ToString(), HasSubstr("a shorter name"));
  const absl::Status status = CheckpointWriter::Create("/dev/null/x", manifest_).status();
  EXPECT_THAT(status.ToString(), HasSubstr("make directory /dev/null/x"));
}

}  // namespace
}  // namespace nram
