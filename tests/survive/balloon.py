#!/usr/bin/python3
"""A donor's own work: takes memory in a cgroup, and keeps it.

usage: balloon.py CGROUP MIB SECONDS

Joins the cgroup (the path of its directory), touches so many MiB, spread over the seconds, and prints a line with the
milliseconds that it took. Ends when its input does. It is ended before any other program if memory runs out, so that a
test sees that and not the end of a server.
"""

import mmap
import sys
import time

STEP = 1 << 20


def main():
    cgroup, mib, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    with open(f"{cgroup}/cgroup.procs", "w") as file:
        file.write("0")
    memory = mmap.mmap(-1, mib * STEP)
    began = time.monotonic()
    for step in range(mib):
        for page in range(step * STEP, (step + 1) * STEP, mmap.PAGESIZE):
            memory[page] = 1
        ahead = began + seconds * step / mib - time.monotonic()
        if ahead > 0.001:
            time.sleep(ahead)
    print(round(1000 * (time.monotonic() - began)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
