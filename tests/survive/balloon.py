#!/usr/bin/python3
"""A donor's own work: takes memory in a cgroup, and keeps it.

usage: balloon.py CGROUP MIB SECONDS [patient]

Joins the cgroup (the path of its directory), touches MIB mebibytes in no less than the seconds, and prints a line with
the milliseconds that it took. Ends when its input does. A patient one waits while the cgroup has hardly any room. If
memory runs out, it is ended before any other program, so that a test sees its end and not that of a server.
"""

import mmap
import os
import sys
import time

STEP = 1 << 20
ROOM = 16 << 20  # that a patient one leaves to others


def read(path):
    with open(path) as file:
        return file.read()


def room(cgroup):
    """The bytes that are free in it, or page cache."""
    if os.path.exists(f"{cgroup}/memory.usage_in_bytes"):
        limit, usage = (int(read(f"{cgroup}/memory.{name}_in_bytes")) for name in ("limit", "usage"))
        files = ("cache",)
    else:
        limit, usage = (int(read(f"{cgroup}/memory.{name}")) for name in ("max", "current"))
        files = ("active_file", "inactive_file")
    figures = dict(line.split() for line in read(f"{cgroup}/memory.stat").splitlines())
    return limit - usage + sum(int(figures[name]) for name in files)


def main():
    cgroup, mib, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    patient = sys.argv[4:] == ["patient"]
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")
    memory, ones = mmap.mmap(-1, mib * STEP, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), b"\1" * STEP
    began = next_at = time.monotonic()
    for step in range(mib):
        while patient and room(cgroup) < ROOM:
            time.sleep(0.02)
        memory[step * STEP : (step + 1) * STEP] = ones
        # It does not take at once the memory that it could not take in time for want of a processor.
        now = time.monotonic()
        next_at = max(next_at + seconds / mib, now)
        if next_at - now > 0.001:
            time.sleep(next_at - now)
    print(round(1000 * (time.monotonic() - began)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
