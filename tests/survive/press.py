#!/usr/bin/python3
"""The long proof of giving back: do programs see an error, or a wrong byte, while donors take their memory back?

usage: tests/survive/press.py NRAM [--only=mount|memory|sort] [--minutes=N] [--every=SECONDS] [--seed=N] [--mib=N]
                              [--array=PROGRAM] [--pressure=PROGRAM] [--hold]

NRAM is the program (bazel-bin/tools/nram/nram). Each scenario has a pool of three servers on this machine, each in a
memory cgroup of its own with --give-back=pressure, and two copies of each page. The exercisers are those of survive.py.

Again and again something in the cgroup of one server, or of two at once, takes 90 % of the cgroup's memory within two
seconds, keeps it for a while, and lets it go. Now and then a client is frozen meanwhile, for two seconds.

A scenario fails, and ends, at any error that an exerciser sees, a wrong byte, a lost span, an operation of more than a
minute, an OOM kill of anybody, a server that is asked for memory still when all pressure has been over for a while, and
pages that are left when all doors have ended. Its logs are kept then, and the exit code is 1. Needs root, and memory
cgroups.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE]
import survive  # noqa: E402
from bench_places import MIB, Failure, MemoryCgroup, catch_signals, later, uninterrupted  # noqa: E402
from options import parse_options  # noqa: E402

LIMIT_MIB = 1536
RESERVE_MIB = 192
TAKEN = 0.9  # of the limit
TAKE_S = 2
KEEP_S = [0, 0.5, 2, 5]
GIVEN_S = 30  # the longest that a balloon may have to wait for its memory
CALM_S = 40
FROZEN_S = 2


class Balloon:
    def __init__(self, cgroup):
        words = [sys.executable, f"{HERE}/balloon.py", cgroup.path, str(round(TAKEN * LIMIT_MIB)), str(TAKE_S)]
        with uninterrupted():
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.took_ms = None

    def look(self):
        if self.took_ms is None:
            line = self.process.stdout.readline()
            if line:
                self.took_ms = int(line)
            elif self.process.poll() is not None:
                raise Failure(f"the donor's own work was ended: {self.process.returncode}")
        return self.took_ms is not None

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pressed(survive.Scenario):
    """Donors that take their memory back, in place of servers that are killed."""

    def __init__(self, options, name, stack):
        self.cgroups, self.balloons = [], []
        self.presses, self.longest_ms, self.given_mib = 0, 0, 0
        super().__init__(options, name, stack)
        for number in self.pool.numbers:
            with uninterrupted():
                cgroup = MemoryCgroup(f"nram-press{number}")
                later(stack, cgroup.close)
                if cgroup.path is None:
                    raise Failure("no memory cgroup can be made here")
                cgroup.limit(LIMIT_MIB * MIB)
                self.cgroups.append(cgroup)
                words, environment = self.pool.kill(number)
                words = [word for word in words if not word.startswith("--donate=")]
                words += ["--donate=auto", f"--reserve={RESERVE_MIB}M", "--give-back=pressure"]
                join = f'echo $$ > {cgroup.path}/cgroup.procs && exec "$@"'
                self.pool.start(number, ["sh", "-c", join, "sh", *words], environment)
        later(stack, self.close_balloons)

    def close_balloons(self):
        while self.balloons:
            self.balloons.pop().close()

    def figures(self):
        each = [f"{one.name} {one.operations} operations, {one.pause_ms} ms" for one in self.programs]
        return "; ".join(
            [f"{self.presses} presses, {self.given_mib} MiB given back, the slowest in {self.longest_ms} ms", *each]
        )

    def look(self):
        super().look()
        for cgroup in self.cgroups:
            if cgroup.oom_kills() > 0:
                raise Failure(f"somebody in {cgroup.path} was killed for want of memory")

    def clients(self):
        """Daemons of mounts, to be frozen: not their kernels' requests."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
                words = file.read()
                if "nram-fsd" in words.split("\0")[0] and self.directory in words:
                    found.append(int(pid))
        return found

    def await_that(self, seconds, what, is_so):
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until:
                raise Failure(f"{what} took longer than {seconds} s: {json.dumps(self.pool.last)}")
            self.pool.wait(0.1)

    def is_calm(self):
        status = self.pool.status()
        servers = status.get("servers", [])
        # `moving` and `degraded` may stay: where only one host has room, there is no second copy.
        return servers and all(server["answers"] and server["asked_back_bytes"] == 0 for server in servers)

    def has_room(self):
        done = subprocess.run([self.options.nram, "df", "--json"], capture_output=True, text=True, timeout=60)
        with contextlib.suppress(ValueError):
            donors = json.loads(done.stdout)["donors"]
            return all(donor["free_bytes"] + donor["used_bytes"] > 3 * self.options.mib * MIB for donor in donors)
        return False

    def press(self):
        # A sort that finds no room for its scratch ends, as it should; with two donors left there is enough.
        many = 1 if self.name == "sort" else self.random.choice([1, 1, 2])
        numbers = self.random.sample(self.pool.numbers, many)
        frozen = self.clients()[:1] if self.random.random() < 0.2 else []
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        thaws = time.monotonic() + FROZEN_S
        try:
            self.balloons += [Balloon(self.cgroups[number]) for number in numbers]

            def all_full():
                if frozen and time.monotonic() > thaws:
                    os.kill(frozen.pop(), signal.SIGCONT)
                return all([balloon.look() for balloon in self.balloons])

            self.await_that(GIVEN_S, f"what the donors {numbers} need", all_full)
            self.pool.wait(self.random.choice(KEEP_S))
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        self.longest_ms = max([self.longest_ms, *(balloon.took_ms for balloon in self.balloons)])
        self.close_balloons()
        self.presses += 1
        self.await_that(CALM_S, "the end of all asking", self.is_calm)
        if self.name == "sort":
            # Donors lend again; a sort that finds no room ends, as it should.
            self.await_that(CALM_S, "the donors' lending again", self.has_room)
        self.given_mib = sum(server.get("given_back_bytes", 0) for server in self.pool.last["servers"]) // MIB

    def kill_servers(self, clients):
        self.pool.await_whole(self.spans, clients, surely_s=0)
        while time.monotonic() < self.until:
            began = time.monotonic()
            self.press()
            self.pool.wait(began + self.options.every - time.monotonic())


def main():
    options = parse_options(__doc__, ["mount", "memory", "sort"])
    if "NRAM_OWN_NAMESPACE" not in os.environ:
        os.environ["NRAM_OWN_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation=private", sys.executable, *sys.argv])
    catch_signals()
    print(f"seed {options.seed}", flush=True)
    names = [options.only] if options.only else ["mount", "memory", "sort"]
    passed = [survive.run_scenario(options, name, Pressed) for name in names]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
