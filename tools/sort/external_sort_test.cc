// The external sort against sort(1): same bytes out, whatever comes in.

#include "tools/sort/external_sort.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_memory.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

#if defined(ABSL_HAVE_THREAD_SANITIZER) || defined(ABSL_HAVE_ADDRESS_SANITIZER)
constexpr int kRounds = 10;  // the sanitizers are slow
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
    // Not EXPECT_EQ: nobody reads megabytes.
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
                                         "z"};
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
  // What fits into memory makes no run.
  options.memory_bytes = 128 << 20;
  options.open_scratch = [] { return absl::InternalError("nobody asked for it"); };
  EXPECT_EQ(Compare(options, "").runs, 0u);
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
    flip("n", &order.numeric);
    flip("r", &order.reverse);
    flip("b", &order.blanks);
    flip("s", &order.stable);
    flip("u", &order.unique);
    if (!order.numeric) flip("f", &order.fold);
    if (random_() % 2 == 0) {
      order.separator = ',';
      flags += " -t,";
    }
    for (uint64_t keys = random_() % 3; keys > 0; --keys) {
      std::string key = absl::StrCat(1 + random_() % 4);
      if (random_() % 3 == 0) absl::StrAppend(&key, ".", 1 + random_() % 4);
      static const char* const kLetters[] = {"", "", "n", "r", "nr", "b", "f", "br", "bnr"};
      absl::StrAppend(&key, kLetters[random_() % std::size(kLetters)]);
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
  // Lines that are too much for what is carried from run to run, or for the merge: by where the first one falls.
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

// A scratch that fails at a random transfer: the error comes out, nothing else happens.
class FailingScratch : public Scratch {
 public:
  FailingScratch(std::unique_ptr<Scratch> real, std::atomic<int>* left) : real_(std::move(real)), left_(left) {}
  absl::Status Reserve(uint64_t bytes) override { return real_->Reserve(bytes); }
  std::unique_ptr<Transfer> NewTransfer() override {
    return std::make_unique<FailingTransfer>(real_->NewTransfer(), left_);
  }
  absl::Status Discard(uint64_t offset, uint64_t bytes) override { return real_->Discard(offset, bytes); }

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
  for (int round = 0; round < 30; ++round) {
    std::atomic<int> left{static_cast<int>(random_() % 1'500)};
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
