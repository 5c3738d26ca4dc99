#!/usr/bin/python3
"""Keeps files where there may be no room: what is stored must be right, and only new data may be refused.

usage: exercise_keep.py DIRECTORY MIB SEED

Writes so many MiB of files, then reads and rewrites parts of them past the page cache, makes new files that go away
again, and replaces kept ones. A write of new data may end with ENOSPC. Its lines have besides: `refused`, how often
that was; `made`, new files that were not refused; `missing`, files that were deleted and found no room yet. See
exerciser.py."""

import errno
import mmap
import os
import random
import sys
import time

from exerciser import Exerciser, Wrong, difference

MIB = 1 << 20
FILE_MIB = 4
BLOCK = 1 << 16
BLOCKS = FILE_MIB * MIB // BLOCK
AGAIN_S = 0.2  # until a file that found no room is tried again


class KeepExerciser(Exerciser):
    def __init__(self, directory, mib, seed):
        super().__init__()
        self.directory, self.name = directory, seed
        self.random = random.Random(seed)
        self.buffer = mmap.mmap(-1, BLOCK)  # aligned, as O_DIRECT wants it
        self.generation = 0
        self.files = {}  # generations of blocks, by number
        self.missing = set()
        self.refused = self.made = 0
        self.again = 0.0
        for number in range(mib // FILE_MIB):
            if not self.make(number):
                raise Wrong(f"no room for file {number} of {mib // FILE_MIB}")

    def tell(self, **more):
        super().tell(refused=self.refused, made=self.made, missing=len(self.missing), **more)

    def path(self, number):
        return f"{self.directory}/{number}"

    def block(self, number, block, generation):
        return random.Random(f"{self.name} {number} {block} {generation}").randbytes(BLOCK)

    def write(self, file, number, block, generation):
        self.buffer[:] = self.block(number, block, generation)
        if os.pwritev(file, [self.buffer], block * BLOCK) != BLOCK:
            raise OSError(0, "a short write")

    def make(self, number, blocks=BLOCKS):
        """False if there is no room for it; then it is not there."""
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
            self.again = time.monotonic() + AGAIN_S
            number = self.random.choice(sorted(self.missing))
            if self.make(number):
                self.missing.discard(number)
        act = self.random.choices([self.read, self.rewrite, self.make_new, self.replace], [60, 30, 4, 1])[0]
        act(self.random.choice(sorted(self.files)))

    def read(self, number):
        self.look_at(number, [self.random.randrange(len(self.files[number]))])

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

    def make_new(self, _):
        number = -1
        if self.make(number, self.random.randrange(1, BLOCKS // 2)):
            self.made += 1
            self.look_at(number, range(len(self.files[number])))
            self.drop(number)

    def replace(self, number):
        self.drop(number)
        if not self.make(number):
            self.missing.add(number)

    def look_at_all(self):
        for number, generations in sorted(self.files.items()):
            self.look_at(number, range(len(generations)))


if __name__ == "__main__":
    sys.exit(KeepExerciser(sys.argv[1], int(sys.argv[2]), sys.argv[3]).run())
