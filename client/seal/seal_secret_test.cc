#include "client/seal/seal_secret.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/seal/key_ring.h"
#include "client/seal/page_versions.h"
#include "client/seal/seal_manifest.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

class SealSecretTest : public ::testing::Test {
 protected:
  SealSecretTest() {
    const char* const given = getenv("TEST_TMPDIR");
    directory_ = absl::StrCat(given == nullptr ? "/tmp" : given, "/secret-XXXXXX");
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  std::unique_ptr<SealSecret> Make(const std::string& text) {
    auto secret = SealSecret::Read(Write("made", text));
    EXPECT_TRUE(secret.ok()) << secret.status();
    return *std::move(secret);
  }
  void ExpectRefused(const std::string& path, const std::string& why,
                     absl::StatusCode code = absl::StatusCode::kPermissionDenied) {
    const absl::Status status = SealSecret::Read(path).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("key file ", path)));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  }

  static std::string KeyOf(const SealSecret& secret, const OwnerSalt& salt, const std::string& purpose) {
    auto memory = KeyMemory::Make(SealKey::kBytes).value();
    const auto key =
        secret.DeriveAt(std::move(memory), 0, salt, {reinterpret_cast<const uint8_t*>(purpose.data()), purpose.size()});
    EXPECT_TRUE(key.ok()) << key.status();
    return std::string(reinterpret_cast<const char*>((*key)->data()), SealKey::kBytes);
  }

  std::string directory_;
};

const std::string kText(32, 's');

TEST_F(SealSecretTest, ReadsOnlyWhatNobodyElseMay) {
  EXPECT_TRUE(SealSecret::Read(Write("mine", kText)).ok());
  EXPECT_TRUE(SealSecret::Read(Write("to-be-kept", kText, 0400)).ok());
  ExpectRefused(Write("written-by-group", kText, 0620), "others may change it. Use chmod 600");
  // The command can be copied as it is.
  ExpectRefused(Write("written-by-all", kText, 0602), ". Use chmod 600 " + directory_ + "/written-by-all");
  if (geteuid() != 0) {  // of a file of root's the group may read, and here it may be on a tmpfs
    ExpectRefused(Write("read-by-group", kText, 0640), "others may read it. Use chmod 600");
    ExpectRefused(Write("read-by-all", kText, 0644), "chmod 600");
  }
}

TEST_F(SealSecretTest, TakesASecretOfAFileAlone) {
  EXPECT_TRUE(SealSecret::Read(Write("shortest", std::string(16, 's'))).ok());
  EXPECT_TRUE(SealSecret::Read(Write("longest", std::string(4096, 's'))).ok());
  constexpr auto kUnfit = absl::StatusCode::kInvalidArgument;
  ExpectRefused(Write("too-short", std::string(15, 's')), "has 15 bytes", kUnfit);
  ExpectRefused(Write("too-long", std::string(4097, 's')), "has 4097 bytes", kUnfit);
  ExpectRefused(directory_, "is not a regular file", kUnfit);
  const std::string fifo = directory_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ExpectRefused(fifo, "is not a regular file", kUnfit);
  const absl::Status none = SealSecret::Read(directory_ + "/none").status();
  EXPECT_TRUE(absl::IsNotFound(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("key file " + directory_ + "/none"));
  const std::string link = directory_ + "/link";
  ASSERT_EQ(symlink(Write("linked", kText).c_str(), link.c_str()), 0);
  EXPECT_TRUE(SealSecret::Read(link).ok());
}

TEST_F(SealSecretTest, DerivesTheSameFromTheSameAlone) {
  const auto secret = Make(kText);
  const OwnerSalt salt{1, 2, 3};
  const std::string key = KeyOf(*secret, salt, "purpose");
  EXPECT_EQ(KeyOf(*Make(kText), salt, "purpose"), key);
  EXPECT_NE(KeyOf(*Make(std::string(32, 't')), salt, "purpose"), key);
  EXPECT_NE(KeyOf(*Make(std::string(33, 's')), salt, "purpose"), key);
  EXPECT_NE(KeyOf(*secret, OwnerSalt{1, 2, 4}, "purpose"), key);
  EXPECT_NE(KeyOf(*secret, salt, "another"), key);
}

TEST_F(SealSecretTest, AChildHasNoSecret) {
  const auto secret = Make(kText);
  const pid_t child = fork();
  if (child == 0) {
    auto memory = KeyMemory::Make(SealKey::kBytes).value();
    _exit(absl::IsFailedPrecondition(secret->DeriveAt(std::move(memory), 0, {}, {}).status()) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

SealManifest Some() {
  return {.id = RegionId{42}, .name = "name", .size_bytes = 1 << 20, .copies = 2, .salts = {{1, 0, 7}, {2, 0, 8}}};
}

TEST_F(SealSecretTest, AManifestIsReadWithItsSecretAlone) {
  const auto secret = Make(kText);
  const std::string bytes = Some().Write(*secret).value();
  const SealManifest back = SealManifest::Read(*secret, bytes).value();
  EXPECT_TRUE(back.IsOfSame(Some()));
  EXPECT_EQ(back.salts, Some().salts);
  EXPECT_TRUE(absl::IsFailedPrecondition(SealManifest::Read(*Make(std::string(32, 't')), bytes).status()));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] ^= 1;
    EXPECT_FALSE(SealManifest::Read(*secret, changed).ok()) << at;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(SealManifest::Read(*secret, bytes.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(SealManifest::Read(*secret, bytes + '\0').ok());
  SealManifest longest = Some();
  longest.name = std::string(255, 'n');
  longest.salts.resize(SealManifest::kOwnersMax);
  EXPECT_LE(longest.Write(*secret)->size(), size_t{16} << 10);
}

TEST_F(SealSecretTest, OwnersOfAllServersCount) {
  SealManifest all = Some();
  SealManifest other = Some();
  other.salts = {{1, 0, 7}, {3, 0, 9}};
  all.AddOwnersOf(other);
  const std::vector<OwnerSalt> expected = {{1, 0, 7}, {2, 0, 8}, {3, 0, 9}};
  EXPECT_EQ(all.salts, expected);
  EXPECT_TRUE(all.HasOwner(3));
  EXPECT_FALSE(all.HasOwner(4));
}

TEST_F(SealSecretTest, EachOwnerHasAKeyOfItsOwn) {
  const auto secret = Make(kText);
  const auto ring = KeyRing::Derive(*secret, Some()).value();
  ASSERT_NE(ring->Find(1), nullptr);
  ASSERT_NE(ring->Find(2), nullptr);
  EXPECT_EQ(ring->Find(3), nullptr);
  EXPECT_EQ(ring->Find(0), nullptr);
  const auto bytes = [](const SealKey& key) {
    return std::string(reinterpret_cast<const char*>(key.data()), SealKey::kBytes);
  };
  EXPECT_NE(bytes(*ring->Find(1)), bytes(*ring->Find(2)));
  // By the region, too.
  SealManifest other = Some();
  other.id = RegionId{43};
  EXPECT_NE(bytes(*KeyRing::Derive(*secret, other).value()->Find(1)), bytes(*ring->Find(1)));
  other = Some();
  other.name = "other";
  EXPECT_NE(bytes(*KeyRing::Derive(*secret, other).value()->Find(1)), bytes(*ring->Find(1)));
  EXPECT_EQ(OwnerOf(FirstCounterOf(0xabcd)), 0xabcd);
  EXPECT_EQ(static_cast<uint32_t>(FirstCounterOf(0xabcd)), kFirstVersion);
}

TEST(OwnerCountersTest, AFormerOwnersPageIsNotTakenForAnOwnOne) {
  using Verdict = PageVersions::Verdict;
  PageVersions versions(kUnknownVersion, FirstCounterOf(2));
  const uint64_t counter = versions.TakeCounters(1);
  const uint64_t former = FirstCounterOf(1) + (counter - FirstCounterOf(2));
  EXPECT_EQ(versions.Check(0, former, /*settles=*/true), Verdict::kFits) << "nothing is known yet";
  versions.Stored(0, 1, counter);
  EXPECT_EQ(versions.Check(0, counter, /*settles=*/true), Verdict::kFits);
  EXPECT_EQ(versions.Check(0, former, /*settles=*/true), Verdict::kOther);
  EXPECT_EQ(versions.Check(1, former, /*settles=*/true), Verdict::kFits);
}

}  // namespace
}  // namespace nram
