// Ends with managed objects that are destroyed after main(): the pool must have nothing of the program then.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nram/managed.hpp>
#include <string>
#include <vector>

namespace {

// Made before the default manager is opened, so destroyed after its handler of exit().
struct Late {
  ~Late() {
    if (!texts.empty() && *nram::adhere(texts[0]) != "late") std::_Exit(3);
    texts.clear();
    std::puts("late objects are destroyed");
  }
  std::vector<nram::managed<std::string>> texts;
};
Late late;

}  // namespace

int main(int argc, char**) {
  nram::managed_memory::get_default().set_budget(1 << 20);
  // A child leaves the pool to the parent, which has no object now. It ends by exit(), as this one will.
  const pid_t child = fork();
  if (child == 0) return 0;
  int status = -1;
  if (waitpid(child, &status, 0) != child || status != 0) return 4;
  // With an argument nothing is left when the handler runs.
  if (argc == 1) late.texts.emplace_back(std::size_t{1}, "late");
  std::vector<nram::managed<double>> rows;  // four times the budget
  for (int i = 0; i < 32; ++i) rows.emplace_back(std::size_t{16'384}, i);
  return nram::adhere(rows[0])[7] == 0.0 ? 0 : 2;
}
