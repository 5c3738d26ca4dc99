#!/usr/bin/python3
"""Sorts a file in the pool again and again; each output must be the same as sort's.

usage: exercise_sort.py NRAM DIRECTORY MIB SEED

The input, MIB mebibytes of lines, and the outputs are in DIRECTORY. An operation is a whole sort. A pause is a time in
which a sort neither read nor wrote a byte of its files. See exerciser.py."""

import base64
import filecmp
import json
import os
import random
import subprocess
import sys
import time

from exerciser import Exerciser, Wrong

MEMORY = "48M"
LOOK_S = 0.02
LONGEST_S = 120  # without a byte: it hangs


def moved_bytes(pid):
    """The bytes to and from files, not sockets, so far; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/io") as file:
            words = dict(line.split(": ") for line in file.read().splitlines())
        return int(words["rchar"]) + int(words["wchar"])
    except OSError:
        return None


class SortExerciser(Exerciser):
    def __init__(self, nram, directory, mib, seed):
        super().__init__()
        self.nram, self.directory = nram, directory
        self.input, self.expected, self.output = (f"{directory}/{name}" for name in ("in", "expected", "out"))
        with open(self.input, "wb") as file:
            source = random.Random(seed)
            for _ in range(mib):
                file.write(base64.b64encode(source.randbytes(3 << 18)).replace(b"/", b"\n"))
        environment = {**os.environ, "LC_ALL": "C"}
        subprocess.run(["sort", "-T", directory, "-o", self.expected, self.input], env=environment, check=True)

    def step(self):
        words = [self.nram, "sort", "--copies=2", f"--memory={MEMORY}", "--json", "-o", self.output, self.input]
        self.last.append(f"{time.strftime('%H:%M:%S')} {' '.join(words)}")
        with open(f"{self.directory}/report", "w+") as report:
            sort = subprocess.Popen(words, stderr=report)
            self.watch(sort)
            report.seek(0)
            said = report.read().strip()
        if sort.returncode != 0:
            raise Wrong(f"a sort ended with {sort.returncode}: {said}")
        runs = json.loads(said[said.index("{") :])["runs"]  # warnings may stand before it
        if runs < 2:
            raise Wrong(f"a sort had {runs} runs, so the pool was not needed: {said}")
        if not filecmp.cmp(self.output, self.expected, shallow=False):
            raise Wrong(f"the output is not what sort makes of it: see {self.output} and {self.expected}")
        os.unlink(self.output)

    def watch(self, sort):
        moved, since = None, time.monotonic()
        while sort.poll() is None:
            now = moved_bytes(sort.pid)
            if now is not None and now != moved:
                moved, since = now, time.monotonic()
            waits = time.monotonic() - since
            if waits > self.since:
                self.since, self.longest = waits, "nram sort"
            if waits > LONGEST_S:
                sort.kill()
                raise Wrong(f"a sort has moved no byte for {LONGEST_S} s")
            if time.monotonic() - self.told > 1:
                self.tell()
            time.sleep(LOOK_S)
        self.operations += 1

    def look_at_all(self):
        pass  # each sort was compared


if __name__ == "__main__":
    sys.exit(SortExerciser(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).run())
