#!/usr/bin/python3
"""Bandwidth of a program over working sets from a tenth to ten times its budget, under `nram run` and without.

usage: experiments/run/sweep.py NRAM WORK [--budget-mib=N] [--seconds=N] [--times=X,...] [--copies=N] [--json]
                [--picture=FILE]

NRAM is the program (bazel-bin/tools/nram/nram), and WORK is sweep_work (bazel-bin/experiments/run/sweep_work). It goes
through its working set with reads, writes, both, and reads of a word of any page, and verifies the words. For each
size it runs under `nram run` on two servers of this machine, and alone, by turns. --picture draws it, in SVG (Debian's
python3-matplotlib).
"""

import argparse
import contextlib
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../tools/bench"))
from bench_places import MIB, Failure, catch_signals, machine, own_pool, run, say  # noqa: E402

KINDS = ["read", "write", "modify", "random"]
COLOURS = ["#1b6ca8", "#c0392b", "#e67e22", "#16a085"]


def measure(words):
    """MB/s by kind."""
    rows = dict(line.split() for line in run(*words, timeout=1800).splitlines())
    if set(rows) != set(KINDS):
        raise Failure(f"{words[-3]} has printed {rows}")
    return {kind: float(rows[kind]) for kind in KINDS}


def draw(rows, budget_mib, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot

    look = {"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "nram"}
    pyplot.rcParams.update(look)
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for kind, colour in zip(KINDS, COLOURS):
        sizes = [row["times"] for row in rows]
        axes.plot(sizes, [row["run"][kind] for row in rows], "o-", color=colour, markersize=3, label=kind)
        axes.plot(sizes, [row["alone"][kind] for row in rows], ":", color=colour, linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(f"working set, of a budget of {budget_mib} MiB (dotted: without nram run)")
    axes.set_ylabel("MB/s")
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nram", metavar="NRAM")
    parser.add_argument("work", metavar="WORK")
    parser.add_argument("--budget-mib", type=int, default=64, help="at least 16 (default 64)")
    parser.add_argument("--seconds", type=float, default=1, help="of each exercise (default 1)")
    parser.add_argument("--times", type=lambda text: [float(word) for word in text.split(",")],
                        default=[0.1, 0.2, 0.5, 0.8, 1, 1.25, 1.5, 2, 3, 5, 10],
                        help="working sets, in budgets (default 0.1 to 10)")
    parser.add_argument("--copies", type=int, default=1, choices=[1, 2], help="of each page (default 1)")
    parser.add_argument("--json", action="store_true", help="the figures in JSON")
    parser.add_argument("--picture", metavar="FILE", help="a plot, in SVG")
    options = parser.parse_args()
    if options.budget_mib < 16 or options.seconds <= 0 or min(options.times) <= 0:
        parser.error("--budget-mib is at least 16, --seconds and --times are above 0")
    for name in ("nram", "work"):
        program = os.path.realpath(getattr(options, name))
        if not os.access(program, os.X_OK):
            parser.error(f"there is no {program}: bazel build //tools/nram //experiments/run:sweep_work")
        setattr(options, name, program)
    return options


def main():
    options = parse()
    if options.picture:
        import matplotlib  # noqa: F401  its absence is reported now, not after the measurement

    catch_signals()
    rows = []
    with contextlib.ExitStack() as stack:
        size = 2 * (options.copies * int(options.budget_mib * max(options.times)) + 512) * MIB
        hosts = ["--pretend-hosts"] if options.copies > 1 else []
        stack.enter_context(own_pool(options.nram, size, *hosts))
        for times in options.times:
            say(f"{times:g} budgets")
            work = [options.work, f"{times * options.budget_mib:.2f}", str(options.seconds)]
            under = [options.nram, "run", f"--budget={options.budget_mib}M", f"--copies={options.copies}", "--"]
            rows.append({"times": times, "run": measure(under + work), "alone": measure(work)})
    if options.picture:
        draw(rows, options.budget_mib, options.picture)
    if options.json:
        print(json.dumps({"machine": machine(options.nram), "budget_mib": options.budget_mib, "rows": rows}, indent=2))
        return
    print(f"{'budgets':8}" + "".join(f"{kind + ' MB/s':>14}{'of alone':>10}" for kind in KINDS))
    for row in rows:
        told = "".join(f"{row['run'][kind]:14.0f}{row['run'][kind] / row['alone'][kind]:10.3f}" for kind in KINDS)
        print(f"{row['times']:<8g}{told}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"sweep.py: {failure}")
