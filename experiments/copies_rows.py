#!/usr/bin/python3
"""The cost of copies in rows that need more than one program: killed servers, the memory of mounts, distant hosts.

usage: experiments/copies_rows.py ROW [flags]

  repair-latency  p50 and p99 of 4 KiB reads and writes at random, in peace and during a repair: the copies of a killed
                  server, which was started again, are made anew at the usual rate. --door: by fio on a mount, or by
                  the pool's API. Three servers. Mark: p99 at most 2 times that in peace
  repair-speed    one server's copies are made anew on another server, out of a third, without a bound and with nothing
                  else running; beside a bare loop from socket to socket. Into memory that the target process has
                  touched before (warm), and into new memory. Mark: warm, at least 0.5 of the bare loop
  small-files     memory of nram-fsd for files of 100 bytes with one copy and with two. Mark: at most 130 bytes more
  far             4 KiB writes with one copy and with two, to servers that are --delays microseconds away each way. The
                  client has one processor and the servers share another. (Needs cc)

  --nram=PROGRAM   (default: the one that was built here); nram-fsd and nram-memserver are found as always
  --bench=PROGRAM  nram-bench-copies, for the pool's API (default: likewise)
  --rounds=N       1..100 (default 5)
  --seconds=N      of each measurement of repair-latency and far (default 3)
  --mib=N          of data, before it is copied (default 1024)
  --door=LIST      of mount, pool (default mount,pool)
  --threads=N      of repair-latency (default 1)
  --tcp            repair-speed over TCP loopback instead of Unix sockets
  --files=N        of small-files (default 100000)
  --delays=LIST    of far, microseconds (default 0,50,100,200)
  --steady         touch all free memory before; meanwhile keep the kernel from giving it back to this machine's host,
                   where it does: see docs/performance.md
  --json           a line of JSON for each round as well

Peace and repair, warm and cold, one copy and two take turns; medians of the rounds [least most]; ratios are medians of
each round's ratio. Root. Needs three times --mib of free memory and 2 GiB; let nothing else run meanwhile.
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

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [f"{HERE}/../tools/bench", f"{HERE}/../tests/util"]
import copies_places as places  # noqa: E402
from bare_relay import relay_speed  # noqa: E402
from bench_places import (  # noqa: E402
    MIB,
    Failure,
    available_bytes,
    catch_signals,
    drop_caches,
    later,
    machine,
    run,
    say,
)

BIN = os.path.join(HERE, "../bazel-bin")
REPLACE_S = 10  # seconds until a server that is away is replaced
SPREAD_MIB = 512  # MiB that a server lends beyond its need


def median(values):
    return f"{statistics.median(values):.4g} [{min(values):.4g} {max(values):.4g}]"


def judged(ratios, mark, at_most):
    value = statistics.median(ratios)
    met = value <= mark if at_most else value >= mark
    return f"{median(ratios)}; mark: at {'most' if at_most else 'least'} {mark}: {'ok' if met else 'missed'}"


def note(options, **figures):
    if options.json:
        print(json.dumps(figures), flush=True)


# --- The foreground's work: each `measure` returns {"read": {"p50", "p99", "count"}, "write": ...}, in us.


class OnMount:
    def __init__(self, stack, options, servers, copies=2):
        self.options = options
        self.mount = stack.enter_context(places.Mount(options.nram, servers.spec, f"--copies={copies}"))
        say("writing the data")
        places.write_file(f"{self.mount.path}/data", options.mib)

    def measure(self, seconds):
        words = ["fio", "--output-format=json", f"--filename={self.mount.path}/data", "--name=small", "--rw=randrw"]
        words += [f"--size={self.options.mib}M", "--bs=4k", "--ioengine=psync", "--direct=1", "--group_reporting"]
        words += [f"--numjobs={self.options.threads}", "--time_based", f"--runtime={seconds}", "--ramp_time=0.3"]
        words += ["--norandommap", "--randrepeat=0"]
        out = run(*words, timeout=120 + seconds)
        job = json.loads(out[out.index("{") :])["jobs"][0]
        result = {}
        for way in ("read", "write"):
            times = job[way]["clat_ns"]["percentile"]
            p50, p99 = (times[f"{share}.000000"] / 1e3 for share in (50, 99))
            result[way] = {"count": job[way]["total_ios"], "p50": p50, "p99": p99}
        return result


class OnPool:
    """Measures by nram-bench-copies, which it drives."""

    def __init__(self, stack, options, servers, copies=2, processor=None, kind="both"):
        self.kind, self.threads = kind, options.threads
        pin = [] if processor is None else ["taskset", "-c", str(processor)]
        words = [*pin, options.bench, servers.spec, str(copies), "--driven", str(options.mib)]
        say("writing the data")
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        later(stack, self.end)
        self.expect()

    def expect(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failure("nram-bench-copies has failed; see above")
        return line

    def measure(self, seconds):
        self.process.stdin.write(f"{self.kind} {seconds} {self.threads}\n")
        self.process.stdin.flush()
        return json.loads(self.expect())

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# --- Rows.


def repair_latency(options, door):
    with contextlib.ExitStack() as stack:
        servers = places.Servers(stack, options.nram, 3, options.mib + SPREAD_MIB)
        subject = {"mount": OnMount, "pool": OnPool}[door](stack, options, servers)
        servers.await_whole(options.mib)
        rounds, speeds, seconds = [], [], options.seconds
        for number in range(options.rounds + 1):
            say(f"{door}: round {number} of {options.rounds}" if number else f"{door}: a round that does not count")
            peace = subject.measure(seconds)
            made = servers.copies()["made"]
            servers.kill(number % 3)
            servers.start_again(number % 3)
            places.await_that(30, "repair", lambda: servers.copies()["made"] > made)
            before, began = servers.copies()["made"], time.monotonic()
            repair = subject.measure(seconds)
            after = servers.copies()
            speed = (after["made"] - before) / (time.monotonic() - began)
            in_time = after["left"] > 0
            note(options, door=door, peace=peace, repair=repair, mib_per_s=speed, counts=number > 0 and in_time)
            servers.await_whole(options.mib)
            if not in_time:
                seconds = max(seconds // 2, 1)
                say(f"repair ended before the measurement did; the next ones take {seconds} s")
            elif number > 0:
                rounds.append((peace, repair))
                speeds.append(speed)
        if not rounds:
            raise Failure("repair always ended before the measurement did: more --mib, or fewer --seconds")
        print(
            f"\nrepair-latency, {door}, {options.threads} thread(s), {options.mib} MiB in two copies on three servers, "
            f"{len(rounds)} rounds; repair at {median(speeds)} MiB/s"
        )
        for way in ("read", "write"):
            for share in ("p50", "p99"):
                quiet, busy = ([pair[side][way][share] for pair in rounds] for side in (0, 1))
                ratios = [after / before for before, after in zip(quiet, busy)]
                text = judged(ratios, 2, True) if share == "p99" else median(ratios)
                print(f"  {way} {share}: peace {median(quiet)} us, repair {median(busy)} us, ratio {text}")


class Activity:
    """The begin and end of a process's one task, which its processor time shows from outside."""

    STEP_S, QUIET_S, BUSY = 0.02, 1.0, 0.05

    def __init__(self, pid):
        self.pid = pid

    def watch(self, patience_s):
        """(begin, end) on the monotonic clock."""
        begin = end = None
        until = time.monotonic() + patience_s
        at, used = time.monotonic(), places.processor_ns(self.pid)
        while end is None or at - end < self.QUIET_S:
            if at > until:
                raise Failure(f"no repair, or no end of it, within {patience_s} s")
            time.sleep(self.STEP_S)
            before, used_before = at, used
            at, used = time.monotonic(), places.processor_ns(self.pid)
            if (used - used_before) / 1e9 > self.BUSY * (at - before):
                begin, end = begin or before, at
        return begin, end


def repair_once(options, warm):
    """MB/s, and the target's resident bytes before and after. Server 0 dies, and 2 gets 0's data from 1."""
    with contextlib.ExitStack() as stack:
        servers = places.Servers(stack, options.nram, 3, 2 * options.mib + SPREAD_MIB, tcp=options.tcp)
        run(options.nram, "drain", servers.address(2))
        mount = stack.enter_context(places.Mount(options.nram, servers.spec, "--copies=2", "--repair-rate=max"))
        places.write_file(f"{mount.path}/data", options.mib)
        servers.await_whole(options.mib)
        run(options.nram, "drain", servers.address(2), "--undo")
        time.sleep(REPLACE_S / 2)  # until the client has heard of it
        written = servers.status(2)["servers"][0]["bytes_written"]
        if written > 0:
            raise Failure("the drained server has got data")
        servers.kill(0)
        killed = time.monotonic()
        if warm:
            # It keeps freed memory for a few seconds.
            with places.Mount(options.nram, servers.address(2)) as other:
                places.write_file(f"{other.path}/data", options.mib + options.mib // 16)
                time.sleep(max(killed + REPLACE_S - 1.5 - time.monotonic(), 0))
                written = servers.status(2)["servers"][0]["bytes_written"]
            if time.monotonic() > killed + REPLACE_S:
                raise Failure("warming the target's memory took too long")
        before = places.resident_bytes(servers.pids[2])
        time.sleep(max(killed + REPLACE_S - 0.5 - time.monotonic(), 0))
        begin, end = Activity(servers.pids[2]).watch(patience_s=120)
        servers.await_whole(options.mib)
        copied = servers.status(2)["servers"][0]["bytes_written"] - written
        if copied < options.mib * MIB:
            raise Failure(f"the target got {copied} bytes only")
        return copied / 1e6 / (end - begin), before, places.resident_bytes(servers.pids[2])


def repair_speed(options):
    rows = {}
    kinds = (True, False)
    for number in range(options.rounds):
        for warm in kinds if number % 2 == 0 else reversed(kinds):
            name = "warm" if warm else "cold"
            say(f"round {number + 1} of {options.rounds}: {name}")
            bare = relay_speed(options.mib, warm, options.tcp)
            speed, before, after = repair_once(options, warm)
            bare = (bare + relay_speed(options.mib, warm, options.tcp)) / 2
            note(options, memory=name, bare=bare, nram=speed, resident_before=before, resident_after=after)
            rows.setdefault(name, []).append((bare, speed, before / MIB, after / MIB))
    print(f"\nrepair-speed, {options.mib} MiB, {options.rounds} rounds, {'TCP' if options.tcp else 'Unix sockets'}")
    for name, figures in sorted(rows.items(), reverse=True):
        bare, nram, before, after = zip(*figures)
        ratios = [mine / reference for reference, mine in zip(bare, nram)]
        text = judged(ratios, 0.5, False) if name == "warm" else median(ratios)
        print(f"  {name}: bare loop {median(bare)} MB/s, repair {median(nram)} MB/s, ratio {text}")
        print(f"    target resident before repair {median(before)} MiB, after {median(after)} MiB")


def weigh_files(options, copies):
    """The daemon's anonymous memory after each quarter of the files."""
    with contextlib.ExitStack() as stack:
        servers = places.Servers(stack, options.nram, 3, SPREAD_MIB + options.files * 8192 // MIB)
        mount = stack.enter_context(places.Mount(options.nram, servers.spec, f"--copies={copies}"))
        data = os.urandom(100)
        weights = []
        for number in range(options.files + 1):
            if number % (options.files // 4) == 0:
                drop_caches()  # writes them back, and drops the kernel's caches of them
                time.sleep(1)
                weights.append(places.resident_bytes(mount.pid))
            if number % 1000 == 0:
                os.mkdir(f"{mount.path}/{number // 1000}")
            with open(f"{mount.path}/{number // 1000}/{number}", "wb", buffering=0) as file:
                file.write(data)
        return weights


def small_files(options):
    rows = {1: [], 2: []}  # by copies: of each round, bytes a file in each quarter of the files
    for number in range(options.rounds):
        for copies in (1, 2) if number % 2 == 0 else (2, 1):
            say(f"round {number + 1} of {options.rounds}: {copies} copies")
            weights = weigh_files(options, copies)
            note(options, copies=copies, anonymous_bytes=weights)
            rows[copies].append([4 * (after - before) / options.files for before, after in zip(weights, weights[1:])])
    print(f"\nsmall-files, {options.files} files of 100 bytes, {options.rounds} rounds; bytes a file")
    # The first quarter also has the fixed cost of a pool.
    one, two = ([statistics.mean(quarters[1:]) for quarters in rows[copies]] for copies in (1, 2))
    more = [after - before for before, after in zip(one, two)]
    print(f"  one copy {median(one)}, two copies {median(two)}, more: {judged(more, 130, True)}")
    for copies in (1, 2):
        quarters = ", ".join(median(quarter) for quarter in zip(*rows[copies]))
        print(f"    by quarters, copies={copies}: {quarters}")


def far(options):
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) < 2:
        raise Failure("needs two processors")
    shim = f"/tmp/nram-bench-{os.getpid()}-far.so"
    with contextlib.ExitStack() as outer:
        later(outer, lambda: os.path.exists(shim) and os.unlink(shim))
        run("cc", "-O2", "-shared", "-fPIC", "-o", shim, f"{HERE}/far.c", "-ldl")
        print(f"\nfar, 4 KiB writes by one thread, two servers, {options.rounds} rounds; us")
        for delay in options.delays:
            say(f"{delay} us")
            with contextlib.ExitStack() as stack:
                environment = {"LD_PRELOAD": shim, "NRAM_FAR_US": str(2 * delay)} if delay else None
                servers = places.Servers(
                    stack,
                    options.nram,
                    2,
                    2 * options.mib + SPREAD_MIB,
                    prefix=["taskset", "-c", str(processors[-1])],
                    environment=environment,
                )
                subjects = {
                    copies: OnPool(stack, options, servers, copies, processor=processors[0], kind="writes")
                    for copies in (1, 2)
                }
                far_rows(options, delay, servers, subjects)


def far_rows(options, delay, servers, subjects):
    figures = {1: [], 2: []}
    for number in range(options.rounds + 1):
        for copies in (1, 2) if number % 2 == 0 else (2, 1):
            client = subjects[copies].process.pid
            pids = [client, *servers.pids]
            before = [places.processor_s(pid) for pid in pids]
            times = subjects[copies].measure(options.seconds)["write"]
            used = [(places.processor_s(pid) - s) * 1e6 / times["count"] for pid, s in zip(pids, before)]
            note(options, delay_us=delay, copies=copies, client_us=used[0], servers_us=sum(used[1:]), **times)
            if number > 0:  # the first round warms up
                figures[copies].append((times["p50"], used[0], sum(used[1:])))
    p50, client, server = ({copies: [one[i] for one in figures[copies]] for copies in (1, 2)} for i in range(3))
    ratios = [two / one for one, two in zip(p50[1], p50[2])]
    print(f"  {delay} us away each way: one copy {median(p50[1])}, two {median(p50[2])}, ratio {median(ratios)}")
    print(
        f"    processor time a write: client {median(client[1])} and {median(client[2])}, "
        f"all servers {median(server[1])} and {median(server[2])}"
    )
    if delay == 0:
        apart = [1 + (two - one) / p for p, one, two in zip(p50[1], client[1], client[2])]
        print(f"    reckoned for servers on processors of their own (client's extra time alone): {median(apart)}")


def main():
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("row", nargs="?")
    parser.add_argument("--nram", default=f"{BIN}/tools/nram/nram")
    parser.add_argument("--bench", default=f"{BIN}/experiments/nram-bench-copies")
    for name, value in (("rounds", 5), ("seconds", 3), ("mib", 1024), ("threads", 1), ("files", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--door", default="mount,pool")
    parser.add_argument("--delays", default="0,50,100,200")
    for switch in ("tcp", "steady", "json", "help"):
        parser.add_argument(f"--{switch}", action="store_true")
    options = parser.parse_args()
    if options.help or options.row is None:
        print(__doc__, end="")
        sys.exit(0 if options.help else 2)
    rows = {"repair-latency": None, "repair-speed": repair_speed, "small-files": small_files, "far": far}
    if options.row not in rows:
        parser.error(f"there is no row {options.row}: expected one of {', '.join(rows)}")
    doors = options.door.split(",")
    if not set(doors) <= {"mount", "pool"}:
        parser.error("--door: expected some of mount, pool")
    options.delays = [int(word) for word in options.delays.split(",")]
    options.nram = os.path.abspath(options.nram)
    options.bench = os.path.abspath(options.bench)
    catch_signals()
    try:
        places.in_own_namespace()
        if available_bytes() < (3 * options.mib + 2048) * MIB:
            raise Failure(f"needs {3 * options.mib + 2048} MiB of free memory")
        with places.steady_memory() if options.steady else contextlib.nullcontext():
            what = machine(options.nram)
            print(", ".join(f"{name} {value}" for name, value in what.items()))
            if options.row == "repair-latency":
                for door in doors:
                    repair_latency(options, door)
            else:
                rows[options.row](options)
    except (Failure, OSError, subprocess.TimeoutExpired) as failure:
        print(f"copies_rows.py: {failure}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
