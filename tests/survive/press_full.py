"""Donors that take their memory back while the pool has no room elsewhere, and while clients end."""

import contextlib
import json
import os
import signal
import time

from bench_places import MIB, Failure, later, run, uninterrupted
from exercise_keep import REPLACED
from press_pool import CALM_S, GIVEN_S, HERE, KEPT_MIB, TAKEN, Pressed

FULL = 0.98
WHOLE_S = 15  # some seconds for the present copies, and the longest time until a host that was full is tried again
DELETED_MOST = 4
MISSED_MOST = 5
LOOK_S = 0.02


class PressedKeeping(Pressed):
    """Mounts whose files know their contents."""

    def mount_kept(self, name, copies, mib):
        """Returns the exerciser, whose files are on a mount of its own."""
        mount = f"{self.directory}/{name}"
        # On this one machine a single copy moves only if it is sealed.
        sealed = ["--seal"] if copies == 1 else ["--no-seal"]
        with uninterrupted():
            os.makedirs(mount, exist_ok=True)
            later(self.stack, run, "umount", "-l", mount, check=False)
            pid_file = f"--pid-file={mount}.pid"
            run(self.options.nram, "mount", mount, f"--copies={copies}", "--repair-rate=max", pid_file, *sealed)
        later(self.stack, self.kill_programs)  # before it is unmounted
        self.start(name, f"{HERE}/exercise_keep.py", mount, mib, self.seed(), "calm")
        program = self.programs[-1]
        while not program.has_begun:
            self.pool.wait(0.05)
        return program

    @contextlib.contextmanager
    def only_on(self, number):
        """Meanwhile new data is placed on no other donor."""
        servers = self.pool.status()["servers"]
        others = [server["address"] for server in servers if server is not servers[number]]
        for address in others:
            run(self.options.nram, "drain", address)
        yield
        for address in others:
            run(self.options.nram, "drain", "--undo", address)

    def one_copy_mib(self, number):
        """The MiB there of mounts with one copy, all of which are sealed."""
        address = self.pool.last["servers"][number]["address"]
        regions = json.loads(run(self.options.nram, "regions", "--json"))
        return sum(one["stored_bytes"] for one in regions if one["server"] == address and one["sealed"]) / MIB


class PressedFull(PressedKeeping):
    """No room elsewhere: copies with a sibling are dropped, single copies remain."""

    limit_mib = 640
    reserve_mib = 96
    donate = "288M"  # less than the rest of the limit, so that it is the same after the balloon
    stays_on, stays_mib = 2, 32

    def full(self):
        with self.only_on(self.stays_on):
            self.mount_kept("stays", 1, self.stays_mib)
        self.ends.append(("umount", f"{self.directory}/stays"))
        self.begin()
        while True:
            kept = self.mount_kept("kept", 2, 0)
            self.set_calm(kept, False)
            if self.taken_share() < FULL:
                raise Failure(f"only {self.taken_share():.3f} of the pool is taken: that shows nothing of a full one")
            # Under pressure there may be no room for the smallest file.
            self.await_that(CALM_S, "new data, some of it refused", lambda: kept.said["made"] and kept.said["refused"])
            for press in (self.press_copies, self.press_one_copy):
                press()
                self.look_at_filled(kept)
                share = self.taken_share()
                print(f"{press.__name__}: all copies are there again, {share:.3f} of the pool is taken", flush=True)
            is_over = time.monotonic() >= self.until
            if not is_over:
                self.press_two()
            self.end_program(kept)
            run(self.options.nram, "umount", f"{self.directory}/kept")
            if is_over:
                break

    def press_copies(self):
        """All spans with another copy elsewhere are dropped there."""
        self.press_full({self.random.choice([0, 1]): round(TAKEN * self.limit_mib)})

    def press_one_copy(self):
        """More is asked than can move: there is no room elsewhere."""
        self.press_full({self.stays_on: self.limit_mib})

    def press_two(self):
        """Asks for half of their memory, whose other copies are on the third donor. Afterwards some copies may never be
        made anew, when the only free room is on the host of the only copy."""
        self.press_full({number: self.limit_mib // 2 for number in (0, 1)})

    def press_full(self, taken_mib):
        stays_mib = 0
        self.doing = f"donors {list(taken_mib)} are pressed"
        for number, mib in taken_mib.items():
            stays_mib = max(stays_mib, self.one_copy_mib(number))
            # Leaves room for the data that cannot move: a larger balloon would end the server, or itself.
            room_mib = self.limit_mib - self.empty_mib[number] - KEPT_MIB - stays_mib
            self.take(number, round(min(mib, room_mib)))

        def all_full():
            return all([balloon.look() for balloon in self.balloons])

        self.await_given(list(taken_mib), all_full)
        self.await_promised(list(taken_mib), stays_mib)
        self.release()

    def look_at_filled(self, kept):
        """The pool is as before: it has all copies of all files, hardly any room, and the room of a deleted file is
        there for another one."""
        if not kept.said["is_calm"]:
            self.set_calm(kept, True)
        deleted = 0
        while not self.is_whole_within(WHOLE_S):
            # All free room may be on the host of the only copy: then the pool is fuller than before.
            usable = self.df()["total"]["usable_bytes"]["2"]
            if usable > 2 * MIB or deleted == DELETED_MOST:
                raise Failure(f"copies are missing, with {deleted} files deleted, and room for {usable} bytes of two")
            kept.process.send_signal(signal.SIGHUP)
            deleted += 1
        replaced = kept.said["replaced"]
        kept.process.send_signal(signal.SIGUSR2)

        def is_replaced():
            return kept.said["replaced"] >= replaced + REPLACED and kept.said["missing"] == 0

        self.await_that(CALM_S, "new room for files that were replaced", is_replaced)
        self.set_calm(kept, False)

    def is_whole_within(self, seconds):
        until = time.monotonic() + seconds
        while not self.pool.is_whole(self.spans, clients=2):
            if time.monotonic() > until:
                return False
            self.pool.wait(0.1)
        return True

    def taken_share(self):
        """The taken share of the pool's room for two copies; room that clients have reserved is taken too."""
        total = self.df()["total"]
        return 1 - 2 * total["usable_bytes"]["2"] / (total["used_bytes"] + total["reserved_bytes"])

    def set_calm(self, program, is_calm):
        program.process.send_signal(signal.SIGUSR1)
        self.await_that(CALM_S, f"that {program.name} hears", lambda: program.said["is_calm"] == is_calm)

class PressedLeaving(PressedKeeping):
    """A client ends half way through giving back: it is killed, or ends in order."""

    limit_mib = 768
    reserve_mib = 128
    lease_s = 10
    leaver_mib = 128

    def leave(self):
        kept = self.mount_kept("kept", 2, 32)
        self.ends.append(("umount", f"{self.directory}/kept"))
        self.begin()
        ways = []
        while True:
            ways = ways or self.random.sample([self.kill, self.close_in_order], 2)
            began, operations = time.monotonic(), kept.operations
            leave = ways.pop()
            missed = 0
            while not self.press_leaving(leave):
                missed += 1
                if missed == MISSED_MOST:
                    raise Failure(f"{missed} times in a row all had been given back when the client left")
            if kept.operations == operations:
                raise Failure("the client that stays has done nothing meanwhile")
            if time.monotonic() >= self.until:
                break
            self.pool.wait(began + self.options.every - time.monotonic())

    def kill(self):
        with open(f"{self.directory}/leaver.pid") as file:
            os.kill(int(file.read()), signal.SIGKILL)

    def close_in_order(self):
        run(self.options.nram, "umount", f"{self.directory}/leaver")

    def pages(self):
        return self.pool.status()["servers"][0]["pages"]

    def press_leaving(self, leave):
        """False if the client was not half way when it left."""
        with self.only_on(0):
            leaver = self.mount_kept("leaver", 1, self.leaver_mib)
        before = left = self.pages()
        leavers = self.leaver_mib * MIB // 4096
        balloon = self.take(0, patient=True)
        while left > before - leavers // 4 and not balloon.look():
            if time.monotonic() - balloon.began > GIVEN_S:
                raise Failure(f"the donor has not got a quarter of what was there: {self.pool.last}")
            self.pool.wait(LOOK_S)
            left = self.pages()
        self.programs.remove(leaver)
        leaver.kill()
        leave()
        left_at = time.monotonic()
        # Its memory is freed at once if it ends in order, and with its lease if it is killed.
        deadline_s = GIVEN_S if leave == self.close_in_order else self.lease_s + GIVEN_S
        self.await_that(deadline_s, "what the donor needs after its client has left", balloon.look)
        self.await_promised([0])
        took_s = time.monotonic() - left_at
        said = f"{leave.__name__} with {left // 256} MiB left there"
        print(f"{said}: the donor had its memory {took_s:.1f} s later", flush=True)
        run("umount", "-l", f"{self.directory}/leaver", check=False)
        self.release()
        return left > before - leavers * 0.9
