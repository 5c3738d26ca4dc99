#!/usr/bin/python3
"""The pressure harness: does a machine that swaps to the pool ever stall, or get a wrong byte?

usage: tests/swap/harness.py --nram=PROGRAM --pressure=PROGRAM [--runs=N] [--only=WORD] [--seed=N]
                             [--mib=N] [--limit-mib=N] [--seconds=N]

Each run takes the next scenario: programs with verified contents far beyond a memory cgroup, on swap in a pool of two
servers on this machine, which are killed, frozen or slowed down meanwhile, or have a third one in a network that is
cut. A run that takes longer than its deadline is a stall: the kernel stacks of all processes that wait in it are
printed, and the harness ends. Needs root, loop devices, network namespaces and the memory cgroup (v1).
"""

import argparse
import collections
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from far_server import FarServer  # noqa: E402

MIB = 1 << 20
STALL_S = 120  # a run's deadline; runs take five to fifteen seconds
COLLECT_S = 5  # after which the pages of programs that have ended must be collected


def stacks():
    """What every process that the kernel makes wait is waiting for."""
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


class Failure(Exception):
    pass


class Cgroup:
    def __init__(self, limit):
        self.path = f"/sys/fs/cgroup/memory/nram-swap-test-{os.getpid()}"
        os.mkdir(self.path)
        self.limit(limit)
        with open(f"{self.path}/memory.swappiness", "w") as file:
            file.write("100")

    def limit(self, mib):
        with open(f"{self.path}/memory.limit_in_bytes", "w") as file:
            file.write(str(mib * MIB))

    def join(self):
        with open(f"{self.path}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def close(self):
        for _ in range(100):
            with open(f"{self.path}/cgroup.procs") as file:
                pids = file.read().split()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            if not pids:
                break
            time.sleep(0.05)
        os.rmdir(self.path)


class Harness:
    def __init__(self, options):
        self.options = options
        self.directory = tempfile.mkdtemp(prefix="nram-swap-test-", dir="/tmp")
        os.environ["NRAM_STATE_DIR"] = f"{self.directory}/state"
        os.environ.pop("NRAM_POOL", None)
        self.random = random.Random(options.seed)
        self.cgroup = Cgroup(options.limit_mib)
        self.seen = collections.Counter()
        self.programs = []
        self.far = None
        self.pause_ms = 0

    def nram(self, *words, check=True):
        done = subprocess.run([self.options.nram, *words], capture_output=True, text=True, timeout=STALL_S)
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

    def swap_on(self, size, *more):
        words = ["swapon", f"{size}M", "--priority=100", "--io-timeout-ms=4000", *more]
        done = self.nram(*words, check=False)
        if "CAP_SYS_RESOURCE" in done.stderr:
            if not self.seen["without protection (no CAP_SYS_RESOURCE here)"]:
                print(
                    "CAP_SYS_RESOURCE is not here: swapping without the daemon's protection",
                    file=sys.stderr,
                    flush=True,
                )
            self.seen["without protection (no CAP_SYS_RESOURCE here)"] += 1
            self.nram(*words, "--unprotected")
        elif done.returncode != 0:
            raise Failure(f"nram swapon: {done.stderr.strip()}")

    def tear_down(self, force=False):
        self.nram("swapoff", *(["--force"] if force else []))
        self.nram("down")

    def start(self, mode, mib, seconds):
        program = subprocess.Popen(
            [self.options.pressure, mode, str(mib), str(seconds), str(self.random.getrandbits(60))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=self.cgroup.join,
        )
        self.programs.append(program)
        return program

    def finish(self, may_lose=False):
        """Waits for all programs; what they printed."""
        reports = []
        for program in self.programs:
            try:
                out, errors = program.communicate(timeout=max(1, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure("stall")
            code = program.returncode
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
        """Until so much of what does not fit is swapped out."""
        beyond = (self.options.mib - self.options.limit_mib) * MIB
        while time.monotonic() < self.deadline:
            used = json.loads(self.nram("swaps", "--json").stdout)[0]["used_bytes"]
            if used > share * beyond or all(program.poll() is not None for program in self.programs):
                return
            time.sleep(0.05)

    def await_collected(self):
        """The programs have ended: nearly all of their pages must leave the servers soon."""
        until = time.monotonic() + COLLECT_S
        while True:
            area = json.loads(self.nram("swaps", "--json").stdout)[0]
            if area["stored_bytes"] < 0.05 * (self.options.mib - self.options.limit_mib) * MIB:
                self.seen["times that 95 % were collected within 5 s"] += 1
                return
            if time.monotonic() > until:
                raise Failure(
                    f"{area['stored_bytes'] // MIB} MiB are not collected {COLLECT_S} s after the programs' end"
                )
            time.sleep(0.05)

    # Scenarios.

    def four_random(self):
        for _ in range(4):
            self.start("random", self.options.mib // 4, self.options.seconds)
        self.finish()
        self.await_collected()

    def one_sequential(self):
        self.start("fill", self.options.mib, 0)
        self.finish()
        self.await_collected()

    def fork_storm(self):
        self.start("fork", self.options.mib * 2 // 3, self.options.seconds)
        self.finish()
        self.await_collected()

    def with_page_cache(self):
        path = "/var/tmp/nram-swap-test.data"
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=512"], capture_output=True, check=True)
        reader = subprocess.Popen(
            ["sh", "-c", f"while :; do cat {path} > /dev/null; done"], preexec_fn=self.cgroup.join
        )
        try:
            for _ in range(2):
                self.start("random", self.options.mib // 2, self.options.seconds)
            self.finish()
        finally:
            reader.kill()
            reader.wait()
            os.unlink(path)

    def builds(self):
        source = f"{self.directory}/unit.cc"
        with open(source, "w") as file:
            file.write(
                "#include <map>\n#include <regex>\n#include <string>\n"
                "int main() { std::map<std::string, std::regex> m; return m.size(); }\n"
            )
        self.start("random", self.options.mib - 64, self.options.seconds + 1)
        for number in range(2):
            done = subprocess.run(
                ["g++", "-O2", "-o", f"{self.directory}/unit{number}", source],
                capture_output=True,
                text=True,
                preexec_fn=self.cgroup.join,
                timeout=STALL_S,
            )
            if done.returncode != 0 or subprocess.run([f"{self.directory}/unit{number}"]).returncode != 0:
                raise Failure(f"the compiler under pressure: {done.stderr[-300:]}")
        self.finish()

    def swapoff_under_load(self):
        self.start("random", self.options.mib, self.options.seconds + 1)
        self.await_filling()
        # Else the kernel would end the program for what it takes back.
        self.cgroup.limit(2 * self.options.mib)
        self.nram("swapoff")
        self.finish()
        self.cgroup.limit(self.options.limit_mib)
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
        for _ in range(40):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.08)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
        self.finish()

    def killed_server(self):
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        os.kill(self.random.choice(self.server_pids()), signal.SIGKILL)
        self.finish(may_lose=True)
        self.tear_down(force=True)
        self.set_up()

    def killed_daemon(self):
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        os.kill(json.loads(self.nram("swaps", "--json").stdout)[0]["daemon_pid"], signal.SIGKILL)
        self.finish(may_lose=True)
        if self.nram("swapoff", check=False).returncode == 0:
            raise Failure("swapoff took away an area whose daemon is gone without --force")
        self.tear_down(force=True)
        self.set_up()

    def swap_over_a_network(self):
        """Swaps to a server on this side and one on the other side of a network."""
        self.nram("swapoff")
        size = self.options.mib + 256
        program = os.readlink(f"/proc/{self.server_pids()[0]}/exe")
        self.far = FarServer(program, self.directory, size * 3 // 4 + 128)
        pool = f"{self.directory}/pool-with-far"
        with open(f"{self.directory}/state/pool") as near, open(pool, "w") as file:
            file.write(near.read().rstrip("\n") + f"\n{self.far.address}\n")
        self.swap_on(size, f"--pool={pool}")
        for _ in range(2):
            self.start("random", self.options.mib // 2, self.options.seconds + 1)
        self.await_filling()
        donors = json.loads(self.nram("df", f"--pool={pool}", "--json").stdout)["donors"]
        if next(donor for donor in donors if donor["address"] == self.far.address)["used_bytes"] < MIB:
            raise Failure("nothing is swapped to the server on the other side")

    def leave_network(self):
        self.tear_down(force=True)
        self.far.close()
        self.far = None
        self.set_up()

    def network_interrupted(self):
        self.swap_over_a_network()
        for _ in range(2):
            self.far.cut()
            time.sleep(1)  # TCP then waits up to as long again; both are shorter than the deadline of an operation
            self.far.restore()
            time.sleep(0.5)
        self.finish()
        self.leave_network()

    def network_cut(self):
        self.swap_over_a_network()
        self.far.cut()
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
            self.deadline = time.monotonic() + STALL_S
            started = time.monotonic()
            try:
                scenario(self)
            except (Failure, subprocess.TimeoutExpired) as failure:
                print(
                    f"run {number + 1}, {scenario.__name__}, seed {self.options.seed}: {failure}",
                    file=sys.stderr,
                    flush=True,
                )
                stacks()
                for log in glob.glob(f"{self.directory}/state/*.log") + glob.glob(f"{self.directory}/state/swap/*/log"):
                    with open(log) as file:
                        print(f"--- {log}\n{file.read()[-2000:]}", file=sys.stderr)
                raise
            self.seen[scenario.__name__] += 1
            print(
                f"run {number + 1} of {self.options.runs}: {scenario.__name__}, {time.monotonic() - started:.1f} s",
                flush=True,
            )
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

    def close(self):
        for program in self.programs:
            program.kill()
        for words in (["swapoff", "--all", "--force"], ["down"]):
            done = subprocess.run([self.options.nram, *words], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"while cleaning up: {done.stderr.strip()}", file=sys.stderr)
        if self.far is not None:
            self.far.close()
        self.cgroup.close()
        shutil.rmtree(self.directory, ignore_errors=True)


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
    # Whoever ends it early, also from the background, where a shell has Ctrl-C ignored, finds nothing left behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: sys.exit(128 + got))
    print(f"seed {options.seed}", flush=True)
    harness = Harness(options)
    try:
        harness.run()
    except (Failure, subprocess.TimeoutExpired):
        sys.exit(1)
    finally:
        harness.close()


if __name__ == "__main__":
    main()
