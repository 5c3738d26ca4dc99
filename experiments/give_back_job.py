"""The row `job` of give_back.py: the cost of the pool to a donor's own work, beside the cost of bare sockets.

The donor's server and its work have the first half of this machine's processors. Clients and the other server have the
rest, as if they were other machines. So the server takes its time from the work, which is the worst case: a donor with
idle processors loses less."""

import contextlib
import glob
import mmap
import os
import random
import statistics
import subprocess
import time
import typing

import copies_places as places
from bare_relay import PIECE, BareStore, relay
from bench_places import MIB, Failure, later, run, say
from give_back_places import GIVEN_MIB, Donor

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = ("stream", "chase")
WHILE = ("idle", "busy", "giving")
WINDOW_S = 2
WINDOWS = 3  # of each sort in a round
REST_S = 0.5
BUSY_MIB_S = 200
MARKS = {"idle": ("alone", 0.99), "giving": ("beside bare sockets", 0.97)}


def halves():
    """The donor's processors, and the others."""
    all_of_them = sorted(os.sched_getaffinity(0))
    if len(all_of_them) < 2:
        raise Failure("a donor and its clients need two processors at least")
    middle = len(all_of_them) // 2
    return set(all_of_them[:middle]), set(all_of_them[middle:])


def pin(pid, processors):
    """All its threads, and those that they start."""
    for task in glob.glob(f"/proc/{pid}/task/*"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(os.path.basename(task)), processors)


class Speed(typing.NamedTuple):
    """Work a second, and work a second of its own processor time. The donor notices the first. The second leaves out
    the times when others had its processor, so also all other load on this machine."""

    real: float
    own: float


class Job:
    """The donor's own work, from the beginning to the end of the `with`."""

    def __init__(self, program, kind, processors):
        self.words, self.processors = [program, kind], processors
        self.path = f"{program}.samples"

    def __enter__(self):
        with open(self.path, "w") as out:
            self.process = subprocess.Popen(
                self.words,
                stdout=out,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, self.processors),
            )
        while os.path.getsize(self.path) == 0:  # its memory is there
            if self.process.poll() is not None:
                raise Failure("the donor's job has ended")
            time.sleep(0.01)
        time.sleep(REST_S)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def speed(self, began, ended):
        """The job's work between two times of time.monotonic()."""
        time.sleep(0.1)  # the last sample is written
        with open(self.path) as file:
            samples = [tuple(map(float, line.split())) for line in file.read().rpartition("\n")[0].splitlines()]
        samples = [sample for sample in samples if began <= sample[0] <= ended]
        if len(samples) < 5:
            raise Failure(f"the donor's job did hardly anything in {ended - began:.2f} s")
        seconds, processor_s, done = (last - first for first, last in zip(samples[0], samples[-1]))
        return Speed(done / seconds, done / processor_s)

    def beside(self, act):
        """Its speed during `act`."""
        began = time.monotonic()
        act()
        speed = self.speed(began, time.monotonic())
        time.sleep(REST_S)
        return speed


class Measured:
    """Ratios of speeds that were measured close together, by the kind of job and the load beside it."""

    def __init__(self):
        self.ratios = {}

    def add(self, kind, what, speeds, base, references):
        for number, by in enumerate(Speed._fields):
            ratio = statistics.median(one[number] for one in speeds)
            ratio /= statistics.median(one[number] for one in references)
            self.ratios.setdefault((kind, what, base), {}).setdefault(by, []).append(ratio)

    def report(self, during):
        for (kind, what, base), ratios in self.ratios.items():
            real, own = ratios["real"], ratios["own"]
            median = statistics.median(real)
            text = f"job, {kind}, {what}: {median:.3f} of {base} [{min(real):.3f} {max(real):.3f}]"
            text += f"; by a second of its own processor time {statistics.median(own):.3f}"
            if MARKS.get(during, ("", 0))[0] == base and what == during:
                mark = MARKS[during][1]
                text += f"; mark: at least {mark}: {'ok' if median >= mark else 'missed'}"
            print(text, flush=True)


class JobRow:
    def __init__(self, options, program):
        self.options, self.program = options, program
        self.donor_on, self.others_on = halves()

    def job(self, kind):
        return Job(self.program, kind, self.donor_on)

    def donor(self, stack, copies):
        donor = Donor(stack, self.options, copies)
        pin(donor.pid, self.donor_on)
        pin(donor.servers.pids[1], self.others_on)
        pin(donor.mount.pid, self.others_on)
        time.sleep(WINDOW_S)
        return donor

    def alone(self):
        speeds = {}
        for kind in KINDS:
            with self.job(kind) as job:
                speeds[kind] = [job.beside(lambda: time.sleep(WINDOW_S)) for _ in range(WINDOWS)]
        return speeds

    def idle(self, measured):
        """No pool, a pool with an idle mount, no pool, and so on."""
        before = self.alone()
        for number in range(self.options.rounds):
            say(f"job beside an idle pool: round {number + 1} of {self.options.rounds}")
            with contextlib.ExitStack() as stack:
                self.donor(stack, copies=2)
                beside = self.alone()
            after = self.alone()
            for kind in KINDS:
                measured.add(kind, "idle", beside[kind], "alone", before[kind] + after[kind])
            before = after

    def busy(self, measured):
        """A client reads and writes at a steady rate; a bare socket does the same; neither; and so on."""
        with contextlib.ExitStack() as stack:
            donor = self.donor(stack, copies=1)
            client = PacedClient(stack, f"{donor.mount.path}/file", self.others_on)
            bare = BareStore(GIVEN_MIB, self.donor_on)
            later(stack, bare.close)
            for number in range(self.options.rounds):
                say(f"job beside a busy pool: round {number + 1} of {self.options.rounds}")
                for kind in KINDS:
                    speeds = {"busy": [], "bare": [], "nothing": []}
                    with self.job(kind) as job:
                        for _ in range(WINDOWS):
                            speeds["busy"].append(job.beside(lambda: client.work(client.read, client.write)))
                            speeds["bare"].append(job.beside(lambda: client.work(bare.read, bare.write)))
                            speeds["nothing"].append(job.beside(lambda: time.sleep(WINDOW_S)))
                    measured.add(kind, "busy", speeds["busy"], "alone", speeds["nothing"])
                    measured.add(kind, "bare sockets", speeds["bare"], "alone", speeds["nothing"])
                    measured.add(kind, "busy", speeds["busy"], "beside bare sockets", speeds["bare"])

    def giving(self, measured):
        """1 GiB moves to the other server; a bare loop over two sockets moves as much in the same time."""
        took_s = None
        for number in range(self.options.rounds):
            for kind in KINDS:
                say(f"job beside giving back: round {number + 1} of {self.options.rounds}, {kind}")
                with contextlib.ExitStack() as stack:
                    donor = self.donor(stack, copies=1)
                    job = stack.enter_context(self.job(kind))
                    nothing = job.beside(lambda: time.sleep(WINDOW_S))
                    # In every other round the bare loop comes first.
                    bare = self.beside_bare(job, took_s) if number % 2 == 1 else None
                    before_s = places.processor_s(donor.pid)
                    took_s = donor.give_back()
                    ended = time.monotonic()
                    server_s = places.processor_s(donor.pid) - before_s
                    giving = job.speed(ended - took_s, ended)
                    time.sleep(WINDOW_S)
                    bare = bare or self.beside_bare(job, took_s)
                print(
                    f"{kind}: {GIVEN_MIB} MiB given back in {took_s:.2f} s; the donor's processors: the server "
                    f"{server_s:.2f} s, a bare peer {bare[1]:.2f} s",
                    flush=True,
                )
                measured.add(kind, "giving", [giving], "alone", [nothing])
                measured.add(kind, "bare sockets", [bare[0]], "alone", [nothing])
                measured.add(kind, "giving", [giving], "beside bare sockets", [bare[0]])

    def beside_bare(self, job, seconds):
        """The job's speed, and the processor time of the giving peer."""
        began, ended, took_s = relay(GIVEN_MIB, True, False, seconds, self.donor_on, self.others_on)
        return job.speed(began, ended), took_s


class PacedClient:
    """Reads and writes pieces at random, alternately, at a steady rate for the time of a window."""

    def __init__(self, stack, path, processors):
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT)
        later(stack, os.close, self.file)
        self.pieces = os.fstat(self.file).st_size // PIECE
        self.buffer = mmap.mmap(-1, PIECE)
        self.buffer[:] = os.urandom(PIECE)
        self.random = random.Random(1)
        self.processors = processors

    def read(self):
        os.preadv(self.file, [self.buffer], self.random.randrange(self.pieces) * PIECE)

    def write(self):
        os.pwritev(self.file, [self.buffer], self.random.randrange(self.pieces) * PIECE)

    def work(self, read, write):
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.processors)
        try:
            count = WINDOW_S * BUSY_MIB_S * MIB // PIECE
            began = time.monotonic()
            for number in range(count):
                ahead = began + WINDOW_S * number / count - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
                (read if number % 2 == 0 else write)()
            took = time.monotonic() - began
        finally:
            os.sched_setaffinity(0, before)
        if took > 1.2 * WINDOW_S:
            say(f"{count * PIECE / MIB / took:.0f} MiB/s only, and not {BUSY_MIB_S}")


def job(options):
    with contextlib.ExitStack() as stack:
        program = f"/tmp/nram-bench-{os.getpid()}-job"
        later(stack, lambda: [os.unlink(path) for path in glob.glob(f"{program}*")])
        run("cc", "-O2", "-o", program, f"{HERE}/donor_job.c")
        row = JobRow(options, program)
        for during in options.during:
            measured = Measured()
            getattr(row, during)(measured)
            measured.report(during)
