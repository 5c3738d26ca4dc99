// nram: the command.

#include <glog/logging.h>
#include <signal.h>

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/fd.h"
#include "base/version.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

void PrintHelp() {
  std::cout << "usage: nram COMMAND [flags]\n\n"
               "Network RAM: pools the idle memory of machines and gives it back when they need it.\n\n";
  for (const Command& command : Commands()) {
    printf("  %-12s %s\n", command.name.c_str(), command.summary.c_str());
  }
  std::cout << std::flush;
  printf(
      "\n`nram COMMAND --help` explains a command. The pool is --pool=host:port,..., --pool=HOSTFILE,\n"
      "--pool=dns:NAME[:PORT] or --pool=etcd:HOST[:PORT],.../NAME, else $NRAM_POOL, else the local pool of\n"
      "`nram up`, else /etc/nram/pool.\n"
      "\nexample: nram up --servers=2 --donate=1GiB && nram df && nram down\n");
}

int Main(int argc, char** argv) {
  signal(SIGPIPE, SIG_DFL);
  if (argc < 2) {
    PrintHelp();
    return 2;
  }
  const std::string name = argv[1];
  if (name == "help" && argc == 3) {
    for (const Command& command : Commands()) {
      if (command.name == argv[2]) {
        std::cout << command.help;
        return FinishOutput(0, "nram help");
      }
    }
  }
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp();
    return FinishOutput(0, "nram");
  }
  if (name == "--version" || name == "-V" || name == "version") {
    std::cout << "nram " << kVersion << "\n";
    return FinishOutput(0, "nram");
  }
  for (const Command& command : Commands()) {
    if (name == command.name) return command.run({argv + 2, argv + argc});
  }
  std::vector<std::string> names;
  for (const Command& command : Commands()) names.push_back(command.name);
  const std::string near = NearestWord(name, names);
  std::cerr << "nram: there is no command \"" << name << "\"" << (near.empty() ? "" : "; did you mean " + near + "?")
            << "\nTry 'nram --help'.\n";
  return 2;
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  nram::OpenStandardFds();
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_ERROR;  // commands print their errors themselves
  google::InitGoogleLogging(argv[0]);
  return nram::Main(argc, argv);
}
