"""Donors that take their memory back while the pool has no room elsewhere, and while clients go away."""

import contextlib
import json
import os
import signal
import time

from bench_places import MIB, Failure, later, run, uninterrupted
from press_pool import CALM_S, GIVEN_S, HERE, KEPT_MIB, TAKEN, Pressed

FULL = 0.98
LOOK_S = 0.02


class PressedKeeping(Pressed):
    """Mounts whose files know what they hold."""

    def mount_kept(self, name, copies, mib):
        """Returns the exerciser, whose files are on a mount of its own."""
        mount = f"{self.directory}/{name}"
        # One copy moves on this one machine if it is sealed, only.
        sealed = ["--seal"] if copies == 1 else ["--no-seal"]
        with uninterrupted():
            os.makedirs(mount, exist_ok=True)
            later(self.stack, run, "umount", "-l", mount, check=False)
            pid_file = f"--pid-file={mount}.pid"
            run(self.options.nram, "mount", mount, f"--copies={copies}", "--repair-rate=max", pid_file, *sealed)
        later(self.stack, self.kill_programs)  # before it is unmounted
        self.start(name, f"{HERE}/exercise_keep.py", mount, mib, self.seed())
        program = self.programs[-1]
        while not program.has_begun:
            self.pool.wait(0.05)
        return program

    @contextlib.contextmanager
    def only_on(self, number):
        """Nothing new goes to other donors meanwhile."""
        servers = self.pool.status()["servers"]
        others = [server["address"] for server in servers if server is not servers[number]]
        for address in others:
            run(self.options.nram, "drain", address)
        yield
        for address in others:
            run(self.options.nram, "drain", "--undo", address)

    def one_copy_mib(self, number):
        """What is there of mounts with one copy, all of which are sealed."""
        address = self.pool.last["servers"][number]["address"]
        regions = json.loads(run(self.options.nram, "regions", "--json"))
        return sum(one["stored_bytes"] for one in regions if one["server"] == address and one["sealed"]) / MIB


class PressedFull(PressedKeeping):
    """No room elsewhere: copies leave, and what has one copy stays."""

    limit_mib = 640
    reserve_mib = 64
    donate = "448M"  # less than the rest of the limit, so that it is the same again when the balloon has gone
    stays_on, stays_mib = 2, 48

    def full(self):
        with self.only_on(self.stays_on):
            self.mount_kept("stays", 1, self.stays_mib)
        usable_mib = self.df()["total"]["usable_bytes"]["2"] / MIB
        kept = self.mount_kept("kept", 2, int(usable_mib * FULL))
        self.ends += [("umount", f"{self.directory}/{name}") for name in ("stays", "kept")]
        self.begin()
        self.await_filled(kept)
        while True:
            for press in (self.press_copies, self.press_one_copy, self.press_two):
                began = time.monotonic()
                press()
                self.await_filled(kept)
                self.pool.wait(min(self.options.every, 5) - (time.monotonic() - began))
            if time.monotonic() >= self.until:
                break
        if kept.said["refused"] == 0:
            raise Failure("no new data was ever refused: the pool was not full")

    def press_copies(self):
        """All that has another copy elsewhere leaves."""
        self.press_full({self.random.choice([0, 1]): round(TAKEN * self.limit_mib)})

    def press_one_copy(self):
        """More than can leave is asked for: there is nowhere to go."""
        self.press_full({self.stays_on: self.limit_mib})

    def press_two(self):
        """Half of what they have, which is what has its other copy on the third donor."""
        self.press_full({number: self.limit_mib // 2 for number in (0, 1)})

    def press_full(self, taken_mib):
        stays_mib = 0
        for number, mib in taken_mib.items():
            stays_mib = max(stays_mib, self.one_copy_mib(number))
            # As much as leaves room for what cannot leave: who takes more ends the server, or itself.
            room_mib = self.limit_mib - self.empty_mib[number] - KEPT_MIB - stays_mib
            self.take(number, round(min(mib, room_mib)))

        def all_full():
            return all([balloon.look() for balloon in self.balloons])

        self.await_that(GIVEN_S, f"what the donors {list(taken_mib)} need", all_full)
        self.await_promised(list(taken_mib), stays_mib)
        self.release()

    def await_filled(self, kept):
        """The pool is as before: it has all copies of all files, and hardly any room."""
        self.pool.await_whole(self.spans, clients=2, surely_s=0)
        self.await_that(CALM_S, "new room for files that were replaced", lambda: kept.said["missing"] == 0)
        donors = self.df()["donors"]
        used = sum(donor["used_bytes"] for donor in donors)
        room = used + sum(donor["free_bytes"] for donor in donors)
        if used < (FULL - 0.02) * room:
            raise Failure(f"only {used // MIB} of {room // MIB} MiB are used: that shows nothing of a full pool")


class PressedLeaving(PressedKeeping):
    """A client that is giving back goes away half way: it is killed, or ends in order."""

    limit_mib = 768
    reserve_mib = 128
    lease_s = 3
    server_flags = (f"--lease-ttl-ms={1000 * lease_s}",)
    leaver_mib = 192

    def leave(self):
        kept = self.mount_kept("kept", 2, 64)
        self.ends.append(("umount", f"{self.directory}/kept"))
        self.begin()
        ways = [self.kill, self.close_in_order]
        while True:
            self.random.shuffle(ways)
            for leave in ways:
                began = time.monotonic()
                operations = kept.operations
                self.press_leaving(leave)
                if kept.operations == operations:
                    raise Failure("the client that stays has done nothing meanwhile")
                self.pool.wait(min(self.options.every, 5) - (time.monotonic() - began))
            if time.monotonic() >= self.until:
                break

    def kill(self):
        with open(f"{self.directory}/leaver.pid") as file:
            os.kill(int(file.read()), signal.SIGKILL)

    def close_in_order(self):
        run(self.options.nram, "umount", f"{self.directory}/leaver")

    def pages(self):
        return self.pool.status()["servers"][0]["pages"]

    def press_leaving(self, leave):
        with self.only_on(0):
            leaver = self.mount_kept("leaver", 1, self.leaver_mib)
        before = self.pages()
        leavers = self.leaver_mib * MIB // 4096
        balloon = self.take(0, patient=True)
        while self.pages() > before - leavers // 4:
            if balloon.look() or time.monotonic() - balloon.began > GIVEN_S:
                raise Failure(f"the donor has not got a quarter of what was there: {self.pool.last}")
            self.pool.wait(LOOK_S)
        self.programs.remove(leaver)
        leaver.kill()
        leave()
        left_at, left = time.monotonic(), self.pages()
        if left < before - leavers * 0.9:
            raise Failure("all had been given back when the client left: that has shown nothing")
        # What it had is freed at once if it says so, and when its lease ends if it does not.
        deadline_s = GIVEN_S if leave == self.close_in_order else self.lease_s + GIVEN_S
        self.await_that(deadline_s, "what the donor needs after its client has left", balloon.look)
        self.await_promised([0])
        print(
            f"{leave.__name__} with {left // 256} MiB left there: the donor had its memory "
            f"{time.monotonic() - left_at:.1f} s later",
            flush=True,
        )
        run("umount", "-l", f"{self.directory}/leaver", check=False)
        self.release()
