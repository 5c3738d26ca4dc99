// Regions that outlive their process and are sealed, over real sockets: their key files, their owners one after the
// other, and the false reports of servers.

#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/pool/pool.h"
#include "client/seal/seal_manifest.h"
#include "client/seal/seal_secret.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr const char* kName = "kept";
constexpr int kPages = 300;

class SealedNamedTest : public ::testing::TestWithParam<int> {
 protected:
  SealedNamedTest() {
    const char* const given = getenv("TEST_TMPDIR");
    directory_ = absl::StrCat(given == nullptr ? "/tmp" : given, "/keys-XXXXXX");
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    key_file_ = WriteKey("key", 's');
  }
  std::string WriteKey(const std::string& name, char byte) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << std::string(32, byte);
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    return path;
  }
  // Another client each time.
  std::unique_ptr<Pool> Open(const std::string& key_file, Seal seal = Seal::kAuto) {
    PoolOptions options = servers_.Options();
    options.key_file = key_file;
    options.seal = seal;
    return TestPool::Open(options);
  }
  std::unique_ptr<Pool> Open() { return Open(key_file_); }
  static int copies() { return GetParam(); }
  static RegionOptions Named(Seal seal = Seal::kAuto) {
    return {.gc = false, .copies = copies(), .seal = seal, .name = kName, .size_bytes = 4 * kMiB};
  }
  // Makes a region with data and without an owner.
  void MakeLeft(const std::string& data) {
    auto pool = Open();
    auto region = pool->CreateRegion(Named());
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_TRUE((*region)->sealed());
    ASSERT_TRUE((*region)->Write(0, Bytes(data)).ok());
    id_ = (*region)->id();
  }
  static absl::Status AttachError(Pool* pool, AttachMode mode = AttachMode::kReadOnly) {
    return pool->AttachRegion(kName, mode).status();
  }
  RegionManifest ManifestAt(int server) {
    PageStore& store = servers_.server(server).store();
    return store.Attach(nullptr, {store.FindByName(0, kName), 0}, 0, /*force=*/false).value().manifest;
  }
  // Gives the server a new owner and this manifest. No client has written such a manifest.
  void Tamper(int server, const std::string& seal) {
    PageStore& store = servers_.server(server).store();
    const StoredKey key{store.FindByName(0, kName), 0};
    const auto now = store.Attach(nullptr, key, 0, /*force=*/false).value();
    // A lease that ends at once.
    auto control = ControlClient::Create(servers_.Options().servers[static_cast<size_t>(server)]);
    const LeaseId lease{4711};
    const int64_t deadline_ns = DeadlineAfterMs(60'000);
    ASSERT_TRUE(control->GrantLease(lease, "tampers", 0, deadline_ns).ok());
    AttachRegionArgs args{lease, key.id, "", false, Epoch{now.epoch + 1}, /*force=*/true, seal};
    const absl::Status status = control->AttachRegion(args, deadline_ns).status();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(control->EndLease(lease, deadline_ns).ok());
  }
  void TamperAll(const std::string& seal) {
    for (int server = 0; server < 2; ++server) ASSERT_NO_FATAL_FAILURE(Tamper(server, seal));
  }
  std::vector<OwnerSalt> SaltsAt(int server) {
    const auto secret = SealSecret::Read(key_file_).value();
    return SealManifest::Read(*secret, ManifestAt(server).seal).value().salts;
  }
  // Every chunk that a server stores of the region's first spans.
  std::string StoredAt(int server) {
    std::string stored;
    for (uint64_t page = 0; page < 2 * kPagesPerSpan; page += kPagesPerMessage) {
      const ChunkRange range{page * kChunksPerPage, kChunksPerMessage};
      (void)servers_.server(server).store().ReadInPlace(
          {.region = {id_, 0}, .range = range, .generation = std::nullopt}, [&](const PageStore::Stored& at) {
            for (const iovec& piece : at.chunks) stored.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
          });
    }
    return stored;
  }

  TestPool servers_{2, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended};
  std::string directory_;
  std::string key_file_;
  RegionId id_{};
};

INSTANTIATE_TEST_SUITE_P(Copies, SealedNamedTest, ::testing::Values(1, 2),
                         [](const auto& copies) { return absl::StrCat("Copies", copies.param); });

TEST_P(SealedNamedTest, WhoeverHasTheKeyFileReadsItBackAndDonorsDoNot) {
  const std::string canary = "the canary that nobody may see!!";
  std::string data;
  while (data.size() < kPages * kPageBytes) data += canary;
  ASSERT_NO_FATAL_FAILURE(MakeLeft(data));
  const std::string stored = StoredAt(0) + StoredAt(1);
  EXPECT_EQ(stored.size(), data.size() * static_cast<size_t>(copies()));
  EXPECT_EQ(stored.find(canary), std::string::npos);
  for (const AttachMode mode : {AttachMode::kReadOnly, AttachMode::kOwner, AttachMode::kTakeOver}) {
    auto pool = Open();
    auto region = pool->AttachRegion(kName, mode);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_TRUE((*region)->sealed());
    EXPECT_EQ((*region)->size_bytes(), 4 * kMiB);
    const auto back = Read(region->get(), 0, data.size());
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == data);
  }
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kOwner).value();
  ASSERT_TRUE(region->Destroy().ok());
  EXPECT_TRUE(absl::IsNotFound(AttachError(pool.get())));
}

TEST_P(SealedNamedTest, TheLastOfTenOwnersReadsWhatAllHaveWritten) {
  constexpr int kOwners = 10;
  std::string expected(kPages * kPageBytes, '\0');
  ASSERT_NO_FATAL_FAILURE(MakeLeft(expected.replace(0, kPageBytes, Pattern(kPageBytes, 99))));
  for (int owner = 0; owner < kOwners; ++owner) {
    auto pool = Open();
    auto region = pool->AttachRegion(kName, AttachMode::kOwner);
    ASSERT_TRUE(region.ok()) << owner << ": " << region.status();
    for (int page = owner; page < kPages; page += 3 * (owner + 1)) {
      const std::string bytes = Pattern(kPageBytes, static_cast<uint64_t>(1000 * owner + page));
      const uint64_t at = static_cast<uint64_t>(page) * kPageBytes;
      ASSERT_TRUE((*region)->Write(at, Bytes(bytes)).ok());
      expected.replace(at, kPageBytes, bytes);
    }
    const auto back = Read(region->get(), 0, expected.size());
    ASSERT_TRUE(back.ok()) << owner << ": " << back.status();
    ASSERT_TRUE(*back == expected) << owner;
  }
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kReadOnly).value();
  const auto back = Read(region.get(), 0, expected.size());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == expected);
  // No owner has sealed with the key or the number of another one.
  const std::vector<OwnerSalt> salts = SaltsAt(0);
  EXPECT_EQ(salts.size(), size_t{kOwners} + 1);
  EXPECT_EQ(SaltsAt(1), salts);
  std::set<OwnerNumber> numbers;
  for (const OwnerSalt& salt : salts) numbers.insert(OwnerOf(salt));
  EXPECT_EQ(numbers.size(), salts.size());
}

TEST_P(SealedNamedTest, WithoutItsKeyFileItIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeLeft(Pattern(kPageBytes, 1)));
  for (const AttachMode mode : {AttachMode::kReadOnly, AttachMode::kOwner, AttachMode::kTakeOver}) {
    const absl::Status none = AttachError(Open("").get(), mode);
    EXPECT_TRUE(absl::IsFailedPrecondition(none)) << none;
    EXPECT_THAT(std::string(none.message()), HasSubstr("NRAM_KEY_FILE"));
    const absl::Status other = AttachError(Open(WriteKey("other", 't')).get(), mode);
    EXPECT_TRUE(absl::IsFailedPrecondition(other)) << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr("is not the one that the region was made with"));
  }
  // Nothing has changed.
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kOwner);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 1));
}

TEST_P(SealedNamedTest, AKeyFileThatIsNotThereIsAnErrorOfThePool) {
  PoolOptions options = servers_.Options();
  options.key_file = directory_ + "/none";
  const absl::Status status = Pool::Open(options).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(options.key_file));
}

TEST_P(SealedNamedTest, SealedNeedsAKeyFileAndPlainMustBeAskedFor) {
  auto without = Open("");
  const absl::Status status = without->CreateRegion(Named(Seal::kYes)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("NRAM_KEY_FILE"));
  EXPECT_FALSE(Open("", Seal::kYes)->CreateRegion(Named()).ok());
  {
    auto region = without->CreateRegion(Named());
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_FALSE((*region)->sealed());
    ASSERT_TRUE((*region)->Write(0, Bytes(Pattern(kPageBytes, 2))).ok());
  }
  without = nullptr;
  // A server that conceals the seal would look like this.
  const absl::Status refused = AttachError(Open().get());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("NRAM_SEAL=0"));
  auto pool = Open(key_file_, Seal::kNo);
  auto region = pool->AttachRegion(kName, AttachMode::kOwner);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_FALSE((*region)->sealed());
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 2));
  ASSERT_TRUE((*region)->Destroy().ok());
  auto plain = pool->CreateRegion(Named());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE((*plain)->sealed());
}

TEST_P(SealedNamedTest, AReaderIsToldToAttachAgainWhenANewOwnerHasWritten) {
  ASSERT_NO_FATAL_FAILURE(MakeLeft(Pattern(2 * kPageBytes, 3)));
  auto reading = Open();
  auto reader = reading->AttachRegion(kName, AttachMode::kReadOnly).value();
  EXPECT_TRUE(Read(reader.get(), 0, 2 * kPageBytes).value() == Pattern(2 * kPageBytes, 3));
  auto owning = Open();
  auto owner = owning->AttachRegion(kName, AttachMode::kOwner).value();
  ASSERT_TRUE(owner->Write(0, Bytes(Pattern(kPageBytes, 4))).ok());
  const absl::Status status = Read(reader.get(), 0, kPageBytes).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("attach it again"));
  if (copies() == 1) {
    EXPECT_TRUE(Read(reader.get(), kPageBytes, kPageBytes).value() == Pattern(2 * kPageBytes, 3).substr(kPageBytes));
  }
  reader = reading->AttachRegion(kName, AttachMode::kReadOnly).value();
  EXPECT_TRUE(Read(reader.get(), 0, kPageBytes).value() == Pattern(kPageBytes, 4));
  // Data that the same owner writes from now on is read.
  ASSERT_TRUE(owner->Write(0, Bytes(Pattern(kPageBytes, 5))).ok());
  EXPECT_TRUE(Read(reader.get(), 0, kPageBytes).value() == Pattern(kPageBytes, 5));
}

TEST_P(SealedNamedTest, AnOldManifestShowsNothingWrong) {
  ASSERT_NO_FATAL_FAILURE(MakeLeft(Pattern(2 * kPageBytes, 6)));
  const std::string old = ManifestAt(0).seal;
  {
    auto pool = Open();
    auto region = pool->AttachRegion(kName, AttachMode::kOwner).value();
    ASSERT_TRUE(region->Write(0, Bytes(Pattern(kPageBytes, 7))).ok());
  }
  // On one of two servers the manifest does no harm.
  ASSERT_NO_FATAL_FAILURE(Tamper(0, old));
  {
    auto pool = Open();
    auto region = pool->AttachRegion(kName, AttachMode::kOwner);
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 7));
    EXPECT_EQ(SaltsAt(0).size(), 3u);
  }
  ASSERT_NO_FATAL_FAILURE(TamperAll(old));
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kOwner);
  ASSERT_TRUE(region.ok()) << region.status();
  const absl::Status status = Read(region->get(), 0, kPageBytes).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  // Data that was sealed by an owner in the list can be read.
  EXPECT_TRUE(Read(region->get(), kPageBytes, kPageBytes).value() == Pattern(2 * kPageBytes, 6).substr(kPageBytes));
  // No owner seals with another one's key, even if servers forget it.
  ASSERT_TRUE((*region)->Write(0, Bytes(Pattern(kPageBytes, 8))).ok());
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 8));
}

TEST_P(SealedNamedTest, AManifestThatWasChangedOrIsAnothersIsRefused) {
  ASSERT_NO_FATAL_FAILURE(MakeLeft(Pattern(kPageBytes, 9)));
  const std::string good = ManifestAt(0).seal;
  const auto secret = SealSecret::Read(key_file_).value();
  std::string changed = good;
  changed[20] ^= 1;
  SealManifest other = SealManifest::Read(*secret, good).value();
  other.id = RegionId{Raw(id_) + 1};
  SealManifest larger = SealManifest::Read(*secret, good).value();
  larger.size_bytes *= 2;
  const struct {
    std::string seal;
    absl::StatusCode code;
  } lies[] = {{changed, absl::StatusCode::kFailedPrecondition},
              {other.Write(*secret).value(), absl::StatusCode::kDataLoss},
              {larger.Write(*secret).value(), absl::StatusCode::kDataLoss}};
  for (const auto& lie : lies) {
    ASSERT_NO_FATAL_FAILURE(Tamper(1, lie.seal));
    for (const AttachMode mode : {AttachMode::kReadOnly, AttachMode::kTakeOver}) {
      EXPECT_EQ(AttachError(Open().get(), mode).code(), lie.code);
    }
  }
  ASSERT_NO_FATAL_FAILURE(Tamper(1, good));
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kTakeOver);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 9));
}

// Two clients that take it over at once may each reach one server. Both fail, and no client must be locked out by that.
TEST_P(SealedNamedTest, ListsOfOwnersThatWentApartComeTogether) {
  ASSERT_NO_FATAL_FAILURE(MakeLeft(Pattern(kPageBytes, 10)));
  const auto secret = SealSecret::Read(key_file_).value();
  for (int server = 0; server < 2; ++server) {
    SealManifest apart = SealManifest::Read(*secret, ManifestAt(server).seal).value();
    apart.salts.push_back({static_cast<uint8_t>(apart.salts[0][0] + 1), 0, static_cast<uint8_t>(server)});
    ASSERT_NO_FATAL_FAILURE(Tamper(server, apart.Write(*secret).value()));
  }
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kOwner);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 10));
  ASSERT_TRUE((*region)->Write(0, Bytes(Pattern(kPageBytes, 11))).ok());
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 11));
  EXPECT_EQ(SaltsAt(0).size(), 4u);
  EXPECT_EQ(SaltsAt(1), SaltsAt(0));
}

TEST_P(SealedNamedTest, AnOwnerThatDiesLeavesWhatItHasWritten) {
  auto dying = Open();
  auto lost = dying->CreateRegion(Named()).value();
  ASSERT_TRUE(lost->Write(0, Bytes(Pattern(kPageBytes, 12))).ok());
  // The owner has not left the region, and goes on.
  auto pool = Open();
  auto region = pool->AttachRegion(kName, AttachMode::kTakeOver);
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 12));
  EXPECT_FALSE(lost->Write(0, Bytes(Pattern(kPageBytes, 13))).ok());
  EXPECT_TRUE(Read(region->get(), 0, kPageBytes).value() == Pattern(kPageBytes, 12));
}

}  // namespace
}  // namespace nram
