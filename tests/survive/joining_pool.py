"""A pool whose servers join and leave."""

import contextlib
import json
import os
import re
import subprocess
import time

from bench_places import Failure
from killable_pool import KillablePool
from member_places import LEAVE_S, LOOK_S, SOURCES, Server


class JoiningPool(KillablePool):
    """`look` is called all the time while the pool waits; it may raise a Failure."""

    def __init__(self, options, directory, donate_mib, look, source):  # pylint: disable=super-init-not-called
        self.nram, self.memserver, self.directory = options.nram, options.memserver, directory
        self.donate_mib, self.look = donate_mib, look
        self.joins = self.leaves = self.count = 0
        self.slowest_s = 0.0
        self.last = {}  # status
        self.said = "setting up"
        self.servers = []
        self.source = SOURCES[source](directory)
        os.environ["NRAM_POOL"] = self.source.spec

    def begin(self):
        for _ in range(self.source.servers):
            self.start_one()
        self.await_that("all servers are found", lambda: len(self.status().get("servers", [])) == len(self.servers))

    def close(self):
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                server.kill()
        self.source.close()

    def await_that(self, what, is_so, seconds=LEAVE_S):
        until = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > until:
                raise Failure(f"after {seconds} s it is not so that {what}: {json.dumps(self.last)}")
            self.wait(LOOK_S)

    def start_one(self):
        server = Server(self.memserver, self.directory, self.count, self.donate_mib, self.source)
        self.count += 1
        self.servers.append(server)
        self.source.add(server.address)
        return server

    def ask(self, server):
        """The status of one server, asked by its address."""
        words = [self.nram, "status", "--json", f"--pool={server.address}"]
        done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=60)
        with contextlib.suppress(ValueError, KeyError, IndexError):
            return json.loads(done.stdout)["servers"][0]
        return {}

    def await_used(self, server, clients):
        """Waits until all clients use the server."""
        self.said = f"server {server.number} joins"
        self.await_that(f"{clients} clients use server {server.number}",
                        lambda: self.ask(server).get("leases", 0) >= clients)
        self.joins += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - server.started)

    def leave(self, server, way):
        """The server leaves, and ends empty. `way`: "signal", "drain", or "list", which changes its source alone."""
        self.said = f"server {server.number} leaves, by {way}"
        if way == "drain":
            drain = subprocess.Popen([self.nram, "drain", server.address, "--move"], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
            self.await_that(f"server {server.number} is drained", lambda: drain.poll() is not None)
            if drain.returncode != 0:
                raise Failure(f"nram drain of server {server.number}: {drain.stdout.read().decode()[-1000:]}")
        if way == "list":
            self.source.remove(server.address)
            self.await_that(f"server {server.number} is empty", lambda: self.ask(server).get("pages", 1) == 0)
        server.process.terminate()
        self.await_that(f"server {server.number} ends", lambda: server.process.poll() is not None)
        end = re.search(r"ending on signal \d+ with \d+ regions and (\d+) pages", server.said())
        if server.process.returncode != 0 or end is None or end.group(1) != "0":
            raise Failure(f"server {server.number} ends with {server.process.returncode}: {server.said()}")
        self.servers.remove(server)
        self.leaves += 1
        if way != "list":
            self.source.remove(server.address)

    def members(self):
        """The servers that a new command knows."""
        words = [self.nram, "df", "--json"]  # it fails where one does not answer
        done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=60)
        try:
            return json.loads(done.stdout)["members"]
        except ValueError as error:
            raise Failure(f"nram df: {done.stderr}") from error
