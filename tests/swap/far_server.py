"""A memory server behind a network of its own, which can be cut: in a network namespace, at the end of a veth pair."""

import json
import os
import socket
import subprocess
import time

from bench_places import Failure, run


def ip(*words, check=True):
    run("ip", *words, check=check, timeout=60)


class FarServer:
    # An address of 198.18.0.0/15, which is for tests of networks (RFC 2544).
    near, far = "198.18.77.1", "198.18.77.2"

    def __init__(self, program, directory, donate_mib, *flags):
        self.name = f"nram-far-{os.getpid()}"
        self.link = f"nram{os.getpid() % 1_000_000}"
        self.process = None
        ready = f"{directory}/far-server-{time.monotonic_ns()}.json"
        log = f"{directory}/far-server.log"
        ip("netns", "add", self.name)
        try:
            ip("link", "add", self.link, "type", "veth", "peer", "name", "far0", "netns", self.name)
            ip("address", "add", f"{self.near}/30", "dev", self.link)
            ip("link", "set", self.link, "up")
            ip("-n", self.name, "address", "add", f"{self.far}/30", "dev", "far0")
            self.restore()
            with open(log, "w") as errors:
                self.process = subprocess.Popen(
                    ["ip", "netns", "exec", self.name, program, f"--donate={donate_mib}M", f"--listen={self.far}"]
                    + ["--port=0", "--data-port=0", "--allow-unauthenticated", f"--ready-file={ready}", *flags],
                    stderr=errors,
                    start_new_session=True,
                )
            until = time.monotonic() + 20
            while not os.path.exists(ready):
                if self.process.poll() is not None or time.monotonic() > until:
                    with open(log) as said:
                        raise Failure(f"the far server does not start: {said.read()}")
                time.sleep(0.02)
            with open(ready) as file:
                port = json.load(file)["control_port"]
            self.address = f"{self.far}:{port}"
            socket.create_connection((self.far, port), timeout=20).close()  # when the link is up
        except BaseException:
            self.close()
            raise

    def cut(self, silently=False, answers=False):
        """Cuts at the cable, which this side's kernel sees. Or `silently`: packets to the other side are lost; or
        `answers`: packets from it are lost."""
        nobody = ("lladdr", "02:00:00:00:00:01", "nud", "permanent")
        if silently:
            ip("neighbour", "replace", self.far, "dev", self.link, *nobody)
        elif answers:
            ip("-n", self.name, "neighbour", "replace", self.near, "dev", "far0", *nobody)
        else:
            ip("-n", self.name, "link", "set", "far0", "down")

    def restore(self):
        ip("-n", self.name, "link", "set", "far0", "up")
        ip("neighbour", "delete", self.far, "dev", self.link, check=False)
        ip("-n", self.name, "neighbour", "delete", self.near, "dev", "far0", check=False)

    def close(self):
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        # A namespace may live on for a while for its sockets, and would keep its end of the link.
        ip("link", "delete", self.link, check=False)
        ip("netns", "delete", self.name, check=False)
