#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/crc32c.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/host_memory.h"
#include "base/mapping.h"
#include "base/units.h"
#include "base/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ByteSizeTest, ReadsWhatPeopleWrite) {
  EXPECT_EQ(*ParseByteSize("0"), 0);
  EXPECT_EQ(*ParseByteSize("4096"), 4096);
  EXPECT_EQ(*ParseByteSize("4096B"), 4096);
  EXPECT_EQ(*ParseByteSize("64K"), 64 * kKiB);
  EXPECT_EQ(*ParseByteSize("64k"), 64 * kKiB);
  EXPECT_EQ(*ParseByteSize("64KiB"), 64 * kKiB);
  EXPECT_EQ(*ParseByteSize("1.5G"), 3 * kGiB / 2);
  EXPECT_EQ(*ParseByteSize("2TiB"), 2048 * kGiB);
}

TEST(ByteSizeTest, RefusesTheRest) {
  for (const char* bad : {"", "B", "iB", "K", "-1", "1X", "1.2.3G", "64KB", "5 G", "99999999999999999999", "16777216T",
                          "0x10", "nan", "inf", "1e5", "64iB"}) {
    EXPECT_FALSE(ParseByteSize(bad).ok()) << bad;
  }
  EXPECT_THAT(std::string(ParseByteSize("7Q").status().message()), HasSubstr("\"7Q\""));
}

TEST(ByteSizeTest, PrintsThreeDigits) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1536), "1.50 KiB");
  EXPECT_EQ(FormatByteSize(1023 * kMiB), "1.00 GiB");
  EXPECT_EQ(FormatByteSize(24 * kGiB), "24.0 GiB");
}

TEST(ChunkRangeTest, MasksFollowTheRange) {
  const ChunkRange range{6, 12};  // the last 2 chunks of page 0, page 1, 2 chunks of page 2
  EXPECT_EQ(range.pages(), 3);
  EXPECT_EQ(MaskOfPage(range, 0), 0xC0);
  EXPECT_EQ(MaskOfPage(range, 1), 0xFF);
  EXPECT_EQ(MaskOfPage(range, 2), 0x03);
  EXPECT_EQ(MaskOfPage(range, 3), 0x00);
}

TEST(IdTest, RoundTrips) {
  EXPECT_EQ(*ParseId(FormatId(0xc0ffee)), 0xc0ffee);
  EXPECT_EQ(*ParseId("c0ffee"), 0xc0ffee);
  EXPECT_FALSE(ParseId("0").ok());
  EXPECT_FALSE(ParseId("xyz").ok());
}

TEST(Crc32cTest, KnownVectors) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);
  const std::string zeros(32, '\0');
  EXPECT_EQ(Crc32c(0, zeros.data(), zeros.size()), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(Crc32c(0, "1234", 4), "56789", 5), 0xE3069283u);
}

TEST(UniqueFdTest, MoveAssignmentClosesTheOldOne) {
  UniqueFd a(open("/dev/null", O_RDONLY)), b(open("/dev/null", O_RDONLY));
  const int old = a.get();
  a = std::move(b);
  EXPECT_EQ(fcntl(old, F_GETFD), -1);
  EXPECT_GE(fcntl(a.get(), F_GETFD), 0);
}

TEST(MappingTest, IsAlignedZeroedAndMovable) {
  Mapping a = *Mapping::Anonymous(8192, 2 << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % (2 << 20), 0);
  EXPECT_EQ(a.data()[8191], std::byte{0});
  a = *Mapping::Anonymous(4096);
  EXPECT_EQ(a.size(), 4096);
}

class ArgsTest : public ::testing::Test {
 protected:
  ArgsTest() {
    args_.String("pool", &pool_);
    args_.Switch("json", &json_);
    args_.Integer("servers", 1, 64, &servers_);
    args_.ByteSize("donate", kMiB, kGiB, &donate_);
  }
  std::string Error(const std::vector<std::string>& args) {
    std::vector<std::string> rest;
    return std::string(args_.Parse(args, &rest).message());
  }
  std::string pool_;
  bool json_ = false;
  int64_t servers_ = 2;
  uint64_t donate_ = 0;
  ArgParser args_{"nram up"};
};

TEST_F(ArgsTest, Parses) {
  std::vector<std::string> rest;
  ASSERT_TRUE(args_.Parse({"--pool=a:1", "x", "--json", "--servers", "3", "--donate=2M", "--", "--y"}, &rest).ok());
  EXPECT_EQ(pool_, "a:1");
  EXPECT_TRUE(json_);
  EXPECT_EQ(servers_, 3);
  EXPECT_EQ(donate_, 2 * kMiB);
  EXPECT_EQ(rest, (std::vector<std::string>{"x", "--y"}));
}

TEST_F(ArgsTest, ShapesTellCompletionWhatAFlagTakes) {
  std::string when;
  args_.String("fast-wake", &when, {"WHEN", "", "auto on off"});
  const std::vector<FlagShape> shapes = args_.shapes();
  ASSERT_EQ(shapes.size(), args_.names().size());
  EXPECT_EQ(shapes[0].name, "pool");
  EXPECT_FALSE(shapes[0].is_switch);
  EXPECT_TRUE(shapes[1].is_switch);
  EXPECT_EQ(shapes.back().choices, "auto on off");
  EXPECT_THAT(args_.Table(22), Not(HasSubstr("fast-wake"))) << "a flag without a text";
}

TEST_F(ArgsTest, NamesWhatIsWrong) {
  EXPECT_THAT(Error({"--sevrers=3"}), HasSubstr("unknown flag --sevrers; did you mean --servers?"));
  EXPECT_THAT(Error({"-x"}), HasSubstr("unknown flag -x"));
  EXPECT_THAT(Error({"--servers=0"}), HasSubstr("from 1 to 64"));
  EXPECT_THAT(Error({"--donate=2G"}), HasSubstr("from 1.00 MiB to 1.00 GiB"));
  EXPECT_THAT(Error({"--json=yes"}), HasSubstr("takes no value"));
}

TEST_F(ArgsTest, RefusesRepeatsAndMissingValues) {
  EXPECT_THAT(Error({"--pool=a", "--pool=b"}), HasSubstr("given twice"));
  EXPECT_THAT(Error({"--json", "--no-json"}), HasSubstr("given twice"));
}

TEST_F(ArgsTest, MissingValue) { EXPECT_THAT(Error({"--pool"}), HasSubstr("needs a value")); }

TEST(ArgTableTest, ShowsWhatHasAText) {
  std::string pool, hidden;
  bool json = false;
  ArgParser args("nram test");
  args.String("pool", &pool, {"POOL", "which one;\nthe second line"});
  args.String("hidden", &hidden);
  args.Heading("\nHow");
  args.Switch("ignore-leading-blanks", &json, {"", "longer than the column"});
  EXPECT_EQ(args.Table(16),
            "  --pool=POOL   which one;\n"
            "                the second line\n"
            "\n"
            "How\n"
            "  --ignore-leading-blanks  longer than the column\n"
            "  --help        this text\n");
  EXPECT_THAT(args.names(), ::testing::ElementsAre("pool", "hidden", "ignore-leading-blanks"));
}

TEST(HostMemoryTest, ReadsThisHost) {
  const HostMemory memory = *ReadHostMemory();
  EXPECT_GT(memory.total_bytes, memory.available_bytes);
  EXPECT_GT(memory.available_bytes, 0);
  EXPECT_GT(ReadProcessMemory().resident_bytes, 0);
}

TEST(RoundTest, GoesToWholeUnits) {
  static_assert(RoundUp(0, 512) == 0 && RoundUp(1, 512) == 512 && RoundUp(512, 512) == 512);
  static_assert(RoundDown(511, 512) == 0 && RoundDown(513, 512) == 512);
}

TEST(NumberFieldTest, FindsTheWholeName) {
  const char* const text = "Swap: 1 kB\nSwapFree:       77 kB\ninactive_file 5\nNoNumber: max\n";
  EXPECT_EQ(NumberField(text, "SwapFree"), 77);
  EXPECT_EQ(NumberField(text, "Swap"), 1);
  EXPECT_EQ(NumberField(text, "inactive_file"), 5);
  EXPECT_EQ(NumberField(text, "inactive"), std::nullopt);
  EXPECT_EQ(NumberField(text, "NoNumber"), std::nullopt);
  EXPECT_EQ(NumberField("", "Swap"), std::nullopt);
}

TEST(FileTest, LinesNumbersAndDirectories) {
  const std::string directory = ::testing::TempDir() + "/read-file";
  ASSERT_TRUE(mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST);
  const std::string path = directory + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, "12\n").ok());
  EXPECT_EQ(ReadNumber(path), 12);
  EXPECT_EQ(ReadLine(path), "12");
  EXPECT_THAT(ListDirectory(directory), ::testing::ElementsAre("file"));
  ASSERT_TRUE(WriteFileAtomically(path, "max\nmin").ok());
  EXPECT_EQ(ReadNumber(path), std::nullopt);
  EXPECT_EQ(ReadLine(path), "max");
  unlink(path.c_str());
  EXPECT_EQ(ReadLine(path), "");
  EXPECT_EQ(ReadFile(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ListDirectory(path), ::testing::IsEmpty());
}

TEST(WriteFileTest, ErrorsNameTheFileThatWasAskedFor) {
  const std::string path = ::testing::TempDir() + "/no-such-directory/file";
  const absl::Status status = WriteFileAtomically(path, "text");
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_EQ(status.message(), "create " + path + ": No such file or directory");
}

TEST(WriteFileTest, FollowsNoLinkOfAnother) {
  const std::string directory = ::testing::TempDir() + "/write-file";
  ASSERT_TRUE(mkdir(directory.c_str(), 0755) == 0 || errno == EEXIST);
  const std::string victim = directory + "/victim";
  ASSERT_TRUE(WriteFileAtomically(victim, "dear").ok());
  // Links in place of the file itself, and of every name that an attacker may guess for the temporary file beside it.
  const std::string path = directory + "/pid";
  std::vector<std::string> links = {path};
  for (const char* suffix : {"", ".0", ".1"}) {
    links.push_back(path + ".new." + std::to_string(getpid()) + suffix);
  }
  for (const std::string& link : links) ASSERT_EQ(symlink(victim.c_str(), link.c_str()), 0) << link;
  ASSERT_TRUE(WriteFileAtomically(path, "1234").ok());
  EXPECT_EQ(*ReadFile(victim), "dear");
  EXPECT_EQ(*ReadFile(path), "1234");
  struct stat info;
  ASSERT_EQ(lstat(path.c_str(), &info), 0);
  EXPECT_TRUE(S_ISREG(info.st_mode));
  for (const std::string& link : links) unlink(link.c_str());
  unlink(victim.c_str());
}

TEST(HostMemoryTest, ACgroupLimitNarrowsIt) {
  const std::string root = ::testing::TempDir() + "/host";
  for (const char* dir : {"", "/proc", "/proc/self", "/sys", "/sys/fs", "/sys/fs/cgroup", "/sys/fs/cgroup/memory",
                          "/sys/fs/cgroup/memory/job"}) {
    mkdir((root + dir).c_str(), 0755);
  }
  const std::string group = root + "/sys/fs/cgroup/memory/job";
  ASSERT_TRUE(
      WriteFileAtomically(root + "/proc/meminfo", "MemTotal: 4096 kB\nMemFree: 2048 kB\nMemAvailable: 3072 kB\n").ok());
  ASSERT_TRUE(WriteFileAtomically(root + "/proc/self/cgroup", "4:memory:/job\n").ok());
  ASSERT_TRUE(WriteFileAtomically(group + "/memory.limit_in_bytes", "1048576\n").ok());
  ASSERT_TRUE(WriteFileAtomically(group + "/memory.usage_in_bytes", "524288\n").ok());
  ASSERT_TRUE(WriteFileAtomically(group + "/memory.stat", "cache 9\ninactive_file 4096\n").ok());
  const HostMemory memory = *ReadHostMemory(root);
  EXPECT_EQ(memory.total_bytes, 1048576);
  EXPECT_EQ(memory.available_bytes, 524288 + 4096);
  EXPECT_EQ(memory.idle_bytes, 524288);
  // The limit of a parent group counts, too.
  ASSERT_TRUE(WriteFileAtomically(root + "/proc/self/cgroup", "4:memory:/job/step/task\n").ok());
  EXPECT_EQ(ReadHostMemory(root)->total_bytes, 1048576);
  EXPECT_EQ(ReadHostMemory(root)->available_bytes, 524288 + 4096);
  EXPECT_EQ(ReadMachineMemory(root)->available_bytes, 3072 * kKiB);
}

TEST(Utf8Test, WhatIsNoCharacterIsAQuestionMark) {
  EXPECT_EQ(ToUtf8("/mnt/caf\xC3\xA9", 255), "/mnt/caf\xC3\xA9");
  EXPECT_EQ(ToUtf8("/mnt/caf\xE9", 255), "/mnt/caf?");
  EXPECT_EQ(ToUtf8("\xC0\xAF \xED\xA0\x80 \xF4\x90\x80\x80 \xFF", 255), "?? ??? ???? ?");
  EXPECT_EQ(ToUtf8("\xF0\x9F\x90\x8F", 255), "\xF0\x9F\x90\x8F");
  EXPECT_EQ(ToUtf8("\xD0\xB6\xD0\xB6", 3), "\xD0\xB6") << "cut between two";
  EXPECT_EQ(ToUtf8("\xD0\xB6\xD0", 255), "\xD0\xB6?");
}

TEST(PrintableTest, KeepsWhatPeopleCanRead) {
  for (const char* good : {"", "job 7/a\\b", "caf\xC3\xA9", "\xD0\xB6\xE6\xBC\xA2\xF0\x9F\x90\x8F", "\xC2\xA0", "~"}) {
    EXPECT_EQ(Printable(good, 255), good);
    EXPECT_TRUE(IsPrintable(good)) << good;
  }
}

TEST(PrintableTest, EscapesWhatATerminalWouldObey) {
  const std::vector<std::pair<absl::string_view, absl::string_view>> cases = {
      {"\x1B]0;owned\x07", "\\x1B]0;owned\\x07"},
      {"a\nI0101 forged", "a\\x0AI0101 forged"},
      {absl::string_view("a\0b", 3), "a\\x00b"},
      {"\x7F", "\\x7F"},
      {"\xC2\x9B"
       "2J",
       "\\xC2\\x9B2J"},  // a control sequence's begin in C1
      {"\xC2\x80\xC2\x9F", "\\xC2\\x80\\xC2\\x9F"},
      {"x\xE2\x80\xAEy", "x\\xE2\\x80\\xAEy"},  // text from the right to the left
      {"\xE2\x80\xAA", "\\xE2\\x80\\xAA"},
      {"\xE2\x81\xA6\xE2\x81\xA9", "\\xE2\\x81\\xA6\\xE2\\x81\\xA9"},
      {"\xE2\x80\xA8\xE2\x80\xA9", "\\xE2\\x80\\xA8\\xE2\\x80\\xA9"},
      {"caf\xE9", "caf\\xE9"},
      {"\xC0\x8A", "\\xC0\\x8A"},  // a newline, too long
      {"\xED\xA0\x80\xF4\x90\x80\x80", "\\xED\\xA0\\x80\\xF4\\x90\\x80\\x80"},
      {"\xD0", "\\xD0"},
  };
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(Printable(bytes, 255), text);
    EXPECT_FALSE(IsPrintable(bytes)) << text;
  }
}

TEST(PrintableTest, CutsBetweenCharactersAndNeverGrowsBeyondItsBound) {
  EXPECT_EQ(Printable("\xD0\xB6\xD0\xB6", 3), "\xD0\xB6");
  EXPECT_EQ(Printable("ab\x1B", 5), "ab");
  EXPECT_EQ(Printable("ab\x1B", 6), "ab\\x1B");
  EXPECT_EQ(Printable("a", 0), "");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string printed = Printable(std::string(1, static_cast<char>(byte)), 255);
    EXPECT_TRUE(IsPrintable(printed)) << byte;
    EXPECT_EQ(printed.size(), byte >= 0x20 && byte < 0x7F ? 1 : 4) << byte;
  }
}

}  // namespace
}  // namespace nram
