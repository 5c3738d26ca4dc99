#!/usr/bin/python3
"""The cost of members and figures.

usage: experiments/members.py NRAM [--only=join,start,figures,scrapes] [--rounds=N] [--seconds=N] [--names=N]
                [--alive=N] [--memserver=PROGRAM] [--json]

NRAM is the program (bazel-bin/tools/nram/nram).

  join     from a server's start until the first page of a busy client lies there: a mount whose files are written anew
           all the time. By etcd, where the server registers; by DNS, and by a host file, into which it is put when it
           serves. Mark: 2 s
  start    from `nram mount` to the first megabyte that a file's fsync has stored. The list has --names servers of which
           --alive serve; of the others one half refuses, and the other half does not answer at all. Beside it the same
           with a list of the serving ones alone. Mark: 1 s
  figures  small reads and writes, and large ones, past the page cache, on two pools by turns: in one, servers and
           mount have --metrics and are asked each second. Each run takes --seconds; a round is all runs on a new mount
           of each, and the next one goes in the other order. Mark: 1.005 times the time
  scrapes  the processor time of an answer, of an idle server and of a mount. The counters that moving pages raise are
           raised with and without figures, so this is the whole cost of a scrape each second. It does not depend on
           the load of the machine. Mark: 0.5 % of a second

Medians of the rounds, with the least and the most. Needs root, and etcd for the first row.
"""

import argparse
import contextlib
import json
import mmap
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    catch_signals,
    later,
    machine,
    remove_state,
    run,
    say,
    uninterrupted,
)
from copies_places import in_own_namespace  # noqa: E402
from member_places import SOURCES, HostFile, Server  # noqa: E402

ROWS = ["join", "start", "figures", "scrapes"]
MARKS = {"join": (2, "s"), "start": (1, "s"), "figures": (1.005, "times"), "scrapes": (0.5, "%")}
PATIENCE_S = 60
FILE_MIB = 64
METRICS = "--metrics=127.0.0.1:0"


class Place:
    """A directory, a source of members, servers, and mounts. Close it by `stack`."""

    def __init__(self, stack, options, source):
        self.stack, self.options = stack, options
        with uninterrupted():
            self.directory = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
            later(stack, remove_state, self.directory)
            os.environ.update(NRAM_STATE_DIR=f"{self.directory}/state", XDG_CACHE_HOME=f"{self.directory}/cache",
                              NRAM_TLS_DIR="none", NRAM_ETCD_TLS_DIR="none", NRAM_POOL="", NRAM_COPIES="1")
            os.makedirs(f"{self.directory}/state", 0o700)
            self.source = SOURCES[source](self.directory)
            later(stack, self.source.close)
        self.count = 0

    def start(self, donate_mib, *flags):
        with uninterrupted():
            server = Server(self.options.memserver, self.directory, self.count, donate_mib, self.source, *flags)
            later(self.stack, server.kill)
        self.count += 1
        self.source.add(server.address)
        return server

    def mount(self, name, spec, *flags):
        path = f"{self.directory}/{name}"
        os.makedirs(path, exist_ok=True)
        with uninterrupted():
            later(self.stack, run, "umount", "-l", path, check=False)
            said = json.loads(run(self.options.nram, "mount", path, f"--pool={spec}", "--json", *flags))
        return path, said


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        return answer.read().decode()


class Busy:
    """Writes files anew all the time. Raises its error at the end."""

    def __init__(self, path):
        self.path, self.ends, self.failure = path, False, None
        self.thread = threading.Thread(target=self.write)
        self.thread.start()

    def write(self):
        data = os.urandom(MIB)
        number = 0
        try:
            while not self.ends:
                with open(f"{self.path}/{number % 32}", "wb") as file:  # other spans each time
                    file.write(data)
                    os.fsync(file.fileno())
                number += 1
        except OSError as error:
            self.failure = error

    def end(self):
        self.ends = True
        self.thread.join()
        if self.failure:
            raise Failure(f"a write failed: {self.failure}")


def until(what, is_so):
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > ends:
            raise Failure(f"after {PATIENCE_S} s it is not so that {what}")
        time.sleep(0.005)


def measure_join(options, source):
    """Seconds, one a round."""
    with contextlib.ExitStack() as stack:
        place = Place(stack, options, source)
        for _ in range(2):
            place.start(256)
        path, _ = place.mount("mnt", place.source.spec)
        busy = Busy(path)
        seconds = []
        try:
            for number in range(options.rounds):
                say(f"join by {source}, {number + 1} of {options.rounds}")
                server = place.start(256, METRICS)
                until(f"server {server.number} has pages",
                      lambda port=server.metrics_port: re.search(r"^nram_server_pages [1-9]", metrics(port), re.M))
                seconds.append(time.monotonic() - server.started)
        finally:
            busy.end()
        return seconds


class Nobody:
    """A port that refuses, and one that never answers: its queue of connections is full."""

    def __init__(self, stack):
        self.silent = stack.enter_context(socket.socket())
        self.silent.bind(("0.0.0.0", 0))
        self.silent.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.connect(("127.0.0.1", self.silent.getsockname()[1]))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.refuses = probe.getsockname()[1]

    def names(self, count):
        for number in range(count):
            port = self.refuses if number % 2 == 0 else self.silent.getsockname()[1]
            yield f"127.79.{number // 250}.{number % 250 + 1}:{port}"


def measure_start(options):
    """Seconds, by list."""
    with contextlib.ExitStack() as stack:
        place = Place(stack, options, "hosts")
        for _ in range(options.alive):
            place.start(64, "--workers=1")
        few, all_of_them = HostFile(place.directory), f"{place.directory}/many"
        names = [*place.source.names, *Nobody(stack).names(options.names - options.alive)]
        few.names = list(place.source.names)
        few.write()
        random.Random(1).shuffle(names)
        with open(all_of_them, "w") as file:
            file.write("\n".join(names) + "\n")
        seconds = {"start, few": [], "start, many": []}
        for number in range(options.rounds):
            say(f"start, {number + 1} of {options.rounds}")
            for row, spec in (("start, few", few.spec), ("start, many", f"@{all_of_them}")):
                began = time.monotonic()
                path, _ = place.mount("mnt", spec)
                with open(f"{path}/first", "wb") as file:
                    file.write(os.urandom(MIB))
                    os.fsync(file.fileno())
                seconds[row].append(time.monotonic() - began)
                run(options.nram, "umount", path)
        return seconds


class Work:
    """Operations past the page cache on a file of its own."""

    def __init__(self, path):
        self.buffer = mmap.mmap(-1, MIB)
        self.buffer[:] = os.urandom(MIB)
        self.fd = os.open(f"{path}/file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        for number in range(FILE_MIB):
            os.pwritev(self.fd, [self.buffer], number * MIB)

    def rate(self, act, size, seconds):
        """Operations a second."""
        view = memoryview(self.buffer)[:size]
        source = random.Random(7)
        done, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            for _ in range(16):
                act(self.fd, [view], source.randrange(FILE_MIB * MIB // size) * size)
            done += 16
        return done / (time.monotonic() - began)


class Scraper:
    """Asks each second as Prometheus does, at the cost of a bare socket, because its cost counts as the figures'."""

    def __init__(self, ports):
        self.ports, self.failure = ports, None
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        while not self.stop.wait(1):
            for port in self.ports:
                try:
                    self.check(self.answer(port))
                except OSError as error:
                    self.failure = error

    @staticmethod
    def answer(port):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as asker:
            asker.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: asker.recv(1 << 16), b""))

    def check(self, answer):
        if b" 200 " not in answer[:20] or b"nram_" not in answer:
            self.failure = answer[:100]

    def end(self):
        self.stop.set()
        self.thread.join()
        if self.failure:
            raise Failure(f"a scrape failed: {self.failure}")


def metrics_port(said):
    """A mount's port, from the output of its start. Former mounts have written to the same log."""
    with open(said["log"]) as log:
        return int(re.findall(r"figures on port (\d+)", log.read())[-1])


JOBS = {"read 4 KiB": (os.preadv, 4096), "write 4 KiB": (os.pwritev, 4096),
        "read 1 MiB": (os.preadv, MIB), "write 1 MiB": (os.pwritev, MIB)}


def processor_s(pid):
    """The processor time that all threads of the process have used."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def scrape_cost(options, pid, port):
    """Seconds of a processor for an answer, without the process's own idle work."""
    asks = 100
    began, used = time.monotonic(), processor_s(pid)
    time.sleep(options.seconds)
    idle = (processor_s(pid) - used) / (time.monotonic() - began)
    began, used = time.monotonic(), processor_s(pid)
    for _ in range(asks):
        Scraper.answer(port)
    return (processor_s(pid) - used - idle * (time.monotonic() - began)) / asks


def measure_scrapes(options):
    """Per cent of a second, for each program that is asked."""
    costs = {"scrapes, server": [], "scrapes, mount": []}
    with contextlib.ExitStack() as stack:
        place = Place(stack, options, "hosts")
        server = place.start(256, METRICS)
        path, said = place.mount("mnt", server.address, METRICS, f"--pid-file={place.directory}/mount.pid")
        with open(f"{place.directory}/mount.pid") as file:
            daemon = int(file.read())
        later(stack, run, options.nram, "umount", path)
        os.close(Work(path).fd)
        for number in range(options.rounds):
            say(f"scrapes, {number + 1} of {options.rounds}")
            costs["scrapes, server"].append(100 * scrape_cost(options, server.process.pid, server.metrics_port))
            costs["scrapes, mount"].append(100 * scrape_cost(options, daemon, metrics_port(said)))
    return costs


def run_jobs(options, place, servers, *flags):
    """Operations a second by job, on a new mount."""
    path, said = place.mount("mnt", ",".join(server.address for server in servers), *flags)
    scraper = None
    try:
        if flags:
            scraper = Scraper([metrics_port(said), *(server.metrics_port for server in servers)])
        work = Work(path)
        try:
            return {job: work.rate(act, size, options.seconds) for job, (act, size) in JOBS.items()}
        finally:
            os.close(work.fd)
    finally:
        if scraper:
            scraper.end()
        run(options.nram, "umount", path)


def measure_figures(options):
    """Times of one with figures to one without, by row."""
    ratios = {f"figures, {job}": [] for job in JOBS}
    with contextlib.ExitStack() as stack:
        place = Place(stack, options, "hosts")
        pools = {(): [place.start(256) for _ in range(2)], (METRICS,): [place.start(256, METRICS) for _ in range(2)]}
        for number in range(options.rounds):
            say(f"figures, {number + 1} of {options.rounds}")
            rates = {}
            for flags in sorted(pools, reverse=number % 2 == 1):
                rates[flags] = run_jobs(options, place, pools[flags], *flags)
            for job in JOBS:
                ratios[f"figures, {job}"].append(rates[()][job] / rates[(METRICS,)][job])
    return ratios


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nram", metavar="NRAM", help="the program nram")
    parser.add_argument("--only", type=lambda names: names.split(","), default=ROWS, help="rows, separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="(default 5; figures want 40)")
    parser.add_argument("--seconds", type=float, default=5, help="of each run of figures (default 5)")
    parser.add_argument("--names", type=int, default=1000, help="in the long list (default 1000)")
    parser.add_argument("--alive", type=int, default=40, help="of them (default 40)")
    parser.add_argument("--memserver", help="the program nram-memserver (default: where Bazel builds it, beside NRAM)")
    parser.add_argument("--json", action="store_true", help="the figures in JSON")
    options = parser.parse_args()
    for name in options.only:
        if name not in ROWS:
            parser.error(f"--only: \"{name}\" is no row: expected {', '.join(ROWS)}, separated by commas")
    if min(options.rounds, options.seconds, options.alive, options.names - options.alive + 1) <= 0:
        parser.error("--rounds, --seconds and --alive are above 0, and --names is at least --alive")
    options.nram = os.path.realpath(options.nram)
    beside = f"{os.path.dirname(options.nram)}/../../memserver/nram-memserver"
    options.memserver = os.path.realpath(options.memserver or beside)
    for program in (options.nram, options.memserver):
        if not os.access(program, os.X_OK):
            parser.error(f"there is no {program}: bazel build //tools/nram //memserver:nram-memserver")
    return options


def main():
    options = parse()
    in_own_namespace()
    catch_signals()
    rows = {}
    if "join" in options.only:
        rows |= {f"join, {source}": measure_join(options, source) for source in SOURCES}
    if "start" in options.only:
        rows |= measure_start(options)
    if "figures" in options.only:
        rows |= measure_figures(options)
    if "scrapes" in options.only:
        rows |= measure_scrapes(options)
    say("")
    out = {"machine": machine(options.nram), "rows": []}
    for name, values in rows.items():
        mark, unit = MARKS[name.split(",")[0]]
        median = statistics.median(values)
        row = {"row": name, "unit": unit, "median": median, "min": min(values), "max": max(values), "mark": mark,
               "rounds": len(values), "ok": median <= mark}
        out["rows"].append(row)
        if not options.json:
            told = f"{name:24} {median:8.3f} [{row['min']:.3f} {row['max']:.3f}] {unit:5} <= {mark:g}"
            print(f"{told} {'ok' if row['ok'] else 'missed'}", flush=True)
    if options.json:
        print(json.dumps(out, indent=2))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"members.py: {failure}")
