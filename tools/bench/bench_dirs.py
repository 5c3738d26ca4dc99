#!/usr/bin/python3
"""nram bench [DIR...]: the same workloads in several directories and through the pool's API. Called by `nram bench`."""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
MEMORY_SLACK = 150 * MIB  # that a job's memory cgroup has beyond what the job was told to use

HELP = """usage: nram bench [DIR...] [flags]
       nram bench pool|load [flags]

Runs the same workloads in each DIR and, where they have a way to, through the pool's API;
prints medians and their ratio to tmpfs. Without DIR: a mount on a pool that it starts,
tmpfs (/dev/shm), this machine's disk (/var/tmp) and, with --throttled, that disk slowed
down to 550 and 150 MB/s. Rounds alternate between the directories.

  --rows=LIST         of pages, sort, nramsort, stxxl, random, meta (default: all)
  --rounds=N          1..100 (default 3)
  --size=BYTES        of what is sorted (default 1600000000, as is sort's memory of 100 MB to that)
  --input=FILE        sort these lines, not random ones
  --throttled         with slowed-down disks too (root; a loop device and a blkio limit)
  --direct            random I/O with O_DIRECT where the directory can
  --big               with STXXL's sort of 2 GB in 200 MB too
  --quick             a tenth of everything, one round: to see that it works
  --json=FILE         the results, for `nram bench report`
  --html=FILE         a report with plots
  --help              this text

Each job runs in a memory cgroup of the memory it is told to use and 150 MB, so that the page
cache does not stand in for the storage; but for tmpfs, whose files are that memory. Beside each
time is the processor time of the job itself and how busy the machine was: near 100 % the
row says more of the processors than of the storage. As root, caches are dropped before each run.

`nram bench pool` and `nram bench load` measure the pool beside a bare socket:
see `nram bench pool --help`.

example: nram bench --rounds=3 --html=report.html
"""


def fail(text, code=1):
    print(f"nram bench: {text}", file=sys.stderr)
    sys.exit(code)


class MemoryCgroup:
    """Limits the memory, page cache included, of the commands that run in it; v1 or v2. None where that cannot be."""

    def __init__(self):
        self.path = None
        self.v1 = os.path.isdir("/sys/fs/cgroup/memory")
        base = "/sys/fs/cgroup/memory" if self.v1 else "/sys/fs/cgroup"
        path = f"{base}/nram-bench-{os.getpid()}"
        try:
            os.mkdir(path)
            if os.path.exists(f"{path}/memory.limit_in_bytes") or os.path.exists(f"{path}/memory.max"):
                self.path = path
        except OSError:
            pass

    def limit(self, size):
        with open(f"{self.path}/memory.limit_in_bytes" if self.v1 else f"{self.path}/memory.max", "w") as file:
            file.write(str(size))

    def join(self):
        with open(f"{self.path}/cgroup.procs", "w") as file:
            file.write(str(os.getpid()))

    def empty(self):
        """Gives up the page cache that is charged to it."""
        if self.path and self.v1:
            with open(f"{self.path}/memory.force_empty", "w") as file:
                file.write("0")

    def close(self):
        if self.path:
            try:
                self.empty()
                os.rmdir(self.path)
            except OSError:
                pass


class Target:
    """Where a workload runs."""

    def __init__(self, label, path, limited=True, pool=None):
        self.label, self.path, self.limited, self.pool = label, path, limited, pool
        self.work = tempfile.mkdtemp(prefix="nram-bench-", dir=path)

    def clear(self):
        for name in os.listdir(self.work):
            full = os.path.join(self.work, name)
            shutil.rmtree(full) if os.path.isdir(full) else os.unlink(full)


class Bench:
    def __init__(self, options, tools):
        self.options, self.tools = options, tools
        self.targets, self.cleanups, self.rows = [], [], []
        self.cgroup = MemoryCgroup()
        self.cleanups.append(self.cgroup.close)
        self.scratch = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
        self.cleanups.append(lambda: shutil.rmtree(self.scratch, ignore_errors=True))
        self.scale = 10 if options.quick else 1
        self.size = options.size // self.scale // 64 * 64
        self.sort_memory = max(self.size // 16, 2 * MIB)
        self.input = options.input

    # Directories.

    def add_directory(self, path, label=None):
        if not os.path.isdir(path):
            fail(f"{path} is no directory")
        kinds = subprocess.run(
            ["findmnt", "-n", "-o", "FSTYPE", "-T", path], capture_output=True, text=True
        ).stdout.split()
        kind = kinds[-1] if kinds else ""
        name = label or {"fuse.nram": "network RAM", "tmpfs": "tmpfs"}.get(kind, path)
        if any(target.label == name for target in self.targets):
            name = path
        pool = self.pool if kind == "fuse.nram" else None
        try:
            target = Target(name, path, limited=kind != "tmpfs", pool=pool)
        except OSError as error:
            fail(f"cannot write to {path}: {error.strerror}")
        self.targets.append(target)
        self.cleanups.append(lambda: shutil.rmtree(target.work, ignore_errors=True))

    def run_tool(self, *words):
        done = subprocess.run([self.tools["nram"], *words], capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"nram {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")

    def start_pool(self, donate):
        """A pool and a mount of its own, beside whatever runs here."""
        os.environ["NRAM_STATE_DIR"] = f"{self.scratch}/state"
        os.environ.pop("NRAM_POOL", None)
        self.cleanups.append(lambda: subprocess.run([self.tools["nram"], "down"], capture_output=True))
        self.run_tool("up", "--servers=2", f"--donate={donate}")
        self.pool = f"{self.scratch}/state/pool"
        point = f"{self.scratch}/mount"
        os.mkdir(point)
        self.cleanups.append(
            lambda: subprocess.run([self.tools["nram"], "umount", "--lazy", point], capture_output=True)
        )
        self.run_tool("mount", point)
        return point

    def throttled_disk(self, megabytes):
        """An ext4 on a loop device on this machine's disk that moves so many MB/s each way."""
        image = f"/var/tmp/nram-bench-{os.getpid()}-{megabytes}.img"
        point = f"{self.scratch}/disk{megabytes}"
        os.mkdir(point)
        with open(image, "wb") as file:
            file.truncate(4 * self.size + (1 << 30))
        self.cleanups.append(lambda: os.path.exists(image) and os.unlink(image))
        loop = subprocess.run(["losetup", "--find", "--show", "--direct-io=on", image], capture_output=True, text=True)
        if loop.returncode != 0:
            fail(f"losetup: {loop.stderr.strip()}")
        device = loop.stdout.strip()
        self.cleanups.append(lambda: subprocess.run(["losetup", "-d", device], capture_output=True))
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device], check=True)
        status = os.stat(device)
        number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
        limits = [f"/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device" for way in ("read", "write")]
        if not os.path.exists(limits[0]):
            fail("--throttled needs the cgroup v1 controller blkio, which is not here")
        for limit in limits:
            with open(limit, "w") as file:
                file.write(f"{number} {megabytes * 1000000}")

        def unlimit():
            for limit in limits:
                with open(limit, "w") as file:
                    file.write(f"{number} 0")

        self.cleanups.append(unlimit)
        subprocess.run(["mount", device, point], check=True)
        self.cleanups.append(lambda: subprocess.run(["umount", "-l", point], capture_output=True))
        self.add_directory(point, f"disk, {megabytes} MB/s")

    # Jobs.

    def drop_caches(self):
        os.sync()
        if os.geteuid() == 0:
            with open("/proc/sys/vm/drop_caches", "w") as file:
                file.write("3")

    def job(self, target, words, memory, cwd=None):
        """Runs it, limited; its seconds, processor seconds, the machine's business, and its output."""
        limited = target.limited and self.cgroup.path is not None
        if limited:
            self.cgroup.limit(memory + MEMORY_SLACK)
        self.drop_caches()
        busy, cpu = machine_ticks(), children_seconds()
        began = time.monotonic()
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            preexec_fn=self.cgroup.join if limited else None,
        )
        try:
            out, errors = process.communicate()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        seconds = time.monotonic() - began
        busy = [after - before for after, before in zip(machine_ticks(), busy)]
        if process.returncode != 0:
            fail(f"{target.label}: {' '.join(words[:2])} failed: {errors.strip()[-300:]}")
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

    def row_pages(self, target):
        count = str(100_000 // self.scale)
        result, out = self.job(target, [self.tools["work"], "pages", target.work, count], 16 * MIB)
        times = json.loads(out.splitlines()[-1])
        self.record(f"{count} pages written in order", "s", target.label, times["write_s"], result)
        self.record(f"{count} pages read in order", "s", target.label, times["read_s"], result)
        if target.pool:
            result, out = self.job(target, [self.tools["work"], "pages-pool", f"@{target.pool}", count], 16 * MIB)
            times = json.loads(out.splitlines()[-1])
            self.record(f"{count} pages written in order", "s", "pool API", times["write_s"], result)
            self.record(f"{count} pages read in order", "s", "pool API", times["read_s"], result)

    def bring_input(self, target):
        shutil.copyfile(self.input, f"{target.work}/in")

    def check_sorted(self, target, out):
        size = os.path.getsize(f"{target.work}/in")
        if (
            os.path.getsize(out) not in (size, size + 1)  # a last line without an end gets one
            or subprocess.run(["sort", "-c", out], env={**os.environ, "LC_ALL": "C"}).returncode != 0
        ):
            fail(f"{target.label}: {out} is not the sorted input")

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
        places = [(target.label, target.work)] + ([("pool API", "pool")] if target.pool else [])
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
                words.insert(2, f"--pool=@{target.pool}")
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
            result["cpu_seconds"] = times["cpu_s"]  # without filling and checking
            self.record(
                f"STXXL sort, {size_text(size)} in {size_text(memory)}", "s", target.label, times["sort_s"], result
            )

    def row_random(self, target):
        if not shutil.which("fio"):
            return
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
        subprocess.run(
            common + ["--name=fill", "--rw=write", "--bs=1M", "--end_fsync=1"], capture_output=True, check=True
        )
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
                f"random 4 KiB {way}s, {jobs} job{'s' if jobs > 1 else ''}",
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
            ("create 4 KiB files", create),
            ("stat files", lambda: [os.stat(path) for path in paths]),
            ("read 4 KiB files", read),
            ("unlink files", lambda: [os.unlink(path) for path in paths]),
        )
        for name, step in steps:
            self.drop_caches()
            began = time.monotonic()
            step()
            self.record(name, "/s", target.label, count / (time.monotonic() - began), None, lower=False)

    def run(self):
        if self.input is None and {"sort", "nramsort"} & set(self.options.rows):
            self.input = f"/var/tmp/nram-bench-{os.getpid()}.lines"
            self.cleanups.append(lambda: os.path.exists(self.input) and os.unlink(self.input))
            with open(self.input, "wb") as file:
                subprocess.run([self.tools["work"], "lines", str(self.size), "7"], stdout=file, check=True)
        elif self.input is not None:
            self.size = os.path.getsize(self.input)
            self.sort_memory = max(self.size // 16, 2 * MIB)
        rounds = 1 if self.options.quick else self.options.rounds
        for number in range(rounds):
            for row in self.options.rows:
                for target in self.targets:
                    say(f"round {number + 1} of {rounds}: {row} on {target.label}")
                    getattr(self, f"row_{row}")(target)
                    target.clear()
        say("")

    def results(self):
        for entry in self.rows:
            entry["median"] = statistics.median(entry["values"])
        return {
            "machine": machine(),
            "rounds": 1 if self.options.quick else self.options.rounds,
            "cgroup": self.cgroup.path is not None,
            "caches_dropped": os.geteuid() == 0,
            "direct": self.options.direct,
            "rows": self.rows,
        }

    def close(self):
        for cleanup in reversed(self.cleanups):
            try:
                cleanup()
            except OSError as error:
                print(f"nram bench: while cleaning up: {error}", file=sys.stderr)


def say(text):
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


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


def machine():
    with open("/proc/cpuinfo") as file:
        model = next(
            (line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown processor"
        )
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) * 1024
    commit = subprocess.run(
        ["git", "-C", os.path.dirname(os.path.abspath(__file__)), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30)),
        "kernel": os.uname().release,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit,
    }


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
                text += f"  {cpu:7.2f} s of its own on a processor, machine {busy * 100:3.0f} % busy"
            print(text)
    print(
        f"\n{results['rounds']} rounds, alternating; medians [least most]. "
        + (
            "Jobs on all but tmpfs in a memory cgroup of their memory and 150 MB; "
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
    parser.add_argument("--size", type=int, default=1_600_000_000)
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
            fail(f"--rows: there is no row \"{row}\"; expected some of {', '.join(known)}", 2)
    if not 1 <= options.rounds <= 100:
        fail("--rounds: expected 1 to 100", 2)
    if not 64_000_000 <= options.size <= 1 << 44:
        fail("--size: expected 64000000 or more", 2)
    if options.input and not os.path.isfile(options.input):
        fail(f"--input: {options.input} is no file", 2)
    if options.throttled and os.geteuid() != 0:
        fail("--throttled needs root")
    here = os.path.dirname(os.path.abspath(__file__))
    tools = {"nram": os.environ["NRAM_SELF"], "work": f"{here}/nram-bench-work", "report": f"{here}/nram-bench-report"}
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: fail("interrupted; everything is cleaned up", 130))
    bench = Bench(options, tools)
    try:
        bench.pool = os.environ.get("NRAM_POOL") or f"{os.environ.get('NRAM_STATE_DIR', '/run/nram')}/pool"
        if not options.directories:
            # Input, scratch and output, and the page store's own.
            donate = f"{max(4 * bench.size // 2 // MIB, 640)}M"
            bench.add_directory(bench.start_pool(donate))
            bench.add_directory("/dev/shm")
            bench.add_directory("/var/tmp", "this machine's disk")
        for directory in options.directories:
            bench.add_directory(directory)
        if options.throttled:
            bench.throttled_disk(550)
            bench.throttled_disk(150)
        bench.run()
        results = bench.results()
    finally:
        bench.close()
    print_table(results)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    if options.html:
        done = subprocess.run([tools["report"]], input=json.dumps(results), capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"no report: {done.stderr.strip()}")
        with open(options.html, "w") as file:
            file.write(done.stdout)
        print(f"The report is {options.html}")


if __name__ == "__main__":
    main()
