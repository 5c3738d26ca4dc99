"""The surroundings of copies_rows.py and gluster_rows.py: memory servers that count as hosts of their own, and that the
rows can kill and start again; mounts on them; and memory that this machine's host leaves alone."""

import contextlib
import glob
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time

from bench_places import (
    MIB,
    Failure,
    available_bytes,
    later,
    let_go_of_mounts,
    remove_state,
    run,
    say,
    uninterrupted,
)

REPORTING = "/sys/module/page_reporting/parameters"


def in_own_namespace(*kinds):
    """Starts this program again in namespaces of its own, so that no other program keeps its mounts. Needs root."""
    if os.geteuid() != 0:
        raise Failure("mounts here need root")
    if not os.environ.pop("NRAM_BENCH_NAMESPACE", None):
        os.environ["NRAM_BENCH_NAMESPACE"] = "yes"
        sys.stdout.flush()
        words = ["unshare", "--mount", "--propagation=private", *kinds, sys.executable, *sys.argv]
        if "--fork" not in kinds:
            os.execvp("unshare", words)
        # unshare itself does not hear signals while it waits.
        process = subprocess.Popen(words)

        def pass_on(number, _):
            for child in run("ps", "-o", "pid=", "--ppid", str(process.pid), check=False).split():
                os.kill(int(child), number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, pass_on)
        sys.exit(process.wait())
    let_go_of_mounts()


def await_that(seconds, what, is_so):
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            raise Failure(f"{what} did not come within {seconds} s")
        time.sleep(0.05)


def processor_ns(pid):
    """Processor time of the process's live threads, ns."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with contextlib.suppress(OSError), open(path) as file:
            total += int(file.read().split()[0])
    return total


def processor_s(pid):
    """Processor time of all its threads, ended ones included, in seconds with two decimals."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    """The process's own memory, without files."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))


class Servers:
    """The pool of `nram up --pretend-hosts`; a killed server can be started again on its port. Close it by `stack`."""

    flags = ()  # for its clients

    def __init__(self, stack, nram, count, donate_mib, prefix=(), environment=None, tcp=False):
        self.nram = nram
        # A Unix socket's path must be short. A long one leaves only TCP.
        self.directory = tempfile.mkdtemp(prefix="nram-bench-" + ("over-tcp-" * 10 if tcp else ""), dir="/tmp")
        later(stack, remove_state, self.directory)
        os.environ["NRAM_STATE_DIR"] = f"{self.directory}/state"
        for name in ("NRAM_POOL", "NRAM_COPIES"):
            os.environ.pop(name, None)
        self.again = {}  # processes that were started again, by number
        later(stack, self.end)
        words = [*prefix, nram, "up", f"--servers={count}", f"--donate={donate_mib}M", "--pretend-hosts"]
        with uninterrupted():
            done = subprocess.run(
                words, capture_output=True, text=True, env={**os.environ, **(environment or {})}, timeout=60
            )
        if done.returncode != 0:
            raise Failure(f"{' '.join(words)}: {done.stderr.strip()}")
        self.pids, self.ports = [], []
        for number in range(count):
            with open(f"{self.directory}/state/{number}.pid") as file:
                server = json.load(file)
            self.pids.append(server["pid"])
            self.ports.append(server["control_port"])
        self.words = [self.command(pid) for pid in self.pids]

    @staticmethod
    def command(pid):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode().split("\0")[:-1]

    def address(self, number):
        # A pool on this machine has Unix sockets, if their paths are short enough.
        port = self.ports[number]
        return f"127.0.0.1:{port}" if port else f"unix:{self.directory}/state/{number}.socket"

    @property
    def spec(self):
        return ",".join(self.address(number) for number in range(len(self.ports)))

    def kill(self, number):
        pid = self.pids[number]
        process = self.again.pop(number, None)
        os.kill(pid, signal.SIGKILL)
        if process:
            process.wait()
        else:
            await_that(60, f"the end of server {number}", lambda: not os.path.exists(f"/proc/{pid}/exe"))

    def start_again(self, number):
        ready, log = f"{self.directory}/again.ready", f"{self.directory}/again.log"
        words = [word for word in self.words[number] if not word.startswith(("--port=", "--ready-file="))]
        words = [word for word in words if not word.startswith("--data-port=")]
        words += [f"--port={self.ports[number]}", "--data-port=0", f"--ready-file={ready}"]
        until = time.monotonic() + 60
        # Another program's connection may have the port for a while.
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(ready)
            with uninterrupted(), open(log, "w") as file:
                process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
                self.again[number], self.pids[number] = process, process.pid
            await_that(30, f"server {number}", lambda: os.path.exists(ready) or process.poll() is not None)
            if process.poll() is None:
                return
            if time.monotonic() > until:
                with open(log) as file:
                    raise Failure(f"server {number} does not start again: {file.read()[-500:]}")
            time.sleep(0.2)

    def end(self):
        for process in self.again.values():
            process.terminate()
            process.wait(timeout=30)
        run(self.nram, "down", check=False)

    def status(self, number=None):
        pool = self.spec if number is None else self.address(number)
        return json.loads(run(self.nram, "status", "--json", f"--pool={pool}", check=False))

    def copies(self):
        return self.status()["copies"]

    def await_whole(self, spans, seconds=180):
        """Waits until at least this number of spans have all their copies."""

        def is_whole():
            copies = self.copies()
            return copies["in_sync"] >= spans and copies["left"] == 0 and copies["lost"] == 0

        await_that(seconds, "a pool with all copies", is_whole)


class SecureServers:
    """Servers with certificates, on TCP alone. Close it by `stack`."""

    def __init__(self, stack, nram, count, donate_mib):
        self.nram = nram
        self.directory = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
        later(stack, remove_state, self.directory)
        keys = f"{self.directory}/keys"
        run(nram, "keygen", keys, "--host=127.0.0.1")
        self.flags = [f"--tls-dir={keys}", "--seal"]
        binary = f"{os.path.dirname(os.path.realpath(nram))}/../../memserver/nram-memserver"
        program = binary if os.path.exists(binary) else "nram-memserver"
        self.ports = []
        for number in range(count):
            ready = f"{self.directory}/{number}.ready"
            words = [program, f"--donate={donate_mib}M", "--port=0", f"--tls-dir={keys}", f"--ready-file={ready}"]
            words += [f"--pretend-host=host{number}"]
            with uninterrupted(), open(f"{self.directory}/{number}.log", "w") as file:
                process = subprocess.Popen(words, stdout=file, stderr=file, start_new_session=True)
            later(stack, self.end, process)
            await_that(30, f"server {number}", lambda: os.path.exists(ready) or process.poll() is not None)
            if process.poll() is not None:
                with open(f"{self.directory}/{number}.log") as file:
                    raise Failure(f"server {number} does not start: {file.read()[-500:]}")
            with open(ready) as file:
                self.ports.append(json.load(file)["control_port"])

    @property
    def spec(self):
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def copies(self):
        said = run(self.nram, "status", "--json", f"--pool={self.spec}", self.flags[0], check=False)
        return json.loads(said)["copies"]

    @staticmethod
    def end(process):
        process.terminate()
        process.wait(timeout=30)


class Mount:
    def __init__(self, nram, pool, *flags):
        self.nram, self.words = nram, [nram, "mount", f"--pool={pool}", *flags]

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
        pid_file = f"{self.path}.pid"
        try:
            with uninterrupted():
                run(*self.words, f"--pid-file={pid_file}", self.path)
                with open(pid_file) as file:
                    self.pid = int(file.read())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with uninterrupted():
            with contextlib.suppress(Failure):
                run(self.nram, "umount", "--lazy", self.path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self.path}.pid")
            os.rmdir(self.path)


def write_file(path, mib):
    """Random bytes, because zeros would not be stored."""
    block = memoryview(os.urandom(8 * MIB))
    with open(path, "wb", buffering=0) as file:
        for at in range(0, mib, 8):
            file.write(block[: min(8, mib - at) * MIB])
        os.fsync(file.fileno())


def touch_memory():
    """Touches all free memory but 2 GiB, once."""
    held = []
    while available_bytes() > 2560 * MIB:
        piece = mmap.mmap(-1, 256 * MIB)
        with contextlib.suppress(OSError):
            piece.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, 256 * MIB, 4096):
            piece[at] = 1
        held.append(piece)
    for piece in held:
        piece.close()


@contextlib.contextmanager
def steady_memory():
    """Meanwhile the kernel gives no free memory back to this machine's host, and all of it has been touched."""
    with contextlib.ExitStack() as stack:
        if not os.path.exists(REPORTING):
            say("this kernel gives no free memory back, or has no parameters for it: memory is touched once")
        for name, value in (("page_reporting_order", "11"), ("min_free_ms", "60000")):
            path = f"{REPORTING}/{name}"
            if not os.path.exists(path):
                continue
            with open(path) as file:
                before = file.read().strip()
            later(stack, write, path, before)
            write(path, value)
        say("touching all free memory")
        touch_memory()
        yield


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
