// A cluster in virtual time: sim --seed=N --episodes=K. See Help.

#include <glog/logging.h>
#include <sys/personality.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/plant.h"
#include "tests/sim/runs.h"

namespace nram::sim {
namespace {

constexpr char kHelp[] =
    "usage: sim [--seed=N] [--episodes=K] [--operations=N] [--faults=LIST] [--jobs=N] [--state=FILE] "
    "[--raw | --publish] [--trace]\n"
    "\n"
    "  --seed=N         of the first episode; the others count up from it (1)\n"
    "  --episodes=K     how many worlds (10)\n"
    "  --operations=N   of each (4000)\n"
    "  --faults=LIST    all, none, or names with weights: kill:4,cut (all); each episode leaves some out\n"
    "  --jobs=N         processes; 0: one for each processor (1)\n"
    "  --state=FILE     notes what is done, and goes on there\n"
    "  --raw            clients of single calls in place of pools\n"
    "  --publish        programs that publish versions of a region and observe them; --operations does not count\n"
    "  --trace          writes all that happens to stderr\n"
    "\n"
    "One episode is the same each time: --seed=N --episodes=1.\n"
    "10^8 operations on all processors: --episodes=25000 --jobs=0 --state=FILE.\n";

bool ParseNumber(absl::string_view flag, absl::string_view name, uint64_t* value) {
  return absl::ConsumePrefix(&flag, name) && absl::SimpleAtoi(flag, value);
}

// A planted bug, which only a build of its own can have.
absl::Status ParsePlant(absl::string_view name) {
#ifdef NRAM_PLANT
  if (SetPlanted({name.data(), name.size()})) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--plant: base/plant.h has no ", name));
#else
  return absl::InvalidArgumentError("--plant: this build has no planted bugs");
#endif
}

absl::Status Parse(int argc, char** argv, RunOptions* options) {
  uint64_t jobs = 1;
  std::string faults = "all";
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (ParseNumber(flag, "--seed=", &options->episode.seed) || ParseNumber(flag, "--episodes=", &options->episodes) ||
        ParseNumber(flag, "--operations=", &options->episode.operations) || ParseNumber(flag, "--jobs=", &jobs)) {
      continue;
    }
    absl::Status status;
    if (flag == "--trace") {
      options->episode.verbose = true;
    } else if (flag == "--raw") {
      options->raw = true;
    } else if (flag == "--publish") {
      options->publish = true;
    } else if (absl::ConsumePrefix(&flag, "--state=")) {
      options->state_path = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--faults=")) {
      faults = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--plant=")) {
      status = ParsePlant(flag);
    } else {
      status = absl::InvalidArgumentError(absl::StrCat(flag, "?\n", kHelp));
    }
    if (!status.ok()) return status;
  }
  const auto weights = ParseFaults(faults);
  if (!weights.ok()) return weights.status();
  options->episode.faults = *weights;
  options->jobs = static_cast<int>(jobs > 0 ? jobs : std::thread::hardware_concurrency());
  options->what =
      absl::StrCat("--seed=", options->episode.seed, " --operations=", options->episode.operations,
                   " --faults=", faults, options->raw ? " --raw" : "", options->publish ? " --publish" : "");
  return absl::OkStatus();
}

// Results must not depend on addresses. But the order of a hash table may, so a replay must find the same addresses.
void FixAddresses(char** argv) {
  const int now = personality(0xFFFFFFFF);
  if (now < 0 || (now & ADDR_NO_RANDOMIZE) != 0) return;
  if (personality(static_cast<unsigned long>(now) | ADDR_NO_RANDOMIZE) < 0) return;
  execv("/proc/self/exe", argv);
}

int Main(int argc, char** argv) {
  RunOptions options;
  if (const absl::Status status = Parse(argc, argv, &options); !status.ok()) {
    std::cerr << status.message() << std::endl;
    return 2;
  }
  const int64_t began_ns = MonotonicNs();
  uint64_t operations = 0;
  const bool apart = options.publish && options.episodes > 1 && !options.episode.verbose;  // see RunJobs
  const bool here = options.jobs == 1 && options.state_path.empty() && !apart;
  const absl::Status status = here ? RunHere(options, &operations) : RunJobs(options, &operations);
  if (!status.ok()) std::cout << status.message() << "\n";
  const double seconds = static_cast<double>(MonotonicNs() - began_ns) / kNsPerSecond;
  std::cout << absl::StrFormat("%d operations in %.1f s: %.0f a second\n", operations, seconds,
                               static_cast<double>(operations) / seconds);
  return status.ok() ? 0 : 1;
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
