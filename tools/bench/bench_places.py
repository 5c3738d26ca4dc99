"""The surroundings of benchmarks, which must leave them as they found them: signals, commands, memory cgroups,
slowed-down loop devices, pools. later() puts each thing that is set up onto an ExitStack, which always undoes it."""

import contextlib
import fcntl
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20


class Failure(Exception):
    """Something cannot be measured; the text is for people."""


# Signals end the program by SystemExit, which closes everything that is open. But they do not end it while it sets
# something up or cleans up, and they end it only once. Python holds them back, not the kernel: the pool's daemons would
# inherit a kernel mask.
_held, _pending, _ended = 0, 0, False


def _end(number):
    global _ended
    _ended = True
    print("\ninterrupted; cleaning up", file=sys.stderr, flush=True)
    sys.exit(128 + number)


def _on_signal(number, _):
    global _pending
    if _held:
        _pending = number
    elif not _ended:
        _end(number)


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
            _end(_pending)


def let_go_of_mounts():
    """For a program in a mount namespace of its own: others' mounts would stay mounted here, and their daemons wait."""
    with open("/proc/mounts", encoding="utf-8") as mounts:
        places = [line.split()[1] for line in mounts if line.split()[2] == "fuse.nram"]
    for place in places:
        subprocess.run(["umount", "-l", place], stderr=subprocess.DEVNULL, check=False)


def later(stack, act, *args, **named):
    """Runs it whole when the stack is closed; prints a failure, which does not stop the rest."""

    def whole():
        with uninterrupted():
            try:
                act(*args, **named)
            except (Failure, OSError) as error:
                print(f"while cleaning up: {error}", file=sys.stderr)

    stack.callback(whole)


def run(*words, check=True, timeout=600):
    """Returns its output. It has a session of its own: Ctrl-C must not hit the commands that clean up."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, start_new_session=True, timeout=timeout)
    except OSError as error:
        raise Failure(f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(words)}: not done after {timeout} s")
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip() or done.returncode}")
    return done.stdout.strip()


def swap_alone(stack, path="/tmp/nram-swap-of-tests.lock", seconds=600):
    """Until the stack is closed, no other test of this machine swaps. Programs of both would have pages in both areas,
    and whoever ends one area brings pages back into the other's full cgroup, where the kernel ends a program for it."""
    lock = open(path, "w")
    stack.callback(lock.close)
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > until:
            raise Failure(f"another test swaps for {seconds} s: it has {path} locked")
        time.sleep(0.2)


def remove(path):
    if os.path.exists(path):
        os.unlink(path)


class MemoryCgroup:
    """Limits the memory, page cache included, of the programs that run in it; v1 or v2. `path` is None where there
    can be no such cgroup."""

    def __init__(self, name="nram-bench"):
        self.path = None
        self.v1 = os.path.isdir("/sys/fs/cgroup/memory")
        base = "/sys/fs/cgroup/memory" if self.v1 else "/sys/fs/cgroup"
        path = f"{base}/{name}-{os.getpid()}"
        self.file = "memory.limit_in_bytes" if self.v1 else "memory.max"
        with contextlib.suppress(OSError):
            if not self.v1:
                # Children have a controller only if their parent hands it on.
                with open(f"{base}/cgroup.subtree_control", "w") as file:
                    file.write("+memory")
        with contextlib.suppress(OSError):
            os.mkdir(path)
            if os.path.exists(f"{path}/{self.file}"):
                self.path = path
            else:
                os.rmdir(path)

    def write(self, name, text):
        with open(f"{self.path}/{name}", "w") as file:
            file.write(text)

    def limit(self, size):
        self.write(self.file, str(size))

    def swap_eagerly(self):
        """Sets the cgroup's swappiness where possible; with v2 the whole machine's vm.swappiness."""
        if self.v1:
            self.write("memory.swappiness", "100")

    def never_swap(self):
        self.write(*(("memory.swappiness", "0") if self.v1 else ("memory.swap.max", "0")))

    def join(self):
        self.write("cgroup.procs", str(os.getpid()))

    def oom_kills(self):
        with open(f"{self.path}/{'memory.oom_control' if self.v1 else 'memory.events'}") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))

    def empty(self):
        """Drops the page cache that is charged to the cgroup."""
        if self.path and self.v1:
            self.write("memory.force_empty", "0")

    def close(self):
        """Ends all programs that still run in it."""
        if not self.path:
            return
        for _ in range(200):
            with open(f"{self.path}/cgroup.procs") as file:
                pids = [int(word) for word in file.read().split()]
            if not pids:
                break
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        with contextlib.suppress(OSError):
            self.empty()
        os.rmdir(self.path)
        self.path = None


BLKIO_LIMITS = [f"/sys/fs/cgroup/blkio/blkio.throttle.{way}_bps_device" for way in ("read", "write")]


def can_throttle():
    return os.geteuid() == 0 and os.path.exists(BLKIO_LIMITS[0])


@contextlib.contextmanager
def loop_device(image, megabytes):
    """A loop device on the file that moves so many MB/s each way."""
    if not can_throttle():
        raise Failure("slowing a disk down needs root and the cgroup v1 controller blkio")

    def throttle(device, speed):
        number = os.stat(device).st_rdev
        for limit in BLKIO_LIMITS:
            with open(limit, "w") as file:
                file.write(f"{os.major(number)}:{os.minor(number)} {speed}")

    with contextlib.ExitStack() as stack:
        device = attach(stack, image)
        later(stack, throttle, device, 0)
        throttle(device, megabytes * 1000000)
        yield device


def attach(stack, image):
    """A loop device on it."""

    def detach():
        for line in run("losetup", "-j", image, check=False).splitlines():
            run("losetup", "-d", line.split(":")[0])

    later(stack, detach)
    return run("losetup", "--find", "--show", "--direct-io=on", image)


def remove_state(directory):
    # Below it are the files of swap areas, also of an area that the kernel would not let go.
    if glob.glob(f"{directory}/state/swap/*/mount"):
        raise Failure(f"a swap area is left; see {directory}/state/swap and `nram swapoff --help`")
    shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def own_pool(nram, size, *flags):
    """A pool of two servers that lend `size` together, beside other programs here; yields its directory."""
    with contextlib.ExitStack() as stack:
        directory = tempfile.mkdtemp(prefix="nram-bench-", dir="/tmp")
        later(stack, remove_state, directory)
        os.environ["NRAM_STATE_DIR"] = f"{directory}/state"
        os.environ.pop("NRAM_POOL", None)
        later(stack, run, nram, "down")
        with uninterrupted():
            run(nram, "up", "--servers=2", f"--donate={max(size // 2 // MIB, 64)}M", *flags)
        yield directory


def drop_caches():
    os.sync()
    if os.geteuid() == 0:
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")


def available_bytes():
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def machine(nram):
    with open("/proc/cpuinfo") as file:
        lines = (line.split(":")[1].strip() for line in file if line.startswith("model name"))
        model = next(lines, "unknown processor")
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) * 1024
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30)),
        "kernel": os.uname().release,
        "date": time.strftime("%Y-%m-%d"),
        "version": run(nram, "--version"),
    }


def say(text):
    """Shows progress: on a terminal, over the last line."""
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)
