// nram drain: a server takes no new pages any more, and its pages are moved to other servers.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/signals.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/client_tls.h"
#include "client/pool/pool_spec.h"
#include "nlohmann/json.hpp"
#include "tools/nram/command.h"
#include "tools/nram/copies_report.h"

namespace nram {
namespace {

constexpr int64_t kLookMs = 200;
// Clients look at their servers every few seconds; a move that gets nowhere for this time does not get anywhere.
constexpr int64_t kStuckMs = 30'000;

struct DrainFlags {
  bool undo = false;
  bool move = false;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->Switch(
        "move", &move,
        {"", "also move what is stored there to other servers, and wait until the\nserver may be switched off"});
    RegisterTlsDir(parser);
    parser->Switch("undo", &undo, {"", "take new pages again"});
    parser->Switch("json", &json, {"", "say what was done in JSON"});
  }
};

// The text to print if a signal ends the command now. The strings that it names stay.
std::atomic<const char*> last_words{nullptr};

void OnSignal(int number) {
  if (const char* const words = last_words) (void)!write(STDERR_FILENO, words, strlen(words));
  _exit(128 + number);
}

// A signal ends the command at once; the servers continue the drain that was begun.
void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = &OnSignal;
  const sigset_t ending = EndingSignals();
  sigfillset(&action.sa_mask);  // one signal is enough
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (sigismember(&ending, number) == 1) sigaction(number, &action, nullptr);
  }
}

// Of these servers, which are told to leave. `shows`: the line of the progress is on the screen.
void SetLastWords(const std::string& leaving, bool shows) {
  const char* const goes = leaving.find(' ') == std::string::npos ? " goes" : " go";
  static auto* const kept = new std::deque<std::string>();
  last_words = kept->emplace_back(absl::StrCat(shows ? "\n" : "", "nram drain: interrupted; ", leaving, goes,
                                               " on leaving, and nram drain ", leaving, " --undo ends that\n"))
                   .c_str();
}

// Until no page is stored there. *left: the pages that are.
absl::Status AwaitEmpty(ControlClient* control, const std::string& name, bool shows, uint64_t* left) {
  uint64_t most = 0;
  uint64_t least = UINT64_MAX;
  int64_t moved_ns = MonotonicNs();
  while (true) {
    const auto statistics = control->GetStatistics(DeadlineAfterMs(kAskTimeoutMs));
    if (!statistics.ok()) return Annotate(statistics.status(), absl::StrCat(name, " while it was being emptied"));
    if (!statistics->capacity.leaving) {
      return absl::AbortedError(absl::StrCat(name, " was told to take new pages again meanwhile"));
    }
    *left = CounterOf(*statistics, "pages");
    // Spans that hold nothing yet, but have room reserved, move too.
    uint64_t moving = 0;
    for (const CopiesReport& client : statistics->copies) moving += client.moving;
    most = std::max(most, *left);
    if (*left + moving < least) {
      least = *left + moving;
      moved_ns = MonotonicNs();
    }
    if (shows && most > 0) {
      fprintf(stderr, "\r%s: %3.0f %% moved, %s left   ", name.c_str(),
              100.0 * static_cast<double>(most - *left) / static_cast<double>(most),
              FormatByteSize(*left * kPageBytes).c_str());
      if (*left == 0 && moving == 0) fprintf(stderr, "\n");
    }
    if (*left == 0 && moving == 0) return absl::OkStatus();
    if (MonotonicNs() - moved_ns > kStuckMs * kNsPerMs) {
      if (shows) fprintf(stderr, "\n");
      return absl::FailedPreconditionError(absl::StrCat(
          name, " still holds ", FormatByteSize(*left * kPageBytes), ", and nothing has moved for ", kStuckMs / 1000,
          " s. Data moves while its client runs, to servers on other hosts that have room and do not need it back; ",
          "plain regions of one copy do not, if they have a name or all of their pool is one machine. nram regions "
          "shows whose they are; nram status, what is lacking. ",
          "The server takes no new pages; nram drain --undo ends that"));
    }
    SleepMs(kLookMs);
  }
}

int RunDrain(DrainFlags& options, const Invocation& given) {
  const auto fail = [](const absl::Status& status) { return ToExitCode(status, "nram drain"); };
  if (given.words.empty()) {
    return fail(absl::InvalidArgumentError("which server? Give one as host:port, as nram df shows it"));
  }
  if (options.move && options.undo) {
    return fail(absl::InvalidArgumentError("--move and --undo contradict each other: give one of them"));
  }
  const bool shows = isatty(STDERR_FILENO) != 0;
  if (options.move) CatchSignals();
  nlohmann::json out = nlohmann::json::array();
  std::string leaving;
  for (const std::string& word : given.words) {
    const auto endpoint = ParseEndpoint(word, kDefaultServerPort);
    if (!endpoint.ok()) return fail(endpoint.status());
    const std::string name = endpoint->ToString();
    const auto tls = FindClientTls({&*endpoint, 1});
    if (!tls.ok()) return fail(tls.status());
    const auto control = ControlClient::Create(*endpoint, *tls);
    if (options.move) {
      absl::StrAppend(&leaving, leaving.empty() ? "" : " ", name);
      SetLastWords(leaving, shows);  // before it is told: the answer may come late
    }
    const absl::Status status = control->Drain(!options.undo, options.move, DeadlineAfterMs(kAskTimeoutMs));
    if (!status.ok()) return fail(status);
    uint64_t left = 0;
    if (options.move) {
      const absl::Status emptied = AwaitEmpty(control.get(), name, shows, &left);
      if (!emptied.ok()) return fail(emptied);
    }
    const auto statistics = control->GetStatistics(DeadlineAfterMs(kAskTimeoutMs));
    const uint64_t used = statistics.ok() ? statistics->capacity.used_bytes : 0;
    out.push_back({{"address", name}, {"draining", !options.undo}, {"moved", options.move}, {"used_bytes", used}});
    if (options.json) continue;
    if (options.undo) {
      printf("%s takes new pages again.\n", name.c_str());
    } else if (options.move) {
      printf("%s holds no pages any more, and may be switched off.\n", name.c_str());
      fflush(stdout);  // a signal may end the command while the next one is emptied
    } else {
      printf("%s takes no new spans any more; %s are still stored there.\n", name.c_str(),
             FormatByteSize(used).c_str());
    }
  }
  if (options.json) std::cout << out.dump(2) << std::endl;
  return 0;
}

}  // namespace

Command DrainCommand() {
  return DefineCommand<DrainFlags>(
      {"drain", "empty a server, or stop placing on it", R"(usage: nram drain SERVER... [flags]

Tells servers to take no new spans and to reserve no more room. What is stored there stays
and can be read, written and destroyed. Clients learn of it with their next lease renewal,
within seconds.

With --move they also move it: each span gets a copy elsewhere, on a host that has none, and
leaves. The command shows how far that is, and ends when the server may be switched off. It
fails if nothing has moved for 30 s: plain regions of one copy stay, if they have a name or
all of their pool is one machine. Ctrl-C ends the command alone: the server goes on leaving,
until --undo or a restart.

A server with --leave-within-ms does the same by itself when it is told to end, in a hurry; one
whose donor is short of memory asks for a part of what it stores (docs/giving-back.md).

)",
       R"(
Exit codes: 0 done, 1 failed, 2 bad command line, 130 or 143 interrupted (Ctrl-C, SIGTERM).

example: nram drain node3:7070 --move && ssh node3 poweroff
)"},
      Words::kAny, &RunDrain);
}

}  // namespace nram
