#include "base/host/node_share.h"

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace nram {
namespace {

constexpr int kProcessesMax = 65'536;
// A launcher that starts further ones (mpirun below srun) has the last word: Slurm's is asked last.
constexpr const char* kCounts[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"};
constexpr char kSlurmTasks[] = "SLURM_STEP_TASKS_PER_NODE";
constexpr char kSlurmNode[] = "SLURM_NODEID";
// Variables that launchers give each process of a parallel program, also launchers that do not tell how many run here.
constexpr const char* kRanks[] = {"PMI_RANK", "PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE"};

absl::Status Refused(const char* name, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("the budget is shared on this node (/node), but $", name, " is \"",
                                                 text, "\": expected the number of processes here, 1 to ",
                                                 kProcessesMax));
}

bool ParseCount(absl::string_view text, int* count) {
  return absl::SimpleAtoi(text, count) && *count >= 1 && *count <= kProcessesMax;
}

// "2(x3),1": two tasks on each of the nodes 0 to 2, one on node 3. Returns false if `node` has none there.
bool TasksOf(absl::string_view text, int node, int* tasks) {
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(part, absl::MaxSplits("(x", 1));
    int times = 1;
    absl::string_view repeated = words.second;
    if (absl::StrContains(part, '(') &&
        (!absl::ConsumeSuffix(&repeated, ")") || !absl::SimpleAtoi(repeated, &times) || times < 1)) {
      return false;
    }
    if (!ParseCount(words.first, tasks)) return false;
    if (node < times) return true;
    node -= times;
  }
  return false;
}

}  // namespace

absl::StatusOr<int> ProcessesOnThisNode() {
  int count = 1;
  for (const char* name : kCounts) {
    const char* const text = std::getenv(name);
    if (text == nullptr) continue;
    if (!ParseCount(text, &count)) return Refused(name, text);
    return count;
  }
  const char* const tasks = std::getenv(kSlurmTasks);
  for (const char* name : kRanks) {
    if (tasks != nullptr || std::getenv(name) == nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the budget is shared on this node (/node), but the launcher that has set $", name,
                     " does not give the number of processes on this node: set a budget per process, without /node"));
  }
  if (tasks == nullptr) return 1;
  const char* const node = std::getenv(kSlurmNode);
  int number = -1;
  if (node == nullptr || !absl::SimpleAtoi(node, &number) || number < 0 || !TasksOf(tasks, number, &count)) {
    return Refused(kSlurmTasks, absl::StrCat(tasks, "\" on node \"", node == nullptr ? "" : node));
  }
  return count;
}

absl::StatusOr<int> ConsumeNodeShare(absl::string_view* text) {
  if (!absl::ConsumeSuffix(text, "/node")) return 1;
  return ProcessesOnThisNode();
}

}  // namespace nram
