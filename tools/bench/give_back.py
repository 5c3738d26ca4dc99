#!/usr/bin/python3
"""How fast a donor gets its memory back, and what its own work feels of it.

usage: tools/bench/give_back.py [drop|move|job]... [flags]

  drop    1 GiB whose pages have another copy: the copies there are dropped (mark: 0.5 s)
  move    1 GiB of one copy: it moves to the other server, through the mount that owns it. Beside it a loop that
          receives as much from one bare socket and sends it to another (mark: at most 1.5 times as long)
  job     a program on the donor that streams through memory, and one that waits for it: alone, and beside a server that
          lends 1 GiB to an idle mount (mark: at most 1 % slower)

  --nram=PROGRAM   (default: the one that was built here)
  --rounds=N       1..100 (default 3)
  --steady         as with copies_rows.py

The donor is a memory cgroup with a server in it. The cgroup's limit falls at once, so that 1 GiB more is to be left to
the donor's own work than there is. The time ends when the server's resident memory has fallen by 1 GiB. Needs root and
a memory cgroup. Let nothing else run meanwhile.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time

import copies_places as places
from bare_relay import relay_speed
from bench_places import MIB, Failure, MemoryCgroup, catch_signals, drop_caches, later, machine, run, say

HERE = os.path.dirname(os.path.abspath(__file__))
GIVEN_MIB = 1024
STORED_MIB = 1200
RESERVE_MIB = GIVEN_MIB + 128
PATIENCE_S = 60


class Donor:
    """Server 0 of the pool, in a cgroup, and the mount of a client that has stored something there."""

    def __init__(self, stack, options, copies):
        self.servers = places.Servers(stack, options.nram, 2, 4 * GIVEN_MIB)
        self.cgroup = MemoryCgroup("nram-donor")
        later(stack, self.cgroup.close)
        if self.cgroup.path is None:
            raise Failure("no memory cgroup can be made here")
        self.cgroup.limit((STORED_MIB + RESERVE_MIB + 512) * MIB)
        self.servers.kill(0)
        words = [word for word in self.servers.words[0] if not word.startswith("--donate=")]
        join = f'echo $$ > {self.cgroup.path}/cgroup.procs && exec "$@"'
        words += ["--donate=auto", f"--reserve={RESERVE_MIB}M"]
        self.servers.words[0] = ["sh", "-c", join, "sh", *words]
        self.servers.start_again(0)
        flags = [f"--copies={copies}", "--seal" if copies == 1 else "--no-seal"]
        self.mount = stack.enter_context(places.Mount(options.nram, self.servers.spec, *flags))
        if copies == 1:  # all of it is to be here
            run(options.nram, "drain", self.servers.address(1))
        places.write_file(f"{self.mount.path}/file", STORED_MIB)
        drop_caches()
        if copies == 1:
            run(options.nram, "drain", "--undo", self.servers.address(1))
        self.pid = self.servers.pids[0]

    def give_back(self):
        """Seconds until GIVEN_MIB are given back."""
        before = places.resident_bytes(self.pid)
        if before < STORED_MIB * MIB:
            raise Failure(f"the donor holds {before // MIB} MiB only")
        time.sleep(2)  # the client's walk knows all spans, the mount is idle
        began = time.monotonic()
        self.cgroup.limit(before + 160 * MIB)
        while before - places.resident_bytes(self.pid) < GIVEN_MIB * MIB:
            if time.monotonic() - began > PATIENCE_S:
                given = (before - places.resident_bytes(self.pid)) // MIB
                raise Failure(f"{given} MiB were given back in {PATIENCE_S} s")
            time.sleep(0.005)
        return time.monotonic() - began


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


def job(options):
    with contextlib.ExitStack() as stack:
        program = f"/tmp/nram-bench-{os.getpid()}-job"
        later(stack, lambda: os.path.exists(program) and os.unlink(program))
        run("cc", "-O2", "-o", program, f"{HERE}/donor_job.c")

        def speed(kind):
            return float(subprocess.run([program, kind, "2000"], capture_output=True, text=True, timeout=60).stdout)

        alone, beside = {"stream": [], "chase": []}, {"stream": [], "chase": []}
        for number in range(options.rounds):
            say(f"job: round {number + 1} of {options.rounds}")
            for kind, speeds in alone.items():
                speeds += [speed(kind) for _ in range(3)]
            with contextlib.ExitStack() as inner:
                Donor(inner, options, copies=2)
                time.sleep(2)
                for kind, speeds in beside.items():
                    speeds += [speed(kind) for _ in range(3)]
        for kind, speeds in alone.items():
            ratio = statistics.median(beside[kind]) / statistics.median(speeds)
            verdict = "ok" if ratio >= 0.99 else "missed"
            print(f"job, {kind}, idle pool: {ratio:.3f} of alone; mark: at least 0.99: {verdict}", flush=True)


def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--nram", default=f"{HERE}/../../bazel-bin/tools/nram/nram")
    parser.add_argument("--rounds", type=int, default=3)
    for switch in ("steady", "help"):
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    kinds = {"drop": drop, "move": move, "job": job}
    rows = options.rows or list(kinds)
    if options.help or any(row not in kinds for row in rows):
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
