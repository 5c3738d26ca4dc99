// A cluster in virtual time: sim --seed=N --episodes=K. See Help.

#include <glog/logging.h>
#include <sys/personality.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/plant.h"
#include "tests/sim/episode.h"

namespace nram::sim {
namespace {

constexpr char kHelp[] =
    "usage: sim [--seed=N] [--episodes=K] [--operations=N] [--faults=LIST] [--trace]\n"
    "\n"
    "  --seed=N         of the first episode; the others count up from it (1)\n"
    "  --episodes=K     how many worlds, one after the other (10)\n"
    "  --operations=N   of each (4000)\n"
    "  --faults=LIST    all, none, or names with weights: kill:4,cut (all)\n"
    "  --trace          writes all that happens to stderr\n"
    "\n"
    "One episode is the same each time: --seed=N --episodes=1.\n";

struct Options {
  EpisodeOptions episode;
  uint64_t episodes = 10;
  bool raw = false;
};

bool ParseNumber(absl::string_view flag, absl::string_view name, uint64_t* value) {
  return absl::ConsumePrefix(&flag, name) && absl::SimpleAtoi(flag, value);
}

absl::Status Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (ParseNumber(flag, "--seed=", &options->episode.seed) || ParseNumber(flag, "--episodes=", &options->episodes) ||
        ParseNumber(flag, "--operations=", &options->episode.operations)) {
      continue;
    }
    if (flag == "--trace") {
      options->episode.verbose = true;
      continue;
    }
    if (flag == "--raw") {
      options->raw = true;
      continue;
    }
#ifdef NRAM_PLANT
    if (absl::ConsumePrefix(&flag, "--plant=")) {
      if (!SetPlanted({flag.data(), flag.size()})) {
        return absl::InvalidArgumentError(absl::StrCat("no bug is named ", flag));
      }
      continue;
    }
#endif
    if (!absl::ConsumePrefix(&flag, "--faults=")) return absl::InvalidArgumentError(absl::StrCat(flag, "?\n", kHelp));
    const auto faults = ParseFaults(flag);
    if (!faults.ok()) return faults.status();
    options->episode.faults = *faults;
  }
  return absl::OkStatus();
}

// Where memory lies must not matter. But where a hash table's order does, a replay is to find the same one.
void FixAddresses(char** argv) {
  const int now = personality(0xFFFFFFFF);
  if (now < 0 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) < 0) return;
  execv("/proc/self/exe", argv);
}

int Main(int argc, char** argv) {
  Options options;
  if (const absl::Status status = Parse(argc, argv, &options); !status.ok()) {
    std::cerr << status.message() << std::endl;
    return 2;
  }
  const int64_t began_ns = MonotonicNs();
  uint64_t operations = 0;
  for (uint64_t i = 0; i < options.episodes; ++i) {
    EpisodeOptions episode = options.episode;
    episode.seed += i;
    const EpisodeResult result = options.raw ? RunRawEpisode(episode) : RunPoolEpisode(episode);
    operations += result.operations;
    if (options.episodes <= 20) {
      std::cout << absl::StrFormat("seed %d: %d operations, %d events, %.1f virtual s, digest %016x\n", episode.seed,
                                   result.operations, result.events,
                                   static_cast<double>(result.virtual_ns) / kNsPerSecond, result.digest);
    }
    if (!result.failure.empty()) {
      std::cout << "FAILED with --seed=" << episode.seed << " after " << operations << " operations in all:\n"
                << result.failure << "\n"
                << result.report << std::flush;
      return 1;
    }
  }
  const double seconds = static_cast<double>(MonotonicNs() - began_ns) / kNsPerSecond;
  std::cout << absl::StrFormat("%d operations in %.1f s: %.0f a second\n", operations, seconds,
                               static_cast<double>(operations) / seconds);
  return 0;
}

}  // namespace
}  // namespace nram::sim

int main(int argc, char** argv) {
  nram::sim::FixAddresses(argv);
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = 3;  // servers log what peers do to them
  google::InitGoogleLogging(argv[0]);
  return nram::sim::Main(argc, argv);
}
