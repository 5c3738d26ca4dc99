#!/usr/bin/python3
"""The long proof of giving back: do programs see an error, or a wrong byte, while donors take their memory back?

usage: tests/survive/press.py NRAM [--only=mount,memory,sort,swap,swap1,full,leave] [--minutes=N | --seconds=N]
                [--every=SECONDS] [--take-seconds=N] [--hasty] [--seed=N] [--mib=N] [--array=PROGRAM]
                [--pressure=PROGRAM] [--hold]

NRAM is the program (bazel-bin/tools/nram/nram). Each scenario has a pool of three servers on this machine, each in a
memory cgroup of its own with --give-back=pressure. The exercisers are those of survive.py.

  mount, memory, sort  with two copies of each page, as in survive.py
  swap    a program with verified pages on a swap area with two copies
  swap1   the same with one copy, which moves
  full    files with two copies, and some with one, take 98 % of the pool. Copies with a sibling are dropped, single
          copies remain. New data may be refused, and nothing else. After the balloon the pool has all copies again
  leave   a client whose data has one copy is killed half way through giving back, or ends in order

Again and again a program in the cgroup of one server, or of two at once, takes 90 % of the cgroup's memory within the
seconds of --take-seconds, keeps it for a while, and frees it. It waits where hardly any memory is left, unless it is
--hasty: then the speed of this machine decides whether memory is freed in time. (In a full pool it takes no more than
can be freed.) Now and then a client is frozen meanwhile, for two seconds.

A scenario fails, and ends, at any error that an exerciser sees, a wrong byte, a lost span, an operation of more than a
minute, an OOM kill of any process, a server that holds more beside the balloon than was promised, or still is asked for
memory when all pressure has been over for a while, and pages that are left when all doors have ended. Its logs are kept
then, and the exit code is 1. Needs root, and memory cgroups.
"""

import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE]
import survive  # noqa: E402
from options import parse_options  # noqa: E402
from press_full import PressedFull, PressedLeaving  # noqa: E402
from press_pool import Pressed, PressedSort, PressedSwap  # noqa: E402

KINDS = {
    "mount": Pressed,
    "memory": Pressed,
    "sort": PressedSort,
    "swap": PressedSwap,
    "swap1": PressedSwap,
    "full": PressedFull,
    "leave": PressedLeaving,
}


def main():
    survive.run_all(parse_options(__doc__, list(KINDS)), KINDS)


if __name__ == "__main__":
    main()
