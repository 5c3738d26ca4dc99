// nram-bench-publish: the cost of publishing to a program, beside the other ways that the program has.
//
//   nram-bench-publish SPEC [--mib=256] [--empty-mib=1024] [--rounds=5] [--flops=8] [--run-pages=256] [--versions=8]
//                           [--directory=/dev/shm] [--only=costs,reading,empty,versions]
//
// A program takes steps over a field of --mib, as a transport sweep (SNAP) does. A step does --flops floating-point
// operations for each byte, and writes new values to a share of the pages, in runs of about --run-pages. After each
// step other programs must be able to get its state. The ways to that take turns in one process; medians of --rounds.
// Each way is beside steps over the same memory with nothing after them, since pages of one mapping may lie better than
// those of another:
//
//   buffers   memcpy into one of four buffers, under a lock
//   tmpfs     all of it written to a file in --directory, under a lock
//   sending   nram_flush: sends the pages that the step has changed to the servers, and does nothing else
//   unread    nram_publish; no program reads it before the turn's end
//   publish   nram_publish; an observer, a handle of its own, goes on to each version and reads all of it
//
// A turn ends when the observer has read the published state, so no turn pays for another one. Each round begins with
// another way.
//
// Next, an observer of a version and a program that reads a mapping of its own touch every page in order, and random
// pages, by turns, with a quarter of the field as their budget: both wait for the same faults.
//
// Last, the cost of nram_publish of --empty-mib without a change; and the servers' used bytes with --versions more
// versions, of which each differs from the one before in a share of the pages.
//
// The pool needs room for some (2 + --versions) * --mib + --empty-mib; versions yield if it has less. Servers and
// observer share this machine's processors with the program, unlike those on other machines.

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"
#include "client/memory/nram.h"
#include "client/pool/pool_spec.h"
#include "client/transport/control_client.h"

namespace nram {
namespace {

constexpr uint64_t kPerPage = kPageBytes / sizeof(double);
constexpr std::array kPercents = {10, 72, 100};
constexpr size_t kBuffers = 4;
constexpr int kEmptyCalls = 50;
constexpr uint32_t kAwaitMs = 120'000;

struct Options {
  std::string spec;
  uint64_t mib = 256;
  uint64_t empty_mib = 1'024;
  uint64_t rounds = 5;
  uint64_t flops = 8;
  uint64_t run_pages = 256;
  uint64_t versions = 8;
  std::string directory = "/dev/shm";
  std::vector<std::string> only = {"costs", "reading", "empty", "versions"};
};

double SecondsSince(int64_t began_ns) { return static_cast<double>(MonotonicNs() - began_ns) / kNsPerSecond; }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Another run of this program may be under way, or have just ended.
std::string NameOf(const char* what) { return absl::StrCat("publish-bench-", what, ".", getpid()); }

absl::Status Failed(const char* what) { return absl::UnavailableError(absl::StrCat(what, ": ", nram_error())); }

// A handle of the pool and its mappings.
class Handle {
 public:
  // All of it fits, with the copies that publishing makes: the bench measures publishing, not eviction.
  static absl::StatusOr<std::unique_ptr<Handle>> Open(const Options& options, uint64_t bytes) {
    return OpenWith(options, bytes + bytes / 4 + 64 * kMiB);
  }
  static absl::StatusOr<std::unique_ptr<Handle>> OpenWith(const Options& options, uint64_t budget_bytes) {
    nram_options how;
    nram_options_init(&how);
    how.budget_bytes = budget_bytes;
    nram_t* const memory = nram_open(options.spec.c_str(), &how);
    if (memory == nullptr) return Failed("nram_open");
    return std::unique_ptr<Handle>(new Handle(memory));
  }
  ~Handle() { nram_close(memory_); }
  nram_t* get() const { return memory_; }

  absl::StatusOr<double*> Map(uint64_t bytes, const std::string& name) {
    void* const at = nram_mmap(memory_, bytes, name.c_str(), 0);
    if (at == nullptr) return Failed("nram_mmap");
    return static_cast<double*>(at);
  }
  absl::Status Publish(const void* field, uint64_t history = 2) {
    nram_publish_options how;
    nram_publish_options_init(&how);
    how.history = static_cast<uint32_t>(history);
    return nram_publish_all(memory_, &field, 1, &how, nullptr) == 0 ? absl::OkStatus() : Failed("nram_publish_all");
  }
  absl::Status Await(const void* field) {
    return nram_published(memory_, field, 0, kAwaitMs) == 0 ? absl::OkStatus() : Failed("nram_published");
  }

 private:
  explicit Handle(nram_t* memory) : memory_(memory) {}
  nram_t* const memory_;
};

// The pages that a step changes: runs of 1 to 2 * run_pages - 1. The first and the last one are always among them.
std::vector<bool> ChoosePages(uint64_t pages, int percent, uint64_t run_pages, std::mt19937_64* random) {
  std::vector<bool> changed(pages);
  for (uint64_t page = 0; page < pages;) {
    const uint64_t run = std::min(1 + (*random)() % (2 * run_pages - 1), pages - page);
    const bool changes = (*random)() % 100 < static_cast<uint64_t>(percent);
    std::fill_n(changed.begin() + static_cast<long>(page), run, changes);
    page += run;
  }
  changed[0] = changed[pages - 1] = true;
  return changed;
}

// One step. Its number is in the first words of the first and the last page.
void Step(double* field, const std::vector<bool>& changed, uint64_t flops, double number) {
  const uint64_t rounds = std::max<uint64_t>(1, flops * sizeof(double) / 2);
  std::array<double, kPerPage> page;
  for (uint64_t i = 0; i < changed.size(); ++i) {
    double* const at = field + i * kPerPage;
    memcpy(page.data(), at, kPageBytes);
    for (uint64_t round = 0; round < rounds; ++round) {
      for (double& value : page) value = value * 0.999 + 0.001 * number;
    }
    page[0] = number;
    if (changed[i]) {
      memcpy(at, page.data(), kPageBytes);
    } else {
      asm volatile("" ::"r"(page.data()) : "memory");
    }
  }
}

// Reads each version until the end.
class Observer {
 public:
  Observer(Handle* handle, uint64_t doubles) : handle_(handle), doubles_(doubles), thread_([this] { Run(); }) {}
  // Waits until it has read the state of this step. False: it has not within kAwaitMs.
  bool Await(double step) const {
    const int64_t deadline_ns = DeadlineAfterMs(kAwaitMs);
    while (step_ != step && MonotonicNs() < deadline_ns) usleep(200);
    return step_ == step;
  }
  // Without `reads` it reads nothing more.
  void Read(bool reads) { reads_ = reads; }
  ~Observer() {
    stop_ = true;
    thread_.join();
  }
  uint64_t seen() const { return seen_; }
  bool ok() const { return ok_; }

 private:
  void Run() {
    const std::string name = NameOf("field");
    const double* field = nullptr;
    while (!stop_) {
      if (!reads_) {
        usleep(200);
        continue;
      }
      if (field == nullptr) {
        field = static_cast<const double*>(nram_observe(handle_->get(), name.c_str(), NRAM_VERSION_NEWEST, nullptr));
        if (field == nullptr) usleep(1'000);
      } else if (nram_next(handle_->get(), const_cast<double*>(field), 100, nullptr) != 0) {
        continue;
      }
      if (field == nullptr) continue;
      double sum = 0;
      for (uint64_t i = 0; i < doubles_; ++i) sum += field[i];
      ok_ = ok_ && field[0] == field[doubles_ - kPerPage] && sum != 0;
      ++seen_;
      step_ = field[0];
    }
    if (field != nullptr) nram_munmap(handle_->get(), const_cast<double*>(field));
  }

  Handle* const handle_;
  const uint64_t doubles_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> reads_{true};
  std::atomic<bool> ok_{true};
  std::atomic<uint64_t> seen_{0};
  std::atomic<double> step_{0};
  std::thread thread_;  // the last one: it uses the others
};

// A way to show the state to others: the place of the field, and the work after a step.
struct Way {
  const char* name;
  double* field;
  std::function<absl::Status()> show;
  std::function<absl::Status()> settle;  // before the next way's turn
  size_t base;                           // the index of the way that does nothing with that memory, perhaps its own
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)), bytes_(options_.mib * kMiB) {}

  absl::Status Run() {
    const auto wanted = [&](const char* part) { return absl::c_linear_search(options_.only, part); };
    if (wanted("costs")) NRAM_RETURN_IF_ERROR(Costs());
    if (wanted("reading")) NRAM_RETURN_IF_ERROR(Reading());
    if (wanted("empty")) NRAM_RETURN_IF_ERROR(Empty());
    if (!wanted("versions")) return absl::OkStatus();
    for (const int percent : kPercents) NRAM_RETURN_IF_ERROR(Versions(percent));
    return absl::OkStatus();
  }

 private:
  uint64_t pages() const { return bytes_ / kPageBytes; }

  absl::Status Costs() {
    NRAM_ASSIGN_OR_RETURN(Mapping plain, Mapping::Anonymous(bytes_));
    NRAM_ASSIGN_OR_RETURN(Mapping buffers, Mapping::Anonymous(kBuffers * bytes_));
    NRAM_ASSIGN_OR_RETURN(const auto producer, Handle::Open(options_, 2 * bytes_));
    NRAM_ASSIGN_OR_RETURN(const auto observing, Handle::Open(options_, bytes_));
    NRAM_ASSIGN_OR_RETURN(double* const sent, producer->Map(bytes_, NameOf("sent")));
    NRAM_ASSIGN_OR_RETURN(double* const published, producer->Map(bytes_, NameOf("field")));
    const std::string path = absl::StrCat(options_.directory, "/nram-publish-bench.", getpid());
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.valid()) return ErrnoStatus(errno, path);
    unlink(path.c_str());
    auto* const local = reinterpret_cast<double*>(plain.data());
    std::mutex mu;
    size_t next = 0;
    const auto copy = [&] {
      const std::lock_guard<std::mutex> lock(mu);
      memcpy(buffers.data() + next++ % kBuffers * bytes_, local, bytes_);
      return absl::OkStatus();
    };
    const auto write_file = [&] {
      flock(file.get(), LOCK_EX);
      uint64_t done = 0;
      while (done < bytes_) {
        const ssize_t some = pwrite(file.get(), plain.data() + done, bytes_ - done, static_cast<off_t>(done));
        if (some <= 0) return ErrnoStatus(errno, path);
        done += static_cast<uint64_t>(some);
      }
      flock(file.get(), LOCK_UN);
      return absl::OkStatus();
    };
    const auto nothing = [] { return absl::OkStatus(); };
    const auto flush = [&] {
      return nram_flush(producer->get(), sent, bytes_) == 0 ? absl::OkStatus() : Failed("nram_flush");
    };
    Observer observer(observing.get(), bytes_ / sizeof(double));
    const auto publish = [&] { return producer->Publish(published); };
    const auto publish_unread = [&] {
      observer.Read(false);
      return publish();
    };
    const auto settle = [&] {
      observer.Read(true);
      NRAM_RETURN_IF_ERROR(producer->Await(published));
      return observer.Await(step_) ? absl::OkStatus() : absl::DeadlineExceededError("the observer has not read it");
    };
    const std::vector<Way> ways = {
        {"nothing", local, nothing, nothing, 0},          {"nothing", sent, nothing, nothing, 1},
        {"nothing", published, nothing, nothing, 2},      {"buffers", local, copy, nothing, 0},
        {"tmpfs", local, write_file, nothing, 0},         {"sending", sent, flush, nothing, 1},
        {"unread", published, publish_unread, settle, 2}, {"publish", published, publish, settle, 2}};
    // All pages are stored, and all paths are warm.
    for (const Way& way : ways) NRAM_RETURN_IF_ERROR(Turn(way, 100).status());
    for (const int percent : kPercents) NRAM_RETURN_IF_ERROR(Row(ways, percent));
    printf("the observer has read %llu versions, %s\n", static_cast<unsigned long long>(observer.seen()),
           observer.ok() ? "each of one step" : "SOME OF SEVERAL STEPS");
    return observer.ok() ? absl::OkStatus() : absl::DataLossError("an observer has seen two steps in one version");
  }

  // Seconds of a step that others can see, the mean of three in a row: a step's remaining work delays the next one.
  absl::StatusOr<double> Turn(const Way& way, int percent) {
    constexpr int kSteps = 3;
    std::vector<std::vector<bool>> changed;
    for (int i = 0; i < kSteps; ++i) changed.push_back(ChoosePages(pages(), percent, options_.run_pages, &random_));
    // A way begins as its own turns end: with no change that it has not shown, or with all changed if it shows nothing.
    Step(way.field, std::vector<bool>(pages(), true), 1, ++step_);
    NRAM_RETURN_IF_ERROR(way.show());
    NRAM_RETURN_IF_ERROR(way.settle());
    const int64_t began_ns = MonotonicNs();
    for (const auto& some : changed) {
      Step(way.field, some, options_.flops, ++step_);
      NRAM_RETURN_IF_ERROR(way.show());
    }
    const double took = SecondsSince(began_ns) / kSteps;
    NRAM_RETURN_IF_ERROR(way.settle());
    return took;
  }

  absl::Status Row(const std::vector<Way>& ways, int percent) {
    std::vector<std::vector<double>> took(ways.size());
    for (uint64_t round = 0; round < options_.rounds; ++round) {
      for (size_t turn = 0; turn < ways.size(); ++turn) {
        const size_t i = (round + turn) % ways.size();
        NRAM_ASSIGN_OR_RETURN(const double seconds, Turn(ways[i], percent));
        took[i].push_back(seconds);
      }
    }
    std::vector<double> costs(ways.size());
    for (size_t i = 0; i < ways.size(); ++i) {
      const size_t base = ways[i].base;
      std::vector<double> more;  // seconds beyond those of doing nothing in the same round
      for (uint64_t round = 0; round < options_.rounds; ++round) more.push_back(took[i][round] - took[base][round]);
      costs[i] = Median(more);
      printf("%3d %% changed  %-8s step %8.1f ms, costs %8.1f ms, %5.1f %% of a step\n", percent, ways[i].name,
             1e3 * Median(took[i]), 1e3 * costs[i], 100 * costs[i] / Median(took[base]));
    }
    const size_t publish = ways.size() - 1, unread = publish - 1, sending = publish - 2;
    printf("%3d %% changed  publish / sending: %.2f (at most 1.2), %.2f if nobody reads meanwhile\n", percent,
           costs[publish] / costs[sending], costs[unread] / costs[sending]);
    fflush(stdout);
    return absl::OkStatus();
  }

  // Seconds until a word of each of these pages has been read.
  static absl::StatusOr<double> Touch(const double* field, const std::vector<uint64_t>& order) {
    const int64_t began_ns = MonotonicNs();
    bool right = true;
    for (const uint64_t page : order) right = right && field[page * kPerPage] == static_cast<double>(page + 1);
    if (!right) return absl::DataLossError("a page has not what was written there");
    return SecondsSince(began_ns);
  }

  absl::Status Reading() {
    const uint64_t budget = bytes_ / 4;
    NRAM_ASSIGN_OR_RETURN(const auto owner, Handle::OpenWith(options_, budget));
    NRAM_ASSIGN_OR_RETURN(const auto observing, Handle::OpenWith(options_, budget));
    const std::string name = NameOf("read");
    NRAM_ASSIGN_OR_RETURN(double* const own, owner->Map(bytes_, name));
    for (uint64_t page = 0; page < pages(); ++page) own[page * kPerPage] = static_cast<double>(page + 1);
    NRAM_RETURN_IF_ERROR(owner->Publish(own));
    NRAM_RETURN_IF_ERROR(owner->Await(own));
    void* const seen = nram_observe(observing->get(), name.c_str(), NRAM_VERSION_NEWEST, nullptr);
    if (seen == nullptr) return Failed("nram_observe");
    const std::array<const double*, 2> fields = {own, static_cast<const double*>(seen)};
    std::vector<uint64_t> all(pages());
    for (uint64_t page = 0; page < pages(); ++page) all[page] = page;
    for (const char* const what : {"in order", "at random"}) {
      std::array<std::vector<double>, 2> took;
      for (uint64_t round = 0; round < options_.rounds; ++round) {
        for (const size_t i : {round % 2, 1 - round % 2}) {
          NRAM_ASSIGN_OR_RETURN(const double seconds, Touch(fields[i], all));
          took[i].push_back(seconds);
        }
      }
      const double of_owner = Median(took[0]), of_observer = Median(took[1]);
      printf("a word of each page %s: own mapping %.2f us a page, observer %.2f, ratio %.2f\n", what,
             1e6 * of_owner / static_cast<double>(pages()), 1e6 * of_observer / static_cast<double>(pages()),
             of_observer / of_owner);
      fflush(stdout);
      std::shuffle(all.begin(), all.end(), random_);
    }
    return nram_munmap(observing->get(), seen) == 0 ? absl::OkStatus() : Failed("nram_munmap");
  }

  absl::Status Empty() {
    const uint64_t bytes = options_.empty_mib * kMiB;
    NRAM_ASSIGN_OR_RETURN(const auto producer, Handle::Open(options_, bytes));
    NRAM_ASSIGN_OR_RETURN(double* const field, producer->Map(bytes, NameOf("empty")));
    for (uint64_t i = 0; i < bytes / sizeof(double); i += kPerPage) field[i] = 1;
    NRAM_RETURN_IF_ERROR(producer->Publish(field));
    NRAM_RETURN_IF_ERROR(producer->Await(field));
    std::vector<double> calls, all;
    for (int i = 0; i < kEmptyCalls; ++i) {
      const int64_t began_ns = MonotonicNs();
      NRAM_RETURN_IF_ERROR(producer->Publish(field));
      calls.push_back(SecondsSince(began_ns));
      NRAM_RETURN_IF_ERROR(producer->Await(field));
      all.push_back(SecondsSince(began_ns));
    }
    printf("nothing changed in %llu MiB: the call %.3f ms (at most 2), until it can be observed %.3f ms\n",
           static_cast<unsigned long long>(options_.empty_mib), 1e3 * Median(calls), 1e3 * Median(all));
    return absl::OkStatus();
  }

  // Includes the bytes that servers keep for versions alone.
  absl::StatusOr<uint64_t> UsedBytes() {
    NRAM_ASSIGN_OR_RETURN(const auto servers, ParsePoolSpec(options_.spec));
    uint64_t used = 0;
    for (const Endpoint& server : servers) {
      NRAM_ASSIGN_OR_RETURN(const ServerStatistics figures,
                            ControlClient::Create(server)->GetStatistics(DeadlineAfterMs(10'000)));
      used += figures.capacity.used_bytes;
      for (const auto& [name, value] : figures.counters) used += name == "version_bytes" ? value : 0;
    }
    return used;
  }

  absl::Status Versions(int percent) {
    NRAM_ASSIGN_OR_RETURN(const uint64_t before, UsedBytes());
    NRAM_ASSIGN_OR_RETURN(const auto producer, Handle::Open(options_, bytes_));
    NRAM_ASSIGN_OR_RETURN(double* const field, producer->Map(bytes_, NameOf("versions")));
    uint64_t displaced = 0;
    for (uint64_t i = 0; i <= options_.versions; ++i) {
      const auto changed = ChoosePages(pages(), i == 0 ? 100 : percent, options_.run_pages, &random_);
      Step(field, changed, 1, ++step_);
      if (i > 0) displaced += static_cast<uint64_t>(std::count(changed.begin(), changed.end(), true));
      NRAM_RETURN_IF_ERROR(producer->Publish(field, options_.versions + 1));
      NRAM_RETURN_IF_ERROR(producer->Await(field));
    }
    NRAM_ASSIGN_OR_RETURN(const uint64_t after, UsedBytes());
    const uint64_t model = bytes_ + displaced * kPageBytes;
    printf(
        "%llu versions that differ in %d %%: servers use %.1f MiB; data * (1 + N * p) is %.1f MiB; ratio %.4f (at "
        "most 1.02)\n",
        static_cast<unsigned long long>(options_.versions), percent, static_cast<double>(after - before) / kMiB,
        static_cast<double>(model) / kMiB, static_cast<double>(after - before) / static_cast<double>(model));
    fflush(stdout);
    return absl::OkStatus();
  }

  const Options options_;
  const uint64_t bytes_;
  std::mt19937_64 random_{1};
  double step_ = 0;
};

bool Parse(int argc, char** argv, Options* options) {
  if (argc < 2 || argv[1][0] == '-') return false;
  options->spec = argv[1];
  for (int i = 2; i < argc; ++i) {
    absl::string_view word = argv[i];
    if (absl::ConsumePrefix(&word, "--directory=")) {
      options->directory = std::string(word);
      continue;
    }
    if (absl::ConsumePrefix(&word, "--only=")) {
      const std::vector<std::string> parts = std::exchange(options->only, absl::StrSplit(word, ','));
      for (const std::string& part : options->only) {
        if (!absl::c_linear_search(parts, part)) return false;
      }
      continue;
    }
    uint64_t* value = nullptr;
    for (const auto& [name, to] :
         {std::pair{"--mib=", &options->mib}, std::pair{"--empty-mib=", &options->empty_mib},
          std::pair{"--rounds=", &options->rounds}, std::pair{"--flops=", &options->flops},
          std::pair{"--run-pages=", &options->run_pages}, std::pair{"--versions=", &options->versions}}) {
      if (absl::ConsumePrefix(&word, name)) value = to;
      if (value != nullptr) break;
    }
    constexpr uint64_t kMost = 1 << 20;
    if (value == nullptr || !absl::SimpleAtoi(word, value) || *value < 1 || *value > kMost) return false;
  }
  return true;
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, &options)) {
    std::cerr
        << "usage: nram-bench-publish SPEC [--mib=N] [--empty-mib=N] [--rounds=N] [--flops=N] [--run-pages=N]\n"
           "                          [--versions=N] [--directory=DIRECTORY] [--only=costs,reading,empty,versions]"
        << std::endl;
    return 2;
  }
  const absl::Status status = Bench(options).Run();
  if (status.ok()) return 0;
  std::cerr << "nram-bench-publish: " << status.message() << std::endl;
  return 1;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) { return nram::Main(argc, argv); }
