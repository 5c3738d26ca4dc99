#include "base/host/node_share.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace nram {
namespace {

constexpr const char* kAll[] = {"OMPI_COMM_WORLD_LOCAL_SIZE",
                                "MPI_LOCALNRANKS",
                                "MV2_COMM_WORLD_LOCAL_SIZE",
                                "SLURM_STEP_TASKS_PER_NODE",
                                "SLURM_NODEID",
                                "PMI_RANK",
                                "PMIX_RANK",
                                "PALS_RANKID",
                                "ALPS_APP_PE"};

class NodeShareTest : public testing::Test {
 protected:
  NodeShareTest() { Set({}); }
  ~NodeShareTest() override { Set({}); }

  // Sets the launcher's variables, and no others.
  static void Set(const std::map<std::string, std::string>& variables) {
    for (const char* name : kAll) unsetenv(name);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  }

  static int Processes(const std::map<std::string, std::string>& variables) {
    Set(variables);
    return ProcessesOnThisNode().value_or(-1);
  }
};

TEST_F(NodeShareTest, AProgramAloneHasAll) { EXPECT_EQ(Processes({}), 1); }

TEST_F(NodeShareTest, EachLauncherIsUnderstood) {
  EXPECT_EQ(Processes({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}), 4);
  EXPECT_EQ(Processes({{"MPI_LOCALNRANKS", "3"}}), 3);
  EXPECT_EQ(Processes({{"MV2_COMM_WORLD_LOCAL_SIZE", "65536"}}), 65536);
  EXPECT_EQ(Processes({{"SLURM_STEP_TASKS_PER_NODE", "8"}, {"SLURM_NODEID", "0"}}), 8);
  // The daemons of mpirun are Slurm's tasks, one a node; the ranks are not.
  EXPECT_EQ(
      Processes({{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}, {"SLURM_NODEID", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}),
      5);
}

TEST_F(NodeShareTest, OneOfSeveralDoesNotTakeAllBecauseItsLauncherIsUnknown) {
  for (const char* rank : {"PMI_RANK", "PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE"}) {
    EXPECT_EQ(Processes({{rank, "0"}}), -1) << rank;
    EXPECT_EQ(Processes({{rank, "0"}, {"MPI_LOCALNRANKS", "3"}}), 3);
    EXPECT_EQ(Processes({{rank, "0"}, {"SLURM_STEP_TASKS_PER_NODE", "8"}, {"SLURM_NODEID", "0"}}), 8);
  }
}

TEST_F(NodeShareTest, SlurmCountsForEachNode) {
  const std::string tasks = "2(x3),1,7(x2)";
  const int expected[] = {2, 2, 2, 1, 7, 7, -1};
  for (int node = 0; node < 7; ++node) {
    EXPECT_EQ(Processes({{"SLURM_STEP_TASKS_PER_NODE", tasks}, {"SLURM_NODEID", std::to_string(node)}}), expected[node])
        << node;
  }
}

TEST_F(NodeShareTest, NonsenseIsNoCount) {
  for (const char* bad : {"", "0", "-1", "65537", "many", "2x", "99999999999"}) {
    EXPECT_EQ(Processes({{"OMPI_COMM_WORLD_LOCAL_SIZE", bad}}), -1) << bad;
  }
  for (const char* bad : {"", "2(x", "2(x)", "2(x0)", "2(3)", ",", "(x2)", "2(x2)3"}) {
    EXPECT_EQ(Processes({{"SLURM_STEP_TASKS_PER_NODE", bad}, {"SLURM_NODEID", "0"}}), -1) << bad;
  }
  EXPECT_EQ(Processes({{"SLURM_STEP_TASKS_PER_NODE", "2"}}), -1) << "without a node's number";
  EXPECT_EQ(Processes({{"SLURM_STEP_TASKS_PER_NODE", "2"}, {"SLURM_NODEID", "-1"}}), -1);
}

TEST_F(NodeShareTest, OnlyABudgetOfTheNodeIsShared) {
  Set({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  absl::string_view own = "8G";
  EXPECT_EQ(ConsumeNodeShare(&own).value(), 1);
  EXPECT_EQ(own, "8G");
  absl::string_view node = "auto:1G-8G/node";
  EXPECT_EQ(ConsumeNodeShare(&node).value(), 4);
  EXPECT_EQ(node, "auto:1G-8G");
  // Where nothing is shared, the launcher's variables are not looked at.
  Set({{"OMPI_COMM_WORLD_LOCAL_SIZE", "nonsense"}});
  EXPECT_EQ(ConsumeNodeShare(&own).value(), 1);
  node = "8G/node";
  EXPECT_FALSE(ConsumeNodeShare(&node).ok());
}

}  // namespace
}  // namespace nram
