// nram drain: a server takes no new pages any more, and its pages are moved to other servers.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
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
        {"", "also move the stored pages to other servers, and wait until the\nserver may be switched off"});
    RegisterTlsDir(parser);
    parser->Switch("undo", &undo, {"", "accept new spans again"});
    parser->Switch("json", &json, {"", "print the result in JSON"});
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
  const char* const goes = leaving.find(' ') == std::string::npos ? " is" : " are";
  static auto* const kept = new std::deque<std::string>();
  last_words = kept->emplace_back(absl::StrCat(shows ? "\n" : "", "nram drain: interrupted; ", leaving, goes,
                                               " still being emptied, and nram drain ", leaving, " --undo ends that\n"))
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
      return absl::AbortedError(absl::StrCat(name, " was told meanwhile to accept new spans again"));
    }
    *left = CounterOf(*statistics, "pages");
    // Spans that hold nothing yet, but have room reserved, move too.
    const uint64_t reserved = MovingReserved(*statistics);
    uint64_t moving = 0;
    for (const CopiesReport& client : statistics->copies) moving += client.moving;
    most = std::max(most, *left);
    if (*left + reserved < least) {
      least = *left + reserved;
      moved_ns = MonotonicNs();
    }
    // Nothing is there any more: a client that still tells of moves does not keep the operator waiting for ever.
    const bool is_over = MonotonicNs() - moved_ns > kStuckMs * kNsPerMs;
    if (is_over && *left == 0 && reserved == 0) moving = 0;
    if (shows && most > 0) {
      fprintf(stderr, "\r%s: %3.0f %% moved, %s left   ", name.c_str(),
              100.0 * static_cast<double>(most - *left) / static_cast<double>(most),
              FormatByteSize(*left * kPageBytes).c_str());
      if (*left == 0 && moving == 0) fprintf(stderr, "\n");
    }
    if (*left == 0 && moving == 0) return absl::OkStatus();
    if (is_over) {
      if (shows) fprintf(stderr, "\n");
      return absl::FailedPreconditionError(absl::StrCat(
          name, " still holds ", FormatByteSize(*left * kPageBytes), ", and nothing has moved for ", kStuckMs / 1000,
          " s. Clients move their data while they run, to servers on other hosts with room to spare. Unsealed "
          "regions with one copy cannot move if they have a name or if their whole pool is one machine. "
          "nram regions shows the owners, nram status the missing room or hosts. ",
          "The server accepts no new spans; nram drain --undo ends that"));
    }
    SleepMs(kLookMs);
  }
}

int RunDrain(DrainFlags& options, const Invocation& given) {
  nlohmann::json out = nlohmann::json::array();
  // The servers before the one that failed are done, and told of.
  const auto fail = [&](const absl::Status& status) {
    if (options.json && !absl::IsInvalidArgument(status)) {
      out.push_back({{"error", std::string(status.message())}});
      PrintJson(out);
    }
    return ToExitCode(status, "nram drain");
  };
  if (given.words.empty()) {
    return fail(absl::InvalidArgumentError("expected a server as host:port, as nram df shows it"));
  }
  if (options.move && options.undo) {
    return fail(absl::InvalidArgumentError("--move and --undo contradict each other: give one of them"));
  }
  const bool shows = isatty(STDERR_FILENO) != 0;
  if (options.move) CatchSignals();
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
      printf("%s accepts new spans again.\n", name.c_str());
    } else if (options.move) {
      printf("%s holds no pages any more and may be switched off.\n", name.c_str());
      fflush(stdout);  // a signal may end the command while the next one is emptied
    } else {
      printf("%s accepts no new spans; %s are still stored there.\n", name.c_str(),
             FormatByteSize(used).c_str());
    }
  }
  if (options.json) PrintJson(out);
  return 0;
}

}  // namespace

Command DrainCommand() {
  return DefineCommand<DrainFlags>(
      {"drain", "empty a server, or stop placing new spans on it", R"(usage: nram drain SERVER... [flags]

Tells servers to accept no new spans and to reserve no more room. Stored pages remain there
and can be read, written and destroyed. Clients learn of this with their next lease renewal,
within seconds.

With --move, clients also move the stored pages: each span is copied to a host without a copy
of it, and then removed from the server. The command shows the progress and ends when the
server may be switched off. It fails if nothing has moved for 30 s: unsealed regions with one
copy cannot move if they have a name or if their whole pool is one machine. Ctrl-C ends only
the command: the server is still being emptied until --undo or a restart.

A server with --leave-within-ms is emptied the same way, but faster, when it gets SIGTERM. A
server whose donor is short of memory asks for a part of its stored pages back
(docs/giving-back.md).

Over TCP, a server with certificates requires the role operator for this (docs/security.md).

)",
       R"(
Exit codes: 0 done, 1 failed, 2 bad command line, 130 or 143 interrupted (Ctrl-C, SIGTERM).

example: nram drain node3:7070 --move && ssh node3 poweroff
)"},
      Words::kAny, &RunDrain);
}

}  // namespace nram
