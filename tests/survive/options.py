"""The command line of survive.py."""

import argparse
import os

SCENARIOS = ["mount", "memory", "sort", "cut"]
DOORS = ["mount", "memory", "sort", "run"]  # of joins.py


def add_joins(parser):
    """The options of joins.py, which counts instead of measuring time."""
    told = f"that are used at once (default: {','.join(DOORS)})"
    parser.add_argument("--doors", type=lambda names: names.split(","), default=DOORS, help=told)
    parser.add_argument("--times", type=int, default=100, help="that a server joins and one leaves (default 100)")
    parser.add_argument("--away-seconds", type=float, default=60, help="that etcd or DNS is away (default 60)")
    parser.add_argument("--memserver", help="the program nram-memserver (default: likewise)")
    parser.add_argument("--workout", help="the program of tests/run (default: likewise)")
    parser.set_defaults(minutes=0, seconds=None)


def parse_options(doc, scenarios=tuple(SCENARIOS)):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nram", metavar="NRAM", help="the program nram")
    told = f"scenarios, separated by commas, one after the other (default: {','.join(scenarios)})"
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(scenarios), help=told)
    if "etcd" in scenarios:
        add_joins(parser)
    else:
        parser.add_argument("--minutes", type=float, default=1, help="that each takes, and some more (default 1)")
        parser.add_argument("--seconds", type=float, help="the same in seconds")
        parser.add_argument("--every", type=float, default=10, help="seconds from one kill to the next, at least")
    if "cut" in scenarios:
        told = "that the network is cut each way (default 30)"
        parser.add_argument("--cut-seconds", type=float, default=30, help=told)
    if "full" in scenarios:
        told = "in which a donor takes its memory (default 2)"
        parser.add_argument("--take-seconds", type=float, default=2, help=told)
        told = "donors' work does not wait where hardly any memory is left; then it is killed, which is a failure"
        parser.add_argument("--hasty", action="store_true", help=told)
    parser.add_argument("--mib", type=int, default=256, help="of the array, and of the file to sort (default 256)")
    seed = int.from_bytes(os.urandom(4), "little")
    parser.add_argument("--seed", type=int, default=seed, help="of all that is random, to do the same again")
    parser.add_argument("--array", help="the program exercise_array (default: where Bazel builds it, beside NRAM)")
    parser.add_argument("--pressure", help="the program of tests/swap (default: likewise)")
    parser.add_argument("--hold", action="store_true", help="after a failure leave all as it is, to be looked at")
    options = parser.parse_args()
    for name in options.only:
        if name not in scenarios:
            parser.error(f"--only: \"{name}\" is no scenario: expected {', '.join(scenarios)}, separated by commas")
    if options.seconds is not None:
        options.minutes = options.seconds / 60
    options.nram = os.path.realpath(options.nram)
    tests = f"{os.path.dirname(options.nram)}/../../tests"
    options.array = os.path.realpath(options.array or f"{tests}/survive/exercise_array")
    options.pressure = os.path.realpath(options.pressure or f"{tests}/swap/pressure")
    programs = [options.nram, options.array, options.pressure]
    targets = "//tools/nram //tests/survive:exercise_array //tests/swap:pressure"
    if "etcd" in scenarios:
        for name in options.doors:
            if name not in DOORS:
                parser.error(f"--doors: \"{name}\" is no door: expected {', '.join(DOORS)}, separated by commas")
        options.memserver = os.path.realpath(options.memserver or f"{tests}/../memserver/nram-memserver")
        options.workout = os.path.realpath(options.workout or f"{tests}/run/workout")
        programs[2:] = [options.memserver, options.workout]
        targets = "//tools/nram //tests/survive:exercise_array //memserver:nram-memserver //tests/run:workout"
    for program in programs:
        if not os.access(program, os.X_OK):
            parser.error(f"there is no {program}: bazel build {targets}")
    return options
