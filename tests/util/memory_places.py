"""Places for the jobs of memory_bench.py and of swap_bench.py: with swap on the disk or in the pool, beside a
file on the disk. Each place is a context manager that always cleans up behind itself."""

import contextlib
import json
import mmap
import os
import shutil
import sys
import tempfile

from bench_places import (
    MIB,
    Failure,
    MemoryCgroup,
    attach,
    available_bytes,
    later,
    loop_device,
    remove,
    run,
    uninterrupted,
)

SWAP_PRIORITY = 32000  # above whatever swap there is


@contextlib.contextmanager
def limited(size):
    """A new memory cgroup for one job that swaps; so its peak is that job's alone."""
    with contextlib.ExitStack() as stack:
        with uninterrupted():
            cgroup = MemoryCgroup("nram-memory-bench")
            later(stack, cgroup.close)
        if cgroup.path is None:
            raise Failure("no memory cgroup could be made; that needs root and its controller, v1 or v2")
        cgroup.limit(size)
        cgroup.swap_eagerly()
        yield cgroup


def peak_bytes(cgroup):
    """The cgroup's peak memory; None if the kernel does not report it."""
    name = "memory.max_usage_in_bytes" if cgroup.v1 else "memory.peak"
    with contextlib.suppress(OSError), open(f"{cgroup.path}/{name}") as file:
        return int(file.read())
    return None


def make_file(path, size):
    """A file without holes that only root may read."""
    block = bytes(MIB)
    with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        for _ in range(0, size, MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def swapped_bytes(device):
    """Bytes swapped to it now; None if it is no swap area."""
    with open("/proc/swaps") as file:
        for line in file.readlines()[1:]:
            words = line.split()
            if words[0] == device:
                return int(words[3]) * 1024
    return None


@contextlib.contextmanager
def swap_on(device):
    """Has the kernel swap to it, before all other areas."""

    def off():
        if swapped_bytes(device) is None:
            return
        run("swapoff", device)

    with contextlib.ExitStack() as stack:
        run("mkswap", device)
        later(stack, off)
        run("swapon", f"--priority={SWAP_PRIORITY}", device)
        yield device


@contextlib.contextmanager
def disk_swap(directory, size, megabytes=0):
    """Swap on the disk of `directory`; `megabytes` a second if not 0. Yields the device that is swapped to."""
    path = f"{os.path.realpath(directory)}/nram-bench-{os.getpid()}.swap"  # as in /proc/swaps

    def remove_unless_used():
        if swapped_bytes(path) is not None:
            raise Failure(f"swapoff failed: {path} is still swapped to. Do `swapoff {path}`, then remove it")
        remove(path)

    with contextlib.ExitStack() as stack:
        later(stack, remove_unless_used)
        make_file(path, size)
        device = path
        if megabytes:
            # The kernel does not slow down its own writes to a swap area: the area is on a device above.
            device = attach(stack, stack.enter_context(loop_device(path, megabytes)))
        stack.enter_context(swap_on(device))
        yield device


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
def pool_swap(nram, size, *flags):
    """Swap in the pool, without the daemon's protection where the privilege for it is missing. Yields its device."""
    name = f"bench-{os.getpid()}"
    # The pool's servers are on this machine.
    words = [nram, "swapon", "--force", f"{size // MIB}M", f"--name={name}", f"--priority={SWAP_PRIORITY}", *flags]

    def area():
        return next((area for area in json.loads(run(nram, "swaps", "--json")) if area["name"] == name), None)

    def off():
        if area() is None:
            return
        try:
            run(nram, "swapoff", name)
        except Failure:
            run(nram, "swapoff", name, "--force")

    with contextlib.ExitStack() as stack:
        later(stack, off)
        with uninterrupted():
            try:
                run(*words)
            except Failure as failure:
                if "CAP_SYS_RESOURCE" not in str(failure):
                    raise
                print("no CAP_SYS_RESOURCE here: swap without the daemon's protection", file=sys.stderr)
                run(*words, "--unprotected")
        yield area()["device"]


def touch_memory(size):
    """Touches memory once: the first touch of a virtual machine's memory is slow, later ones are not."""
    size = min(size, available_bytes() // 2) // MIB * MIB
    block = b"\1" * MIB
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for at in range(0, size, MIB):
            memory[at : at + MIB] = block
