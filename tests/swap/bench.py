#!/usr/bin/python3
"""What swap on the pool costs beside swap on this machine's own memory by the same way, on zram, on its disk, and on
that slowed down to 550 and 150 MB/s.

usage: tests/swap/bench.py --nram=PROGRAM --pressure=PROGRAM [--rounds=N] [--only=LABEL] [--mib=1536] [--limit-mib=512]
                           [--warm-mib=0] [--server-spin=WHEN]

Programs touch --mib under a memory cgroup of --limit-mib: written, read at random for eight seconds, verified in
order; by one process, then by four. Rounds alternate between the devices; medians. Root.

--warm-mib: so much memory is touched, and freed, before each device's turn: a virtual machine's host takes free memory
back, and the first touch of it afterwards is slow for whoever comes first. --server-spin: as `nram up --spin`.
"""

import argparse
import json
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MIB, Cgroup  # noqa: E402

SECONDS = 8


def run(*words, check=True):
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout.strip()


class Ended(Exception):
    """A program that was to touch memory did not live to report."""


class NramSwap:
    def __init__(self, options, backend):
        self.options, self.backend = options, backend

    def on(self):
        words = [self.options.nram, "swapon", f"{self.options.mib + 256}M", f"--backend={self.backend}"]
        if subprocess.run(words, capture_output=True).returncode != 0:
            run(*words, "--unprotected")

    def off(self):
        run(self.options.nram, "swapoff")


class ZramSwap:
    def __init__(self, options):
        self.mib = options.mib + 256

    def on(self):
        with open("/sys/block/zram0/disksize", "w") as file:
            file.write(str(self.mib * MIB))
        run("mkswap", "/dev/zram0")
        run("swapon", "/dev/zram0")

    def off(self):
        run("swapoff", "/dev/zram0")
        with open("/sys/block/zram0/reset", "w") as file:
            file.write("1")


class DiskSwap:
    path = "/var/tmp/nram-swap-bench"

    def __init__(self, options):
        self.mib = options.mib + 256

    def on(self):
        run("dd", "if=/dev/zero", f"of={self.path}", "bs=1M", f"count={self.mib}")
        os.chmod(self.path, 0o600)
        run("mkswap", self.path)
        run("swapon", self.path)

    def off(self):
        run("swapoff", self.path)
        os.unlink(self.path)


class ThrottledSwap(DiskSwap):
    """The same file by a loop device that the kernel slows down: an ordinary disk. A second one is on top, because the
    kernel does not slow down what it writes to a swap area itself."""

    limits = [f"/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device" for way in ("read", "write")]

    def __init__(self, options, megabytes):
        super().__init__(options)
        self.megabytes = megabytes

    def limit(self, rate):
        number = os.stat(self.devices[0]).st_rdev
        for path in self.limits:
            with open(path, "w") as file:
                file.write(f"{os.major(number)}:{os.minor(number)} {rate}")

    def on(self):
        if not os.path.exists(self.limits[0]):
            sys.exit("bench.py: a throttled disk needs the cgroup v1 controller blkio, which is not here")
        run("fallocate", "-l", str(self.mib * MIB), self.path)
        self.devices = []
        try:
            for below in (lambda: self.path, lambda: self.devices[0]):
                self.devices.append(run("losetup", "--find", "--show", "--direct-io=on", below()))
            run("mkswap", self.devices[1])
            self.limit(self.megabytes * 1000000)
            run("swapon", self.devices[1])
        except (OSError, subprocess.CalledProcessError):
            self.remove()
            raise

    def off(self):
        run("swapoff", self.devices[1])
        self.remove()

    def remove(self):
        if self.devices:
            self.limit(0)
        for device in reversed(self.devices):
            run("losetup", "-d", device)
        os.unlink(self.path)


def warm(mib):
    if mib == 0:
        return
    memory = mmap.mmap(-1, mib * MIB)
    for at in range(0, mib * MIB, mmap.PAGESIZE):
        memory[at] = 1
    memory.close()


def measure(options, cgroup, processes):
    programs = [
        subprocess.Popen(
            [options.pressure, "reread", str(options.mib // processes), str(SECONDS), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=cgroup.join,
        )
        for number in range(processes)
    ]
    outputs = [program.communicate(timeout=600)[0] for program in programs]
    for program in programs:
        if program.returncode == -signal.SIGKILL:
            raise Ended("the kernel ended a program (dmesg tells whether memory could not be freed in time)")
        if program.returncode != 0:
            raise Ended(f"a program ended with {program.returncode}")
    reports = [json.loads(out) for out in outputs]
    return {
        "write MiB/s": options.mib / max(report["write_s"] for report in reports),
        "random faults/s": sum(report["faults"] / report["random_s"] for report in reports),
        "verify MiB/s": options.mib / max(report["verify_s"] for report in reports),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nram", required=True)
    parser.add_argument("--pressure", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--mib", type=int, default=1536)
    parser.add_argument("--limit-mib", type=int, default=512)
    parser.add_argument("--warm-mib", type=int, default=0)
    parser.add_argument("--server-spin", default="auto")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="nram-swap-test-", dir="/tmp")
    os.environ["NRAM_STATE_DIR"] = f"{directory}/state"
    run(options.nram, "up", "--servers=2", f"--donate={options.mib + 256}M", f"--spin={options.server_spin}")
    cgroup = Cgroup(options.limit_mib)
    devices = {
        "pool": NramSwap(options, "pool"),
        "memory": NramSwap(options, "memory"),
        "zram": ZramSwap(options),
        "disk": DiskSwap(options),
        "550 MB/s": ThrottledSwap(options, 550),
        "150 MB/s": ThrottledSwap(options, 150),
    }
    values = {}
    failed = False
    try:
        for number in range(options.rounds):
            for label, device in devices.items():
                if options.only not in label:
                    continue
                warm(options.warm_mib)
                device.on()
                outcome = ""
                try:
                    for processes in (1, 4):
                        for name, value in measure(options, cgroup, processes).items():
                            values.setdefault((processes, name), {}).setdefault(label, []).append(value)
                except Ended as ended:
                    outcome = f": {ended}"
                    failed = True
                finally:
                    device.off()
                print(f"round {number + 1} of {options.rounds}: {label}{outcome}", file=sys.stderr, flush=True)
    finally:
        cgroup.close()
        run(options.nram, "down", check=False)
        subprocess.run(["rm", "-rf", directory])
    for (processes, name), row in values.items():
        medians = {label: statistics.median(value) for label, value in row.items()}
        ratio = (
            f", pool {medians['pool'] / medians['memory']:.2f} of memory" if {"pool", "memory"} <= set(medians) else ""
        )
        print(
            f"{processes} process{'es' if processes > 1 else ''}, {name}: "
            + ", ".join(f"{label} {value:,.0f}" for label, value in medians.items())
            + ratio
        )
    if failed:
        sys.exit("bench.py: some rows lack a round, see above")


if __name__ == "__main__":
    main()
