#!/usr/bin/python3
"""Programs as they are under `nram run`: the table of docs/run.md.

usage: experiments/run_programs.py NRAM [--only=NAME,...] [--budget=32M] [--rounds=N] [--swap=disk|pool|none]
                                   [--disk-mb=N] [--json]

NRAM is the program (bazel-bin/tools/nram/nram). Each program runs on data of about twice the budget: in RAM without
nram, under `nram run` with a pool of two servers on this machine, and in a memory cgroup of the budget's size with swap
in a file on this machine's disk (--disk-mb: as a disk that moves that number of MB a second), or in the pool. They run
one after the other, in each round. The output is compared byte for byte with the output in RAM. Seconds are medians of
the rounds. Without root there is no swap.

Programs that are not installed are left out, and named. On Debian: octave r-base-core default-jdk-headless gcc
golang-go redis-server sqlite3 nodejs ruby sbcl python3-numpy.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    MemoryCgroup,
    catch_signals,
    later,
    machine,
    own_pool,
    say,
    swap_alone,
)
from memory_places import disk_swap, pool_swap  # noqa: E402
from run_rows import ROWS, Lab  # noqa: E402

WAYS = ["ram", "nram", "swap"]


@dataclasses.dataclass
class Run:
    code: int  # of the program; negative: its signal; None: it was ended after --patience
    seconds: float
    out: str  # the sum of its output
    err: str
    peak_mib: int  # of the largest of its processes

    def stats(self):
        lines = [line for line in self.err.splitlines() if line.startswith('{"ahead_pages"')]
        return json.loads(lines[-1]) if lines else {}

    def complaint(self):
        lines = [line for line in self.err.splitlines() if line.strip() and not line.startswith("{")]
        return lines[-1][:160] if lines else ""


def execute(words, options, directory):
    """Runs it to its end, in a session of its own that ends with it."""
    with open(f"{directory}/out", "wb") as out, open(f"{directory}/err", "wb") as err:
        begun = time.monotonic()
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                   cwd=directory)
        code, peak_mib = None, 0
        try:
            while code is None and time.monotonic() - begun < options.patience:
                time.sleep(0.002)
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid != 0:
                    code = process.returncode = os.waitstatus_to_exitcode(status)
                    peak_mib = usage.ru_maxrss // 1024
        finally:
            seconds = time.monotonic() - begun
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    with open(f"{directory}/out", "rb") as out, open(f"{directory}/err", errors="replace") as err:
        # Not the whole of it: children count their parent's memory as theirs.
        return Run(code, seconds, hashlib.file_digest(out, "sha256").hexdigest(), err.read(), peak_mib)


def one_way(way, row, lab, options):
    if way == "nram":
        prefix = [options.nram, "run", f"--budget={options.budget // MIB}M", "--json", "--"]
        return execute(row.words(lab, prefix), options, lab.directory)
    if way == "ram":
        return execute(row.words(lab, []), options, lab.directory)
    with contextlib.ExitStack() as stack:
        cgroup = MemoryCgroup("nram-run-bench")
        later(stack, cgroup.close)
        if cgroup.path is None:
            raise Failure("no memory cgroup can be made: use --swap=none")
        cgroup.limit(options.budget)
        cgroup.swap_eagerly()
        join = ["sh", "-c", f'echo $$ > {cgroup.path}/cgroup.procs && exec "$@"', "sh"]
        return execute(row.words(lab, join), options, lab.directory)


def judge(runs, options):
    """The outcome under nram run, in words; the runs are of one round."""
    ram, nram = runs["ram"], runs["nram"]
    if ram.code != 0:
        return f"fails in RAM, too: {ram.code}: {ram.complaint()}"
    if nram.code is None:
        return f"is not done after {options.patience:g} s"
    if nram.code != 0:
        return f"ends with {nram.code}: {nram.complaint()}"
    return "same" if nram.out == ram.out else "DIFFERENT"


def measure(row, lab, options):
    row.prepare(lab)
    rounds = []
    ways = WAYS[:2] if options.swap == "none" else WAYS
    for _ in range(options.rounds):
        rounds.append({way: one_way(way, row, lab, options) for way in ways})
    results = [judge(runs, options) for runs in rounds]
    stats = rounds[-1]["nram"].stats()
    seconds = {}
    for way in ways:
        good = [runs[way].seconds for runs in rounds if runs[way].code == 0]
        last = rounds[-1][way].code
        seconds[way] = (round(statistics.median(good), 2) if good else
                        f"> {options.patience:g}" if last is None else f"ends with {last}")
    worst = next((result for result in results if result != "same"), "same")
    return {"row": row.name, "result": worst, "ram_mib": rounds[-1]["ram"].peak_mib, "seconds": seconds,
            "remote": stats.get("outgrew_budget"), "fetched_mib": stats.get("fetched_pages", 0) * 4096 // MIB,
            "refused_forks": stats.get("refused_forks"), "rounds": len(rounds)}


def show(one):
    if "missing" in one:
        return print(f"{one['row']:14} not tried: there is no {one['missing']}", flush=True)
    seconds = " ".join(f"{way} {value}" for way, value in one["seconds"].items())
    remote = f"{one['fetched_mib']} MiB fetched" if one["remote"] else "nothing remote"
    forks = f", {one['refused_forks']} forks refused" if one["refused_forks"] else ""
    print(f"{one['row']:14} {one['result']}; {one['ram_mib']} MiB in RAM; {seconds}; {remote}{forks}", flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nram", metavar="NRAM", help="the program nram")
    names = [row.name for row in ROWS]
    parser.add_argument("--only", type=lambda text: text.split(","), default=names, help="rows, separated by commas")
    parser.add_argument("--budget", type=lambda text: int(text.removesuffix("M")) * MIB, default=32 * MIB,
                        metavar="32M", help="in MiB (default 32M)")
    parser.add_argument("--rounds", type=int, default=1, help="(default 1)")
    parser.add_argument("--patience", type=float, default=120, help="seconds that a run may take (default 120)")
    parser.add_argument("--swap", choices=["disk", "pool", "none"], default="disk",
                        help="what the third way swaps to (default disk); none: only RAM and nram run")
    parser.add_argument("--disk-mb", type=int, default=0, metavar="N", help="MB/s of that disk (default: as it is)")
    parser.add_argument("--json", action="store_true", help="the results in JSON")
    options = parser.parse_args()
    for name in options.only:
        if name not in names:
            parser.error(f'--only: "{name}" is no row: expected {", ".join(names)}, separated by commas')
    if options.budget < 16 * MIB or options.rounds < 1:
        parser.error("--budget is 16M or more, and --rounds 1 or more")
    options.nram = os.path.realpath(options.nram)
    if os.geteuid() != 0:
        options.swap = "none"
    return options


def main():
    options = parse()
    catch_signals()
    results = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_pool(options.nram, 16 * options.budget))
        directory = tempfile.mkdtemp(prefix="nram-run-bench-", dir="/var/tmp")
        later(stack, shutil.rmtree, directory, ignore_errors=True)
        lab = Lab(directory, 2 * options.budget // MIB)
        if options.swap != "none":
            swap_alone(stack)
        if options.swap == "disk":
            stack.enter_context(disk_swap(directory, 8 * options.budget, options.disk_mb))
        elif options.swap == "pool":
            stack.enter_context(pool_swap(options.nram, 8 * options.budget))
        for row in ROWS:
            if row.name not in options.only:
                continue
            missing = next((need for need in row.needs if shutil.which(need) is None), None)
            if missing is None:
                say(row.name)
                results.append(measure(row, lab, options))
            else:
                results.append({"row": row.name, "missing": missing})
            if not options.json:
                show(results[-1])
    load = os.getloadavg()[1]
    if options.json:
        print(json.dumps({"machine": machine(options.nram), "budget_bytes": options.budget, "load": load,
                          "swap": options.swap, "disk_mb": options.disk_mb, "rows": results}, indent=2))
    bad = [one["row"] for one in results if one.get("result") not in (None, "same")]
    if bad:
        sys.exit(f"not the same as in RAM: {', '.join(bad)}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"run_programs.py: {failure}")
