#!/usr/bin/python3
"""The cost of swap on the pool, beside swap on this machine's own memory by the same way, on zram, on its disk, and on
that disk slowed down to 550 and 150 MB/s.

usage: experiments/swap_bench.py --nram=PROGRAM --pressure=PROGRAM [--rounds=N] [--only=LABEL] [--mib=1536]
                                 [--limit-mib=512] [--seconds=8] [--warm-mib=0] [--server-spin=WHEN]

Programs touch --mib under a memory cgroup of --limit-mib: written, read at random for --seconds, verified in order; by
one process, then by four. Rounds go through the devices in one direction and the other by turns; medians. A round in
which hardly anything was swapped to its device counts as failed. Devices that this machine lacks (zram, the cgroup v1
controller blkio for slow disks) are named and left out. Root, and the memory cgroup, v1 or v2; v2 knows no swappiness
of a cgroup, so there it is the machine's vm.swappiness.

"touched MiB/s" is all of --mib over the time that writing it took, though about --limit-mib of it remains in RAM.

--warm-mib: this amount of memory is touched, and freed, before each device's turn. A virtual machine's host takes free
memory back, and the next touch of it is slow for the first device. --server-spin: as `nram up --spin`.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
import memory_places as places  # noqa: E402
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    MemoryCgroup,
    can_throttle,
    catch_signals,
    later,
    own_pool,
    run,
    uninterrupted,
)

PROGRAMS_S = 600  # a measurement's deadline
ZRAM = "/sys/class/zram-control"


def write(path, text):
    with open(path, "w") as file:
        file.write(str(text))


@contextlib.contextmanager
def zram_swap(size):
    """Swap on a zram device of its own."""
    with contextlib.ExitStack() as stack:
        with uninterrupted():
            with open(f"{ZRAM}/hot_add") as file:
                number = file.read().strip()
            later(stack, write, f"{ZRAM}/hot_remove", number)
        write(f"/sys/block/zram{number}/disksize", size)
        yield stack.enter_context(places.swap_on(f"/dev/zram{number}"))


def has_zram():
    if not os.path.isdir(ZRAM):
        with contextlib.suppress(Failure):
            run("modprobe", "zram")
    return os.path.isdir(ZRAM)


def choose_devices(options):
    """Makers of devices by label; each is a context manager that yields the device's path."""
    size = (options.mib + 256) * MIB
    devices = {
        "pool": lambda: places.pool_swap(options.nram, size, "--backend=pool"),
        "plain": lambda: places.pool_swap(options.nram, size, "--no-seal"),
        "memory": lambda: places.pool_swap(options.nram, size, "--backend=memory"),
        "zram": lambda: zram_swap(size),
        "disk": lambda: places.disk_swap("/var/tmp", size),
        "550 MB/s": lambda: places.disk_swap("/var/tmp", size, 550),
        "150 MB/s": lambda: places.disk_swap("/var/tmp", size, 150),
    }
    devices = {label: make for label, make in devices.items() if options.only in label}
    if not devices:
        raise Failure(f'no device has "{options.only}" in its label')
    missing = {}
    if "zram" in devices and not has_zram():
        missing["zram"] = "this kernel has no zram"
    if not can_throttle():
        missing.update((label, "needs the cgroup v1 controller blkio") for label in devices if "MB/s" in label)
    for label, why in missing.items():
        print(f"LEFT OUT: {label}: {why}", file=sys.stderr, flush=True)
        del devices[label]
    if not devices:
        raise Failure("nothing is left to be measured")
    return devices


def end(programs):
    with uninterrupted():
        for program in programs:
            program.kill()
        for program in programs:
            try:
                program.wait(timeout=60)
            except subprocess.TimeoutExpired:
                print(f"process {program.pid} does not end", file=sys.stderr)


def measure(options, cgroup, device, processes):
    programs, peak = [], 0
    try:
        with uninterrupted():
            for number in range(processes):
                words = ["reread", options.mib // processes, options.seconds, number]
                programs.append(
                    subprocess.Popen(
                        [options.pressure, *map(str, words)],
                        stdout=subprocess.PIPE,
                        text=True,
                        start_new_session=True,
                        preexec_fn=cgroup.join,
                    )
                )
        until = time.monotonic() + PROGRAMS_S
        while any(program.poll() is None for program in programs):
            if time.monotonic() > until:
                raise Failure(f"not done after {PROGRAMS_S} s")
            peak = max(peak, places.swapped_bytes(device) or 0)
            time.sleep(0.1)
        outputs = [program.stdout.read() for program in programs]
    finally:
        end(programs)
    for program in programs:
        if program.returncode == -signal.SIGKILL:
            raise Failure("the kernel ended a program (dmesg tells whether memory could not be freed in time)")
        if program.returncode != 0:
            raise Failure(f"a program ended with {program.returncode}")
    beyond = (options.mib - options.limit_mib) * MIB
    if peak < beyond / 2:
        raise Failure(f"at most {peak // MIB} MiB were swapped to it, where {beyond // MIB} do not fit into RAM")
    reports = [json.loads(out) for out in outputs]
    return {
        "touched MiB/s": options.mib / max(report["write_s"] for report in reports),
        "random faults/s": sum(report["faults"] / report["random_s"] for report in reports),
        "verify MiB/s": options.mib / max(report["verify_s"] for report in reports),
    }


def rounds(options, cgroup, devices, values):
    """Adds the figures of all rounds to `values`; False if a round failed."""
    whole = True
    for number in range(options.rounds):
        # Targets take turns, so that none always follows the same other one.
        for label in list(devices) if number % 2 == 0 else reversed(devices):
            outcome = ""
            try:
                if options.warm_mib:
                    places.touch_memory(options.warm_mib * MIB)
                with devices[label]() as device:
                    measured = [(count, measure(options, cgroup, device, count)) for count in (1, 4)]
                for count, figures in measured:
                    for name, value in figures.items():
                        values.setdefault((count, name), {}).setdefault(label, []).append(value)
            except (Failure, OSError, ValueError) as failure:
                outcome = f": FAILED: {failure}"
                whole = False
            print(f"round {number + 1} of {options.rounds}: {label}{outcome}", file=sys.stderr, flush=True)
    return whole


def report(values):
    for (processes, name), row in values.items():
        medians = {label: statistics.median(figures) for label, figures in row.items()}
        ratio = f", pool {medians['pool'] / medians['memory']:.2f} of memory" if {"pool", "memory"} <= set(row) else ""
        print(
            f"{processes} process{'es' if processes > 1 else ''}, {name}: "
            + ", ".join(f"{label} {value:,.0f}" for label, value in medians.items())
            + ratio
        )


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nram", required=True)
    parser.add_argument("--pressure", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--mib", type=int, default=1536)
    parser.add_argument("--limit-mib", type=int, default=512)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--warm-mib", type=int, default=0)
    parser.add_argument("--server-spin", default="auto")
    options = parser.parse_args()
    options.nram, options.pressure = os.path.abspath(options.nram), os.path.abspath(options.pressure)
    if options.mib <= options.limit_mib:
        parser.error("--mib: expected more than --limit-mib, else nothing is swapped out")
    return options


def bench(options, values):
    with contextlib.ExitStack() as stack:
        devices = choose_devices(options)
        cgroup = MemoryCgroup("nram-swap-bench")
        later(stack, cgroup.close)
        if cgroup.path is None:
            raise Failure("no memory cgroup could be made; that needs root and its controller, v1 or v2")
        cgroup.limit(options.limit_mib * MIB)
        cgroup.swap_eagerly()
        if not cgroup.v1:
            with open("/proc/sys/vm/swappiness") as file:
                print(f"cgroup v2: swaps by vm.swappiness, {file.read().strip()}", file=sys.stderr)
        # Each server has room for most of the area: the spread of pages is not the point.
        stack.enter_context(own_pool(options.nram, 2 * (options.mib + 256) * MIB, f"--spin={options.server_spin}"))
        return rounds(options, cgroup, devices, values)


def main():
    options = parse()
    catch_signals()
    values = {}
    try:
        whole = bench(options, values)
    except Failure as failure:
        sys.exit(f"bench.py: {failure}")
    finally:
        report(values)  # the results so far, also if the rest failed or was interrupted
    if not whole:
        sys.exit("bench.py: some rows lack a round, see above")


if __name__ == "__main__":
    main()
