#!/usr/bin/python3
"""A guest beside a host's job, after "Malleable Memory Mapping" (Nikolopoulos): matrix multiplications that follow the
machine, beside a job that touches 75 % of the memory at random, steadily or as a step function of 5, 10 and 20 s.

usage: experiments/guest_bench.py --nram=PROGRAM --matrix=PROGRAM --host=PROGRAM --guest=PROGRAM [--limit-mib=1024]
                                   [--seconds=40] [--step-seconds=80] [--fill=512] [--disk=150] [--tile=256]
                                   [--only=WORD,...] [--share]

Both run in one memory cgroup of --limit-mib, v1 or v2. The memory servers are outside. The host's job has a processor
to itself, as in the paper; the guest and the servers have the others, in all rows (--share: all have all). The matrices
take 70 % of the limit. Swap is on a disk of --disk MB/s, for the host's job too: when the job begins, it fills its
memory with --fill MiB/s. Rows:

  alone    the host's job, and the guest with all of the memory to itself: the reference of the other rows
  beside   the host's job, and a guest in plain memory that fits beside it: the cost of sharing the machine anyway
  steady   both at once
  steps    the host's job on and off for the same time, by turns
  swap     as steady, but the guest is in plain memory, which the kernel swaps. Once as it is; once with a limit of the
           guest's own, which is the memory that the host's job and the reserve leave, so that it spares the host
  budget   a program whose budget is changed to a quarter, all of its memory dirty, beside writing that back

Root; a slow disk needs the cgroup v1 controller blkio. Without it the disk has its own speed, and a message says so.
"""

import argparse
import contextlib
import math
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../tests/memory"))
from guest_places import MIB, Failure, Job, mib, shared_cgroup
import memory_places as places  # found by guest_places
from bench_places import can_throttle, catch_signals, own_pool

START_S = 600  # until the guest has filled its matrices


def matrix_n(limit, tile):
    """Rows of three matrices that take 70 % of it, in whole tiles."""
    return max(1, int(math.sqrt(limit * 0.7 / 3 / 8)) // tile) * tile


class Bench:
    def __init__(self, options, stack):
        self.options, self.stack = options, stack
        self.limit = options.limit_mib * MIB
        self.host_mib = options.limit_mib * 3 // 4
        self.host_processors = options.host_processors

    def host(self, stack, cgroup, seconds, on_s=0):
        words = [self.options.host, "touch", self.host_mib, seconds, on_s, self.options.fill]
        job = Job(stack, cgroup, words, self.host_processors)
        job.line_with("ready", START_S)
        return job

    def guest(self, stack, cgroup, seconds, plain=False, share=1.0):
        tile = self.options.tile
        n = matrix_n(self.limit * share, tile)
        words = [self.options.matrix, f"--n={n}", f"--tile={tile}", f"--seconds={seconds}"]
        words += ["--plain=1", "--budget-mib=16"] if plain else ["--budget-mib=0"]
        job = Job(stack, cgroup, words, NRAM_BUDGET=f"auto:32M-{self.options.limit_mib}M")
        job.line_with("filled:", START_S)
        return job

    def run(self, seconds, host=True, guest=True, on_s=0, plain=False, own_limit=0, share=1.0):
        """Touches and pairs of tiles a second, None for a program that did not run."""
        touches = pairs = None
        with contextlib.ExitStack() as stack:
            cgroup = stack.enter_context(shared_cgroup(self.limit))
            owner = self.host(stack, cgroup, seconds, on_s) if host else None
            place = stack.enter_context(shared_cgroup(own_limit, "nram-guest-apart")) if own_limit else cgroup
            program = self.guest(stack, place, seconds, plain, share) if guest else None
            if owner:
                owner.say("go")
            if program:
                line = program.line_with("pairs of tiles a second", seconds + START_S)
                pairs = float(re.search(r"([\d.]+) pairs of tiles a second", line).group(1))
            if owner:
                report = owner.report(seconds + START_S)
                touches = report["touches"] / max(report["touching_s"], 1e-9)
            if program:
                with contextlib.suppress(Failure):
                    print(f"    guest: {program.line_with('the budget', START_S).strip()}", file=sys.stderr)
            if cgroup.oom_kills():
                raise Failure("the kernel killed a program for lack of memory")
        return touches, pairs


def compare(what, value, reference, mark=None):
    share = value / reference
    verdict = "" if mark is None else f" (mark {mark}: {'met' if share >= mark else 'MISSED'})"
    print(f"{what}: {share:.2f}{verdict}", flush=True)
    return share


def measure(options, stack):
    bench = Bench(options, stack)
    rows = {}

    def row(label, **how):
        if not options.wants(label) and not label.startswith("alone"):
            return None
        print(f"running: {label}", file=sys.stderr, flush=True)
        try:
            rows[label] = bench.run(**how)
        except Failure as failure:
            print(f"{label}: FAILED: {failure}", flush=True)
            return None
        return rows[label]

    seconds = options.seconds
    host_alone = row("alone: host", seconds=seconds, guest=False)
    guest_alone = row("alone: guest", seconds=seconds, host=False)
    if host_alone is None or guest_alone is None:
        raise Failure("there is nothing to compare with")
    touches, pairs = host_alone[0], guest_alone[1]
    print(f"alone: host {touches:,.0f} touches a second, guest {pairs:.2f} pairs of tiles a second", flush=True)
    if beside := row("beside", seconds=seconds, plain=True, share=0.15):
        compare("beside: host beside a guest that fits, of alone", beside[0], touches)
    if steady := row("steady", seconds=seconds):
        compare("steady: host beside the guest, of alone", steady[0], touches, 0.93)
        if beside:
            compare("steady: host, of host beside a guest that fits", steady[0], beside[0])
        compare("steady: guest beside the host, of alone with all memory", steady[1], pairs, 0.5)
    if plain := row("swap", seconds=seconds, plain=True):
        compare("swap: host beside the guest in plain memory, of alone", plain[0], touches)
        compare("swap: guest in plain memory, of alone", plain[1], pairs)
        if steady:
            compare("guest on nram, of guest on swap", steady[1], max(plain[1], 1e-9), 10)
            compare("host beside it, of host beside the guest on swap", steady[0], max(plain[0], 1e-9))
    left = bench.limit // 4 - bench.limit // 16
    if apart := row("swap apart", seconds=seconds, plain=True, own_limit=left):
        compare(f"swap apart: host beside the guest in plain memory of {mib(left)}, of alone", apart[0], touches)
        compare("swap apart: guest, of alone", apart[1], pairs)
        if steady:
            compare("guest on nram, of guest on swap that spares the host", steady[1], max(apart[1], 1e-9), 10)
    steps = {}
    for on_s in (5, 10, 20):
        if step := row(f"steps of {on_s} s", seconds=options.step_seconds, on_s=on_s):
            steps[on_s] = step[1]
            compare(f"steps of {on_s} s: host while it is on, of alone", step[0], touches)
            compare(f"steps of {on_s} s: guest, of alone with all memory", step[1], pairs)
    if {5, 20} <= set(steps):
        compare("guest in steps of 5 s, of steps of 20 s", steps[5], steps[20], 0.8)


def measure_budget(options):
    """Outside of the cgroup: the time of a smaller budget, beside writing back as much."""
    with contextlib.ExitStack() as stack:
        cgroup = stack.enter_context(shared_cgroup(4 * options.limit_mib * MIB))
        size = options.limit_mib // 2
        report = Job(stack, cgroup, [options.guest, "shrink", size]).report(START_S)
        ratio = report["shrink_s"] / report["flush_s"]
        print(
            f"budget of {size} MiB to a quarter, all dirty: {report['shrink_s']:.2f} s; writing three quarters back "
            f"takes {report['flush_s']:.2f} s: {ratio:.2f} (mark 1.2: {'met' if ratio <= 1.2 else 'MISSED'})",
            flush=True,
        )


def bench(options):
    with contextlib.ExitStack() as stack:
        size = options.limit_mib * MIB
        slow = options.disk if can_throttle() else 0
        if not slow:
            print("LEFT OUT: a slow disk: needs the cgroup v1 controller blkio", file=sys.stderr)
        # A virtual machine's memory is slow at its first touch.
        places.touch_memory(4 * size)
        # Servers and guests inherit it.
        processors = sorted(os.sched_getaffinity(0))
        options.host_processors = None
        if len(processors) > 1 and not options.share:
            options.host_processors = processors[:1]
            os.sched_setaffinity(0, processors[1:])
        stack.enter_context(own_pool(options.nram, 3 * size))
        stack.enter_context(places.disk_swap("/var/tmp", 2 * size, slow))
        print(f"cgroup of {mib(size)}, matrices of {matrix_n(size, options.tile)} rows, disk {slow or 'of any'} MB/s")
        if options.wants("budget"):
            measure_budget(options)
        if options.only != "budget":
            measure(options, stack)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("nram", "matrix", "host", "guest"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--limit-mib", type=int, default=1024)
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--step-seconds", type=int, default=80)
    parser.add_argument("--fill", type=int, default=512)
    parser.add_argument("--disk", type=int, default=150)
    parser.add_argument("--tile", type=int, default=256)
    parser.add_argument("--only", default="")
    parser.add_argument("--share", action="store_true")
    options = parser.parse_args()
    options.wants = lambda label: any(word in label for word in options.only.split(","))
    for name in ("nram", "matrix", "host", "guest"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
    if options.limit_mib < 256:
        parser.error("--limit-mib: expected 256 or more")
    for name in ("NRAM_BUDGET", "NRAM_COPIES", "NRAM_POOL"):
        os.environ.pop(name, None)
    catch_signals()
    try:
        bench(options)
    except Failure as failure:
        sys.exit(f"guest_bench.py: {failure}")


if __name__ == "__main__":
    main()
