#!/usr/bin/python3
"""The long proof of copies: do programs see an error, or a wrong byte, while servers die?

usage: tests/survive/survive.py NRAM [--only=mount,memory,sort,cut] [--minutes=N | --seconds=N] [--every=SECONDS]
                [--seed=N] [--cut-seconds=N] [--mib=N] [--array=PROGRAM] [--pressure=PROGRAM] [--hold]

NRAM is the program (bazel-bin/tools/nram/nram). Each scenario has a pool of three servers on this machine, and two
copies of each page. Exercisers use the pool and know what it must hold:

  mount   on a mount: operations on a few large files, compared with a model, and on hundreds of small ones, compared
          with tmpfs
  memory  std::sort of an array of the memory API, four times as large as its local memory
  sort    nram sort of a file, with all of it in the pool
  cut     all of them at once, and swap, while one server is behind a network that loses all packets for a while: first
          those to the server, then those from it

In all but the last, one server after the other is killed and started again, empty. The next one is killed when the pool
reports that all spans have all their copies again, and not before the time of --every is over.

A scenario fails, and ends, at any error that an exerciser sees, a wrong byte, a lost span, an operation of more than a
minute, a pool that is not whole again after three minutes, and pages that are left when all doors have ended. Its logs
are kept then, and the exit code is 1. The longest pause of an operation is reported for each exerciser; it is no
failure. Needs root, and cut needs network namespaces.
"""

import contextlib
import glob
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))  # in the tree, also where Bazel runs a link to it
sys.path[:0] = [HERE, f"{HERE}/../../tools/bench", f"{HERE}/../util", f"{HERE}/../swap"]
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    MemoryCgroup,
    catch_signals,
    later,
    let_go_of_mounts,
    remove_state,
    run,
    swap_alone,
    uninterrupted,
)
from far_server import FarServer  # noqa: E402
from killable_pool import KillablePool  # noqa: E402
from options import parse_options  # noqa: E402
from program import Program  # noqa: E402

TELL_S = 15  # of progress
DONATE_MIB = 1024
SWAP_PRIORITY = 32000  # above whatever swap there is
# The seconds for which a killed server is away. After 10 s clients make its copies anew elsewhere.
AWAY_S = [0, 0, 0.1, 0.5, 2, 4, 12]


class CutServer(FarServer):
    near, far = "198.18.78.1", "198.18.78.2"  # not those of tests/swap, which may run at the same time


class Scenario:
    """Closing `stack` takes down everything that it sets up."""

    def __init__(self, options, name, stack):
        self.options, self.name, self.stack = options, name, stack
        self.random = random.Random(f"{options.seed} {name}")
        self.programs = []
        self.ends = []  # commands that end doors
        self.pool = None
        self.far = None
        self.spans = 1  # that there must be while the exercisers run
        self.until = self.told = time.monotonic()
        with uninterrupted():
            self.directory = tempfile.mkdtemp(prefix="nram-survive-", dir="/tmp")
            later(stack, remove_state, self.directory)
            for folder in ("state", "mnt", "twin"):
                os.mkdir(f"{self.directory}/{folder}", 0o700)
            os.environ["NRAM_STATE_DIR"] = f"{self.directory}/state"
            os.environ["NRAM_COPIES"] = "2"
            os.environ.pop("NRAM_POOL", None)
            later(stack, self.close_pool)
            self.pool = self.make_pool()
        later(stack, self.kill_programs)

    def make_pool(self):
        return KillablePool(self.options.nram, self.directory, 2 if self.name == "cut" else 3, DONATE_MIB, self.look)

    def close_pool(self):
        if self.pool is not None:
            self.pool.close()

    def clients(self):
        """The processes of mounts and of swap areas."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
                words = file.read()
                if "nram-fsd" in words.split("\0")[0] and self.directory in words:
                    found.append(int(pid))
        return found

    def kill_programs(self):
        for program in self.programs:
            program.kill()

    def start(self, name, *words):
        with uninterrupted():
            self.programs.append(Program(name, [str(word) for word in words], self.directory))

    def seed(self):
        return self.random.getrandbits(60)

    def start_mount(self, files):
        mount, twin = f"{self.directory}/mnt", f"{self.directory}/twin"
        with uninterrupted():
            for path in (mount, twin):
                later(self.stack, run, "umount", "-l", path, check=False)
            run("mount", "-t", "tmpfs", "-o", "size=512m", "nram-test", twin)
            run(self.options.nram, "mount", mount, "--copies=2", "--repair-rate=max")
            self.ends.append(("umount", mount))
        later(self.stack, self.kill_programs)  # before it is unmounted
        for number in range(files):
            os.mkdir(f"{mount}/files{number}")
            self.start(f"files{number}", f"{HERE}/exercise_files.py", f"{mount}/files{number}", self.seed())
        os.mkdir(f"{mount}/tree")
        self.start("tree", f"{HERE}/exercise_tree.py", f"{mount}/tree", twin, self.seed())

    def start_memory(self, mib):
        self.start("array", self.options.array, mib, self.seed())

    def start_sort(self, mib):
        self.start("sort", f"{HERE}/exercise_sort.py", self.options.nram, self.directory, mib, self.seed())

    def start_swap(self, mib, copies=2):
        """Half of the program's `mib` MiB fit into its cgroup."""
        swap_alone(self.stack)
        words = ["swapon", "--force", f"{mib}M", f"--priority={SWAP_PRIORITY}", f"--copies={copies}"]
        with uninterrupted():
            cgroup = MemoryCgroup("nram-survive")
            later(self.stack, cgroup.close)
            if cgroup.path is None:
                return print("NOT TESTED: swap: no memory cgroup can be made", file=sys.stderr)
            cgroup.limit(mib * MIB // 2)
            cgroup.swap_eagerly()
            later(self.stack, run, self.options.nram, "swapoff", "--all", "--force")
            try:
                run(self.options.nram, *words)
            except Failure as failure:
                if "CAP_SYS_RESOURCE" not in str(failure):
                    raise
                run(self.options.nram, *words, "--unprotected")
            self.ends.append(("swapoff", "--all"))
        later(self.stack, self.kill_programs)
        self.start("swap", f"{HERE}/exercise_swap.py", self.options.pressure, cgroup.path, mib, self.seed())

    def look(self):
        for program in self.programs:
            program.look()
        if time.monotonic() - self.told > TELL_S:
            self.told = time.monotonic()
            left = max(0, self.until - self.told)
            print(f"{self.name}, {left / 60:.1f} minutes left: {self.figures()}; {self.pool.said}", flush=True)

    def figures(self):
        """Operations and the longest pause of each exerciser."""
        kills = [] if self.far else [f"{self.pool.kills} kills"]
        each = [f"{one.name} {one.operations} operations, {one.pause_ms} ms" for one in self.programs]
        longest = max(self.programs, key=lambda one: one.pause_ms)
        return "; ".join(kills + each + [f"the longest pause was {longest.pause_of}"])

    def kill_servers(self, clients):
        """Kills one server after the other, until the time is over."""
        self.pool.await_whole(self.spans, clients, surely_s=0)
        order = []
        while True:
            began = time.monotonic()
            order = order or self.random.sample(self.pool.numbers, len(self.pool.numbers))
            number = order.pop()
            with uninterrupted():
                how = self.pool.kill(number)
            self.pool.wait(min(self.random.choice(AWAY_S), self.options.every + 2))
            with uninterrupted():
                self.pool.start(number, *how)
            self.pool.await_whole(self.spans, clients)
            # The pool is whole: the scenario ends so, and the next kill costs nothing.
            if time.monotonic() >= self.until:
                return
            self.pool.wait(began + self.options.every - time.monotonic())

    def begin(self):
        """Waits until all exercisers are at work."""
        while not all(program.has_begun for program in self.programs):
            self.pool.wait(0.1)
        self.until = time.monotonic() + 60 * self.options.minutes

    def mount(self):
        self.start_mount(files=4)
        self.begin()
        self.spans = 30
        self.kill_servers(clients=1)

    def memory(self):
        self.start_memory(mib=self.options.mib)
        self.begin()
        self.spans = self.options.mib // 2
        self.kill_servers(clients=1)

    def sort(self):
        self.start_sort(mib=self.options.mib)
        self.begin()
        self.spans = 0  # between two sorts the pool is empty
        self.kill_servers(clients=0)

    def cut(self):
        program = os.readlink(f"/proc/{self.pool.server(0)['pid']}/exe")
        with uninterrupted():
            later(self.stack, lambda: self.far and self.far.close())
            self.far = CutServer(program, self.directory, DONATE_MIB, "--pretend-host=far")
        pool = f"{self.directory}/pool-with-far"
        with open(f"{self.directory}/state/pool") as near, open(pool, "w") as file:
            file.write(near.read().rstrip("\n") + f"\n{self.far.address}\n")
        os.environ["NRAM_POOL"] = pool
        self.start_mount(files=2)
        self.start_memory(self.options.mib // 2)
        self.start_sort(self.options.mib // 2)
        self.start_swap(self.options.mib)
        self.begin()
        self.spans = self.options.mib // 4
        self.pool.await_whole(self.spans, clients=2, surely_s=0)
        while True:
            for way, lost in (("to", {"silently": True}), ("from", {"answers": True})):
                for one in self.programs:
                    one.pause_ms, one.pause_of = 0, "nothing"
                self.far.cut(**lost)
                self.pool.said = f"nothing comes {way} one server"
                self.pool.wait(self.options.cut_seconds)
                if all(server["answers"] for server in self.pool.status()["servers"]):
                    raise Failure("all servers answer: nothing was cut off")
                self.far.restore()
                self.pool.await_whole(self.spans, clients=2)
                print(f"cut of {self.options.cut_seconds:g} s {way} the server: {self.figures()}", flush=True)
            if time.monotonic() >= self.until:
                return

    def run(self):
        getattr(self, self.name)()
        for program in self.programs:
            program.end()
        while any(program.process.poll() is None for program in self.programs):
            self.look()
            time.sleep(0.05)
        self.look()
        for words in self.ends:
            run(self.options.nram, *words)
        # A sort may end while it cannot reach the server. Its pages remain there until its lease ends.
        self.pool.await_empty(besides=self.far.address if self.far else None)

    def keep(self):
        kept = tempfile.mkdtemp(prefix=f"nram-survive-failed-{self.name}-", dir="/tmp")
        logs = glob.glob(f"{self.directory}/state/**/*log*", recursive=True)
        for path in logs + glob.glob(f"{self.directory}/*.*") + glob.glob(f"{self.directory}/report"):
            with contextlib.suppress(OSError):
                shutil.copy(path, f"{kept}/{os.path.relpath(path, self.directory).replace('/', '-')}")
        with open(f"{kept}/status.json", "w") as file:
            json.dump(self.pool.last if self.pool else {}, file, indent=1)
        return kept


def run_scenario(options, name, kind):
    """Returns true if it passes."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        scenario = None
        try:
            scenario = kind(options, name, stack)
            scenario.run()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            print(f"FAILED: {name}, seed {options.seed}, {time.strftime('%H:%M:%S')}: {failure}", file=sys.stderr)
            if scenario is not None:
                figures = f"{scenario.figures()}; " if scenario.programs else ""
                print(f"{figures}its logs are in {scenario.keep()}", file=sys.stderr, flush=True)
                if options.hold:
                    print(f"all of it runs on, below {scenario.directory}, until Ctrl-C", file=sys.stderr, flush=True)
                    time.sleep(1e6)
            return False
        print(f"{name}: passed in {(time.monotonic() - began) / 60:.1f} minutes: {scenario.figures()}", flush=True)
        return True


def run_all(options, kinds):
    """Runs options.only, each by its class of `kinds`, and ends this program."""
    # A mount namespace of its own: a namespace that another test makes meanwhile would keep a copy of the mount.
    if "NRAM_OWN_NAMESPACE" not in os.environ:
        os.environ["NRAM_OWN_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation=private", sys.executable, *sys.argv])
    let_go_of_mounts()
    catch_signals()
    print(f"seed {options.seed}", flush=True)
    passed = [run_scenario(options, name, kinds[name]) for name in options.only]
    sys.exit(0 if all(passed) else 1)


def main():
    options = parse_options(__doc__)
    run_all(options, dict.fromkeys(options.only, Scenario))


if __name__ == "__main__":
    main()
