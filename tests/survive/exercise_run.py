#!/usr/bin/python3
"""Runs a program whose memory is mostly in the pool, again and again; it verifies all of its memory.

usage: exercise_run.py NRAM WORKOUT MIB

WORKOUT is the program of tests/run. An operation is a whole run; pauses are not reported. See exerciser.py."""

import json
import subprocess
import sys
import time

from exerciser import Exerciser, Wrong

BUDGET_MIB = 16
LOOK_S = 0.05
LONGEST_S = 120


class RunExerciser(Exerciser):
    def __init__(self, nram, workout, mib):
        super().__init__()
        self.words = [nram, "run", f"--budget={BUDGET_MIB}M", "--copies=2", "--json", "--", workout, "fill", str(mib)]

    def step(self):
        began = time.monotonic()
        self.last.append(f"{time.strftime('%H:%M:%S')} {' '.join(self.words)}")
        program = subprocess.Popen(self.words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while program.poll() is None:
            if time.monotonic() - began > LONGEST_S:
                program.kill()
                raise Wrong(f"a run takes more than {LONGEST_S} s")
            if time.monotonic() - self.told > 1:
                self.tell()
            time.sleep(LOOK_S)
        out, errors = program.communicate()
        if program.returncode != 0 or out.strip() != "ok":
            raise Wrong(f"a run ended with {program.returncode}: {out.strip()} {errors.strip()}")
        if json.loads(errors[errors.index("{") :])["evicted_pages"] == 0:  # warnings may stand before it
            raise Wrong(f"nothing was evicted, so the pool was not needed: {errors}")
        self.operations += 1

    def look_at_all(self):
        pass  # each program verifies its own memory


if __name__ == "__main__":
    sys.exit(RunExerciser(sys.argv[1], sys.argv[2], int(sys.argv[3])).run())
