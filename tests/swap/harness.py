#!/usr/bin/python3
"""The pressure harness: does a machine that swaps to the pool ever stall, or get a wrong byte?

usage: tests/swap/harness.py --nram=PROGRAM --pressure=PROGRAM [--runs=N] [--only=WORD] [--seed=N]
                             [--mib=N] [--limit-mib=N] [--seconds=N]

Each run takes the next scenario: programs with verified contents far beyond a memory cgroup, on swap in a pool of two
servers on this machine, which are killed, frozen or slowed down meanwhile, or have a third one in a network that is
cut. A run that takes longer than its deadline is a stall: the kernel stacks of all processes that wait in it are
printed, and the harness ends. A run in which hardly anything was swapped out shows nothing, and fails too. Needs root,
loop devices, network namespaces and the memory cgroup, v1 or v2; v2 knows no swappiness of a cgroup, so there it is the
machine's vm.swappiness.
"""

import argparse
import collections
import contextlib
import glob
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))  # in the tree, also where Bazel runs a link to it
sys.path[:0] = [HERE, f"{HERE}/../../tools/bench", f"{HERE}/../util"]
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    MemoryCgroup,
    catch_signals,
    later,
    remove,
    remove_state,
    run,
    swap_alone,
    uninterrupted,
)
from far_server import FarServer  # noqa: E402
from memory_places import SWAP_PRIORITY, swapped_bytes  # noqa: E402

STALL_S = 120  # a run's deadline; runs take five to fifteen seconds
COLLECT_S = 5  # until then the pages of programs that have ended must be collected
# Of the memory that does not fit into the cgroup, this part must be swapped out at some time, or a run has shown
# nothing.
SWAPPED_SHARE = 0.1
DEADLINE_S = 4  # of an operation of the area's
FAR_DEADLINE_S = 10  # with a network between
# Longer than TCP, left alone, waits during it before it sends again; short enough for the pool to recover.
INTERRUPTION_S = (0.64 * FAR_DEADLINE_S, 0.8 * FAR_DEADLINE_S)


def stacks():
    """The kernel stacks of all tasks that the kernel makes wait."""
    for task in glob.glob("/proc/[0-9]*/task/[0-9]*"):
        try:
            with open(f"{task}/stat") as file:
                text = file.read()
            if text[text.rindex(")") + 2] != "D":
                continue
            with open(f"{task}/stack") as file:
                print(f"{task} {text[:text.rindex(')') + 1]}\n{file.read()}", file=sys.stderr)
        except OSError:
            pass


class Harness:
    """Closing `stack` takes down everything that it sets up."""

    def __init__(self, options, stack):
        self.options = options
        self.doing = "setting up"
        self.random = random.Random(options.seed)
        self.seen = collections.Counter()
        self.programs = []
        self.far = None
        self.device = ""
        self.pause_ms = 0
        self.start_run()
        os.environ.pop("NRAM_POOL", None)
        swap_alone(stack)
        with uninterrupted():
            self.directory = tempfile.mkdtemp(prefix="nram-swap-test-", dir="/tmp")
            os.environ["NRAM_STATE_DIR"] = f"{self.directory}/state"
            later(stack, remove_state, self.directory)
            self.cgroup = MemoryCgroup("nram-swap-test")
            later(stack, self.cgroup.close)
        later(stack, self.close_far)
        later(stack, run, options.nram, "down", timeout=STALL_S)
        later(stack, run, options.nram, "swapoff", "--all", "--force", timeout=STALL_S)
        later(stack, self.kill_programs)
        if self.cgroup.path is None:
            raise Failure("no memory cgroup could be made; that needs root and its controller, v1 or v2")
        self.cgroup.limit(options.limit_mib * MIB)
        self.cgroup.swap_eagerly()

    def start_run(self):
        self.deadline = time.monotonic() + STALL_S
        self.peak = 0  # of swapped-out bytes
        self.was_stored = False
        self.oom_kills_before = 0

    def kill_programs(self):
        for program in self.programs:
            program.kill()

    def close_far(self):
        if self.far is not None:
            self.far.close()
            self.far = None

    def nram(self, *words, check=True):
        done = subprocess.run(
            [self.options.nram, *words], capture_output=True, text=True, start_new_session=True, timeout=STALL_S
        )
        if check and done.returncode != 0:
            raise Failure(f"nram {' '.join(words)}: {done.stderr.strip()}")
        return done

    def server_pids(self):
        pids = []
        for path in sorted(glob.glob(f"{self.directory}/state/[0-9]*.pid")):
            with open(path) as file:
                pids.append(json.load(file)["pid"])
        return pids

    def set_up(self):
        size = self.options.mib + 256
        self.nram("up", "--servers=2", f"--donate={size * 3 // 4 + 128}M")
        self.swap_on(size)

    def swap_on(self, size, *more, deadline_s=DEADLINE_S):
        # Most scenarios have servers on this machine.
        words = ["swapon", "--force", f"{size}M", f"--priority={SWAP_PRIORITY}",
                 f"--io-timeout-ms={deadline_s * 1000}", *more]
        done = self.nram(*words, check=False)
        if "CAP_SYS_RESOURCE" in done.stderr:
            if not self.seen["without protection (no CAP_SYS_RESOURCE here)"]:
                print(
                    "NOT TESTED: a protected swap daemon: CAP_SYS_RESOURCE is not here",
                    file=sys.stderr,
                    flush=True,
                )
            self.seen["without protection (no CAP_SYS_RESOURCE here)"] += 1
            self.nram(*words, "--unprotected")
        elif done.returncode != 0:
            raise Failure(f"nram swapon: {done.stderr.strip()}")
        self.device = self.area()["device"]

    def area(self):
        areas = json.loads(self.nram("swaps", "--json").stdout)
        if len(areas) != 1:
            raise Failure(f"expected one swap area, and there are {len(areas)}")
        return areas[0]

    def tear_down(self, force=False):
        self.nram("swapoff", *(["--force"] if force else []))
        self.nram("down")

    def start(self, mode, mib, seconds):
        program = subprocess.Popen(
            [self.options.pressure, mode, str(mib), str(seconds), str(self.random.getrandbits(60))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=self.cgroup.join,
        )
        self.programs.append(program)
        return program

    def all_ended(self):
        self.peak = max(self.peak, swapped_bytes(self.device) or 0)
        return all(program.poll() is not None for program in self.programs)

    def finish(self, may_lose=False, swap_is_gone=False):
        """Waits for all programs; returns their reports. Without swap, programs may want more memory than there is."""
        reports = []
        while not self.all_ended():
            if time.monotonic() > self.deadline:
                raise Failure("stall")
            time.sleep(0.05)
        out_of_memory = self.cgroup.oom_kills() > self.oom_kills_before
        for program in self.programs:
            try:
                out, errors = program.communicate(timeout=max(1, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure("stall")
            code = program.returncode
            if code == -signal.SIGKILL and out_of_memory:
                if not swap_is_gone:
                    raise Failure("the kernel ended a program because its cgroup was out of memory")
                self.seen["programs ended for want of memory when swap was gone"] += 1
                continue
            # Lost pages may also hit the program's own code, stack or allocator.
            lost = code == 3 or code in (-signal.SIGBUS, -signal.SIGSEGV, -signal.SIGKILL)
            if code == 0:
                reports.append(json.loads(out))
                self.pause_ms = max(self.pause_ms, reports[-1]["pause_ms"])
            elif lost and may_lose:
                self.seen["programs ended for lost pages"] += 1
            else:
                raise Failure(f"a program ended with {code}: {errors.strip()[-400:]}")
        self.programs = []
        return reports

    def await_filling(self, share=0.3):
        """Waits until `share` of the memory that does not fit is swapped out, and stored."""
        needed = share * (self.options.mib - self.options.limit_mib) * MIB
        while True:
            ended = self.all_ended()
            area = self.area()
            self.peak = max(self.peak, area["used_bytes"])
            if area["used_bytes"] > needed and area.get("stored_bytes", 0) > needed:
                self.was_stored = True
                return
            if ended:
                self.finish()
                raise Failure(f"the programs ended with {self.peak // MIB} MiB swapped out at most")
            if time.monotonic() > self.deadline:
                raise Failure("stall")
            time.sleep(0.05)

    def await_collected(self):
        """The programs have ended: nearly all of their stored pages must leave the servers soon."""
        if not self.was_stored:
            raise Failure("nothing was seen to be stored, so nothing can be seen to be collected")
        until = time.monotonic() + COLLECT_S
        while True:
            stored = self.area().get("stored_bytes", sys.maxsize)  # not there if a server does not answer
            if stored < 0.05 * (self.options.mib - self.options.limit_mib) * MIB:
                self.seen["times that 95 % were collected within 5 s"] += 1
                return
            if time.monotonic() > until:
                raise Failure(f"{stored // MIB} MiB are not collected {COLLECT_S} s after the programs' end")
            time.sleep(0.05)

    # Scenarios.

    def four_random(self):
        for _ in range(4):
            self.start("random", self.options.mib // 4, self.options.seconds)
        self.await_filling()
        self.finish()
        self.await_collected()

    def one_sequential(self):
        self.start("fill", self.options.mib, 0)
        self.await_filling()
        self.finish()
        self.await_collected()

    def fork_storm(self):
        self.start("fork", self.options.mib * 2 // 3, self.options.seconds)
        self.await_filling(share=0.15)
        self.finish()
        self.await_collected()

    def with_page_cache(self):
        path = f"/var/tmp/nram-swap-test-{os.getpid()}.data"
        reader = None
        try:
            run("dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=512", timeout=STALL_S)
            reader = subprocess.Popen(
                ["sh", "-c", f"while :; do cat {path} > /dev/null; done"],
                start_new_session=True,
                preexec_fn=self.cgroup.join,
            )
            for _ in range(2):
                self.start("random", self.options.mib // 2, self.options.seconds)
            self.finish()
        finally:
            if reader is not None:
                reader.kill()
                reader.wait(timeout=STALL_S)
            remove(path)

    def builds(self):
        source = f"{self.directory}/unit.cc"
        with open(source, "w") as file:
            file.write(
                "#include <map>\n#include <regex>\n#include <string>\n"
                "int main() { std::map<std::string, std::regex> m; return m.size(); }\n"
            )
        self.start("random", self.options.mib - 64, self.options.seconds + 1)
        self.await_filling()
        for number in range(2):
            done = subprocess.run(
                ["g++", "-O2", "-o", f"{self.directory}/unit{number}", source],
                capture_output=True,
                text=True,
                preexec_fn=self.cgroup.join,
                start_new_session=True,
                timeout=STALL_S,
            )
            if done.returncode != 0 or subprocess.run([f"{self.directory}/unit{number}"]).returncode != 0:
                raise Failure(f"the compiler under pressure: {done.stderr[-300:]}")
        self.finish()

    def swapoff_under_load(self):
        self.start("random", self.options.mib, self.options.seconds + 1)
        self.await_filling()
        # Otherwise the kernel would end the program because of the pages that swapoff takes back.
        self.cgroup.limit(2 * self.options.mib * MIB)
        self.nram("swapoff")
        self.finish()
        self.cgroup.limit(self.options.limit_mib * MIB)
        self.swap_on(self.options.mib + 256)

    def frozen_server(self):
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        pid = self.random.choice(self.server_pids())
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(2.5)  # shorter than the deadline of an operation
        finally:
            os.kill(pid, signal.SIGCONT)
        self.finish()

    def slow_server(self):
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds)
        pid = self.random.choice(self.server_pids())
        try:
            for _ in range(40):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.08)
                os.kill(pid, signal.SIGCONT)
                time.sleep(0.02)
        finally:
            os.kill(pid, signal.SIGCONT)
        self.finish()

    def killed_server(self):
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        os.kill(self.random.choice(self.server_pids()), signal.SIGKILL)
        self.finish(may_lose=True)
        self.tear_down(force=True)
        self.set_up()

    @contextlib.contextmanager
    def two_copies(self):
        """The area has two copies of each page, on three servers that count as hosts of their own."""
        self.tear_down()
        size = self.options.mib + 256
        self.nram("up", "--servers=3", f"--donate={size * 3 // 4 + 128}M", "--pretend-hosts")
        self.swap_on(size, "--copies=2")
        yield
        self.tear_down(force=True)  # swapoff refuses while a server is away
        self.set_up()

    def killed_server_of_copies(self):
        with self.two_copies():
            for _ in range(2):
                self.start("random", self.options.mib // 2, self.options.seconds + 1)
            self.await_filling()
            os.kill(self.random.choice(self.server_pids()), signal.SIGKILL)
            self.finish()

    def frozen_server_of_copies(self):
        with self.two_copies():
            for _ in range(2):
                self.start("random", self.options.mib // 2, self.options.seconds + 1)
            self.await_filling()
            frozen = self.random.choice(self.server_pids())
            os.kill(frozen, signal.SIGSTOP)
            try:
                time.sleep(2.5)
            finally:
                os.kill(frozen, signal.SIGCONT)
            self.finish()

    def killed_daemon(self):
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        os.kill(self.area()["daemon_pid"], signal.SIGKILL)
        self.finish(may_lose=True, swap_is_gone=True)
        if self.nram("swapoff", check=False).returncode == 0:
            raise Failure("swapoff took away an area whose daemon is gone without --force")
        self.tear_down(force=True)
        self.set_up()

    def swap_over_a_network(self, deadline_s=DEADLINE_S):
        """Swaps to a server on this side and one on the other side of a network."""
        self.nram("swapoff")
        size = self.options.mib + 256
        program = os.readlink(f"/proc/{self.server_pids()[0]}/exe")
        self.far = FarServer(program, self.directory, size * 3 // 4 + 128)
        pool = f"{self.directory}/pool-with-far"
        with open(f"{self.directory}/state/pool") as near, open(pool, "w") as file:
            file.write(near.read().rstrip("\n") + f"\n{self.far.address}\n")
        self.swap_on(size, f"--pool={pool}", deadline_s=deadline_s)
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        donors = json.loads(self.nram("df", f"--pool={pool}", "--json").stdout)["donors"]
        if next(donor for donor in donors if donor["address"] == self.far.address)["used_bytes"] < MIB:
            raise Failure("nothing is swapped to the server on the other side")

    def leave_network(self):
        self.tear_down(force=True)
        self.close_far()
        self.set_up()

    def network_interrupted(self):
        self.swap_over_a_network(FAR_DEADLINE_S)
        for silently in (False, True):
            self.far.cut(silently)
            time.sleep(self.random.uniform(0.5, 1) if not silently else self.random.uniform(*INTERRUPTION_S))
            self.far.restore()
            time.sleep(2)  # let waiting operations end, or they would wait through both
        self.finish()
        self.leave_network()

    def network_cut(self):
        self.swap_over_a_network()
        self.far.cut(silently=self.random.random() < 0.5)
        lost = "programs ended for lost pages"
        before = self.seen[lost]
        self.finish(may_lose=True)
        if self.seen[lost] == before:
            raise Failure("nobody missed the server that was cut off: was it cut off at all?")
        self.leave_network()

    SCENARIOS = [
        four_random,
        one_sequential,
        fork_storm,
        with_page_cache,
        frozen_server,
        slow_server,
        builds,
        swapoff_under_load,
        network_interrupted,
        killed_server,
        killed_server_of_copies,
        frozen_server_of_copies,
        network_cut,
        killed_daemon,
    ]

    def run(self):
        scenarios = [scenario for scenario in self.SCENARIOS if self.options.only in scenario.__name__]
        if not scenarios:
            sys.exit(f"harness.py: no scenario has \"{self.options.only}\" in its name")
        began = time.monotonic()
        self.set_up()
        for number in range(self.options.runs):
            scenario = scenarios[number % len(scenarios)]
            self.doing = f"run {number + 1}, {scenario.__name__}"
            self.start_run()
            self.oom_kills_before = self.cgroup.oom_kills()
            started = time.monotonic()
            scenario(self)
            if self.peak < SWAPPED_SHARE * (self.options.mib - self.options.limit_mib) * MIB:
                raise Failure(f"at most {self.peak // MIB} MiB were swapped out: it has shown nothing")
            self.seen[scenario.__name__] += 1
            print(
                f"run {number + 1} of {self.options.runs}: {scenario.__name__}, {time.monotonic() - started:.1f} s",
                flush=True,
            )
        self.doing = "taking down"
        self.tear_down()
        print(
            json.dumps(
                {
                    "runs": self.options.runs,
                    "seconds": round(time.monotonic() - began),
                    "stalls": 0,
                    "wrong_bytes": 0,
                    "longest_pause_ms": self.pause_ms,
                    **self.seen,
                },
                indent=1,
            )
        )

    def explain(self, failure):
        print(f"{self.doing}, seed {self.options.seed}: {failure}", file=sys.stderr, flush=True)
        stacks()
        logs = [f"{self.directory}/far-server.log", *glob.glob(f"{self.directory}/state/*.log")]
        for log in logs + glob.glob(f"{self.directory}/state/swap/*/log"):
            with contextlib.suppress(OSError), open(log, errors="replace") as file:
                print(f"--- {log}\n{file.read()[-2000:]}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nram", required=True)
    parser.add_argument("--pressure", required=True)
    parser.add_argument("--runs", type=int, default=len(Harness.SCENARIOS))
    parser.add_argument("--only", default="", help="scenarios whose name contains it")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--mib", type=int, default=768, help="that the programs of a run touch together")
    parser.add_argument("--limit-mib", type=int, default=256, help="of the memory cgroup that they are in")
    parser.add_argument("--seconds", type=int, default=4, help="that a run goes on about")
    options = parser.parse_args()
    options.nram, options.pressure = os.path.abspath(options.nram), os.path.abspath(options.pressure)
    if options.mib <= options.limit_mib:
        parser.error("--mib: expected more than --limit-mib, else nothing is swapped out")
    # An operator who ends it early, also from the background (where a shell has Ctrl-C ignored), finds nothing left
    # behind.
    catch_signals()
    print(f"seed {options.seed}", flush=True)
    with contextlib.ExitStack() as stack:
        try:
            harness = Harness(options, stack)
        except (Failure, OSError) as failure:
            sys.exit(f"harness.py: {failure}")
        try:
            harness.run()
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            harness.explain(failure)
            sys.exit(1)


if __name__ == "__main__":
    main()
