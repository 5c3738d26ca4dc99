// The external sort against sort(1): the same bytes out for any input.

#include "sort/external_sort.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// The sanitizers are slow, and see the same code in each round.
#if defined(ABSL_HAVE_THREAD_SANITIZER)
constexpr int kRounds = 5;
#elif defined(ABSL_HAVE_ADDRESS_SANITIZER)
constexpr int kRounds = 10;
#else
constexpr int kRounds = 40;
#endif

class ExternalSortTest : public testing::Test {
 protected:
  ExternalSortTest() : random_(TestSeed()) {
    char name[] = "/tmp/nram-sort-test-XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~ExternalSortTest() override { (void)!system(absl::StrCat("rm -r ", directory_).c_str()); }

  std::string Path(const std::string& name) const { return absl::StrCat(directory_, "/", name); }
  void Put(const std::string& name, const std::string& text) const {
    const int fd = open(Path(name).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0644);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    close(fd);
  }

  // Options for little memory, so that little input makes many runs and several passes.
  SortOptions Options() const {
    SortOptions options;
    options.inputs = {Path("in")};
    options.output = Path("out");
    options.memory_bytes = SortOptions::kMemoryMin;
    options.merge_block_bytes = 64 << 10;
    options.open_scratch = [this] { return OpenFileScratch(directory_); };
    return options;
  }

  // Sorts "in" both ways, with `flags` for sort(1); the report.
  SortReport Compare(const SortOptions& options, const std::string& flags) {
    const std::string command =
        absl::StrCat("LC_ALL=C sort ", flags, " -o ", Path("expected"), " ", absl::StrJoin(options.inputs, " "));
    EXPECT_EQ(system(command.c_str()), 0) << command;
    const auto report = ExternalSort(options);
    EXPECT_TRUE(report.ok()) << report.status();
    // Not EXPECT_EQ: a failure would print megabytes.
    EXPECT_TRUE(*ReadFile(Path("out")) == *ReadFile(Path("expected"))) << command;
    return report.ok() ? *report : SortReport();
  }

  // Lines of words, numbers and blanks that often are equal in part.
  std::string RandomLines(size_t bytes) {
    static const char* const kWords[] = {"a",         "b",
                                         "ab",        "Ab",
                                         "aB",        "B",
                                         "",          "abcdefgh",
                                         "abcdefghi", "-1",
                                         "-12",       "0.5",
                                         "-0.5",      "00012",
                                         "12.30",     "12.3",
                                         "1e3",       "999",
                                         " ",         "\t",
                                         ",",         ",",
                                         "\x80\xff",  "-",
                                         "-0",        "123456789012345678",
                                         ".5",        "  7",
                                         "z",         "JAN",
                                         "feb",       " Dec",
                                         "sept",      "2K",
                                         "2k",        "3m",
                                         "-4G",       "0K",
                                         "1.5T",      "5.K",
                                         "inf",       "-INF",
                                         "0x1F",      "+3",
                                         "1.10",      "1.9",
                                         "a.c",       "a.tar.gz",
                                         "a-1.2",     "a-1.10",
                                         "~",         "v01",
                                         "\x01",      "#"};
    std::string text;
    while (text.size() < bytes) {
      for (uint64_t words = random_() % 6; words > 0; --words) {
        absl::StrAppend(&text, kWords[random_() % std::size(kWords)]);
        if (random_() % 2 == 0) absl::StrAppend(&text, random_() % 3 == 0 ? "," : " ");
      }
      text += '\n';
    }
    if (random_() % 2 == 0) text.pop_back();  // no final newline
    return text;
  }

  std::mt19937_64 random_;
  std::string directory_;
};

TEST_F(ExternalSortTest, AdversarialInputs) {
  const std::vector<std::pair<std::string, std::function<std::string()>>> inputs = {
      {"empty", [] { return ""; }},
      {"one newline", [] { return "\n"; }},
      {"one line", [] { return "x\n"; }},
      {"one line without an end", [] { return "x"; }},
      {"empty lines", [] { return std::string(300'000, '\n'); }},
      {"two-byte lines",
       [&] {
         std::string text;
         for (int i = 0; i < 400'000; ++i) text += absl::StrCat(random_() % 10, "\n");
         return text;
       }},
      {"all equal",
       [] {
         std::string text;
         for (int i = 0; i < 60'000; ++i) text += "the same line again and again\n";
         return text;
       }},
      {"sorted",
       [] {
         std::string text;
         for (int i = 0; i < 200'000; ++i) absl::StrAppend(&text, 1'000'000 + i, "\n");
         return text;
       }},
      {"sorted backwards",
       [] {
         std::string text;
         for (int i = 0; i < 200'000; ++i) absl::StrAppend(&text, 9'000'000 - i, "\n");
         return text;
       }},
      {"one prefix",
       [&] {
         std::string text;
         for (int i = 0; i < 50'000; ++i) absl::StrAppend(&text, std::string(60, 'p'), random_() % 100'000, "\n");
         return text;
       }},
      {"binary",
       [&] {
         std::string text(3'000'000, '\0');
         for (char& c : text) c = static_cast<char>(random_());
         return text;
       }},
      {"zeros and ends",
       [&] {
         std::string text(1'500'000, '\0');
         for (char& c : text) c = random_() % 3 == 0 ? '\n' : '\0';
         return text;
       }},
      {"long lines among short ones",
       [&] {
         std::string text;
         for (int i = 0; i < 60; ++i) {
           absl::StrAppend(&text, random_() % 1000, std::string(random_() % 90'000, 'l'), "\n", random_() % 1000, "\n");
         }
         return text;
       }},
  };
  for (const auto& [name, make] : inputs) {
    SCOPED_TRACE(name);
    Put("in", make());
    Compare(Options(), "");
  }
}

TEST_F(ExternalSortTest, ManyPassesMergeEverything) {
  Put("in", RandomLines(12'000'000));
  SortOptions options = Options();
  const SortReport report = Compare(options, "");
  EXPECT_GT(report.runs, 12u);
  EXPECT_GT(report.passes, 1u);
  EXPECT_EQ(report.input_bytes, ReadFile(Path("in"))->size());
  // A file that fits into memory makes no run.
  options.memory_bytes = 128 << 20;
  options.open_scratch = [] { return absl::InternalError("nobody asked for it"); };
  EXPECT_EQ(Compare(options, "").runs, 0u);
}

// A scratch that counts its blocks.
class CountedScratch : public Scratch {
 public:
  CountedScratch(std::unique_ptr<Scratch> real, uint64_t* peak_bytes)
      : real_(std::move(real)), peak_bytes_(peak_bytes) {}
  absl::Status Reserve(uint64_t bytes) override { return real_->Reserve(bytes); }
  std::unique_ptr<Transfer> NewTransfer() override {
    return std::make_unique<CountedTransfer>(real_->NewTransfer(), this);
  }
  absl::Status Discard(uint64_t offset, uint64_t bytes, Room room) override {
    MutexLock lock(&mu_);
    for (uint64_t at = offset; at < offset + bytes; at += kBlockBytes) EXPECT_EQ(blocks_.erase(at), 1u);
    // Once the output is written, the room is needed no more.
    if (room == Room::kFree) freed_ = true;
    return real_->Discard(offset, bytes, room);
  }

 private:
  struct CountedTransfer : public Transfer {
    CountedTransfer(std::unique_ptr<Transfer> real, CountedScratch* scratch)
        : real(std::move(real)), scratch(scratch) {}
    void StartRead(uint64_t offset, absl::Span<char> to) override { real->StartRead(offset, to); }
    void StartWrite(uint64_t offset, absl::Span<const char> from) override {
      MutexLock lock(&scratch->mu_);
      EXPECT_FALSE(scratch->freed_);
      for (uint64_t at = offset; at < offset + from.size(); at += kBlockBytes) scratch->blocks_.insert(at);
      *scratch->peak_bytes_ = std::max(*scratch->peak_bytes_, scratch->blocks_.size() * kBlockBytes);
      real->StartWrite(offset, from);
    }
    absl::Status Wait() override { return real->Wait(); }
    const std::unique_ptr<Transfer> real;
    CountedScratch* const scratch;
  };

  const std::unique_ptr<Scratch> real_;
  Mutex mu_;
  uint64_t* const peak_bytes_;
  std::set<uint64_t> blocks_ ABSL_GUARDED_BY(mu_);
  bool freed_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(ExternalSortTest, FurtherPassesTakeLittleMoreScratch) {
  Put("in", RandomLines(12'000'000));
  SortOptions options = Options();
  uint64_t peak_bytes = 0;
  options.open_scratch = [&]() -> absl::StatusOr<std::unique_ptr<Scratch>> {
    return std::make_unique<CountedScratch>(*OpenFileScratch(directory_), &peak_bytes);
  };
  const SortReport report = Compare(options, "");
  EXPECT_GT(report.passes, 1u);
  EXPECT_GE(peak_bytes, report.input_bytes);
  EXPECT_LE(peak_bytes, report.input_bytes + report.input_bytes / 16 + options.memory_bytes);
}

TEST_F(ExternalSortTest, ProgressIsOfWhatIsMerged) {
  // Nearly none of it is written.
  std::string text;
  for (int i = 0; i < 600'000; ++i) absl::StrAppend(&text, 100'000 + random_() % 100'000, std::string(40, 'x'), "\n");
  Put("in", text);
  SortOptions options = Options();
  options.memory_bytes *= 8;  // one pass
  options.order.unique = true;
  int calls = 0;
  options.on_progress = [&](const SortProgress& progress) { calls += progress.phase == SortPhase::kWriting; };
  const SortReport report = Compare(options, "-u");
  EXPECT_EQ(report.passes, 1u);
  EXPECT_GT(report.scratch_bytes, 16u << 20);
  EXPECT_LT(report.output_bytes, 8u << 20);
  EXPECT_GT(calls, 0);
}

TEST_F(ExternalSortTest, KeysAndFlagsMeanWhatSortMakesOfThem) {
  for (int round = 0; round < kRounds; ++round) {
    SortOptions options = Options();
    options.threads = 1 + static_cast<int>(random_() % 3);
    if (random_() % 3 == 0) options.memory_bytes *= 8;
    OrderOptions& order = options.order;
    std::string flags;
    const auto flip = [&](const char* flag, bool* target) {
      if (random_() % 4 != 0) return;
      *target = true;
      absl::StrAppend(&flags, " -", flag);
    };
    flip("r", &order.reverse);
    flip("b", &order.blanks);
    flip("s", &order.stable);
    flip("u", &order.unique);
    flip("f", &order.fold);
    // At most one way to compare; characters are left out of plain text, or of versions.
    const std::string kind = absl::StrCat(random_() % 2 == 0 ? "" : std::string(1, "nghMV"[random_() % 5]));
    if (kind == "n") flip("n", &order.numeric);
    if (kind == "g") flip("g", &order.general);
    if (kind == "h") flip("h", &order.human);
    if (kind == "M") flip("M", &order.month);
    if (kind == "V") flip("V", &order.version);
    const bool ignores = kind.empty() || kind == "V";
    if (ignores) flip("d", &order.dictionary);
    if (ignores) flip("i", &order.printable);
    if (random_() % 2 == 0) {
      order.separator = ',';
      flags += " -t,";
    }
    for (uint64_t keys = random_() % 3; keys > 0; --keys) {
      std::string key = absl::StrCat(1 + random_() % 4);
      static const char* const kLetters[] = {"",  "",   "n",  "r", "nr", "b",  "f",  "br", "bnr", "g", "hr",
                                             "M", "Mr", "hf", "V", "d",  "df", "ir", "gr", "Vf",  "fi"};
      const std::string letters = kLetters[random_() % std::size(kLetters)];
      // Releases of sort(1) differ in versions that begin with a dot, as a key within a field may.
      const bool versions = order.version || letters.find('V') != std::string::npos;
      if (!versions && random_() % 3 == 0) absl::StrAppend(&key, ".", 1 + random_() % 4);
      absl::StrAppend(&key, letters);
      if (random_() % 2 == 0) {
        absl::StrAppend(&key, ",", 1 + random_() % 4);
        if (random_() % 3 == 0) absl::StrAppend(&key, ".", random_() % 4);
        if (random_() % 4 == 0) key += 'b';
      }
      order.keys.push_back(key);
      absl::StrAppend(&flags, " -k", key);
    }
    Put("in", RandomLines(1'000 + random_() % 1'500'000));
    Compare(options, flags);
    if (HasFailure()) break;
  }
}

// Each way to compare, on lines that it is for.
TEST_F(ExternalSortTest, EachLetterOrdersAsSortDoes) {
  Put("in",
      "10\n9\n1e3\n-5\n+3\n0x1F\n-inf\ninf\n1e-5\n-0\n0\nword\n\n "
      "7\n.5\n-.5\n1K\n1k\n999\n1.5M\n-2G\n-2K\n0G\n5.M\n3m\n"
      "JAN\nfeb\n  Mar x\nDEC\nja\nmay1\nsept\nx-1.2\nx-1.10\nx-1.9.tar.gz\nx-1.9\nx~\nx\nx.c~\nx.c\nx01\nx1\nx001a\n"
      "a-b\nab\nA b\na\x01\x62\n#a\n");
  for (const char* const letters : {"n",  "g",  "h",  "M",  "V",  "d",  "i",  "f",  "df", "if", "hf", "Vf", "Vd",
                                    "gr", "hr", "Mr", "Vr", "bM", "bh", "su", "gu", "hu", "Mu", "Vu", "du"}) {
    SCOPED_TRACE(letters);
    SortOptions options = Options();
    OrderOptions& order = options.order;
    for (const char* letter = letters; *letter != 0; ++letter) {
      bool* const flag = *letter == 'n'   ? &order.numeric
                         : *letter == 'g' ? &order.general
                         : *letter == 'h' ? &order.human
                         : *letter == 'M' ? &order.month
                         : *letter == 'V' ? &order.version
                         : *letter == 'd' ? &order.dictionary
                         : *letter == 'i' ? &order.printable
                         : *letter == 'f' ? &order.fold
                         : *letter == 'b' ? &order.blanks
                         : *letter == 's' ? &order.stable
                         : *letter == 'u' ? &order.unique
                                          : &order.reverse;
      *flag = true;
    }
    Compare(options, absl::StrCat("-", letters));
    // The same as a key's.
    if (absl::string_view(letters).find_first_of("su") != absl::string_view::npos) continue;
    options.order = {};
    options.order.keys = {absl::StrCat("1", letters)};
    Compare(options, absl::StrCat("-k1", letters));
  }
  for (const char* const key : {"1ng", "1hM", "1dn", "1ih", "1gV"}) {
    SortOptions options = Options();
    options.order.keys = {key};
    EXPECT_EQ(ExternalSort(options).status().code(), absl::StatusCode::kInvalidArgument) << key;
  }
}

TEST_F(ExternalSortTest, FilesAreJoinedAndMayBeTheOutput) {
  Put("in", "b\nd");
  Put("in2", "c\na");
  SortOptions options = Options();
  options.inputs = {Path("in"), Path("in2")};
  Compare(options, "");
  options.output = Path("in");
  ASSERT_EQ(chmod(Path("in").c_str(), 0600), 0);
  ASSERT_TRUE(ExternalSort(options).ok());
  EXPECT_EQ(*ReadFile(Path("in")), "a\nb\nc\nd\n");
  struct stat attributes;
  ASSERT_EQ(stat(Path("in").c_str(), &attributes), 0);
  EXPECT_EQ(attributes.st_mode & 07777, 0600u);
}

TEST_F(ExternalSortTest, MoreFilesThanMayBeOpen) {
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  SortOptions options = Options();
  options.inputs.clear();
  for (int i = 0; i < 100; ++i) {
    options.inputs.push_back(Path(absl::StrCat("in", i)));
    Put(absl::StrCat("in", i), absl::StrCat(i, "\n"));
  }
  const rlimit few{40, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto report = ExternalSort(options);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->records, 100u);
  EXPECT_EQ(report->input_bytes, 290u);
}

TEST_F(ExternalSortTest, WhatCannotBeRenamedStays) {
  Put("in", "b\na\n");
  SortOptions options = Options();
  // A directory gets in the way after the output was opened.
  options.on_progress = [this](const SortProgress&) { (void)mkdir(Path("out").c_str(), 0700); };
  const absl::Status status = ExternalSort(options).status();
  EXPECT_FALSE(status.ok());
  const std::string message(status.message());
  const size_t at = message.find(Path("out."));
  ASSERT_NE(at, std::string::npos) << status;
  const auto kept = ReadFile(message.substr(at, Path("out.XXXXXX").size()));
  ASSERT_TRUE(kept.ok()) << status;
  EXPECT_EQ(*kept, "a\nb\n");
}

TEST_F(ExternalSortTest, ThreadsLeaveRoomForLines) {
  EXPECT_EQ(ChooseSortThreads(256 << 20, 2), 2);
  EXPECT_EQ(ChooseSortThreads(256 << 20, 64), 7);
  EXPECT_EQ(ChooseSortThreads(uint64_t{8} << 30, 64), 64);
  EXPECT_EQ(ChooseSortThreads(SortOptions::kMemoryMin, 1), 1);
  SortOptions options = Options();
  options.threads = ChooseSortThreads(options.memory_bytes, 64);
  // Each of them may be the line in which a workspace ends.
  std::string text;
  for (int i = 0; i < 40; ++i) text += std::string(100'000, static_cast<char>('a' + i % 20)) + "\n";
  Put("in", text);
  Compare(options, "");
  options.threads = 64;
  absl::Status status = ExternalSort(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("fewer --threads"), absl::string_view::npos) << status;
  options.format.record_bytes = options.order.record_bytes = 16'000;
  status = ExternalSort(options).status();
  EXPECT_NE(status.message().find("records of 16000 bytes do not fit"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("fewer --threads"), absl::string_view::npos) << status;
}

TEST_F(ExternalSortTest, FixedRecords) {
  constexpr size_t kRecord = 100;
  std::vector<std::string> records(40'000);
  std::string text;
  for (size_t i = 0; i < records.size(); ++i) {
    records[i].resize(kRecord);
    for (char& c : records[i]) c = static_cast<char>(random_());
    records[i][10] = static_cast<char>(random_() % 4);
    text += records[i];
  }
  Put("in", text);
  SortOptions options = Options();
  options.format.record_bytes = options.order.record_bytes = kRecord;
  const auto check = [&](const std::function<bool(const std::string&, const std::string&)>& before) {
    const auto report = ExternalSort(options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->records, records.size());
    std::stable_sort(records.begin(), records.end(), before);
    EXPECT_TRUE(*ReadFile(Path("out")) == absl::StrJoin(records, ""));
    Put("in", absl::StrJoin(records, ""));
  };
  options.order.keys = {"10:1"};  // many equal: their order must stay
  check([](const auto& a, const auto& b) { return a[10] < b[10]; });
  options.order.keys = {"10:1r", "20:2"};
  check([](const auto& a, const auto& b) { return a[10] != b[10] ? a[10] > b[10] : a.compare(20, 2, b, 20, 2) < 0; });
  options.order.keys = {};
  check([](const auto& a, const auto& b) { return a < b; });

  Put("in", text.substr(0, 250));
  const absl::Status broken = ExternalSort(options).status();
  EXPECT_EQ(broken.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(broken.message().find("50 bytes"), absl::string_view::npos) << broken;
}

TEST_F(ExternalSortTest, BadInputIsToldAndTheOutputStays) {
  Put("out", "as it was");
  const auto fails = [&](const SortOptions& options, absl::StatusCode code, const std::string& text) {
    const absl::Status status = ExternalSort(options).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(text), absl::string_view::npos) << status;
    EXPECT_EQ(*ReadFile(Path("out")), "as it was");
    EXPECT_NE(system(absl::StrCat("ls ", directory_, " | grep -q 'out[.]'").c_str()), 0) << "a temporary file stays";
  };
  SortOptions options = Options();
  options.inputs = {Path("none")};
  fails(options, absl::StatusCode::kNotFound, "none");
  options.inputs = {directory_};
  fails(options, absl::StatusCode::kFailedPrecondition, "read");
  options = Options();
  for (const char* key : {"", "0", "x", "1,", "1,2,3", "1.0", "2q", "1,0", "99999999999999999999"}) {
    Put("in", "x\n");
    options.order.keys = {key};
    fails(options, absl::StatusCode::kInvalidArgument, "expected FIELD");
  }
  options = Options();
  Put("in", std::string(3'000'000, 'x'));
  fails(options, absl::StatusCode::kInvalidArgument, "a line is longer than");
  // Lines that are too long for the carry from run to run, or for the merge, depending on where the first one falls.
  std::string text;
  for (int i = 0; i < 40; ++i) text += std::string(200'000, static_cast<char>('a' + i % 20)) + "\n";
  Put("in", text);
  fails(options, absl::StatusCode::kInvalidArgument, "give more --memory");
  // In the last run, which may be alone when all others are merged.
  for (size_t more = 0; more < 300'000; more += 60'000) {
    Put("in", RandomLines(8'000'000 + more) + std::string(290'000, 'x') + "\n");
    fails(options, absl::StatusCode::kInvalidArgument, "give more --memory");
  }
  Put("in", RandomLines(4'000'000));
  options.open_scratch = [] { return absl::UnavailableError("no scratch today"); };
  fails(options, absl::StatusCode::kUnavailable, "no scratch today");
  std::atomic<bool> interrupted{true};
  options = Options();
  options.interrupted = &interrupted;
  fails(options, absl::StatusCode::kCancelled, "interrupted");
}

// A scratch that fails at a random transfer: the sort returns the error and does nothing else.
class FailingScratch : public Scratch {
 public:
  FailingScratch(std::unique_ptr<Scratch> real, std::atomic<int>* left) : real_(std::move(real)), left_(left) {}
  absl::Status Reserve(uint64_t bytes) override { return real_->Reserve(bytes); }
  std::unique_ptr<Transfer> NewTransfer() override {
    return std::make_unique<FailingTransfer>(real_->NewTransfer(), left_);
  }
  absl::Status Discard(uint64_t offset, uint64_t bytes, Room room) override {
    return real_->Discard(offset, bytes, room);
  }

 private:
  struct FailingTransfer : public Transfer {
    FailingTransfer(std::unique_ptr<Transfer> real, std::atomic<int>* left) : real(std::move(real)), left(left) {}
    void StartRead(uint64_t offset, absl::Span<char> to) override { real->StartRead(offset, to); }
    void StartWrite(uint64_t offset, absl::Span<const char> from) override { real->StartWrite(offset, from); }
    absl::Status Wait() override {
      const absl::Status status = real->Wait();
      return left->fetch_sub(1) <= 0 ? absl::UnavailableError("the server is gone") : status;
    }
    const std::unique_ptr<Transfer> real;
    std::atomic<int>* const left;
  };

  const std::unique_ptr<Scratch> real_;
  std::atomic<int>* const left_;
};

TEST_F(ExternalSortTest, AnErrorOfTheScratchEndsIt) {
  Put("in", RandomLines(4'000'000));
  int failed = 0;
  for (int round = 0; round < kRounds; ++round) {
    // Some numbers are beyond the last transfer; the first one fails in any case.
    std::atomic<int> left{static_cast<int>(random_() % (round == 0 ? 50 : 1'500))};
    SortOptions options = Options();
    options.open_scratch = [&]() -> absl::StatusOr<std::unique_ptr<Scratch>> {
      auto real = OpenFileScratch(directory_);
      return std::make_unique<FailingScratch>(*std::move(real), &left);
    };
    Put("out", "as it was");
    const auto report = ExternalSort(options);
    if (report.ok()) continue;
    ++failed;
    EXPECT_EQ(report.status().message(), "the server is gone");
    EXPECT_EQ(*ReadFile(Path("out")), "as it was");
  }
  EXPECT_GT(failed, 0);
}

}  // namespace
}  // namespace nram
