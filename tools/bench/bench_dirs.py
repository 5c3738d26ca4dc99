#!/usr/bin/python3
"""nram bench [DIR...]: the same workloads in several directories and through the pool's API. Called by `nram bench`."""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bench_places as places
from bench_places import MIB, Failure, later, run, say

MEMORY_SLACK = 150 * MIB  # of a job's memory cgroup, beyond the memory that the job was told to use

HELP = """usage: nram bench [DIR...] [flags]
       nram bench pool|load|tls [flags]

Runs the same workloads in each DIR and, where possible, through the pool's API, and prints
medians and their ratio to tmpfs. Without DIR, it uses a mount on a pool that it starts, tmpfs
(/dev/shm), this machine's disk (/var/tmp) and, with --throttled, that disk slowed down to 550
and 150 MB/s. Rounds alternate between the directories.

  --rows=LIST         some of pages, sort, nramsort, stxxl, random, meta (default: all)
  --rounds=N          1..100 (default 3)
  --size=SIZE         size of the sort's input, 64000000 bytes or more, as in 160M (default
                      1600000000); the sort's memory, 100 MB by default, grows in proportion
  --input=FILE        sort the lines of FILE instead of random lines
  --throttled         add slowed-down disks (needs root and cgroup v1: a loop device with a blkio
                      limit)
  --direct            random I/O with O_DIRECT where the directory supports it
  --big               add STXXL's sort of 2 GB in 200 MB
  --quick             a tenth of everything, one round, as a smoke test
  --json=FILE         the results, for `nram bench report`
  --html=FILE         a report with plots
  --help              this text

Each job runs in a memory cgroup limited to the job's memory plus 150 MB, which bounds the help
of the page cache. Exceptions are tmpfs, whose files are memory, and the rows of meta. Each time
is followed by the job's own processor time and the load of the machine: near 100 %, the row
measures the processors more than the storage. As root, caches are dropped before each run. Sorts
need three times --size in each DIR; nothing runs if that is missing.

`nram bench pool`, `load` and `tls` measure the pool alone: see `nram bench pool --help`.

example: nram bench --rounds=3 --html=report.html
"""


def fail(text, code=1):
    print(f"nram bench: {text}", file=sys.stderr)
    sys.exit(code)


class Target:
    """Where a workload runs."""

    def __init__(self, label, path, limited=True, pool=None, api=""):
        self.label, self.path, self.limited, self.pool, self.api = label, path, limited, pool, api
        self.work = tempfile.mkdtemp(prefix="nram-bench-", dir=path)

    def clear(self):
        for name in os.listdir(self.work):
            full = os.path.join(self.work, name)
            shutil.rmtree(full) if os.path.isdir(full) else os.unlink(full)


class Bench:
    def __init__(self, options, tools, stack):
        self.options, self.tools, self.stack = options, tools, stack
        self.targets, self.rows, self.digests = [], [], {}
        self.own_pool = False
        self.machine = places.machine(tools["nram"])
        self.cgroup = places.MemoryCgroup()
        self.limits_memory = self.cgroup.path is not None
        later(stack, self.cgroup.close)
        self.scale = 10 if options.quick else 1
        self.rounds = 1 if options.quick else options.rounds
        self.input = options.input
        self.size = os.path.getsize(self.input) if self.input else options.size // self.scale // 64 * 64
        self.sort_memory = max(self.size // 16, 2 * MIB)

    # Directories.

    def add_directory(self, path, label=None):
        if not os.path.isdir(path):
            raise Failure(f"{path} is not a directory")
        words = run("findmnt", "-n", "-o", "FSTYPE,SOURCE", "-T", path, check=False).splitlines()
        kind, source = (words[-1].split(None, 1) + [""])[:2] if words else ("", "")
        pool = None
        if kind == "fuse.nram" and source != "nram":  # those have no pool behind them
            pool = source.strip()
        name = label or {"fuse.nram": "network RAM", "tmpfs": "tmpfs"}.get(kind, path)
        if kind == "fuse.nram" and pool is None:
            name = f"{path}, without a pool"
        if any(target.label == name for target in self.targets):
            name = path
        api = "pool API" if all(target.pool is None for target in self.targets) else f"pool API of {path}"
        try:
            target = Target(name, path, limited=kind != "tmpfs", pool=pool, api=api)
        except OSError as error:
            raise Failure(f"cannot write to {path}: {error.strerror}")
        later(self.stack, shutil.rmtree, target.work, ignore_errors=True)
        self.targets.append(target)

    def start_pool(self):
        """A pool and a mount of its own, beside other programs on this machine."""
        # Input, scratch and output, and the page store's own memory.
        donate = max(4 * self.size, 1280 * MIB)
        if places.available_bytes() < self.needed_bytes() + 512 * MIB:
            raise Failure(
                f"a pool of its own needs {size_text(self.needed_bytes() + 512 * MIB)} of memory; this machine has "
                f"{size_text(places.available_bytes())} (try --quick, a smaller --size, or a DIR)"
            )
        directory = self.stack.enter_context(places.own_pool(self.tools["nram"], donate))
        self.own_pool = True
        point = f"{directory}/mount"
        os.mkdir(point)
        later(self.stack, run, self.tools["nram"], "umount", "--lazy", point)
        with places.uninterrupted():
            run(self.tools["nram"], "mount", point)
        return point

    def throttled_disk(self, megabytes):
        """An ext4 on a loop device on this machine's disk that moves so many MB/s each way."""
        image = f"/var/tmp/nram-bench-{os.getpid()}-{megabytes}.img"
        later(self.stack, places.remove, image)
        with open(image, "wb") as file:
            file.truncate(self.needed_bytes() + (1 << 30))
        device = self.stack.enter_context(places.loop_device(image, megabytes))
        run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        point = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
        later(self.stack, os.rmdir, point)
        later(self.stack, run, "umount", "-l", point, check=False)
        run("mount", device, point)
        self.add_directory(point, f"disk, {megabytes} MB/s")

    def needed_bytes(self):
        """The most bytes that a row keeps in a directory."""
        rows, stxxl = set(self.options.rows), 2_000_000_000 if self.options.big else 300_000_000
        needs = {"sort": 3 * self.size, "nramsort": 3 * self.size, "stxxl": 2 * stxxl // self.scale + 64 * MIB}
        return max([needs.get(row, 512 * MIB // self.scale) for row in rows])

    def check_room(self):
        for target in self.targets:
            status = os.statvfs(target.work)
            free = status.f_bavail * status.f_frsize
            if free < self.needed_bytes():
                raise Failure(
                    f"{target.path} has {size_text(free)} free; these rows need {size_text(self.needed_bytes())} "
                    "there (try --quick, a smaller --size or other --rows)"
                )

    # Jobs.

    def job(self, target, words, memory, cwd=None):
        """Runs a job, limited; returns its seconds, processor seconds, the machine's load, and its output."""
        limited = target.limited and self.cgroup.path is not None
        if limited:
            self.cgroup.limit(memory + MEMORY_SLACK)
        places.drop_caches()
        busy, cpu = machine_ticks(), children_seconds()
        began = time.monotonic()
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
            preexec_fn=self.cgroup.join if limited else None,
        )
        try:
            out, errors = process.communicate()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # its own session, so its workers end too
                process.wait()
        seconds = time.monotonic() - began
        busy = [after - before for after, before in zip(machine_ticks(), busy)]
        if process.returncode != 0:
            raise Failure(f"{target.label}: {' '.join(words[:2])} failed: {errors.strip()[-300:]}")
        result = {"seconds": seconds, "cpu_seconds": children_seconds() - cpu, "busy": busy[0] / max(sum(busy), 1)}
        if limited:
            self.cgroup.empty()
        return result, out

    def record(self, row, unit, target, value, result, lower=True):
        for entry in self.rows:
            if (entry["row"], entry["target"]) == (row, target):
                break
        else:
            entry = {
                "row": row,
                "unit": unit,
                "lower_is_better": lower,
                "target": target,
                "values": [],
                "cpu": [],
                "busy": [],
            }
            self.rows.append(entry)
        entry["values"].append(value)
        if result:
            entry["cpu"].append(result["cpu_seconds"])
            entry["busy"].append(result["busy"])

    # Workloads.

    def record_pages(self, label, count, out):
        times = json.loads(out.splitlines()[-1])
        for phase, way in (("write", "written"), ("read", "read")):
            result = {"cpu_seconds": times[f"{phase}_cpu_s"], "busy": times[f"{phase}_busy"]}
            self.record(f"{count} pages {way} in order", "s", label, times[f"{phase}_s"], result)

    def row_pages(self, target):
        count = str(100_000 // self.scale)
        _, out = self.job(target, [self.tools["work"], "pages", target.work, count], 16 * MIB)
        self.record_pages(target.label, count, out)
        if target.pool:
            _, out = self.job(target, [self.tools["work"], "pages-pool", target.pool, count], 16 * MIB)
            self.record_pages(target.api, count, out)

    def bring_input(self, target):
        shutil.copyfile(self.input, f"{target.work}/in")

    def check_sorted(self, target, out):
        """All sorts have the same input, and so the same output."""
        digest = digest_of(out)
        if "sorted" not in self.digests:
            say("sorting the input once more, to compare with")
            sort = ["sort", "-S25%", "--parallel=2", "-T", "/var/tmp", self.input]
            with subprocess.Popen(sort, stdout=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"}) as process:
                self.digests["sorted"] = digest_of(f"/dev/fd/{process.stdout.fileno()}")
            if process.returncode != 0:
                raise Failure(f"sort {self.input} failed")
        if digest != self.digests["sorted"]:
            raise Failure(f"{target.label}: {out} is not the sorted input")

    def row_sort(self, target):
        self.bring_input(target)
        out = f"{target.work}/out"
        result, _ = self.job(
            target,
            ["sort", f"-S{self.sort_memory}b", "--parallel=2", "-T", target.work, "-o", out, f"{target.work}/in"],
            self.sort_memory,
        )
        self.check_sorted(target, out)
        self.record(
            f"GNU sort, {size_text(self.size)} in {size_text(self.sort_memory)}",
            "s",
            target.label,
            result["seconds"],
            result,
        )

    def row_nramsort(self, target):
        memory = max(self.sort_memory, 48 * MIB)
        places = [(target.label, target.work)] + ([(target.api, "pool")] if target.pool else [])
        for label, scratch in places:
            self.bring_input(target)
            out = f"{target.work}/out"
            words = [
                self.tools["nram"],
                "sort",
                f"--memory={memory}",
                "--threads=2",
                f"--scratch={scratch}",
                f"--output={out}",
                f"{target.work}/in",
            ]
            if target.pool:
                words.insert(2, f"--pool={target.pool}")
            result, _ = self.job(target, words, memory)
            self.check_sorted(target, out)
            self.record(
                f"nram sort, {size_text(self.size)} in {size_text(memory)}", "s", label, result["seconds"], result
            )
            target.clear()

    def row_stxxl(self, target):
        sizes = [(300_000_000, 30_000_000)] + ([(2_000_000_000, 200_000_000)] if self.options.big else [])
        for size, memory in sizes:
            size, memory = size // self.scale, max(memory // self.scale, 24_000_000)
            result, out = self.job(
                target, [self.tools["work"], "stxxl", target.work, str(size), str(memory)], memory, cwd=target.work
            )
            times = json.loads(out.splitlines()[-1])
            result.update(cpu_seconds=times["cpu_s"], busy=times["busy"])  # without filling and checking
            self.record(
                f"STXXL sort, {size_text(size)} in {size_text(memory)}", "s", target.label, times["sort_s"], result
            )

    def row_random(self, target):
        size, seconds = 512 * MIB // self.scale, 5 if not self.options.quick else 1
        direct = int(self.options.direct and can_direct(target.work))
        common = [
            "fio",
            "--output-format=json",
            f"--directory={target.work}",
            "--filename=random",
            f"--size={size}",
            "--bs=4k",
            "--ioengine=psync",
            f"--direct={direct}",
            "--group_reporting",
        ]
        run(*common, "--name=fill", "--rw=write", "--bs=1M", "--end_fsync=1")
        for kind, way, jobs in (("randread", "read", 1), ("randread", "read", 4), ("randwrite", "write", 4)):
            words = common + [
                f"--name={kind}",
                f"--rw={kind}",
                f"--numjobs={jobs}",
                f"--runtime={seconds}",
                "--time_based",
            ]
            if kind == "randwrite":
                words.append("--end_fsync=1")
            result, out = self.job(target, words, 16 * MIB)
            report = json.loads(out[out.index("{") :])
            self.record(
                f"random 4 KiB {way}s, {jobs} job{'s' if jobs > 1 else ''}{', direct' if direct else ''}",
                "IOPS",
                target.label,
                report["jobs"][0][way]["iops"],
                result,
                lower=False,
            )

    def row_meta(self, target):
        count = 10_000 // self.scale
        directory = f"{target.work}/many"
        os.mkdir(directory)
        paths = [f"{directory}/{number}" for number in range(count)]
        data = b"x" * 4096

        def create():
            for path in paths:
                fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
                os.write(fd, data)
                os.close(fd)

        def read():
            for path in paths:
                fd = os.open(path, os.O_RDONLY)
                os.read(fd, 8192)
                os.close(fd)

        steps = (
            ("create 4 KiB files, without fsync", create),
            ("stat files", lambda: [os.stat(path) for path in paths]),
            ("read 4 KiB files", read),
            ("unlink files", lambda: [os.unlink(path) for path in paths]),
        )
        for name, step in steps:
            places.drop_caches()
            began = time.monotonic()
            step()
            self.record(name, "/s", target.label, count / (time.monotonic() - began), None, lower=False)

    def run(self):
        if self.input is None and {"sort", "nramsort"} & set(self.options.rows):
            self.input = f"/var/tmp/nram-bench-{os.getpid()}.lines"
            later(self.stack, places.remove, self.input)
            with open(self.input, "wb") as file:
                done = subprocess.run([self.tools["work"], "lines", str(self.size), "7"], stdout=file)
            if done.returncode != 0:
                raise Failure(f"cannot make {self.input}")
        for number in range(self.rounds):
            for row in self.options.rows:
                for target in self.targets if number % 2 == 0 else reversed(self.targets):
                    say(f"round {number + 1} of {self.rounds}: {row} on {target.label}")
                    getattr(self, f"row_{row}")(target)
                    target.clear()
        say("")

    def results(self):
        for entry in self.rows:
            entry["median"] = statistics.median(entry["values"])
        return {
            "machine": self.machine,
            "rounds": self.rounds,
            "own_pool": self.own_pool,
            "cgroup": self.limits_memory,
            "caches_dropped": os.geteuid() == 0,
            "direct": self.options.direct,
            "rows": self.rows,
        }



def size_of(text):
    """Bytes, or a size as the other commands take it: 160M is 160 MiB."""
    match = re.fullmatch(r"(\d+)(?:([KMGT])(?:iB)?|B)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f'"{text}" is not a size: expected bytes, or a number with K, M, G or T')
    return int(match[1]) << (10 * (1 + "KMGT".index(match[2])) if match[2] else 0)


def size_text(size):
    return f"{size / 1e9:g} GB" if size >= 2e9 else f"{size / 1e6:.0f} MB"


def machine_ticks():
    """Busy and idle since boot, of all processors."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]
    return [sum(ticks) - idle, idle]


def children_seconds():
    times = os.times()
    return times.children_user + times.children_system


def can_direct(directory):
    path = f"{directory}/direct"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
        return True
    except OSError:
        return False
    finally:
        if os.path.exists(path):
            os.unlink(path)


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(4 * MIB):
            digest.update(block)
    return digest.hexdigest()


def print_table(results):
    rows = list(dict.fromkeys(entry["row"] for entry in results["rows"]))
    for row in rows:
        entries = [entry for entry in results["rows"] if entry["row"] == row]
        reference = next((entry["median"] for entry in entries if entry["target"] == "tmpfs"), None)
        print(f"\n{row} ({entries[0]['unit']}{'' if entries[0]['lower_is_better'] else ', more is better'})")
        for entry in entries:
            value = entry["median"]
            text = (
                f"  {entry['target']:<24} {value:>12,.0f}"
                if value >= 1000
                else f"  {entry['target']:<24} {value:>12.3g}"
            )
            text += f"  [{min(entry['values']):.4g} {max(entry['values']):.4g}]".ljust(24)
            if reference:
                text += f"  {value / reference:6.2f} x tmpfs"
            if entry["cpu"]:
                cpu, busy = statistics.median(entry['cpu']), statistics.median(entry['busy'])
                text += f"  {cpu:7.2f} s of processor time, machine {busy * 100:3.0f} % busy"
            print(text)
    print(
        f"\nRounds: {results['rounds']}, alternating; medians [least most]. "
        + (
            "Jobs run in a memory cgroup of their memory and 150 MB, except on tmpfs and for meta; "
            if results["cgroup"]
            else "No memory cgroup could be made (root?), so the page cache may have served some of it; "
        )
        + ("caches dropped before each run." if results["caches_dropped"] else "caches not dropped (not root).")
    )


def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.error = lambda text: fail(f"{text}\nTry 'nram bench --help'.", 2)
    known = ["pages", "sort", "nramsort", "stxxl", "random", "meta"]
    parser.add_argument("directories", nargs="*")
    parser.add_argument("--rows", default=",".join(known))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=size_of, default=1_600_000_000)
    for text in ("input", "json", "html"):
        parser.add_argument(f"--{text}")
    for switch in ("throttled", "direct", "big", "quick", "help"):
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    if options.help:
        print(HELP, end="")
        return
    options.rows = options.rows.split(",")
    for row in options.rows:
        if row not in known:
            fail(f"--rows: unknown row \"{row}\"; expected some of {', '.join(known)}", 2)
    if not 1 <= options.rounds <= 100:
        fail("--rounds: expected 1 to 100", 2)
    if not 64_000_000 <= options.size <= 1 << 44:
        fail("--size: expected 64000000 bytes or more, as in 160M", 2)
    if options.input and not os.path.isfile(options.input):
        fail(f"--input: {options.input} is not a file", 2)
    if options.throttled and not places.can_throttle():
        fail("--throttled needs root and the cgroup v1 controller blkio")
    if "random" in options.rows and not shutil.which("fio"):
        options.rows.remove("random")
        print("nram bench: fio is missing, so the rows of random I/O are skipped", file=sys.stderr)
        if not options.rows:
            fail("no rows are left to run (apt-get install fio)")
    here = os.path.dirname(os.path.abspath(sys.argv[0]))
    tools = {"nram": os.environ["NRAM_SELF"], "work": f"{here}/nram-bench-work", "report": f"{here}/nram-bench-report"}
    places.catch_signals()
    bench = None
    try:
        with contextlib.ExitStack() as stack:
            bench = Bench(options, tools, stack)
            if not options.directories:
                bench.add_directory(bench.start_pool())
                bench.add_directory("/dev/shm")
                bench.add_directory("/var/tmp", "this machine's disk")
            for directory in options.directories:
                bench.add_directory(directory)
            if options.throttled:
                bench.throttled_disk(550)
                bench.throttled_disk(150)
            bench.check_room()
            bench.run()
    except (Failure, OSError) as failure:
        say("")
        if bench is not None and bench.rows:
            print_table(bench.results())
            print("These results were measured before the failure.")
        fail(failure)
    results = bench.results()
    print_table(results)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    if options.html:
        done = subprocess.run([tools["report"]], input=json.dumps(results), capture_output=True, text=True)
        print(done.stderr, end="", file=sys.stderr)
        if done.returncode != 0:
            fail("no report")
        with open(options.html, "w") as file:
            file.write(done.stdout)
        print(f"The report is {options.html}")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except OSError as error:
        # Else the interpreter tries to write the rest once more when it ends.
        sys.stdout = None
        fail(f"the output could not be written: {error}")
