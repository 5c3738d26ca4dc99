// Thousands of donors whose own programs change: the amount that is moved, the time until then, and that it ends. See
// kHelp.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/plant.h"
#include "base/units.h"
#include "tests/sim/donors_world.h"

namespace nram::sim {
namespace {

constexpr char kHelp[] =
    "usage: donors_test [--seed=N] [--rounds=K] [--scenario=NAME] [--donors=N] [--clients=N] [--trace]\n"
    "\n"
    "  --seed=N         of the first round; the others count up from it (1)\n"
    "  --rounds=K       how many worlds of each scenario (1)\n"
    "  --scenario=NAME  that one alone: storm, racks, periodic, seesaw, slow, frozen or full\n"
    "  --donors=N, --clients=N\n"
    "                   in each scenario, in place of its own number\n"
    "  --trace          says every ten seconds how a world stands\n"
    "\n"
    "One world is the same each time. Example: donors_test --seed=7 --scenario=full --trace\n";

constexpr int64_t kStepMs = 100;
constexpr int64_t kForEver = 1'000'000'000;

// The limits that must hold, each with its figures.
struct Limits {
  // The ratio of shed bytes to asked bytes; the ratio of asked bytes to the bytes that the donors could not spare.
  double left_of_asked = 1.02;
  double asked_of_needed = 2.2;
  // Shares of the shed spans: spans that return within 30 s, and spans that are sent to a server that asks just then.
  double returns = 0.0002;
  double to_asking = 0.01;
  // The share of shed spans that arrived within the last 5 s, relative to that share if servers asked at random.
  double quick_of_chance = 1.6;
  int64_t longest_ms = 5'000;  // that a server asks at a time, while jobs change
  int64_t given_ms = 10'000;    // that some server asks after that
  int64_t settled_ms = 10'000;  // that spans are shed after that
  bool has_room = true;        // the donors can give all that is asked
  // Vain searches for each server that asks and each of its clients, a second.
  double searches_a_second = 15;
};

struct Scenario {
  const char* name;
  DonorWorldOptions options;
  Limits limits;
};

constexpr JobMix kStorm = {.steps = 300, .spikes = 500, .ramps = 300, .periodics = 100, .racks = 300};

// Two of six donors ask one after the other, again and again; and then two others at once.
DonorWorldOptions Seesaw() {
  DonorWorldOptions options;
  options.donors = options.pool = 6;
  options.clients = 4;
  options.total_least_bytes = options.total_most_bytes;
  options.fill_percent = 25;
  options.jobs = {};
  for (const size_t donor : {0, 1}) {
    const int64_t begin_ms = donor == 0 ? 2'000 : 10'000;
    options.more_jobs.push_back(
        {donor, {.begin_ms = begin_ms, .end_ms = 58'000, .bytes = 2'400 * kMiB, .period_ms = 16'000}});
  }
  for (const size_t donor : {2, 3}) {
    options.more_jobs.push_back(
        {donor, {.begin_ms = 100'000, .end_ms = 150'000, .bytes = 2'400 * kMiB, .period_ms = 8'000}});
  }
  options.storm_ms = 160'000;
  return options;
}

// Every third donor needs half a gigabyte once, and one client of five does not learn of it.
DonorWorldOptions Frozen() {
  DonorWorldOptions options;
  options.donors = 300;
  options.clients = 100;
  options.total_least_bytes = options.total_most_bytes = 2 * kGiB;
  options.fill_percent = 75;
  options.growth_percent = 0;
  options.copied_percent = 0;
  options.frozen_percent = 20;
  options.storm_ms = 60'000;
  for (size_t donor = 0; donor < options.donors; donor += 3) {
    const auto begin_ms = static_cast<int64_t>(2'000 + 100 * donor);
    options.more_jobs.push_back({donor, {.begin_ms = begin_ms, .end_ms = begin_ms + 25'000, .bytes = 450 * kMiB}});
  }
  return options;
}

// Half of all donors need all of their memory, and there is no room for it.
DonorWorldOptions Over() {
  DonorWorldOptions options;
  options.donors = 200;
  options.clients = 50;
  options.fill_percent = 75;
  options.storm_ms = 30'000;
  for (size_t donor = 0; donor < options.donors; donor += 2) {
    const auto begin_ms = static_cast<int64_t>(2'000 + 50 * donor);
    options.more_jobs.push_back({donor, {.begin_ms = begin_ms, .end_ms = kForEver, .bytes = 3 * kGiB}});
  }
  return options;
}

std::vector<Scenario> Scenarios() {
  DonorWorldOptions storm;
  storm.jobs = kStorm;
  storm.storm_ms = 60'000;

  DonorWorldOptions racks = storm;
  racks.donors = 800;
  racks.clients = 200;
  racks.jobs = {.racks = 1'500};
  racks.storm_ms = 40'000;

  DonorWorldOptions periodic = storm;
  periodic.donors = 600;
  periodic.clients = 120;
  periodic.jobs = {.periodics = 2'000, .percent_max = 40};
  periodic.fill_percent = 30;
  periodic.storm_ms = 90'000;

  DonorWorldOptions slow = storm;
  slow.donors = slow.pool = 200;
  slow.clients = 50;
  slow.link_bytes_per_s = 125'000'000;

  DonorWorldOptions full = storm;
  full.donors = 400;
  full.clients = 100;
  full.jobs = {.steps = 1'000, .spikes = 2'000, .ramps = 1'000, .periodics = 500, .racks = 1'500};

  return {{"storm", storm, {}},
          {"racks", racks, {}},
          {"periodic", periodic, {}},
          // A few hundred spans: chance has more effect.
          {"seesaw", Seesaw(), {.to_asking = 0.15, .quick_of_chance = 8}},
          // The copies in slots when a server has enough are a larger share of the asked bytes.
          {"slow", slow, {.left_of_asked = 1.2, .longest_ms = 15'000}},
          {"frozen", Frozen(), {.asked_of_needed = 2.5, .quick_of_chance = 3, .longest_ms = 10'000}},
          {"over", Over(), {.to_asking = 0.03, .longest_ms = kForEver, .given_ms = kForEver, .has_room = false}},
          {"full",
           full,
           {.asked_of_needed = 3.5,
            .returns = 0.03,
            .to_asking = 0.02,
            .longest_ms = kForEver,
            .given_ms = kForEver,
            .settled_ms = 25'000,
            .has_room = false}}};
}

std::string Figures(const DonorWorld& world) {
  const DonorCounts& counts = world.counts();
  return absl::StrFormat(
      "%d s: %d ask for %d MiB, %d clients at work, %d MiB stored, %d free; asked %d MiB, needed %d, moved %d, dropped "
      "%d, repaired %d; %d refused, %d late, %d to asking, %d back, %d quick, %d searches, %d in vain; %.0f "
      "GiB-s lacking",
      world.now_ms() / 1'000, world.asking(), world.asked_bytes() / kMiB, world.busy(), world.stored_bytes() / kMiB,
      world.free_bytes() / kMiB, counts.asked / kMiB, counts.needed / kMiB, counts.moves / kMiB, counts.drops / kMiB,
      counts.repairs / kMiB, counts.refusals, counts.late, counts.to_asking, counts.returns, counts.quick,
      counts.searches, counts.in_vain, counts.lacking / kGiB);
}

class Run {
 public:
  Run(const Scenario& scenario, uint64_t seed, bool traces)
      : scenario_(scenario), limits_(scenario.limits), traces_(traces), world_(scenario.options, seed) {}

  // Returns the failure; empty if there is none.
  std::string Go();

 private:
  void RunFor(int64_t ms);
  void Expect(bool holds, const std::string& what) {
    if (!holds) absl::StrAppend(&wrong_, wrong_.empty() ? "" : "\n", "  ", what);
  }
  void ExpectRatio(const char* what, double value, double most) {
    Expect(value <= most, absl::StrFormat("%s: %.4f, at most %.4f", what, value, most));
    report_ += absl::StrFormat(", %s %.3f", what, value);
  }
  void JudgeStorm();
  void JudgeCalm();
  void JudgeEnd();

  const Scenario& scenario_;
  const Limits& limits_;
  const bool traces_;
  DonorWorld world_;
  int64_t last_asked_ms_ = 0;
  std::string wrong_;
  std::string report_;
};

void Run::RunFor(int64_t ms) {
  for (const int64_t end_ms = world_.now_ms() + ms; world_.now_ms() < end_ms;) {
    world_.RunUntil(world_.now_ms() + kStepMs);
    if (world_.asking() > 0) last_asked_ms_ = world_.now_ms();
    if (traces_ && world_.now_ms() % 10'000 == 0) std::cout << Figures(world_) << std::endl;
  }
}

void Run::JudgeStorm() {
  const DonorCounts& counts = world_.counts();
  const auto left = static_cast<double>(counts.moves + counts.drops);
  const auto spans = left / static_cast<double>(kSpanBytes);
  Expect(spans > 100, absl::StrCat("too little happens: ", spans, " spans have left"));
  const double chance = left / static_cast<double>(world_.stored_bytes()) * static_cast<double>(DonorWorld::kQuickMs) /
                        static_cast<double>(world_.now_ms());
  ExpectRatio("returns", static_cast<double>(counts.returns) / spans, limits_.returns);
  ExpectRatio("to asking", static_cast<double>(counts.to_asking) / spans, limits_.to_asking);
  ExpectRatio("quick of chance", static_cast<double>(counts.quick) / spans / (chance + 0.01), limits_.quick_of_chance);
  ExpectRatio("asks s", static_cast<double>(counts.longest_ms) / 1'000,
              static_cast<double>(limits_.longest_ms) / 1'000);
}

void Run::JudgeCalm() {
  const DonorCounts& counts = world_.counts();
  // Each client may have some in its slots when a server has enough.
  const double grace = static_cast<double>(6 * scenario_.options.clients * kSpanBytes);
  ExpectRatio("left of asked",
              (static_cast<double>(counts.moves + counts.drops) - grace) / static_cast<double>(counts.asked),
              limits_.left_of_asked);
  ExpectRatio("asked of needed", static_cast<double>(counts.asked) / static_cast<double>(counts.needed),
              limits_.asked_of_needed);
  const int64_t calm_ms = scenario_.options.storm_ms;
  ExpectRatio("given s", static_cast<double>(last_asked_ms_ - calm_ms) / 1'000,
              static_cast<double>(limits_.given_ms) / 1'000);
  ExpectRatio("settled s", static_cast<double>(counts.last_shed_ms - calm_ms) / 1'000,
              static_cast<double>(limits_.settled_ms) / 1'000);
  const std::string stuck = world_.FindStuck();
  Expect(stuck.empty(), stuck);
  Expect(!limits_.has_room || world_.asking() == 0, absl::StrCat(world_.asking(), " servers ask still"));
}

void Run::JudgeEnd() {
  Expect(world_.asking() == 0, absl::StrCat("no job is left, and ", world_.asking(), " servers ask"));
  Expect(world_.busy() == 0, absl::StrCat("no job is left, and ", world_.busy(), " clients have something to do"));
  Expect(world_.counts().lost == 0, absl::StrCat(world_.counts().lost, " copies were not where they should be"));
  const std::string check = world_.Check();
  Expect(check.empty(), check);
}

std::string Run::Go() {
  RunFor(scenario_.options.storm_ms);
  JudgeStorm();
  world_.Calm();
  RunFor(20'000);
  const uint64_t in_vain = world_.counts().in_vain;
  const size_t clients = world_.asked_clients();
  RunFor(10'000);
  JudgeCalm();
  const auto searches = static_cast<double>(world_.counts().in_vain - in_vain) / 10;
  ExpectRatio("searches", searches / static_cast<double>(std::max<size_t>(clients, 1)), limits_.searches_a_second);
  world_.EndJobs();
  RunFor(30'000);
  JudgeEnd();
  std::cout << scenario_.name << ": " << Figures(world_) << report_ << std::endl;
  return wrong_;
}

struct Options {
  uint64_t seed = 1;
  uint64_t rounds = 1;
  uint64_t donors = 0;
  uint64_t clients = 0;
  std::string scenario;
  bool traces = false;
};

absl::Status Parse(int argc, char** argv, Options* options) {
  const auto parse = [](absl::string_view flag, absl::string_view name, uint64_t* value) {
    return absl::ConsumePrefix(&flag, name) && absl::SimpleAtoi(flag, value);
  };
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (parse(flag, "--seed=", &options->seed) || parse(flag, "--rounds=", &options->rounds) ||
        parse(flag, "--donors=", &options->donors) || parse(flag, "--clients=", &options->clients)) {
      continue;
    }
    if (absl::ConsumePrefix(&flag, "--scenario=")) {
      options->scenario = std::string(flag);
    } else if (flag == "--trace") {
      options->traces = true;
#ifdef NRAM_PLANT
    } else if (absl::ConsumePrefix(&flag, "--plant=") && SetPlanted({flag.data(), flag.size()})) {
#endif
    } else {
      return absl::InvalidArgumentError(absl::StrCat(argv[i], "?\n", kHelp));
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  if (const absl::Status status = Parse(argc, argv, &options); !status.ok()) {
    std::cerr << status.message() << std::endl;
    return 2;
  }
  uint64_t worlds = 0;
  for (uint64_t seed = options.seed; seed < options.seed + options.rounds; ++seed) {
    for (Scenario& scenario : Scenarios()) {
      if (!options.scenario.empty() && options.scenario != scenario.name) continue;
      if (options.donors > 0) scenario.options.donors = options.donors;
      if (options.clients > 0) scenario.options.clients = options.clients;
      ++worlds;
      const std::string wrong = Run(scenario, seed, options.traces).Go();
      if (wrong.empty()) continue;
      std::cout << "FAILED with --seed=" << seed << " --scenario=" << scenario.name << "\n" << wrong << std::endl;
      return 1;
    }
  }
  if (worlds == 0) std::cerr << "--scenario=" << options.scenario << "?\n" << kHelp;
  return worlds == 0 ? 2 : 0;
}

}  // namespace
}  // namespace nram::sim

int main(int argc, char** argv) { return nram::sim::Main(argc, argv); }
