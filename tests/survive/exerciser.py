"""Common to all exercisers: they do operations, compare each outcome, time it, and report their progress once a second.

The first line on the standard output says that all is prepared; each is JSON. `operations`: so far. `pause_ms`: of the
longest since the last line; `pause_of`: the operation that it was. The last line has `ended`. SIGTERM ends an exerciser
after it has verified everything once more. At the first error it ends with 1, and a message on the standard error."""

import collections
import json
import signal
import sys
import time


class Wrong(Exception):
    """An error that no program should have seen, or a wrong byte. The text is for people."""


class Exerciser:
    def __init__(self):
        self.ends = False
        self.operations = 0
        self.since = 0  # the longest pause since the last report
        self.longest = ""
        self.told = 0.0
        self.last = collections.deque(maxlen=60)  # operations, for the search for the reason
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal's: survive.py ends it
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _end(self, *_):
        self.ends = True

    def timed(self, what, act):
        """Returns act(). An OSError is a failure."""
        self.last.append(f"{time.strftime('%H:%M:%S')} {what}")
        began = time.monotonic()
        try:
            return act()
        except OSError as error:
            raise Wrong(f"{what}: {error.strerror or error}, after {time.monotonic() - began:.3f} s")
        finally:
            self.count(what, time.monotonic() - began)

    def count(self, what, seconds):
        self.operations += 1
        if seconds > self.since:
            self.since = seconds
            self.longest = what
        if time.monotonic() - self.told > 1:
            self.tell()

    def tell(self, **more):
        self.told = time.monotonic()
        line = {"operations": self.operations, "pause_ms": round(self.since * 1000), "pause_of": self.longest, **more}
        self.since = 0
        print(json.dumps(line), flush=True)

    def step(self):
        raise NotImplementedError

    def look_at_all(self):
        raise NotImplementedError

    def run(self):
        """Returns the exit code."""
        try:
            self.tell()
            while not self.ends or self.operations == 0:
                self.step()
            self.look_at_all()
        except Wrong as wrong:
            print(f"{time.strftime('%H:%M:%S')}, operation {self.operations}: {wrong}", file=sys.stderr)
            print("the last operations:\n  " + "\n  ".join(self.last), file=sys.stderr, flush=True)
            return 1
        self.tell(ended=True)
        return 0


def difference(expected, got):
    """The difference of two bytes objects; "" if there is none."""
    if expected == got:
        return ""
    if len(expected) != len(got):
        return f"{len(got)} bytes instead of {len(expected)}"
    wrong = [at for at in range(len(expected)) if expected[at] != got[at]]
    first = wrong[0]
    zeros = all(got[at] == 0 for at in wrong)
    return (
        f"{len(wrong)} of {len(got)} bytes are wrong, the first at {first}, the last at {wrong[-1]}: expected "
        f"{bytes(expected[first : first + 16]).hex()}, got {bytes(got[first : first + 16]).hex()}"
        f"{' (all wrong ones are zeros)' if zeros else ''}"
    )
