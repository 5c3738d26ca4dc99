"""A Redis server, started by the given command, which keeps MIB mebibytes: redis.py MIB DIRECTORY WORD...

Fills it, asks for all in another order, lets redis-benchmark (-P 16) work on it, saves it (SAVE) and asks for a
background save, which forks. Prints a sum of the answers and the server's own digest of its data. The result of BGSAVE
goes to the standard error, because it may be a refusal.
"""
import hashlib
import os
import socket
import subprocess
import sys
import time

KEYS_AT_ONCE = 200


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(120)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def ask(self, commands):
        parts = []
        for words in commands:
            parts.append(b"*%d\r\n" % len(words))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))
        return [self.answer() for _ in commands]

    def answer(self):
        line = self.file.readline()
        if not line.startswith(b"$"):
            return line.strip()
        return self.file.read(int(line[1:]) + 2)[:-2]


def value(number):
    return b"%d " % (number * 7919) * (40 + number % 20)


def main():
    mib, directory, words = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    path = f"{directory}/redis.{os.getpid()}"
    server = subprocess.Popen([*words, "--port", "0", "--unixsocket", path, "--save", "", "--dir", directory,
                               "--enable-debug-command", "yes", "--daemonize", "no"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while not os.path.exists(path) and server.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        client = Client(path)
        count = mib * (1 << 20) // 650
        for first in range(0, count, KEYS_AT_ONCE):
            client.ask([[b"SET", b"key:%012d" % i, value(i)] for i in range(first, min(count, first + KEYS_AT_ONCE))])
        told = hashlib.sha256()
        for first in range(0, count, KEYS_AT_ONCE):
            keys = [i * 7919 % count for i in range(first, min(count, first + KEYS_AT_ONCE))]
            for answer in client.ask([[b"GET", b"key:%012d" % i] for i in keys]):
                told.update(answer)
        print(told.hexdigest(), flush=True)
        subprocess.run(["redis-benchmark", "-s", path, "-q", "-n", "20000", "-r", str(count), "-P", "16", "GET",
                        "key:__rand_int__"], check=True, stdout=sys.stderr)
        for words, to in (([b"DEBUG", b"DIGEST"], sys.stdout), ([b"SAVE"], sys.stdout), ([b"BGSAVE"], sys.stderr)):
            print(client.ask([words])[0].decode(), file=to, flush=True)
        client.socket.sendall(b"SHUTDOWN NOSAVE\r\n")
        sys.exit(server.wait(60))
    finally:
        server.terminate()


main()
