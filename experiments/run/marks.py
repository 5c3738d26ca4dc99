#!/usr/bin/python3
"""The waits of a program under `nram run`: faults, forks, calls that change its memory, and its start.

usage: experiments/run/marks.py NRAM WORK PUBLISH [--rounds=N] [--fork-mib=N]

NRAM is the program (bazel-bin/tools/nram/nram), WORK is marks_work (bazel-bin/experiments/run/marks_work), and
PUBLISH is nram-bench-publish (bazel-bin/experiments/nram-bench-publish), which does the same over the memory API. A
word of each page of 128 MiB is read in random order, with a quarter of it as the budget: by the memory API, by a
program with one thread, and with four, by turns. Then a program forks that has --fork-mib and a budget of 64 MiB, and
one that fits calls brk, mmap and munmap, beside the same without `nram run`. Medians of the rounds.
"""

import argparse
import contextlib
import os
import re
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../tools/bench"))
from bench_places import MIB, Failure, catch_signals, own_pool, run, say  # noqa: E402

TOUCHED_MIB = 128


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("nram", "work", "publish"):
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("--rounds", type=int, default=5, help="at least 1 (default 5)")
    parser.add_argument("--fork-mib", type=int, default=2176, help="at least 128 (default 2176)")
    options = parser.parse_args()
    if options.rounds < 1 or options.fork_mib < 128:
        parser.error("--rounds is at least 1, and --fork-mib 128")
    for name in ("nram", "work", "publish"):
        program = os.path.realpath(getattr(options, name))
        if not os.access(program, os.X_OK):
            parser.error(f"there is no {program}: bazel build //tools/...")
        setattr(options, name, program)
    return options


def memory_api(options, pool):
    """Microseconds a page."""
    said = run(options.publish, f"@{pool}", f"--mib={TOUCHED_MIB}", "--only=reading", "--rounds=5")
    return float(re.search(r"at random: own mapping ([0-9.]+) us", said)[1])


def under(options, budget, *words):
    return run(options.nram, "run", f"--budget={budget}", "--", *words, timeout=1800)


def faults(options, pool):
    touch = [options.work, "touch", str(TOUCHED_MIB)]
    rows = {"memory API": [], "one thread": [], "four threads": []}
    for number in range(options.rounds):
        say(f"faults, {number + 1} of {options.rounds}")
        rows["memory API"].append(memory_api(options, pool))
        for name, threads in (("one thread", "1"), ("four threads", "4")):
            rows[name].append(float(under(options, f"{TOUCHED_MIB // 4}M", *touch, threads)))
    base = statistics.median(rows["memory API"])
    for name, values in rows.items():
        median = statistics.median(values)
        print(f"a page at random, {name}: {median:.1f} us [{min(values):.1f} {max(values):.1f}], "
              f"{median / base:.2f} of the memory API's")


def start(words, rounds):
    """Seconds."""
    took = []
    for _ in range(rounds):
        began = time.monotonic()
        run(*words)
        took.append(time.monotonic() - began)
    return statistics.median(took)


def main():
    options = parse()
    catch_signals()
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(own_pool(options.nram, 2 * (options.fork_mib + 512) * MIB))
        faults(options, f"{directory}/state/pool")
        say("forks")
        print(f"fork with {options.fork_mib} MiB, 64 of them here: "
              f"{under(options, '64M', options.work, 'fork', str(options.fork_mib))} ms")
        for name, said in (("alone", run(options.work, "calls")),
                           ("nram run", under(options, "1G", options.work, "calls"))):
            brk, mmap = said.split()
            print(f"calls, {name}: brk {brk} us, mmap and munmap {mmap} us")
        alone = start(["/bin/true"], 9)
        print(f"start: {1e3 * (start([options.nram, 'run', '--budget=1G', '--', '/bin/true'], 9) - alone):.0f} ms more")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"marks.py: {failure}")
