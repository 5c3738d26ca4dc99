"""The donor of give_back.py and give_back_job.py."""

import time

import copies_places as places
from bench_places import MIB, Failure, MemoryCgroup, drop_caches, later, run

GIVEN_MIB = 1024
STORED_MIB = 1200
RESERVE_MIB = GIVEN_MIB + 128
PATIENCE_S = 60


class Donor:
    """Server 0 of the pool, in a cgroup, and the mount of a client that has stored data there."""

    def __init__(self, stack, options, copies):
        self.servers = places.Servers(stack, options.nram, 2, 4 * GIVEN_MIB)
        self.cgroup = MemoryCgroup("nram-donor")
        later(stack, self.cgroup.close)
        if self.cgroup.path is None:
            raise Failure("no memory cgroup can be made here")
        self.cgroup.limit((STORED_MIB + RESERVE_MIB + 512) * MIB)
        self.servers.kill(0)
        words = [word for word in self.servers.words[0] if not word.startswith("--donate=")]
        join = f'echo $$ > {self.cgroup.path}/cgroup.procs && exec nice -n {options.nice} "$@"'
        words += ["--donate=auto", f"--reserve={RESERVE_MIB}M"]
        self.servers.words[0] = ["sh", "-c", join, "sh", *words]
        self.servers.start_again(0)
        if copies == 1:  # all of it is to be here: the mount must know that from the beginning
            run(options.nram, "drain", self.servers.address(1))
        flags = [f"--copies={copies}", "--seal" if copies == 1 else "--no-seal"]
        self.mount = stack.enter_context(places.Mount(options.nram, self.servers.spec, *flags))
        places.write_file(f"{self.mount.path}/file", STORED_MIB)
        drop_caches()
        if copies == 1:
            run(options.nram, "drain", "--undo", self.servers.address(1))
        self.pid = self.servers.pids[0]

    def give_back(self):
        """Seconds until GIVEN_MIB are given back."""
        before = places.resident_bytes(self.pid)
        if before < STORED_MIB * MIB:
            raise Failure(f"the donor holds {before // MIB} MiB only")
        time.sleep(2)  # the client's walk knows all spans, the mount is idle
        began = time.monotonic()
        self.cgroup.limit(before + 160 * MIB)
        while before - places.resident_bytes(self.pid) < GIVEN_MIB * MIB:
            if time.monotonic() - began > PATIENCE_S:
                given = (before - places.resident_bytes(self.pid)) // MIB
                raise Failure(f"{given} MiB were given back in {PATIENCE_S} s")
            time.sleep(0.005)
        return time.monotonic() - began
