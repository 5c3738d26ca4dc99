"""A host's job and a guest, side by side in one memory cgroup; the servers are outside. For guest_test.py and
guest_bench.py."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/../../tools/bench", f"{HERE}/../util"]
from bench_places import MIB, Failure, MemoryCgroup, later, uninterrupted  # noqa: E402

DEADLINE_S = 120  # for every wait


class Job:
    """A program in the cgroup that the test drives by lines of text. It ends with the stack."""

    def __init__(self, stack, cgroup, words, processors=None, **environment):
        def begin():
            cgroup.join()
            if processors:
                os.sched_setaffinity(0, processors)

        self.name = os.path.basename(words[0])
        with uninterrupted():
            self.process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **environment},
                start_new_session=True,
                preexec_fn=begin,
            )
            later(stack, self.end)
        self.text = b""

    def say(self, line):
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except OSError as error:
            raise Failure(f"{self.name} does not listen: {error}")

    def line(self, seconds=DEADLINE_S):
        """Its next line."""
        until = time.monotonic() + seconds
        while b"\n" not in self.text:
            if not select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))[0]:
                raise Failure(f"{self.name} said nothing for {seconds} s")
            some = os.read(self.process.stdout.fileno(), 65536)
            if not some:
                raise Failure(f"{self.name} ended with {self.process.wait(timeout=DEADLINE_S)}")
            self.text += some
        line, self.text = self.text.split(b"\n", 1)
        return line.decode()

    def line_with(self, word, seconds=DEADLINE_S):
        while word not in (line := self.line(seconds)):
            pass
        return line

    def report(self, seconds=DEADLINE_S):
        """Closes its input; returns its last line, JSON."""
        self.process.stdin.close()
        line = self.line_with("{", seconds)
        self.ended()
        return json.loads(line)

    def ended(self):
        status = self.process.wait(timeout=DEADLINE_S)
        if status != 0:
            raise Failure(f"{self.name} ended with {status}")

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))

    def end(self):
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.wait(timeout=60)


@contextlib.contextmanager
def shared_cgroup(limit, name="nram-guest"):
    with contextlib.ExitStack() as stack:
        with uninterrupted():
            cgroup = MemoryCgroup(name)
            later(stack, cgroup.close)
        if cgroup.path is None:
            raise Failure("no memory cgroup could be made; that needs root and its controller, v1 or v2")
        cgroup.limit(limit)
        yield cgroup


def used_bytes(cgroup):
    with open(f"{cgroup.path}/{'memory.usage_in_bytes' if cgroup.v1 else 'memory.current'}") as file:
        return int(file.read())


def await_true(what, condition, seconds=DEADLINE_S):
    """Polls: the kernel does not report changes of these tables."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def mib(size):
    return f"{size // MIB} MiB"
