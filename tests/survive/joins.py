#!/usr/bin/python3
"""The long proof of members: do programs see an error, or a wrong byte, while servers join the pool and leave it?

usage: tests/survive/joins.py NRAM [--only=etcd,hosts,dns] [--doors=mount,memory,sort,run]
                [--times=N] [--away-seconds=N] [--seed=N] [--mib=N] [--array=PROGRAM] [--memserver=PROGRAM]
                [--workout=PROGRAM] [--hold]

NRAM is the program (bazel-bin/tools/nram/nram). Each scenario has a pool of three or four servers on this machine,
named by

  etcd   a real etcd, where they register, beside values that are wrong
  hosts  a host file
  dns    a DNS server

and two copies of each page. The exercisers of survive.py use it at all of the doors at once; "run" is a program under
`nram run`, again and again. --times times a server is started, and when all lasting clients use it, another one leaves:
by a signal, by `nram drain`, or because its name is removed from the file or from DNS. It must end empty.

Half way through, the source is away for a while: etcd is frozen (SIGSTOP), and DNS flaps. Meanwhile one server leaves
and another one starts, and new commands use the cached servers. When the source returns, the new server is used.

A scenario fails, and ends, at any error that an exerciser sees, a wrong byte, an operation of more than a minute, a
server that ends with pages, and pages that are left when all doors have ended. Its logs are kept then, and the exit
code is 1. The longest time from a server's start to its use by all is reported, and is no failure. Swap areas are not
among the doors: they keep the servers that they began with. Needs root.
"""

import contextlib
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE]
import survive  # noqa: E402
from bench_places import Failure  # noqa: E402
from joining_pool import JoiningPool  # noqa: E402
from member_places import SOURCES  # noqa: E402
from options import parse_options  # noqa: E402

DONATE_MIB = 512
STAYS = {"mount": 1, "memory": 1, "sort": 0, "run": 0}  # clients that run all the time


class Joining(survive.Scenario):
    def make_pool(self):
        os.environ.update(NRAM_TLS_DIR="none", NRAM_ETCD_TLS_DIR="none", XDG_CACHE_HOME=f"{self.directory}/cache")
        self.pool = JoiningPool(self.options, self.directory, DONATE_MIB, self.look, self.name)
        self.pool.begin()
        return self.pool

    def close_pool(self):
        super().close_pool()
        # A mount that was unmounted lazily writes its knowledge of members once more.
        for pid in self.clients():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def figures(self):
        each = [f"{one.name} {one.operations} operations, {one.pause_ms} ms" for one in self.programs]
        pool = self.pool
        joins = f"{pool.joins} joins, {pool.leaves} leaves, the slowest was used {pool.slowest_s:.2f} s after its start"
        longest = max(self.programs, key=lambda one: one.pause_ms)
        return "; ".join([joins, *each, f"the longest pause was {longest.pause_of}"])

    def way(self):
        by_itself = ["signal", "drain"]
        return self.random.choice([*by_itself, "list", "list"] if self.pool.source.lists else by_itself)

    def change(self, clients):
        old = list(self.pool.servers)
        self.pool.await_used(self.pool.start_one(), clients)
        self.pool.leave(self.random.choice(old), self.way())

    def source_away(self, clients):
        """All doors go on; one server leaves by itself, and one starts that no client learns of."""
        source = self.pool.source
        members = len(self.pool.servers)
        source.freeze()
        back = time.monotonic() + self.options.away_seconds
        try:
            where = self.pool.members()
            # While DNS flaps, chance decides the answer.
            if where["servers"] == 0 or (self.name == "etcd" and (where["answers"] or where["servers"] < members)):
                raise Failure(f"{self.name} is away, and nram df says {where}")
            self.pool.leave(self.random.choice(self.pool.servers), "signal")
            new = self.pool.start_one()
            self.pool.said = f"{self.name} is away"
            self.pool.wait(back - time.monotonic())
        finally:
            source.thaw()
        new.started = time.monotonic()
        self.pool.await_used(new, clients)

    def run_doors(self):
        doors = self.options.doors
        if "mount" in doors:
            self.start_mount(files=1)
        if "memory" in doors:
            self.start_memory(self.options.mib)
        if "sort" in doors:
            self.start_sort(self.options.mib)
        if "run" in doors:
            words = [self.options.nram, self.options.workout, self.options.mib]
            self.start("run", f"{HERE}/exercise_run.py", *words)
        self.begin()
        clients = sum(STAYS[door] for door in doors)
        for number in range(self.options.times):
            if number == self.options.times // 2 and self.pool.source.bridged:
                self.source_away(clients)
            self.change(clients)

    etcd = hosts = dns = run_doors


def main():
    survive.run_all(parse_options(__doc__, list(SOURCES)), dict.fromkeys(SOURCES, Joining))


if __name__ == "__main__":
    main()
