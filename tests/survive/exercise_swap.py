#!/usr/bin/python3
"""Runs a program with verified contents that does not fit into its memory cgroup, again and again.

usage: exercise_swap.py PRESSURE CGROUP MIB SEED

PRESSURE is tests/swap/pressure.cc, CGROUP the folder of a limited memory cgroup. An operation is a program's life. See
exerciser.py."""

import json
import os
import random
import subprocess
import sys
import time

from exerciser import Exerciser, Wrong

LIFE_S = 2  # and the time to write and to verify everything
LONGEST_S = 120


def swapped_kib(pid):
    try:
        with open(f"/proc/{pid}/status") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("VmSwap")), 0)
    except OSError:
        return 0


class SwapExerciser(Exerciser):
    def __init__(self, program, cgroup, mib, seed):
        super().__init__()
        self.program, self.cgroup, self.mib = program, cgroup, mib
        self.random = random.Random(seed)

    def join(self):
        with open(f"{self.cgroup}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def step(self):
        words = [self.program, "random", str(self.mib), str(LIFE_S), str(self.random.getrandbits(60))]
        self.last.append(f"{time.strftime('%H:%M:%S')} {' '.join(words)}")
        program = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=self.join
        )
        began, most_kib = time.monotonic(), 0
        while program.poll() is None:
            most_kib = max(most_kib, swapped_kib(program.pid))
            if time.monotonic() - began > LONGEST_S:
                program.kill()
                raise Wrong(f"a program that swaps has not ended after {LONGEST_S} s")
            if time.monotonic() - self.told > 1:
                self.tell()
            time.sleep(0.05)
        out, errors = program.communicate()
        if program.returncode != 0:
            meaning = {3: ", a page was lost", 4: ", a wrong byte"}.get(program.returncode, "")
            raise Wrong(f"a program that swaps ended with {program.returncode}{meaning}: {errors.strip()}")
        if most_kib < 1024 * self.mib // 10:
            raise Wrong(f"only {most_kib} KiB were swapped out: that has shown nothing")
        self.count("a program that swaps", json.loads(out)["pause_ms"] / 1000)

    def look_at_all(self):
        pass  # each program verifies its own memory


if __name__ == "__main__":
    sys.exit(SwapExerciser(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).run())
