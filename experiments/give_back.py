#!/usr/bin/python3
"""The speed at which a donor gets its memory back, and the cost to the donor's own work.

usage: experiments/give_back.py [drop|move|job]... [flags]

  drop    1 GiB whose pages have another copy: the copies there are dropped (mark: 0.5 s)
  move    1 GiB of one copy: it moves to the other server, through the mount that owns it. Beside it a loop that
          receives as much from one bare socket and sends it to another (mark: at most 1.5 times as long)
  job     a program on the donor that streams through memory, and one that waits for it, beside a server that has lent
          1 GiB. `--while` is the load meanwhile: none (idle; mark: at most 1 % slower than alone), reads and writes
          (busy), or 1 GiB moves to the other server (giving; mark: at most 3 % slower than beside a bare loop that
          moves as much in the same time). See give_back_job.py

  --nram=PROGRAM   (default: the one that was built here)
  --rounds=N       1..100 (default 3)
  --while=WHAT,... of the row job: idle, busy, giving (default: all)
  --nice=N         of the donor's server, 0..19 (default 10, as in its systemd unit)
  --steady         as with copies_rows.py

The donor is a memory cgroup with a server in it. The cgroup's limit falls at once, so that the donor's own work needs
1 GiB more than is available. The time ends when the server's resident memory has fallen by 1 GiB. Needs root and a
memory cgroup. Let nothing else run meanwhile.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
import copies_places as places  # noqa: E402
from bare_relay import relay_speed  # noqa: E402
from bench_places import Failure, catch_signals, machine, say  # noqa: E402
from give_back_job import WHILE, job  # noqa: E402
from give_back_places import GIVEN_MIB, Donor  # noqa: E402



def once(options, copies):
    with contextlib.ExitStack() as stack:
        return Donor(stack, options, copies).give_back()


def drop(options):
    times = []
    for number in range(options.rounds):
        say(f"drop: round {number + 1} of {options.rounds}")
        times.append(once(options, copies=2))
    median = statistics.median(times)
    verdict = "ok" if median <= 0.5 else "missed"
    print(f"drop: {median:.2f} s [{min(times):.2f} {max(times):.2f}]; mark: at most 0.5 s: {verdict}", flush=True)


def move(options):
    ratios, times = [], []
    for number in range(options.rounds):
        say(f"move: round {number + 1} of {options.rounds}")
        bare = [GIVEN_MIB * 1.048576 / relay_speed(GIVEN_MIB, True, False)]
        times.append(once(options, copies=1))
        bare.append(GIVEN_MIB * 1.048576 / relay_speed(GIVEN_MIB, True, False))
        ratios.append(times[-1] / statistics.mean(bare))
    median = statistics.median(ratios)
    verdict = "ok" if median <= 1.5 else "missed"
    print(
        f"move: {statistics.median(times):.2f} s, {median:.2f} of a bare loop [{min(ratios):.2f} {max(ratios):.2f}]; "
        f"mark: at most 1.5: {verdict}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--nram", default=f"{HERE}/../bazel-bin/tools/nram/nram")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nice", type=int, default=10)
    parser.add_argument("--while", dest="during", type=lambda words: words.split(","), default=list(WHILE))
    for switch in ("steady", "help"):
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    kinds = {"drop": drop, "move": move, "job": job}
    rows = options.rows or list(kinds)
    if options.help or any(row not in kinds for row in rows) or any(what not in WHILE for what in options.during):
        print(__doc__, end="")
        sys.exit(0 if options.help else 2)
    options.nram = os.path.abspath(options.nram)
    catch_signals()
    try:
        places.in_own_namespace()
        with places.steady_memory() if options.steady else contextlib.nullcontext():
            print(", ".join(f"{name} {value}" for name, value in machine(options.nram).items()), flush=True)
            for row in rows:
                kinds[row](options)
    except (Failure, OSError, ValueError, subprocess.TimeoutExpired) as failure:
        print(f"give_back.py: {failure}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
