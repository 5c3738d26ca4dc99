#!/usr/bin/python3
"""Keeps files where there may be no room: the stored data must be right, and only new data may be refused.

usage: exercise_keep.py DIRECTORY MIB SEED [calm]

Writes MIB mebibytes of files; 0: as many as there is room for, less one. Then it reads and rewrites parts of them past
the page cache, and makes new files that it deletes again. A write of new data may end with ENOSPC. While it is calm, it
makes nothing new. Signals: USR1 changes that; USR2 has it replace some files by new ones of the same size; HUP has it
delete one.

Its lines have besides: `refused`, the refused writes of new data since all was written; `made`, the new files that were
not refused; `replaced`, files so far; `missing`, files that were deleted and have found no room yet; `is_calm`. See
exerciser.py."""

import errno
import mmap
import os
import random
import signal
import sys
import time

from exerciser import Exerciser, Wrong, difference

MIB = 1 << 20
FILE_MIB = 2
BLOCK = 1 << 16
BLOCKS = FILE_MIB * MIB // BLOCK
NEW_DOUBLINGS = 8  # of one block, for the largest new file: eight times a kept file
NEW = 0.01  # of operations
REPLACED = 8  # at once
REFUSALS = 5  # in a row: it is full
AGAIN_S = 0.2  # until a file that found no room is tried again


class KeepExerciser(Exerciser):
    def __init__(self, directory, mib, seed, is_calm):
        super().__init__()
        self.directory, self.name = directory, seed
        self.random = random.Random(seed)
        self.buffer = mmap.mmap(-1, BLOCK)  # aligned, as O_DIRECT requires
        self.generation = 0
        self.files = {}  # generations of blocks, by number
        self.missing = set()
        self.refused = self.made = 0
        self.again = 0.0
        self.is_filled, self.is_calm = False, is_calm
        self.replaced = self.to_replace = self.to_delete = 0
        signal.signal(signal.SIGUSR1, self.change)
        signal.signal(signal.SIGUSR2, self.replace_some)
        signal.signal(signal.SIGHUP, self.delete_one)
        self.fill(mib // FILE_MIB if mib > 0 else None)
        self.refused, self.is_filled = 0, True

    def change(self, *_):
        self.is_calm = not self.is_calm
        self.told = 0  # it reports at once

    def replace_some(self, *_):
        self.to_replace += REPLACED

    def delete_one(self, *_):
        self.to_delete += 1

    def fill(self, most):
        refusals = 0
        while len(self.files) != most:
            if self.make(len(self.files)):
                refusals = 0
            elif most is None and refusals == REFUSALS:
                self.drop(len(self.files) - 1)
                return
            else:
                refusals += 1
                time.sleep(AGAIN_S)  # there may be some later

    def tell(self, **more):
        if not self.is_filled:
            return  # the first line says that all files are there
        own = {name: getattr(self, name) for name in ("refused", "made", "replaced", "is_calm")}
        super().tell(missing=len(self.missing), **own, **more)

    def path(self, number):
        return f"{self.directory}/{number}"

    def block(self, number, block, generation):
        return random.Random(f"{self.name} {number} {block} {generation}").randbytes(BLOCK)

    def write(self, file, number, block, generation):
        self.buffer[:] = self.block(number, block, generation)
        if os.pwritev(file, [self.buffer], block * BLOCK) != BLOCK:
            raise OSError(0, "a short write")

    def make(self, number, blocks=BLOCKS):
        """False if there is no room for it; then the file is absent."""
        self.generation += 1
        try:
            self.timed(f"write of file {number}, {blocks} blocks", lambda: self.write_all(number, blocks))
        except Wrong as wrong:
            if not isinstance(wrong.__context__, OSError) or wrong.__context__.errno != errno.ENOSPC:
                raise
            self.refused += 1
            self.timed(f"unlink of file {number}, which found no room", lambda: os.unlink(self.path(number)))
            return False
        self.files[number] = [self.generation] * blocks
        return True

    def write_all(self, number, blocks):
        file = os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            for block in range(blocks):
                self.write(file, number, block, self.generation)
        finally:
            os.close(file)

    def drop(self, number):
        del self.files[number]
        self.timed(f"unlink of file {number}", lambda: os.unlink(self.path(number)))

    def step(self):
        if self.missing and time.monotonic() > self.again:
            number = self.random.choice(sorted(self.missing))
            if not self.make(number):
                self.again = time.monotonic() + AGAIN_S
            else:
                self.missing.discard(number)
                self.replaced += 1
                self.told = 0
        if not self.files:
            return time.sleep(AGAIN_S)
        number = self.random.choice(sorted(self.files))
        if self.to_delete > 0:
            self.to_delete -= 1
            self.drop(number)
        elif self.to_replace > 0:
            self.to_replace -= 1
            self.drop(number)
            self.missing.add(number)
        elif self.random.random() < NEW and not self.is_calm:
            self.make_new()
        elif self.random.random() < 0.6:
            self.look_at(number, [self.random.randrange(len(self.files[number]))])
        else:
            self.rewrite(number)

    def look_at(self, number, blocks):
        file = self.timed(f"open {number}", lambda: os.open(self.path(number), os.O_RDONLY | os.O_DIRECT))
        try:
            for block in blocks:
                what = f"pread file {number}, block {block}"
                got = self.timed(what, lambda: os.preadv(file, [self.buffer], block * BLOCK))
                expected = self.block(number, block, self.files[number][block])
                wrong = difference(expected, self.buffer[:got])
                if wrong:
                    raise Wrong(f"{what}: {wrong}")
        finally:
            os.close(file)

    def rewrite(self, number):
        """In place, so there must be room."""
        block = self.random.randrange(len(self.files[number]))
        self.generation += 1

        def act():
            file = os.open(self.path(number), os.O_WRONLY | os.O_DIRECT)
            try:
                self.write(file, number, block, self.generation)
            finally:
                os.close(file)

        self.timed(f"pwrite file {number}, block {block}", act)
        self.files[number][block] = self.generation

    def make_new(self):
        """Small as often as large: in a nearly full pool the small one fits, the large one does not."""
        number = -1
        if self.make(number, int(2 ** self.random.uniform(0, NEW_DOUBLINGS))):
            self.made += 1
            self.look_at(number, range(len(self.files[number])))
            self.drop(number)

    def look_at_all(self):
        for number, generations in sorted(self.files.items()):
            self.look_at(number, range(len(generations)))


if __name__ == "__main__":
    exerciser = KeepExerciser(sys.argv[1], int(sys.argv[2]), sys.argv[3], is_calm=sys.argv[4:] == ["calm"])
    sys.exit(exerciser.run())
