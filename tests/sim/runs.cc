#include "tests/sim/runs.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace nram::sim {
namespace {

constexpr uint64_t kEpisodesPerBatch = 50;
constexpr uint64_t kSaidEpisodesMax = 20;
constexpr int64_t kSayEveryNs = 30 * kNsPerSecond;
constexpr int kLookMs = 1'000;

absl::Status RunEpisode(const RunOptions& options, uint64_t seed, EpisodeResult* result) {
  EpisodeOptions episode = options.episode;
  episode.seed = seed;
  *result = options.publish ? RunPublishEpisode(episode)
            : options.raw   ? RunRawEpisode(episode)
                            : RunPoolEpisode(episode);
  if (result->failure.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("FAILED with --seed=", seed, ":\n", result->failure, "\n", result->report));
}

void SayResult(const RunOptions& options, uint64_t seed, const EpisodeResult& result) {
  if (options.episodes > kSaidEpisodesMax) return;
  std::cout << absl::StrFormat("seed %d: %d operations, %d events, %.1f virtual s, digest %016x\n", seed,
                               result.operations, result.events, static_cast<double>(result.virtual_ns) / kNsPerSecond,
                               result.digest);
}

// The progress: all episodes before `done` are done.
struct State {
  uint64_t done = 0;
  uint64_t operations = 0;
};

absl::StatusOr<State> ReadState(const RunOptions& options) {
  State state;
  if (options.state_path.empty() || access(options.state_path.c_str(), F_OK) != 0) return state;
  NRAM_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.state_path));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 3 || !absl::SimpleAtoi(lines[1], &state.done) || !absl::SimpleAtoi(lines[2], &state.operations)) {
    return absl::InvalidArgumentError(absl::StrCat(options.state_path, " is no state of sim"));
  }
  if (lines[0] != options.what) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.state_path, " is the state of \"", lines[0], "\", and this is \"", options.what, "\""));
  }
  return state;
}

absl::Status WriteState(const RunOptions& options, const State& state) {
  if (options.state_path.empty()) return absl::OkStatus();
  return WriteFileAtomically(options.state_path,
                             absl::StrCat(options.what, "\n", state.done, "\n", state.operations, "\n"));
}

// A process that runs the episodes from `first` on. It says the seed of each one that it begins, and at the end the
// number of operations, or the failure.
struct Batch {
  uint64_t first = 0;
  uint64_t count = 0;
  UniqueFd from;
  Subprocess process;
  std::string said;

  absl::Status Start(const RunOptions& options);
  void Read();
  // Call it when the process has ended. *operations grows.
  absl::Status Judge(uint64_t* operations);
};

absl::Status Batch::Start(const RunOptions& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  from.reset(ends[0]);
  const UniqueFd to(ends[1]);
  (void)fcntl(from.get(), F_SETFL, O_NONBLOCK);
  SubprocessOptions how;
  how.out = to.get();
  how.death_signal = SIGKILL;
  const auto run = [&] {
    uint64_t operations = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t seed = options.episode.seed + first + i;
      std::cout << seed << std::endl;
      EpisodeResult result;
      if (const absl::Status status = RunEpisode(options, seed, &result); !status.ok()) {
        std::cout << status.message() << std::flush;
        return 1;
      }
      operations += result.operations;
      SayResult(options, seed, result);
    }
    std::cout << operations << std::endl;
    return 0;
  };
  std::cout.flush();
  NRAM_ASSIGN_OR_RETURN(process, Subprocess::StartFunction(run, how));
  return absl::OkStatus();
}

void Batch::Read() {
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(from.get(), buffer, sizeof buffer)) > 0) said.append(buffer, static_cast<size_t>(n));
}

absl::Status Batch::Judge(uint64_t* operations) {
  Read();
  const std::vector<std::string> lines = absl::StrSplit(absl::StripSuffix(said, "\n"), '\n');
  const Subprocess::Ended ended = *process.WaitUntil(0);
  if (ended.ok()) {
    uint64_t count = 0;
    if (!absl::SimpleAtoi(lines.back(), &count)) return absl::InternalError("a batch did not say what it has done");
    *operations += count;
    for (const std::string& line : lines) {
      if (absl::StartsWith(line, "seed ")) std::cout << line << std::endl;
    }
    return absl::OkStatus();
  }
  const size_t at = said.find("FAILED");
  if (at != std::string::npos) return absl::FailedPreconditionError(said.substr(at));
  return absl::FailedPreconditionError(absl::StrCat("FAILED with --seed=", lines.back(), ": it ended with signal ",
                                                    ended.signal, ", code ", ended.code));
}

class Jobs {
 public:
  explicit Jobs(const RunOptions& options) : options_(options) {}

  absl::Status Run(uint64_t* operations) {
    NRAM_ASSIGN_OR_RETURN(state_, ReadState(options_));
    if (state_.done > 0) std::cout << state_.done << " episodes were done before" << std::endl;
    next_ = state_.done;
    const uint64_t before = state_.operations;
    while (true) {
      while (batches_.size() < static_cast<size_t>(options_.jobs) && next_ < options_.episodes) {
        NRAM_RETURN_IF_ERROR(StartBatch());
      }
      if (batches_.empty()) break;
      Wait();
      NRAM_RETURN_IF_ERROR(EndBatches());
      *operations = state_.operations - before;
      Say(*operations);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status StartBatch() {
    auto batch = std::make_unique<Batch>();
    batch->first = next_;
    // Programs that have died leave all their memory behind: some hundred MiB in an episode.
    batch->count = std::min(options_.publish ? 1 : kEpisodesPerBatch, options_.episodes - next_);
    NRAM_RETURN_IF_ERROR(batch->Start(options_));
    next_ += batch->count;
    batches_.push_back(std::move(batch));
    return absl::OkStatus();
  }

  void Wait() {
    std::vector<pollfd> ends;
    for (const auto& batch : batches_) ends.push_back({batch->process.end_fd(), POLLIN, 0});
    (void)poll(ends.data(), ends.size(), kLookMs);
    for (const auto& batch : batches_) batch->Read();
  }

  absl::Status EndBatches() {
    for (size_t i = 0; i < batches_.size();) {
      Batch* const batch = batches_[i].get();
      if (!batch->process.WaitUntil(0).has_value()) {
        ++i;
        continue;
      }
      NRAM_RETURN_IF_ERROR(batch->Judge(&state_.operations));
      ended_.insert({batch->first, batch->count});
      batches_.erase(batches_.begin() + static_cast<int64_t>(i));
    }
    while (!ended_.empty() && ended_.begin()->first == state_.done) {
      state_.done += ended_.begin()->second;
      ended_.erase(ended_.begin());
    }
    // Episodes that have ended behind an unfinished one are run again after a stop, and their operations are counted
    // twice.
    return WriteState(options_, state_);
  }

  void Say(uint64_t operations) {
    const int64_t now_ns = MonotonicNs();
    if (now_ns < said_ns_ + kSayEveryNs) return;
    said_ns_ = now_ns;
    const double seconds = static_cast<double>(now_ns - began_ns_) / kNsPerSecond;
    std::cout << absl::StrFormat("%d of %d episodes, %d operations, %.0f a second\n", state_.done, options_.episodes,
                                 operations, static_cast<double>(operations) / seconds)
              << std::flush;
  }

  const RunOptions& options_;
  State state_;
  uint64_t next_ = 0;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::set<std::pair<uint64_t, uint64_t>> ended_;  // first and count
  const int64_t began_ns_ = MonotonicNs();
  int64_t said_ns_ = began_ns_;
};

}  // namespace

absl::Status RunHere(const RunOptions& options, uint64_t* operations) {
  for (uint64_t i = 0; i < options.episodes; ++i) {
    EpisodeResult result;
    const absl::Status status = RunEpisode(options, options.episode.seed + i, &result);
    *operations += result.operations;
    SayResult(options, options.episode.seed + i, result);
    NRAM_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status RunJobs(const RunOptions& options, uint64_t* operations) { return Jobs(options).Run(operations); }

}  // namespace nram::sim
