#!/usr/bin/env python3
"""A NumPy array that is larger than the local memory for it: filled, summed, and compared with the right values.

example: numpy_array.py --size=4G --budget=512M
"""

import argparse
import json
import time

import nram

MULTIPLIER = 2654435761


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--pool", help="host:port,... or @hostfile (default: $NRAM_POOL, else the pool of `nram up`)")
    parser.add_argument("--budget", default="64M", help="local memory for pages (default: %(default)s)")
    parser.add_argument("--size", default="256M", help="of the array (default: %(default)s)")
    parser.add_argument("--page", default="4K", help="unit of faults, up to 1M (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the seconds and the statistics as JSON")
    return parser.parse_args()


def parts(array, numpy):
    """Views of the array, a MiB each, with their right values: temporary arrays are in local memory, so small."""
    step = (1 << 20) // array.itemsize
    for first in range(0, len(array), step):
        part = array[first : first + step]
        yield part, numpy.arange(first, first + len(part), dtype="uint64") * MULTIPLIER % (1 << 32)


def fill(array, numpy):
    for part, values in parts(array, numpy):
        part[:] = values


def compare(array, numpy):
    return all(numpy.array_equal(part, values) for part, values in parts(array, numpy))


def main():
    options = parse()
    import numpy

    seconds = {}
    with nram.Memory(options.pool, options.budget, page_bytes=options.page) as memory:
        array = memory.map(options.size).array("uint64")
        start = time.monotonic()
        fill(array, numpy)
        seconds["fill"] = time.monotonic() - start

        start = time.monotonic()
        total = int(array.sum())
        seconds["sum"] = time.monotonic() - start

        start = time.monotonic()
        right = compare(array, numpy) and total == sum(int(values.sum()) for _, values in parts(array, numpy))
        seconds["compare"] = time.monotonic() - start
        stats = memory.stats()

    if options.json:
        print(json.dumps({"right": right, "bytes": array.nbytes, "seconds": seconds, "stats": stats}, indent=2))
    else:
        print(f"{array.nbytes / 2**20:.0f} MiB through {stats['budget_bytes'] / 2**20:.0f} MiB of local memory")
        for what, time_s in seconds.items():
            print(f"{what:8} {time_s:8.2f} s {array.nbytes / 2**20 / max(time_s, 1e-9):8.0f} MiB/s")
        for name, value in stats.items():
            print(f"{name:22} {value:15,}")
        print("All numbers are right." if right else "NUMBERS ARE WRONG.")
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
