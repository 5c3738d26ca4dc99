// A program that forks while it has managed objects, most of them remote. The child ends as programs do: by exit, with
// all its destructors. The parent's objects are unchanged.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <nram/managed.hpp>
#include <string>
#include <vector>

namespace {

constexpr int kRows = 64;
constexpr size_t kRow = 16 * 1024;  // 128 KiB: eight times the budget in all

using Rows = nram::managed<double, 2>;

bool Check(Rows& rows, int round) {
  for (int i = 0; i < kRows; ++i) {
    nram::adhere<double> row(rows[i]);
    for (const double value : row) {
      if (value != i + round) return false;
    }
    for (double& value : row) ++value;
  }
  return true;
}

// The child can write to the local objects; the rest is refused.
int RunChild(Rows& rows) {
  int refused = 0;
  for (int i = 0; i < kRows; ++i) {
    try {
      nram::adhere<double> row(rows[i]);
      for (double& value : row) value = -1;
    } catch (const nram::managed_error&) {
      ++refused;
    }
  }
  return refused > 0 && refused < kRows ? 0 : 3;
}

}  // namespace

int main() {
  nram::managed_options options = nram::managed_memory::default_options();
  options.budget_bytes = 1 << 20;
  nram::managed_memory memory(nullptr, options);
  Rows rows(memory, kRows, kRow);
  std::vector<nram::managed<std::string>> strings;
  for (int i = 0; i < 1000; ++i) strings.emplace_back(memory, 1, 500, static_cast<char>('a' + i % 26));
  for (int i = 0; i < kRows; ++i) {
    const nram::adhere<double> row(rows[i]);
    for (double& value : row) value = i;
  }
  for (int round = 0; round < 3; ++round) {
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);  // a hang is a failure
      return RunChild(rows);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      printf("the child of round %d ended with status %d\n", round, status);
      return 1;
    }
    if (!Check(rows, round)) {
      printf("round %d: the parent's objects are not as they were\n", round);
      return 1;
    }
  }
  for (int i = 0; i < 1000; ++i) {
    if (*nram::adhere<const std::string>(strings[i]) != std::string(500, static_cast<char>('a' + i % 26))) return 1;
  }
  printf("the parent's objects are as they were\n");
  return 0;
}
