"""A local pool of `nram up` whose servers are killed and started again, and its reports of its copies."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time

from bench_places import Failure, run

START_S = 30
WHOLE_S = 180
EMPTY_S = 30
# A status reports the clients' state some seconds ago. Until a pool has reported itself whole for this time, the next
# server must live.
SURELY_S = 3
LOOK_S = 0.3


class KillablePool:
    """`look` is called all the time while the pool waits; it may raise a Failure."""

    def __init__(self, nram, directory, servers, donate_mib, look):
        self.nram = nram
        self.state = f"{directory}/state"
        self.look = look
        self.kills = 0
        self.restarted = {}  # processes, by the number of the server
        self.last = {}  # status
        self.said = "setting up"
        run(nram, "up", f"--servers={servers}", "--pretend-hosts", f"--donate={donate_mib}M")
        self.numbers = list(range(servers))

    def close(self):
        run(self.nram, "down")
        for process in self.restarted.values():
            process.wait(timeout=10)

    def server(self, number):
        with open(f"{self.state}/{number}.pid") as file:
            return json.load(file)

    def wait(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(min(0.1, seconds))

    def kill(self, number):
        """Returns the command and environment that start it again."""
        server = self.server(number)
        with open(f"/proc/{server['pid']}/cmdline") as file:
            words = file.read().split("\0")[:-1]
        with open(f"/proc/{server['pid']}/environ") as file:
            environment = dict(line.split("=", 1) for line in file.read().split("\0") if "=" in line)
        # The same address; clients learn the data port from the server.
        words = [word for word in words if not word.startswith(("--port=", "--data-port="))]
        words += [f"--port={server['control_port']}", "--data-port=0"]
        end = os.pidfd_open(server["pid"])
        os.kill(server["pid"], signal.SIGKILL)
        self.kills += 1
        # Its kernel frees its memory first: until then it has its ports.
        ended, _, _ = select.select([end], [], [], START_S)
        os.close(end)
        if not ended:
            raise Failure(f"server {number} does not end")
        if number in self.restarted:
            self.restarted.pop(number).wait(timeout=START_S)
        return words, environment

    def start(self, number, words, environment):
        ready = f"{self.state}/{number}.ready"
        with open(f"{self.state}/{number}.log", "a") as log:
            process = subprocess.Popen(
                words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.restarted[number] = process
        with open(f"/proc/{process.pid}/stat") as file:
            started = int(file.read().rsplit(")", 1)[1].split()[19])
        pid = {**self.server(number), "pid": process.pid, "start_time": started}
        with open(f"{self.state}/{number}.pid.new", "w") as file:
            json.dump(pid, file)
        os.rename(f"{self.state}/{number}.pid.new", f"{self.state}/{number}.pid")
        until = time.monotonic() + START_S
        while not os.path.exists(ready):
            if process.poll() is not None or time.monotonic() > until:
                with open(f"{self.state}/{number}.log") as log:
                    raise Failure(f"server {number} does not start again: {log.read()[-1000:]}")
            self.look()
            time.sleep(0.02)
        os.unlink(ready)

    def status(self):
        """The status of all servers; {} if there is no answer at all."""
        done = subprocess.run(
            [self.nram, "status", "--json"], capture_output=True, text=True, start_new_session=True, timeout=60
        )
        with contextlib.suppress(ValueError):
            self.last = json.loads(done.stdout)
            copies = self.last["copies"]
            if copies["lost"] > 0:
                raise Failure(f"the pool says that {copies['lost']} spans are lost")
            return self.last
        return {}

    def is_whole(self, spans, clients):
        """At least `spans` spans, all in sync, and at least `clients` clients at each server."""
        status = self.status()
        if not status:
            self.said = "no status"
            return False
        copies, servers = status["copies"], status["servers"]
        silent = sum(not server["answers"] for server in servers)
        without = sum(server.get("leases", 0) < clients for server in servers)
        missing = copies["degraded"] + copies["repairing"] + copies["moving"]
        self.said = f"{copies['in_sync']} spans in sync, {missing} not" + (f", {silent} silent" if silent else "")
        return silent + without + missing == 0 and copies["in_sync"] >= spans

    def await_empty(self, besides=None):
        """All doors have ended: no server has a page, except the one at the address `besides`."""
        until = time.monotonic() + EMPTY_S
        while True:
            servers = self.status().get("servers", [{}])
            if not any(server.get("pages", 1) for server in servers if server.get("address") != besides):
                return
            if time.monotonic() > until:
                raise Failure(f"pages are left {EMPTY_S} s after all doors have ended: {json.dumps(self.last)}")
            time.sleep(LOOK_S)

    def await_whole(self, spans, clients, surely_s=SURELY_S):
        began, since = time.monotonic(), None
        while True:
            if not self.is_whole(spans, clients):
                since = None
            else:
                since = since or time.monotonic()
                if time.monotonic() - since >= surely_s:
                    return
            if time.monotonic() - began > WHOLE_S:
                raise Failure(f"the pool is not whole after {WHOLE_S} s: {self.said}: {json.dumps(self.last)}")
            self.wait(LOOK_S)
