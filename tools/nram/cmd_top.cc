// nram top: the pool as it works.

#define NCURSES_NOMACROS  // whose names are the standard library's too
#include <curses.h>
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "swap/swap_area.h"
#include "tools/nram/command.h"
#include "tools/nram/copies_report.h"
#include "tools/nram/pool_watch.h"

namespace nram {
namespace {

// A list of more regions takes too long to be asked for again and again: mounts have a region for each file.
constexpr uint64_t kRegionsMax = 20'000;

struct TopFlags {
  std::string pool;
  int64_t interval_s = 1;
  bool once = false;
  bool json = false;

  void Register(ArgParser* parser) {
    parser->String("pool", &pool, kPoolFlag);
    RegisterTlsDir(parser);
    parser->Integer("interval", 1, 3600, &interval_s, {"SECONDS", "1..3600 between two samples (default 1)"});
    parser->Switch("once", &once, {"", "print one interval and end"});
    parser->Switch("json", &json, {"", "print a line of JSON for each interval, for scripts"});
  }
};

std::string TimeNow() {
  const time_t now = time(nullptr);
  struct tm utc {};
  gmtime_r(&now, &utc);
  char text[32];
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Says why the clients cannot be known; "": they are.
std::string FindClients(absl::Span<const PoolMember> members, PoolLook* look) {
  uint64_t regions = 0;
  for (const PoolLook::Donor& donor : look->donors) {
    if (donor.answer.ok()) regions += CounterOf(*donor.answer, "regions");
  }
  if (regions > kRegionsMax) return absl::StrCat("there are ", regions, " regions, too many to show: see nram regions");
  for (size_t i = 0; i < members.size(); ++i) {
    if (!look->donors[i].answer.ok()) continue;
    const auto listed =
        members[i].control->ListRegions(/*orphans_only=*/false, /*all_tenants=*/false, DeadlineAfterMs(kAskTimeoutMs));
    if (!listed.ok()) return std::string(listed.status().message());
    for (const RegionInfo& region : *listed) {
      ClientRoom& room = look->clients[region.orphan ? "(orphans)" : region.owner_name];
      room.stored_bytes += region.stored_bytes;
      ++room.parts;
    }
  }
  return "";
}

void FindDevices(PoolLook* look) {
  for (const SwapArea& area : FindSwaps()) {
    if (!area.active) continue;
    const std::string device = area.device.substr(area.device.rfind('/') + 1);
    const auto account = ParseDeviceStat(ReadFile(absl::StrCat("/sys/block/", device, "/stat")).value_or(""));
    if (account.has_value()) look->devices[area.name] = *account;
  }
}

PoolLook LookAt(absl::Span<const PoolMember> members) {
  PoolLook look;
  std::vector<int64_t> took_ns;
  look.time = TimeNow();
  look.at_ns = MonotonicNs();
  auto answers = AskStatistics(members, &took_ns);
  for (size_t i = 0; i < members.size(); ++i) {
    look.donors.push_back({members[i].endpoint.ToString(), std::move(answers[i]), took_ns[i]});
  }
  look.clients_missing = FindClients(members, &look);
  FindDevices(&look);
  return look;
}

void SleepUntil(int64_t deadline_ns) {
  const timespec until = {.tv_sec = deadline_ns / kNsPerSecond, .tv_nsec = deadline_ns % kNsPerSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

void Print(const PoolView& view, bool json) {
  if (json) {
    PrintJson(ToJson(view), -1);
    return;
  }
  for (const WatchLine& line : ToLines(view)) printf("%s\n", line.text.c_str());
}

// Lines without a screen, until a signal ends it.
int RunLines(const TopFlags& flags, absl::Span<const PoolMember> members) {
  PoolLook before = LookAt(members);
  while (true) {
    SleepUntil(before.at_ns + flags.interval_s * kNsPerSecond);
    PoolLook now = LookAt(members);
    const PoolView view = Compare(before, now);
    Print(view, flags.json);
    if (!std::cout) return 1;
    if (flags.once) return view.silent == 0 ? 0 : 1;
    before = std::move(now);
  }
}

// The terminal, while it is this program's. ncurses gives it back on SIGINT and SIGTERM too.
class Screen {
 public:
  explicit Screen(SCREEN* screen) : screen_(screen) {
    cbreak();
    noecho();
    curs_set(0);
    keypad(stdscr, TRUE);
    if (!has_colors()) return;
    start_color();
    use_default_colors();
    init_pair(1, COLOR_YELLOW, -1);
    init_pair(2, COLOR_RED, -1);
  }
  ~Screen() {
    endwin();
    delscreen(screen_);
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // *first: the line at the top; lowered if too few lines follow it.
  void Draw(const std::vector<WatchLine>& lines, size_t* first) {
    const size_t height = static_cast<size_t>(std::max(LINES - 2, 1));
    const size_t scrolled = lines.size() > height ? lines.size() - height : 0;
    *first = std::min(*first, scrolled);
    erase();
    for (size_t i = 0; i < height && *first + i < lines.size(); ++i) {
      const WatchLine& line = lines[*first + i];
      const attr_t how = AttributesOf(line.tone);
      attron(how);
      mvaddnstr(static_cast<int>(i), 0, line.text.c_str(), COLS);
      attroff(how);
    }
    attron(A_DIM);
    mvaddnstr(LINES - 1, 0, "q: quit   arrows, page up, page down: scroll", COLS);
    attroff(A_DIM);
    refresh();
  }

  // False: it is over. Waits for a key until then.
  bool TakeKeys(int64_t deadline_ns, const std::vector<WatchLine>& lines, size_t* first) {
    const size_t page = static_cast<size_t>(std::max(LINES - 3, 1));
    while (true) {
      const int64_t left_ms = (deadline_ns - MonotonicNs()) / kNsPerMs;
      if (left_ms <= 0) return true;
      timeout(static_cast<int>(left_ms));
      const int key = getch();
      if (key == 'q' || key == 'Q') return false;
      if (key == KEY_UP || key == 'k') *first -= std::min<size_t>(*first, 1);
      if (key == KEY_DOWN || key == 'j') ++*first;
      if (key == KEY_PPAGE) *first -= std::min(*first, page);
      if (key == KEY_NPAGE) *first += page;
      if (key == KEY_HOME) *first = 0;
      if (key != ERR) Draw(lines, first);
    }
  }

 private:
  static attr_t AttributesOf(WatchLine::Tone tone) {
    switch (tone) {
      case WatchLine::Tone::kPlain:
        return A_NORMAL;
      case WatchLine::Tone::kTitle:
        return A_BOLD;
      case WatchLine::Tone::kCare:
        return has_colors() ? COLOR_PAIR(1) : A_UNDERLINE;
      case WatchLine::Tone::kBad:
        return (has_colors() ? COLOR_PAIR(2) : A_REVERSE) | A_BOLD;
    }
    return A_NORMAL;
  }

  SCREEN* const screen_;
};

int RunScreen(const TopFlags& flags, absl::Span<const PoolMember> members) {
  const char* const kind = getenv("TERM");
  // ncurses accepts it, and its output there cannot be read.
  if (kind != nullptr && absl::string_view(kind) == "dumb") {
    return ToExitCode(absl::FailedPreconditionError("the terminal \"dumb\" ($TERM) has no screen; --once prints lines"),
                      "nram top");
  }
  PoolLook before = LookAt(members);
  SCREEN* const terminal = newterm(nullptr, stdout, stdin);
  if (terminal == nullptr) {
    return ToExitCode(absl::FailedPreconditionError(absl::StrCat("the terminal \"", kind == nullptr ? "" : kind,
                                                                 "\" ($TERM) is unknown here; --once prints lines")),
                      "nram top");
  }
  Screen screen(terminal);
  PoolView view = Compare(before, before);
  size_t first = 0;
  while (true) {
    const std::vector<WatchLine> lines = ToLines(view, static_cast<size_t>(std::max(COLS, 0)));
    screen.Draw(lines, &first);
    if (!screen.TakeKeys(before.at_ns + flags.interval_s * kNsPerSecond, lines, &first)) return 0;
    PoolLook now = LookAt(members);
    view = Compare(before, now);
    before = std::move(now);
  }
}

int Run(TopFlags& flags, const Invocation&) {
  const bool lines = flags.once || flags.json;
  if (!lines && (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0)) {
    return ToExitCode(absl::InvalidArgumentError("the screen needs a terminal: add --once or --json"), "nram top");
  }
  const auto members = OpenMembers(flags.pool);
  if (!members.ok()) return ToExitCode(members.status(), "nram top");
  return lines ? RunLines(flags, *members) : RunScreen(flags, *members);
}

}  // namespace

Command TopCommand() {
  return DefineCommand<TopFlags>({"top", "watch the activity of the pool", R"(usage: nram top [flags]

Shows the pool on a screen that is updated each second: its room; the copies; each donor with its
state, its reads and writes per second, and its response time; this machine's swap areas, with the
mean time of a request as measured by the kernel; and the clients that own the stored data, by
door (mount, swap or program). q quits.

A client that stores nothing is not listed. Only clients of this user's tenant are named.
Prometheus offers the same figures and more: docs/watching.md.

)",
                                  R"(
Exit code, with --once: 1 if a server does not answer.

example: nram top --json --once | jq .per_second
)"},
                                 Words::kNone, &Run);
}

}  // namespace nram
