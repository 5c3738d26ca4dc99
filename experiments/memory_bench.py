#!/usr/bin/python3
"""The cost of the memory API, each row beside its reference in the same run.

usage: experiments/memory_bench.py [--up=SIZE] [--rounds=N] [--rows=LIST] [flags]

  scan         pages in order out of four times the budget, beside userfaultfd with nothing behind it, 16 pages a fault
  random       a fault of pages at random out of four times the budget, beside a bare fault and a bare fetch over TCP;
               nram fetches by Unix socket from servers on this machine
  threads      the same by four threads, beside one
  resident     reads of local pages, beside ordinary memory
  bookkeeping  nram's own account of its bookkeeping, beside its limit
  sort         std::sort in a quarter of its memory: nram, a disk's swap, a mapped file, swap in the pool; beside RAM
  matrix       a matrix multiplication, the same

Rows alternate with their references; medians of the rounds [least most], after a round that does not count (sort and
matrix: after touching the memory). The last two run in memory cgroups (root). Needs a pool: $NRAM_POOL, that of
`nram up`, or --up=SIZE for one of its own (4G for the defaults). Let nothing else run meanwhile.
"""

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
import memory_places as places  # noqa: E402
from bench_places import MIB, Failure, catch_signals, drop_caches, machine, own_pool, say  # noqa: E402
from memory_report import Row, table  # noqa: E402

BIN = os.path.join(HERE, "../bazel-bin")
ROWS = ["scan", "random", "threads", "resident", "bookkeeping", "sort", "matrix"]
LIMITED = {"sort", "matrix"}  # run in memory cgroups


class Bench:
    def __init__(self, options, can_limit):
        self.options, self.can_limit = options, can_limit
        self.rows, self.failures, self.counting = {}, [], False
        self.scale = 8 if options.quick else 1

    def record(self, name, unit, reference, value, mark=None, at_most=False, judged=None, **notes):
        if self.counting:
            self.rows.setdefault(name, Row(name, unit, mark, at_most)).add(reference, value, judged, notes)

    def job(self, *words, limit=None):
        """Runs the work and returns its output; `limit` is its memory cgroup's."""
        words = [self.options.work, *map(str, words), f"--seed={self.options.seed}"]
        if "--backing=nram" in words:
            words += shlex.split(self.options.nram_flags)
        with places.limited(limit) if limit else contextlib.nullcontext() as cgroup:
            result = self.output(words, cgroup)
            if cgroup:
                result["peak_bytes"] = places.peak_bytes(cgroup)
        return result

    def output(self, words, cgroup):
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=cgroup.join if cgroup else None,
        )
        try:
            out, errors = process.communicate(timeout=self.options.timeout_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"{' '.join(words[1:])}: not done after {self.options.timeout_s} s")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode != 0:
            why = {4: "something that it read was WRONG", -9: "killed: too much for its cgroup?"}
            text = errors.strip()[-300:]
            raise Failure(f"{' '.join(words[1:])}: {why.get(process.returncode, process.returncode)} {text}")
        return json.loads(out.splitlines()[-1])

    # Rows: one round of each.

    def row_scan(self):
        budget = 256 * MIB // self.scale
        shape = [f"--budget={budget}", f"--mib={4 * budget // MIB}"]
        for way in ([], ["--write"]):
            bare = self.job("scan", "--backing=bare", "--batch=16", *shape, *way)
            nram = self.job("scan", "--backing=nram", *shape, *way)
            self.record(
                f"scan of {4 * budget // MIB} MiB in {budget // MIB}, {'read and write' if way else 'read only'}",
                "pages/s",
                bare["ops"] / bare["seconds"],
                nram["ops"] / nram["seconds"],
                mark=0.5,
                faults=nram["faults"],
                cpu_s=nram["cpu_s"],
            )

    def random_shape(self):
        budget = 64 * MIB // self.scale
        return budget, [f"--budget={budget}", f"--mib={4 * budget // MIB}", f"--count={200_000 // self.scale}"]

    def row_random(self):
        budget, shape = self.random_shape()
        fault = self.job("random", "--backing=bare", "--batch=1", "--handlers=1", *shape)
        fetch = self.job("ping-pong", f"--count={20_000 // self.scale}")
        apart = self.job("ping-pong", "--apart", f"--count={20_000 // self.scale}")
        nram = self.job("random", "--backing=nram", *shape)
        fault_us = 1e6 * fault["seconds"] / fault["faults"]
        fetch_us = 1e6 * fetch["seconds"] / fetch["ops"]
        self.record(
            f"random 4 KiB reads of {4 * budget // MIB} MiB in {budget // MIB}, a fault "
            "(nram by Unix socket where the server is on this machine, the reference by TCP)",
            "us",
            fault_us + fetch_us,
            1e6 * nram["seconds"] / nram["faults"],
            mark=1.5,
            at_most=True,
            bare_fault_us=fault_us,
            bare_fetch_us=fetch_us,
            bare_fetch_us_on_two_processors=1e6 * apart["seconds"] / apart["ops"],
            nram_us_an_access=1e6 * nram["seconds"] / nram["ops"],
            faults_an_access=nram["faults"] / nram["ops"],
            fetched_bytes_an_access=nram["fetched_bytes"] / nram["ops"],
        )

    def row_threads(self):
        budget, shape = self.random_shape()
        rates = {}
        for backing in (["--backing=bare", "--batch=1", "--handlers=4"], ["--backing=nram"]):
            for threads in (1, 4):
                result = self.job("random", *backing, *shape, f"--threads={threads}")
                rates[backing[0], threads] = result["ops"] / result["seconds"]
        bare, nram = (rates[f"--backing={kind}", 4] / rates[f"--backing={kind}", 1] for kind in ("bare", "nram"))
        self.record(
            "accesses at random by 4 threads, to 1 thread",
            "x",
            bare,
            nram,
            mark=2,
            judged=nram,
            nram_1_thread_a_second=rates["--backing=nram", 1],
            nram_4_threads_a_second=rates["--backing=nram", 4],
        )

    def row_resident(self):
        mib, count = 256 // self.scale, 20_000_000 // self.scale
        budget = (mib + mib // 4 + 16) * MIB
        result = self.job("resident", "--backing=nram", f"--mib={mib}", f"--budget={budget}", f"--count={count}")
        for key, name, reads in (("in_order", "in order", mib * MIB // 8), ("at_random", "at random", count)):
            # The same pages as ordinary memory, beside the same other array.
            ordinary = result[f"{key}_s"] * result[f"{key}_moved_to_plain"] / result[f"{key}_to_plain"]
            self.record(
                f"reads {name} of {mib} MiB, all resident",
                "M/s",
                reads / ordinary / 1e6,
                reads / result[f"{key}_s"] / 1e6,
                mark=0.95,
                faults=result["faults"],
                other_ordinary_array_m_a_second=reads / result[f"{key}_plain_s"] / 1e6,
            )

    def row_bookkeeping(self):
        budget = 256 * MIB // self.scale
        result = self.job("scan", "--backing=nram", "--write", f"--budget={budget}", f"--mib={4 * budget // MIB}")
        allowed = 16 * result["budget_bytes"] // 4096 + result["mapped_bytes"] // 4096 + MIB
        self.record(
            f"bookkeeping, {4 * budget // MIB} MiB mapped in {budget // MIB}; allowed: 16 B and 1 B a page, 1 MiB",
            "KiB",
            allowed / 1024,
            result["metadata_bytes"] / 1024,
            mark=1,
            at_most=True,
            process_beyond_resident_mib=(result["rss_bytes"] - result["resident_bytes"]) / MIB,
        )

    def beside_ram(self, title, words, size, mark):
        """The same work in RAM and, in a quarter of it, on everything else."""
        budget, mbps = size // 4, self.options.disk_mbps
        disk = f"disk, {mbps} MB/s" if mbps else "disk"
        beyond = {"nram": self.options.nram_allowance_mib * MIB}
        swap = size + 256 * MIB
        kinds = [
            ("nram", contextlib.nullcontext(), ["--backing=nram", f"--budget={budget}"]),
            (f"swap on a {disk}", places.disk_swap(self.options.disk, swap, mbps), ["--backing=malloc"]),
            (f"file on a {disk}, mapped", places.disk_directory(self.options.disk, size, mbps), ["--backing=file"]),
            ("swap in the pool", places.pool_swap(self.options.nram, swap), ["--backing=malloc"]),
        ]
        places.touch_memory(3 * size)
        drop_caches()
        ram = self.job(*words, "--backing=malloc")
        for kind, place, flags in kinds:
            if not self.can_limit and kind != "nram":
                continue
            limit = budget + beyond.get(kind, self.options.allowance_mib * MIB) if self.can_limit else None
            try:
                with place as directory:
                    drop_caches()
                    more = [f"--directory={directory}"] if "--backing=file" in flags else []
                    result = self.job(*words, *flags, *more, limit=limit)
            except (Failure, OSError) as failure:
                self.fail(f"{title}, {kind}: {failure}")
                continue
            notes = {"peak_of_cgroup_mib": result["peak_bytes"] / MIB} if result.get("peak_bytes") else {}
            notes["cpu_s"] = result["cpu_s"]
            row_mark = mark if kind == "nram" else None
            name = f"{title} in {budget // MIB} MiB: {kind}"
            self.record(name, "s", ram["seconds"], result["seconds"], row_mark, True, **notes)

    def row_sort(self):
        mib = self.options.sort_mib // (16 if self.options.quick else 1)
        how = ["--libc-qsort"] if self.options.libc_qsort else []
        title = f"{'qsort()' if how else 'std::sort'} of {mib} MiB"
        self.beside_ram(title, ["sort", f"--mib={mib}", *how], mib * MIB, None)

    def row_matrix(self):
        n = 1024 if self.options.quick else self.options.matrix_n
        words = ["matrix", f"--n={n}", f"--threads={self.options.matrix_threads}"]
        self.beside_ram(f"{n} x {n} matrices multiplied", words, 3 * n * n * 8, 1.3)

    def fail(self, text):
        self.failures.append(text)
        print(f"\nmemory_bench.py: {text}", file=sys.stderr, flush=True)

    def run(self):
        rounds = 1 if self.options.quick else self.options.rounds
        for row in self.options.rows:
            warm = [] if self.options.quick or row in LIMITED | {"bookkeeping"} else [0]
            for round_number in warm + list(range(1, rounds + 1)):
                say(f"{row}: " + (f"round {round_number} of {rounds}" if round_number else "a round to warm up"))
                self.counting = round_number > 0
                try:
                    getattr(self, f"row_{row}")()
                except (Failure, OSError) as failure:
                    self.fail(f"{row}: {failure}")
                    break
        say("")

    def results(self):
        rows = [{**vars(row), "ok": row.ok()} for row in self.rows.values()]
        options = {name: value for name, value in vars(self.options).items() if name != "json"}
        return {"machine": machine(self.options.nram), "options": options, "rows": rows, "failures": self.failures}


def size_bytes(text):
    factor = {"M": MIB, "G": 1024 * MIB}.get(text[-1:].upper())
    if factor is None or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError("expected a size such as 512M or 8G")
    return int(text[:-1]) * factor


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--nram", default=f"{BIN}/tools/nram/nram", help="the program (default: bazel-bin's)")
    parser.add_argument("--work", default=f"{BIN}/experiments/memory/nram-memory-work", help="the workloads")
    parser.add_argument("--up", type=size_bytes, metavar="SIZE", help="start a pool of SIZE, end it afterwards")
    parser.add_argument("--rows", default=",".join(ROWS), help="some of %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small and one round: to see that it works")
    parser.add_argument("--json", metavar="FILE", help="every round's figures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sort-mib", type=int, default=2048)
    parser.add_argument("--libc-qsort", action="store_true", help="sort by qsort()")
    parser.add_argument("--matrix-n", type=int, default=4096, help="a multiple of 64")
    parser.add_argument("--matrix-threads", type=int, default=1)
    parser.add_argument("--disk", default="/var/tmp", help="directory on the disk for swap and the file")
    parser.add_argument("--disk-mbps", type=int, default=0, help="slow the disk down (loop device, blkio limit)")
    parser.add_argument("--allowance-mib", type=int, default=16, help="of cgroups beyond the quarter")
    parser.add_argument("--nram-allowance-mib", type=int, default=64, help="the same for nram, its threads and buffers")
    parser.add_argument("--nram-flags", default="", help="more flags of nram-memory-work for nram's jobs")
    parser.add_argument("--timeout-s", type=int, default=1800, help="of a job")
    options = parser.parse_args()
    options.rows = options.rows.split(",")
    unknown = [row for row in options.rows if row not in ROWS]
    if unknown:
        parser.error(f"--rows: there is no row \"{unknown[0]}\"; expected some of {', '.join(ROWS)}")
    if not 1 <= options.rounds <= 100:
        parser.error("--rounds: expected 1 to 100")
    for name in ("nram", "work"):
        path = os.path.abspath(getattr(options, name))
        if not os.access(path, os.X_OK):
            parser.error(f"--{name}: {path} is no program")
        setattr(options, name, path)
    return options


def can_limit():
    try:
        with places.limited(64 * MIB):
            return True
    except (Failure, OSError):
        return False


def main():
    options = parse()
    catch_signals()
    with contextlib.ExitStack() as stack:
        limits = LIMITED & set(options.rows)
        bench = Bench(options, bool(limits) and can_limit())
        if limits and not bench.can_limit:
            bench.fail("no memory cgroup could be made (root?): of sort and matrix, only RAM and nram run, unlimited")
        if options.up:
            stack.enter_context(own_pool(options.nram, options.up))
        bench.run()
    print(table(bench.rows.values(), bench.failures))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(bench.results(), file, indent=1)
    sys.exit(1 if bench.failures else 0)


if __name__ == "__main__":
    main()
