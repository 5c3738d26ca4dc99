#include "client/seal/page_cipher.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "client/seal/seal_key.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr SealPlace kPlace{.number = 7, .region = RegionId{42}, .page = 3};

class PageCipherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < page_.size(); ++i) page_[i] = static_cast<std::byte>(i * 7 + i / 256);
    ASSERT_TRUE(cipher_.BeginSealing(*key_));
    ASSERT_TRUE(cipher_.Seal(kPlace, 2, page_.data(), sealed_.data(), &seal_));
  }
  bool Opens(const SealPlace& place, const PageSeal& seal, std::vector<std::byte> bytes) {
    EXPECT_TRUE(cipher_.BeginOpening(*key_));
    const bool opened = cipher_.Open(place, seal, bytes.data());
    EXPECT_TRUE(opened ? bytes == page_ : bytes == std::vector<std::byte>(kPageBytes)) << "neither the page nor zeros";
    return opened;
  }

  const std::unique_ptr<SealKey> key_ = SealKey::Random().value();
  PageCipher cipher_;
  std::vector<std::byte> page_ = std::vector<std::byte>(kPageBytes);
  std::vector<std::byte> sealed_ = std::vector<std::byte>(kPageBytes);
  PageSeal seal_;
};

TEST_F(PageCipherTest, OpensWhatWasSealedAndNothingElse) {
  EXPECT_NE(memcmp(sealed_.data(), page_.data(), 64), 0);
  EXPECT_TRUE(Opens(kPlace, seal_, sealed_));
  SealPlace other = kPlace;
  other.number = 8;
  EXPECT_FALSE(Opens(other, seal_, sealed_)) << "another region's number";
  other = kPlace;
  other.region = RegionId{43};
  EXPECT_FALSE(Opens(other, seal_, sealed_)) << "another region";
  other = kPlace;
  other.page = 4;
  EXPECT_FALSE(Opens(other, seal_, sealed_)) << "another page";
  PageSeal changed = seal_;
  changed.counter[0] = 3;
  EXPECT_FALSE(Opens(kPlace, changed, sealed_)) << "another counter";
  for (const size_t at : {size_t{0}, sizeof(PageSeal::tag) - 1}) {
    changed = seal_;
    changed.tag[at] ^= 1;
    EXPECT_FALSE(Opens(kPlace, changed, sealed_));
  }
  for (const size_t at : {size_t{0}, kPageBytes / 2, kPageBytes - 1}) {
    std::vector<std::byte> damaged = sealed_;
    damaged[at] ^= std::byte{0x80};
    EXPECT_FALSE(Opens(kPlace, seal_, damaged));
  }
  EXPECT_TRUE(Opens(kPlace, seal_, sealed_)) << "a failure leaves the cipher as it was";
}

TEST_F(PageCipherTest, EachCounterGivesAnotherCiphertext) {
  std::set<std::string> seen;
  for (uint64_t counter = 2; counter < 50; ++counter) {
    ASSERT_TRUE(cipher_.BeginSealing(*key_));
    ASSERT_TRUE(cipher_.Seal(kPlace, counter, page_.data(), sealed_.data(), &seal_));
    EXPECT_TRUE(seen.insert({reinterpret_cast<const char*>(sealed_.data()), 32}).second);
    EXPECT_TRUE(Opens(kPlace, seal_, sealed_));
  }
}

TEST_F(PageCipherTest, SealsInPlace) {
  std::vector<std::byte> in_place = page_;
  PageSeal seal;
  ASSERT_TRUE(cipher_.Seal(kPlace, 2, in_place.data(), in_place.data(), &seal));
  EXPECT_TRUE(in_place == sealed_);
  EXPECT_TRUE(seal == seal_);
}

TEST_F(PageCipherTest, AnotherKeyOpensNothing) {
  const auto other_key = SealKey::Random().value();
  PageCipher other;
  ASSERT_TRUE(other.BeginOpening(*other_key));
  std::vector<std::byte> bytes = sealed_;
  EXPECT_FALSE(other.Open(kPlace, seal_, bytes.data()));
}

TEST_F(PageCipherTest, AfterEndTheContextHasNoKey) {
  cipher_.End();
  std::vector<std::byte> bytes = sealed_;
  EXPECT_FALSE(cipher_.Open(kPlace, seal_, bytes.data()));
  EXPECT_TRUE(Opens(kPlace, seal_, sealed_));
}

TEST_F(PageCipherTest, AChildHasNoKey) {
  cipher_.End();
  const pid_t child = fork();
  if (child == 0) {
    const bool has_some = key_->is_there() || cipher_.BeginSealing(*key_);
    bool is_zero = true;
    for (size_t i = 0; i < SealKey::kBytes; ++i) is_zero = is_zero && key_->data()[i] == 0;
    _exit(has_some || !is_zero ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(cipher_.BeginSealing(*key_));
  EXPECT_TRUE(Opens(kPlace, seal_, sealed_));
}

TEST_F(PageCipherTest, TheKeyIsLockedAndInNoCoreDump) {
  // The mapping of the key's page, by the kernel's own flags.
  const std::string maps = ReadFile("/proc/self/smaps").value();
  char range[64];
  const auto at = reinterpret_cast<uintptr_t>(key_->data());
  snprintf(range, sizeof range, "%lx-", static_cast<unsigned long>(at));
  const size_t found = maps.find(range);
  ASSERT_NE(found, std::string::npos);
  const size_t flags = maps.find("VmFlags:", found);
  const std::string line = maps.substr(flags, maps.find('\n', flags) - flags);
  EXPECT_NE(line.find(" lo"), std::string::npos) << line;
  EXPECT_NE(line.find(" dd"), std::string::npos) << line;
  EXPECT_NE(line.find(" wf"), std::string::npos) << line;
}

TEST(SealKeyTest, DerivedKeysDependOnAllThatTheyAreOf) {
  const auto derive = [](const std::string& secret, const std::string& salt, const std::string& purpose) {
    const auto bytes = [](const std::string& text) {
      return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    };
    const auto key = SealKey::Derive(bytes(secret), bytes(salt), bytes(purpose)).value();
    return std::string(reinterpret_cast<const char*>(key->data()), SealKey::kBytes);
  };
  // RFC 5869, test case 1, the first 32 bytes of its output.
  EXPECT_EQ(
      derive(std::string(22, '\x0b'), std::string("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c", 13),
             "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9"),
      std::string("\x3c\xb2\x5f\x25\xfa\xac\xd5\x7a\x90\x43\x4f\x64\xd0\x36\x2f\x2a\x2d\x2d\x0a\x90\xcf\x1a\x5a\x4c"
                  "\x5d\xb0\x2d\x56\xec\xc4\xc5\xbf",
                  32));
  const std::string one = derive("secret", "salt", "purpose");
  EXPECT_EQ(derive("secret", "salt", "purpose"), one);
  EXPECT_NE(derive("Secret", "salt", "purpose"), one);
  EXPECT_NE(derive("secret", "Salt", "purpose"), one);
  EXPECT_NE(derive("secret", "salt", "Purpose"), one);
}

}  // namespace
}  // namespace nram
