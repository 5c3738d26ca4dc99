"""Places that name a pool's servers, and may be away: etcd, a host file, DNS; and servers for them."""

import json
import os
import signal
import socket
import subprocess
import threading
import time

from bench_places import Failure

START_S = 30
LEAVE_S = 90  # until a server that ends in order has left
LOOK_S = 0.1
NAME = "pool.test"


def free_port(kind=socket.SOCK_STREAM, address="127.0.0.1"):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


class Etcd:
    """A real one, of Debian's etcd-server. Servers register by themselves."""

    lists = False  # whether a running server's name can be removed
    bridged = True  # commands that start while it is away use the cached servers
    servers = 3

    def __init__(self, directory):
        self.directory = f"{directory}/etcd"
        os.mkdir(self.directory)
        self.frozen = False
        self.host = f"127.0.0.1:{free_port()}"
        words = ["etcd", "--name=t", "--data-dir=data", f"--listen-client-urls=http://{self.host}",
                 f"--advertise-client-urls=http://{self.host}"]
        # Unix sockets in that directory.
        words += [f"--{flag}=unix://localhost:1" for flag in ("listen-peer-urls", "initial-advertise-peer-urls")]
        with open(f"{directory}/etcd.log", "w") as log:
            self.process = subprocess.Popen([*words, "--initial-cluster=t=unix://localhost:1"], cwd=self.directory,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.spec = f"etcd:{self.host}/{NAME}"
        until = time.monotonic() + START_S
        while self.control("endpoint", "health").returncode != 0:
            if self.process.poll() is not None or time.monotonic() > until:
                self.close()
                with open(log.name) as log:
                    raise Failure(f"etcd does not start: {log.read()[-1000:]}")
            time.sleep(LOOK_S)

    def control(self, *words):
        words = ["etcdctl", f"--endpoints={self.host}", *words]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=START_S)

    def address(self, _):
        return "127.0.0.1", 0

    def server_flags(self):
        return [f"--register={self.spec}"]

    def add(self, address):
        """Adds, beside the server's own key, values over which no client may stumble."""
        if self.frozen:
            return
        prefix = f"/nram/{NAME}/servers"
        for key, value in ((f"{prefix}/wrong", "{"), (f"{prefix}/{address}0", '{"address": "unix:/etc/passwd"}')):
            done = self.control("put", key, value)
            if done.returncode != 0:
                raise Failure(f"etcdctl put: {done.stderr}")

    def remove(self, address):
        pass

    def freeze(self):
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)
        self.frozen = False

    def close(self):
        self.process.kill()
        self.process.wait(timeout=START_S)


class HostFile:
    """A file that the test writes."""

    lists = True
    bridged = False
    servers = 3

    def __init__(self, directory):
        self.path = f"{directory}/hosts"
        self.names = []
        self.spec = f"@{self.path}"
        self.write()

    def write(self):
        with open(f"{self.path}.new", "w") as file:
            file.write("# by name\n" + "\n".join(self.names) + "\n")
        os.rename(f"{self.path}.new", self.path)

    def address(self, _):
        return "127.0.0.1", 0

    def server_flags(self):
        return []

    def add(self, address):
        self.names.append(address)
        self.write()

    def remove(self, address):
        self.names.remove(address)
        self.write()

    def close(self):
        pass


class Dns(HostFile):
    """A name whose addresses are all servers. While it flaps, every second answer lacks one, or is an error, or is
    missing."""

    bridged = True
    servers = 4  # one leaves, another one is not named: two must be left for a program that starts just then

    def __init__(self, directory):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        os.environ["NRAM_DNS_SERVERS_FOR_TEST"] = "127.0.0.1:%d" % self.socket.getsockname()[1]
        super().__init__(directory)
        self.port = free_port()
        self.spec = f"dns:{NAME}:{self.port}"
        self.flaps = False
        self.asked = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def address(self, number):
        return f"127.78.{number // 250}.{number % 250 + 1}", self.port

    def serve(self):
        while True:
            try:
                question, asker = self.socket.recvfrom(512)
            except OSError:
                return
            answer = self.answer(question)
            if answer:
                self.socket.sendto(answer, asker)

    def answer(self, question):
        """RFC 1035."""
        end = question.index(0, 12) + 1
        is_a = question[end : end + 2] == b"\0\1"
        names = list(self.names)
        code = 0
        if self.flaps and is_a:
            self.asked += 1
            turn = self.asked % 10
            if turn in (1, 3):
                names.pop(self.asked % len(names))
            code = {5: 3, 7: 2}.get(turn, 0)  # no such name, server failure
            if turn == 9:
                return None
        hosts = [name.split(":")[0] for name in names] if is_a and code == 0 else []
        header = question[:2] + bytes([0x81, 0x80 | code, 0, 1, 0, len(hosts), 0, 0, 0, 0])
        records = [b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(host) for host in hosts]
        return header + question[12 : end + 4] + b"".join(records)

    def freeze(self):
        self.flaps = True

    def thaw(self):
        self.flaps = False

    def close(self):
        self.socket.close()


SOURCES = {"etcd": Etcd, "hosts": HostFile, "dns": Dns}


class Server:
    """Its name is not in the source before add()."""

    def __init__(self, memserver, directory, number, donate_mib, source, *flags):
        self.number = number
        self.log = f"{directory}/server{number}.log"
        ready = f"{directory}/server{number}.ready"
        listen, port = source.address(number)
        words = [memserver, f"--donate={donate_mib}M", f"--listen={listen}", f"--port={port}", "--data-port=0",
                 "--allow-unauthenticated", "--tls-dir=none", f"--pretend-host=joins-{number}",
                 f"--ready-file={ready}", f"--leave-within-ms={1000 * LEAVE_S}",
                 *source.server_flags(), *flags]
        self.started = time.monotonic()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        until = time.monotonic() + START_S
        while not os.path.exists(ready):
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise Failure(f"server {number} does not start: {self.said()}")
            time.sleep(0.02)
        with open(ready) as file:
            ports = json.load(file)
        self.address = f"{listen}:{ports['control_port']}"
        self.metrics_port = ports["metrics_port"]

    def said(self):
        with open(self.log) as log:
            return log.read()[-1000:]

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=START_S)
