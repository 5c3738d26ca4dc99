"""A pool whose donors take their memory back, and the promises to them and to the pool's clients."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import survive
from bench_places import MIB, Failure, MemoryCgroup, later, uninterrupted

HERE = os.path.dirname(os.path.realpath(__file__))
TAKEN = 0.9  # of the limit
KEEP_S = [0, 0.5, 2, 5]
GIVEN_S = 30  # the longest that a donor may have to wait for its memory
PROMISED_S = 10  # until a server holds no more than it may; usually it is a tenth of a second
CALM_S = 40
FROZEN_S = 2
# The memory that a server may hold although all of its memory is asked back, beyond the memory of an empty server: 16
# MiB for remaining spans, an extent for each size of frames, landing frames and buffers.
KEPT_MIB = 48


class Balloon:
    """The work of a donor itself: it takes `mib` MiB within `take_s` seconds. A patient one waits while the cgroup is
    full."""

    def __init__(self, cgroup, mib, take_s, patient=False):
        words = [sys.executable, f"{HERE}/balloon.py", cgroup.path, str(mib), str(take_s)]
        if patient:
            words.append("patient")
        self.cgroup, self.mib = cgroup, mib
        self.began = time.monotonic()
        with uninterrupted():
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.took_ms = None

    def look(self):
        """Tells whether it has all of its memory."""
        if self.took_ms is None:
            line = self.process.stdout.readline()
            if line:
                self.took_ms = int(line)
            elif self.process.poll() is not None:
                raise Failure(f"the donor's own work was ended: {self.process.returncode}")
        return self.took_ms is not None

    def waited_s(self):
        """The seconds in which it was neither executed nor ready for a processor: it waited for memory, or for its own
        pace. A busy machine has no part in them."""
        with contextlib.suppress(OSError), open(f"/proc/{self.process.pid}/schedstat") as file:
            executed_ns, ready_ns = (int(word) for word in file.read().split()[:2])
            return time.monotonic() - self.began - (executed_ns + ready_ns) / 1e9
        return 0  # it has ended; look() says so

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def anonymous_mib(cgroup):
    """The MiB that programs in it hold, files left out."""
    key = "rss" if cgroup.v1 else "anon"
    with open(f"{cgroup.path}/memory.stat") as file:
        return next(int(line.split()[1]) for line in file if line.split()[0] == key) / MIB


class Pressed(survive.Scenario):
    """Donors that take their memory back, in place of servers that are killed."""

    limit_mib = 1536  # of each donor
    reserve_mib = 192
    donate = "auto"
    server_flags = ()
    fits_frozen = True  # a frozen client's data at a donor fits beside the balloon

    def __init__(self, options, name, stack):
        self.cgroups, self.balloons = [], []
        self.presses, self.longest_ms, self.given_mib = 0, 0, 0
        self.kept_promises, self.resident_ms = 0, 0
        self.doing = "nobody is pressed"
        super().__init__(options, name, stack)
        for number in self.pool.numbers:
            with uninterrupted():
                cgroup = MemoryCgroup(f"nram-press{number}")
                later(stack, cgroup.close)
                if cgroup.path is None:
                    raise Failure("no memory cgroup can be made here")
                cgroup.limit(self.limit_mib * MIB)
                cgroup.never_swap()  # dropped memory must not be in swap
                self.cgroups.append(cgroup)
                words, environment = self.pool.kill(number)
                words = [word for word in words if not word.startswith("--donate=")]
                words += [f"--donate={self.donate}", f"--reserve={self.reserve_mib}M", "--give-back=pressure"]
                words += self.server_flags
                join = f'echo $$ > {cgroup.path}/cgroup.procs && exec "$@"'
                self.pool.start(number, ["sh", "-c", join, "sh", *words], environment)
        later(stack, self.close_balloons)
        self.empty_mib = [server["resident_bytes"] / MIB for server in self.pool.status()["servers"]]

    def close_balloons(self):
        while self.balloons:
            self.balloons.pop().close()

    def figures(self):
        each = [f"{one.name} {one.operations} operations, {one.pause_ms} ms" for one in self.programs]
        return "; ".join(
            [
                f"{self.presses} presses, {self.given_mib} MiB given back, the slowest in {self.longest_ms} ms",
                f"{self.kept_promises} times resident memory as promised, {self.resident_ms} ms later at most",
                *each,
            ]
        )

    def look(self):
        super().look()
        for cgroup in self.cgroups:
            if cgroup.oom_kills() > 0:
                raise Failure(f"somebody in {cgroup.path} was killed for want of memory; {self.doing}")

    def await_that(self, seconds, what, is_so):
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until:
                raise Failure(f"{what} took longer than {seconds} s: {json.dumps(self.pool.last)}")
            self.pool.wait(0.1)

    def await_given(self, numbers, is_so):
        """Waits until the donors have the memory that their own work needs."""
        while not is_so():
            waited_s = max((balloon.waited_s() for balloon in self.balloons if balloon.took_ms is None), default=0)
            if waited_s > GIVEN_S:
                raise Failure(f"donors {numbers} have waited {waited_s:.1f} s for memory: {json.dumps(self.pool.last)}")
            self.pool.wait(0.1)

    def is_calm(self):
        status = self.pool.status()
        servers = status.get("servers", [])
        # `moving` and `degraded` may remain: if only one host has room, there is no second copy.
        return servers and all(server["answers"] and server["asked_back_bytes"] == 0 for server in servers)

    def df(self):
        """{} if there is no answer at all."""
        done = subprocess.run([self.options.nram, "df", "--json"], capture_output=True, text=True, timeout=60)
        with contextlib.suppress(ValueError):
            return json.loads(done.stdout)
        return {}

    def take(self, number, mib=None, patient=False):
        """Begins a balloon in that donor, of 90 % of its memory by default. A `patient` one waits where hardly any
        memory is left; without --hasty all are patient."""
        mib = round(TAKEN * self.limit_mib) if mib is None else mib
        patient = patient or not self.options.hasty
        self.balloons.append(Balloon(self.cgroups[number], mib, self.options.take_seconds, patient))
        return self.balloons[-1]

    def release(self):
        """Ends all balloons, and with them all asking."""
        self.longest_ms = max([self.longest_ms, *(balloon.took_ms for balloon in self.balloons)])
        self.close_balloons()
        self.presses += 1
        self.doing = "nobody is pressed"
        self.await_that(CALM_S, "the end of all asking", self.is_calm)
        self.given_mib = sum(server.get("given_back_bytes", 0) for server in self.pool.last["servers"]) // MIB

    def await_promised(self, numbers, stays_mib=0):
        """Waits until these donors' servers hold no more than they may beside their balloons. `stays_mib`: the data
        that cannot move. A full balloon needs nothing more at once, so this may end a while after it is full."""
        began = time.monotonic()
        held = {}

        def is_promised():
            servers = self.pool.status().get("servers", [])
            for number, balloon in zip(numbers, self.balloons):
                resident = servers[number].get("resident_bytes", sys.maxsize) / MIB if servers else sys.maxsize
                held[number] = (round(resident), round(anonymous_mib(self.cgroups[number]) - balloon.mib))
            return all(max(held[number]) <= self.promised_mib(number, stays_mib) for number in numbers)

        most = [round(self.promised_mib(number, stays_mib)) for number in numbers]
        try:
            self.await_that(PROMISED_S, f"that the servers {numbers} hold {most} MiB at most", is_promised)
        except Failure as failure:
            raise Failure(f"{failure}; by status and by cgroup they hold {held} MiB")
        self.kept_promises += 1
        self.resident_ms = max(self.resident_ms, round(1000 * (time.monotonic() - began)))

    def promised_mib(self, number, stays_mib):
        """The host's rest of memory, and no less than an empty server holds."""
        taken = sum(balloon.mib for balloon in self.balloons if balloon.cgroup is self.cgroups[number])
        left = self.limit_mib - taken - self.reserve_mib
        return max(left, self.empty_mib[number] + KEPT_MIB + stays_mib)

    def press(self):
        numbers = self.random.sample(self.pool.numbers, self.how_many())
        frozen = self.clients()[:1] if self.random.random() < 0.2 else []
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        thaws = time.monotonic() + FROZEN_S
        self.doing = f"donors {numbers} are pressed, {len(frozen)} clients are frozen"
        try:
            for number in numbers:
                self.take(number, patient=bool(frozen) and not self.fits_frozen)

            def all_full():
                if frozen and time.monotonic() > thaws:
                    os.kill(frozen.pop(), signal.SIGCONT)
                return all([balloon.look() for balloon in self.balloons])

            self.await_given(numbers, all_full)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        keep_s = self.random.choice(KEEP_S)
        self.pool.wait(keep_s)
        # A shortage that ends at once tests other code.
        if keep_s > 0 or self.kept_promises == 0:
            self.await_promised(numbers)
        self.release()

    def how_many(self):
        """The number of donors that are pressed at once."""
        return self.random.choice([1, 1, 2])

    def kill_servers(self, clients):
        self.pool.await_whole(self.spans, clients, surely_s=0)
        while time.monotonic() < self.until:
            began = time.monotonic()
            self.press()
            self.pool.wait(began + self.options.every - time.monotonic())

    def end_program(self, program):
        """It verifies everything once more."""
        program.end()
        while program.process.poll() is None:
            self.pool.wait(0.05)
        self.look()
        self.programs.remove(program)


class PressedSort(Pressed):
    """A sort that finds no room for its scratch ends, which is right; with two donors left there is enough."""

    def how_many(self):
        return 1

    def has_room(self):
        donors = self.df().get("donors", [])
        return donors and all(
            donor["free_bytes"] + donor["used_bytes"] > 3 * self.options.mib * MIB for donor in donors
        )

    def press(self):
        super().press()
        self.await_that(CALM_S, "the donors' lending again", self.has_room)


class PressedSwap(Pressed):
    """Swap with two copies of each page, and with one, which moves."""

    fits_frozen = False

    def swap(self):
        self.press_swap(copies=2)

    def swap1(self):
        self.press_swap(copies=1)

    def press_swap(self, copies):
        # All of it may be on the pressed donor, because the others were pressed lately. Most of it has to fit beside.
        self.start_swap(self.options.mib, copies)
        self.begin()
        self.spans = self.options.mib // 4 if copies > 1 else 0  # spans of one copy are not counted
        self.kill_servers(clients=1)
