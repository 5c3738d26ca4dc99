#!/usr/bin/env python3
"""The access patterns of the paper behind Rambrain: by nram over a pool of this machine, and by Rambrain over its swap
file on a disk, in turns. One program, rambrain_work.cc, built with the headers of each."""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/bench"))
import bench_places as places
from bench_places import MIB, Failure, later, run

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 30
HOW = {"CONST": "constant", "WRITE": "not constant"}
# Files that Rambrain's build generates.
GENERATED = {
    "git_info.h": "#pragma once\nconst unsigned char gitCommit[] = {0};\nconst unsigned char gitDiff[] = {0};\n",
    "rambrain/rambrainDefinitionsHeader.h": "#define CAN_IGNORE_WARNINGS\n#define SWAPSTATS\n",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nram")
    parser.add_argument("work", help="bazel-bin/tests/managed/rambrain-work")
    parser.add_argument("--rambrain", help="a clone of github.com/mimgrund/rambrain; needs g++ and libaio-dev")
    parser.add_argument("--theirs", help="what an earlier run has built of it (--keep)")
    parser.add_argument("--keep", help="where to keep what is built of Rambrain")
    parser.add_argument("--disk", default="/var/tmp", help="where its swap file is (default /var/tmp)")
    parser.add_argument("--throttle", type=int, default=0, help="slow that disk down to so many MB/s each way; root")
    parser.add_argument("--mib", type=int, default=256, help="data, of which a quarter is here (default 256)")
    parser.add_argument("--objects", default="64,128,512", help="their sizes in KiB")
    parser.add_argument("--rows", default="sequential,random,transpose", help="which of these")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", help="keeps the results there")
    parser.add_argument("--svg", help="draws them there; needs python3-matplotlib")
    parser.add_argument("--draw", help="only draws what --json has kept")
    return parser.parse_args()


def build(options, directory):
    """Rambrain's own sources and the program, as its authors' cmake would: g++ -O3 -fopenmp."""
    for name, text in GENERATED.items():
        path = os.path.join(directory, "generated", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    source = os.path.join(os.path.abspath(options.rambrain), "src")
    for header in os.listdir(source):
        link = os.path.join(directory, "generated/rambrain", header)
        if header.endswith(".h") and not os.path.exists(link):
            os.symlink(os.path.join(source, header), link)
    sources = [os.path.join(source, name) for name in sorted(os.listdir(source)) if name.endswith(".cpp")]
    out = options.keep or os.path.join(directory, "rambrain-theirs")
    flags = ["-std=gnu++11", "-O3", "-fopenmp", "-w", "-DCAN_IGNORE_WARNINGS", "-DSWAPSTATS", '-D__GIT_VERSION=""']
    include = f"-I{directory}/generated"
    program = os.path.join(HERE, "../../tests/managed/rambrain_work.cc")
    run("g++", *flags, include, program, *sources, "-o", out, "-laio", "-lpthread", timeout=3600)
    return out


def throttled(stack, options):
    """An ext4 of its own on the disk."""
    image = os.path.join(options.disk, f"nram-rambrain-{os.getpid()}.img")
    later(stack, places.remove, image)
    with open(image, "wb") as file:
        file.truncate((4 * options.mib + 1024) * MIB)
    device = stack.enter_context(places.loop_device(image, options.throttle))
    run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
    point = tempfile.mkdtemp(prefix="nram-rambrain-", dir="/tmp")
    later(stack, os.rmdir, point)
    later(stack, run, "umount", "-l", point, check=False)
    run("mount", device, point)
    return point


def work(program, directory, words, environment):
    """Bytes a second. Of work that exceeds its time: the rate if it ended just then."""
    try:
        done = subprocess.run(
            [program, *map(str, words)],
            cwd=directory,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        return words[2] * MIB / PATIENCE_S
    # Rambrain prints other text on the same line.
    found = re.search(r'\{"work".*\}', done.stdout)
    if done.returncode != 0 or not found:
        raise Failure(f"{program} {words}: {done.returncode} {done.stderr.strip()[-300:]}")
    result = json.loads(found.group())
    return result["bytes"] / result["seconds"]


@contextlib.contextmanager
def pool(options):
    with places.own_pool(os.path.abspath(options.nram), 2 * options.mib * MIB + 256 * MIB):
        os.environ["NRAM_POOL"] = os.environ["NRAM_STATE_DIR"] + "/pool"
        yield


def rows(options):
    sizes = [int(size) for size in options.objects.split(",")]
    names = options.rows.split(",")
    for name in [name for name in ("sequential", "random") if name in names]:
        for size in sizes:
            for how in HOW:
                yield name, how, options.mib, size
    for mib in (options.mib // 4, options.mib // 2, options.mib) if "transpose" in names else ():
        yield "transpose", "WRITE", mib, 128


def measure(options):
    results = []
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nram-rambrain-"))
        theirs = options.theirs or (build(options, directory) if options.rambrain else None)
        disk = throttled(stack, options) if options.throttle else options.disk
        direct = os.path.join(directory, "direct.conf")
        with open(direct, "w") as file:
            file.write("[default]\nenableDMA = true\n")
        whose = {"nram": (os.path.abspath(options.work), directory, {})}
        if theirs is not None:
            where = stack.enter_context(tempfile.TemporaryDirectory(prefix="nram-rambrain-", dir=disk))
            whose["Rambrain, cached"] = (os.path.abspath(theirs), where, {})
            whose["Rambrain, direct"] = (os.path.abspath(theirs), where, {"RAMBRAIN_CONFIG": direct})
        for name, how, mib, size in rows(options):
            rates = {label: [] for label in whose}
            for _ in range(options.turns):
                for label, (program, where, environment) in whose.items():
                    words = [name, how, mib, mib // 4, size, 1]
                    # A new pool each time, as the table says: its pages are touched for the first time.
                    with pool(options) if label == "nram" else contextlib.nullcontext():
                        rates[label].append(work(program, where, words, environment))
            results.append({"work": name, "how": how, "mib": mib, "object_kib": size, "bytes_per_s": rates})
            print(line(results[-1]), flush=True)
    return results


def line(row):
    size = f"{row['mib']} MiB" if row["work"] == "transpose" else f"{HOW[row['how']]}, {row['object_kib']} KiB"
    rates = [
        f"{statistics.median(values) / 1e6:.0f} ({min(values) / 1e6:.0f} to {max(values) / 1e6:.0f})"
        for values in row["bytes_per_s"].values()
    ]
    return f"| {row['work']}, {size} | " + " | ".join(rates) + " |"


def draw(results, path):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "nram"})
    figure, all_axes = pyplot.subplots(1, 3, figsize=(9.5, 3), sharey=True)
    colours = dict(zip(results[0]["bytes_per_s"], ("tab:blue", "tab:orange", "tab:green")))
    for axes, name in zip(all_axes, ("sequential", "random", "transpose")):
        for label, colour in colours.items():
            for how, style in (("CONST", "-"), ("WRITE", "--")):
                of = [row for row in results if row["work"] == name and row["how"] == how]
                x = [row["mib" if name == "transpose" else "object_kib"] for row in of]
                y = [statistics.median(row["bytes_per_s"][label]) / 1e6 for row in of]
                axes.plot(x, y, style, color=colour, marker=".", label=f"{label}, {HOW[how]}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(name)
        axes.set_xlabel("MiB of the matrix" if name == "transpose" else "KiB of an object")
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("MB/s")
    all_axes[0].legend(fontsize=6)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None})


def main():
    options = parse()
    places.catch_signals()
    try:
        if options.draw:
            with open(options.draw) as file:
                results = json.load(file)
        else:
            results = measure(options)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(results, file, indent=1)
        if options.svg:
            draw(results, options.svg)
    except Failure as error:
        sys.exit(f"rambrain.py: {error}")


if __name__ == "__main__":
    main()
