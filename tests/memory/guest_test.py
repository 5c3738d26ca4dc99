#!/usr/bin/python3
"""A program whose budget follows the machine, in a small memory cgroup, beside a balloon that takes the memory and
gives it back, again and again. The program gives way and grows again, its reads are right, and no process is killed.

usage: tests/memory/guest_test.py --nram=PROGRAM --guest=PROGRAM --host=PROGRAM [--rounds=3]

The balloon takes a step when there is memory for it, so that the kernel never has to kill a process. The test shows
that the memory always becomes free.
"""

import argparse
import contextlib
import os
import sys

from guest_places import MIB, Failure, Job, await_true, mib, shared_cgroup, used_bytes
from bench_places import catch_signals, own_pool  # found by guest_places

LIMIT = 384 * MIB
GUEST = 288 * MIB
BALLOON = 224 * MIB
STEP = 8 * MIB
MARGIN = 12 * MIB  # that a step leaves free


def round_of(cgroup, guest, balloon):
    """RSS of the guest when the balloon is small, and when it is large."""
    await_true("the guest has most of its memory here", lambda: guest.resident_bytes() > GUEST * 3 // 4)
    large = guest.resident_bytes()
    for held in range(STEP, BALLOON + STEP, STEP):
        await_true(
            f"the guest gives way to a balloon of {mib(held)}: {mib(used_bytes(cgroup))} of {mib(LIMIT)} are used",
            lambda: LIMIT - used_bytes(cgroup) >= STEP + MARGIN,
        )
        balloon.say(held // MIB)
        balloon.line()
    small = guest.resident_bytes()
    if small > LIMIT - BALLOON:
        raise Failure(f"the guest still has {mib(small)} beside a balloon of {mib(BALLOON)} in {mib(LIMIT)}")
    balloon.say(0)
    balloon.line()
    return large, small


def test(options):
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_pool(options.nram, 2 * (GUEST + 64 * MIB)))
        cgroup = stack.enter_context(shared_cgroup(LIMIT))
        guest = Job(stack, cgroup, [options.guest, "verify", GUEST // MIB], NRAM_BUDGET="auto:16M-1G")
        guest.line_with("filled")
        balloon = Job(stack, cgroup, [options.host, "hold"])
        for number in range(options.rounds):
            large, small = round_of(cgroup, guest, balloon)
            print(f"round {number + 1}: the guest has {mib(large)}, and {mib(small)} beside the balloon", flush=True)
        await_true("the guest comes back", lambda: guest.resident_bytes() > GUEST * 3 // 4)
        report = guest.report()
        print(report)
        if report["shrank"] < options.rounds or report["grew"] < options.rounds:
            raise Failure("the budget did not follow")
        if cgroup.oom_kills() != 0:
            raise Failure("somebody was killed for lack of memory")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nram", required=True)
    parser.add_argument("--guest", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in ("nram", "guest", "host"):
        setattr(options, name, os.path.abspath(getattr(options, name)))
    for name in ("NRAM_BUDGET", "NRAM_COPIES", "NRAM_POOL"):
        os.environ.pop(name, None)
    catch_signals()
    if os.geteuid() != 0:
        print("NOT TESTED: budgets beside a balloon: a memory cgroup needs root")
        return
    try:
        test(options)
    except Failure as failure:
        sys.exit(f"FAILED: {failure}")
    print("PASSED")


if __name__ == "__main__":
    main()
