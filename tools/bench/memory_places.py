"""Where the jobs of memory_bench.py run: in a memory cgroup, with swap on the disk or in the pool, beside a file on the
disk. Each place is a context manager that leaves nothing behind, however it is left."""

import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from bench_dirs import MIB, MemoryCgroup

SWAP_PRIORITY = 32000  # above whatever swap there is


class Failure(Exception):
    pass


# Signals end the program by SystemExit, so that what is open is closed; but not in the middle of setting something up
# or of cleaning up, and once only. Held back here, not in the kernel: the pool's daemons would inherit that.
_held, _pending, _ended = 0, False, False


def _end():
    global _ended
    _ended = True
    sys.exit("\nmemory_bench.py: interrupted; everything is cleaned up")


def _on_signal(*_):
    global _pending
    if _held:
        _pending = True
    elif not _ended:
        _end()


def catch_signals():
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, _on_signal)


@contextlib.contextmanager
def uninterrupted():
    global _held
    _held += 1
    try:
        yield
    finally:
        _held -= 1
        if _pending and not _held and not _ended:
            _end()


def later(stack, act, *args, **named):
    """Does it when the stack is closed, and does it whole."""

    def whole():
        with uninterrupted():
            act(*args, **named)

    stack.callback(whole)


def run(*words, check=True):
    """Its output. In a session of its own: Ctrl-C must not hit the commands that clean up."""
    done = subprocess.run(words, capture_output=True, text=True, start_new_session=True)
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout.strip()


class Cgroup(MemoryCgroup):
    """That of `nram bench`, for jobs that swap, and the most that a job used of it."""

    def limit(self, size):
        self.empty()
        super().limit(size)
        if self.v1:
            self.write("memory.swappiness", "100")
            self.write("memory.max_usage_in_bytes", "0")
        elif os.path.exists(f"{self.path}/memory.peak"):
            with contextlib.suppress(OSError):  # since Linux 6.12
                self.write("memory.peak", "0")

    def peak(self):
        name = "memory.max_usage_in_bytes" if self.v1 else "memory.peak"
        with contextlib.suppress(OSError), open(f"{self.path}/{name}") as file:
            return int(file.read())
        return None

    def write(self, name, text):
        with open(f"{self.path}/{name}", "w") as file:
            file.write(text)

    def close(self):
        if not self.path:
            return
        for _ in range(100):
            with open(f"{self.path}/cgroup.procs") as file:
                pids = [int(word) for word in file.read().split()]
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        super().close()


def remove(path):
    if os.path.exists(path):
        os.unlink(path)


def make_file(path, size):
    """A file without holes that only root may read."""
    block = bytes(MIB)
    with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        for _ in range(0, size, MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def loop_device(image, megabytes):
    """A loop device on the file that moves so many MB/s each way."""
    limits = [f"/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device" for way in ("read", "write")]
    if not os.path.exists(limits[0]):
        raise Failure("--disk-mbps needs the cgroup v1 controller blkio, which is not here")

    def throttle(device, speed):
        status = os.stat(device)
        for limit in limits:
            with open(limit, "w") as file:
                file.write(f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)} {speed}")

    def detach():
        for line in run("losetup", "-j", image, check=False).splitlines():
            run("losetup", "-d", line.split(":")[0], check=False)

    with contextlib.ExitStack() as stack:
        later(stack, detach)
        device = run("losetup", "--find", "--show", "--direct-io=on", image)
        later(stack, throttle, device, 0)
        throttle(device, megabytes * 1000000)
        yield device


@contextlib.contextmanager
def disk_swap(directory, size, megabytes):
    """Swap on the disk of `directory`; `megabytes` a second if not 0."""
    path = f"{directory}/nram-memory-bench-{os.getpid()}.swap"
    with contextlib.ExitStack() as stack:
        later(stack, remove, path)
        make_file(path, size)
        device = stack.enter_context(loop_device(path, megabytes)) if megabytes else path
        run("mkswap", device)
        later(stack, run, "swapoff", device, check=False)
        run("swapon", f"--priority={SWAP_PRIORITY}", device)
        yield None


@contextlib.contextmanager
def disk_directory(directory, size, megabytes):
    """A directory on the disk of `directory`, with room for a file of that size; `megabytes` a second if not 0."""
    with contextlib.ExitStack() as stack:
        work = tempfile.mkdtemp(prefix="nram-memory-bench-", dir=directory)
        later(stack, shutil.rmtree, work, ignore_errors=True)
        if megabytes:
            image = f"{work}/image"
            make_file(image, size + size // 16 + 64 * MIB)
            device = stack.enter_context(loop_device(image, megabytes))
            run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
            os.mkdir(f"{work}/mount")
            later(stack, run, "umount", "-l", f"{work}/mount", check=False)
            run("mount", device, f"{work}/mount")
            work = f"{work}/mount"
        yield work


@contextlib.contextmanager
def pool_swap(nram, size):
    """Swap in the pool, without the daemon's protection where the privilege for it is missing."""
    name = f"memory-bench-{os.getpid()}"
    words = [nram, "swapon", f"{size // MIB}M", f"--name={name}", f"--priority={SWAP_PRIORITY}"]

    def off():
        done = subprocess.run([nram, "swapoff", name], capture_output=True, start_new_session=True)
        if done.returncode != 0:
            run(nram, "swapoff", name, "--force", check=False)

    with contextlib.ExitStack() as stack:
        later(stack, off)
        with uninterrupted():
            try:
                run(*words)
            except Failure as failure:
                if "CAP_SYS_RESOURCE" not in str(failure):
                    raise
                run(*words, "--unprotected")
        yield None


@contextlib.contextmanager
def own_pool(nram, size):
    """A pool of two servers that lend `size` together, beside whatever runs here."""
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="nram-memory-bench-", dir="/tmp")
        later(stack, shutil.rmtree, directory, ignore_errors=True)
        os.environ["NRAM_STATE_DIR"] = f"{directory}/state"
        os.environ.pop("NRAM_POOL", None)
        later(stack, run, nram, "down", check=False)
        with uninterrupted():
            run(nram, "up", "--servers=2", f"--donate={max(size // 2 // MIB, 64)}M")
        yield None


def touch_memory(size):
    """The first touch of a virtual machine's memory is slow; what was touched once, this machine has."""
    with open("/proc/meminfo") as file:
        available = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    size = min(size, available // 2) // MIB * MIB
    block = b"\1" * MIB
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, size, MIB):
            memory[at : at + MIB] = block


def drop_caches():
    os.sync()
    if os.geteuid() == 0:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
