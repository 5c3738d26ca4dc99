#!/usr/bin/python3
"""Random operations on files, compared with a model of the files in memory.

usage: exercise_files.py DIRECTORY SEED

Some files change all the time: writes and reads through the page cache, past it (O_DIRECT) and by mmap, truncation,
holes, reservations, fsync, deletion. One is written once and then only read from the servers. See exerciser.py."""

import ctypes
import mmap
import os
import random
import sys

from exerciser import Exerciser, Wrong, difference

PAGE = 4096
SPAN = 1 << 20
FILES = 3
MOST = 6 * SPAN  # of a file that changes
COLD = 8 * SPAN
KEEP_SIZE, PUNCH_HOLE = 1, 2  # of fallocate(2)

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def fallocate(fd, mode, offset, length):
    if libc.fallocate(fd, mode, offset, length) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def write_all(fd, data, offset):
    if os.pwrite(fd, data, offset) != len(data):
        raise OSError(0, "a short write")


class File:
    """A file in the mount, and its model."""

    def __init__(self, path):
        self.path = path
        self.open()

    def open(self):
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.direct = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        self.model = bytearray()

    def close(self):
        os.close(self.direct)
        os.close(self.fd)

    def put(self, data, offset):
        if offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset : offset + len(data)] = data


class FileExerciser(Exerciser):
    def __init__(self, directory, seed):
        super().__init__()
        self.random = random.Random(seed)
        self.buffer = mmap.mmap(-1, SPAN)  # aligned, as O_DIRECT requires
        self.files = [File(f"{directory}/file{number}") for number in range(FILES)]
        self.cold = File(f"{directory}/cold")
        for offset in range(0, COLD, SPAN):
            data = self.random.randbytes(SPAN)
            self.timed("write of the cold file", lambda: write_all(self.cold.fd, data, offset))
            self.cold.put(data, offset)
        self.timed("fsync of the cold file", lambda: os.fsync(self.cold.fd))
        for file in self.files:
            self.write(file)
        self.weighted = [
            (18, self.write), (6, self.write_direct), (5, self.write_mapped), (14, self.read), (12, self.read_direct),
            (10, self.read_from_servers), (14, self.read_cold), (4, self.truncate), (4, self.punch), (2, self.reserve),
            (6, self.sync), (1, self.replace), (1, self.write_much), (0.2, self.read_whole),
        ]  # fmt: skip

    def step(self):
        acts = [act for _, act in self.weighted]
        act = self.random.choices(acts, [weight for weight, _ in self.weighted])[0]
        act(self.random.choice(self.files))

    def range(self, most, unit=1, bytes_most=200_000):
        """Often at or near the edges of chunks, pages and spans."""
        base = self.random.choice([0, 512, PAGE, 65536, SPAN, 2 * SPAN, self.random.randrange(most)])
        offset = base + self.random.choice([-1, 0, 0, 1]) * self.random.choice([0, 1, 512, PAGE])
        length = self.random.choice([1, 511, 512, 513, PAGE, PAGE + 1, 65536, self.random.randrange(1, bytes_most)])
        offset, length = max(offset, 0) // unit * unit, -(-length // unit) * unit
        offset = min(offset, (most - length) // unit * unit)
        return offset, length

    def data(self, length):
        return bytes(length) if self.random.random() < 0.1 else self.random.randbytes(length)

    def check(self, what, file, offset, got, length):
        wrong = difference(bytes(file.model[offset : offset + length]), bytes(got))
        if wrong:
            raise Wrong(f"{what}: {wrong}; {self.look_again(file, offset, length)}")

    def look_again(self, file, offset, length):
        """Reads once more, through the cache and from the servers. Returns the findings."""
        said = []
        first = offset // PAGE * PAGE
        for way, fd in (("through the cache", file.fd), ("from the servers", file.direct)):
            try:
                size = min(-(-(offset + length - first) // PAGE) * PAGE, SPAN)
                got = os.preadv(fd, [memoryview(self.buffer)[:size]], first)
                wrong = difference(bytes(file.model[first : first + size]), self.buffer[:got])
            except OSError as error:
                wrong = error.strerror
            said.append(f"again {way}: {wrong or 'right'}")
        return "; ".join(said)

    def write(self, file):
        offset, length = self.range(MOST)
        data = self.data(length)
        self.timed(f"pwrite {file.path} {offset}+{length}", lambda: write_all(file.fd, data, offset))
        file.put(data, offset)

    def write_much(self, file):
        data = self.random.randbytes(2 * SPAN)
        self.timed(f"pwrite {file.path} 0+{len(data)}", lambda: write_all(file.fd, data, 0))
        file.put(data, 0)

    def write_direct(self, file):
        offset, length = self.range(MOST, PAGE)
        data = self.data(length)
        self.buffer[:length] = data
        view = memoryview(self.buffer)[:length]
        what = f"direct pwrite {file.path} {offset}+{length}"
        if self.timed(what, lambda: os.pwritev(file.direct, [view], offset)) != length:
            raise Wrong(f"{what}: a short write")
        file.put(data, offset)

    def write_mapped(self, file):
        pages = len(file.model) // PAGE
        if pages == 0:
            return
        first = self.random.randrange(pages)
        length = min(self.random.randrange(1, 17), pages - first) * PAGE
        offset = first * PAGE
        data = self.data(length)
        flush = self.random.random() < 0.5

        def act():
            with mmap.mmap(file.fd, length, offset=offset) as mapped:
                before = mapped[:]
                mapped[:] = data
                if flush:
                    mapped.flush()
                return before

        what = f"mmap {file.path} {offset}+{length}"
        self.check(what, file, offset, self.timed(what, act), length)
        file.put(data, offset)

    def read(self, file):
        offset, length = self.range(MOST)
        what = f"pread {file.path} {offset}+{length}"
        self.check(what, file, offset, self.timed(what, lambda: os.pread(file.fd, length, offset)), length)

    def read_direct(self, file):
        offset, length = self.range(MOST, PAGE)
        view = memoryview(self.buffer)[:length]
        what = f"direct pread {file.path} {offset}+{length}"
        got = self.timed(what, lambda: os.preadv(file.direct, [view], offset))
        self.check(what, file, offset, self.buffer[:got], length)

    def read_from_servers(self, file):
        """Reads through the page cache, which is dropped first."""
        offset, length = self.range(MOST)

        def act():
            os.fdatasync(file.fd)
            os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return os.pread(file.fd, length, offset)

        what = f"fdatasync and pread {file.path} {offset}+{length}"
        self.check(what, file, offset, self.timed(what, act), length)

    def read_cold(self, _):
        self.read_direct(self.cold)

    def read_whole(self, file):
        for which in (file, self.cold):
            self.timed(f"fsync {which.path}", lambda: os.fsync(which.fd))
            os.posix_fadvise(which.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(which.fd).st_size
            if size != len(which.model):
                raise Wrong(f"{which.path} has {size} bytes instead of {len(which.model)}")
            for offset in range(0, size, SPAN):
                what = f"pread {which.path} {offset}+{SPAN}"
                self.check(what, which, offset, self.timed(what, lambda: os.pread(which.fd, SPAN, offset)), SPAN)

    def truncate(self, file):
        size, _ = self.range(MOST)
        self.timed(f"ftruncate {file.path} {size}", lambda: os.ftruncate(file.fd, size))
        file.put(b"", size)
        del file.model[size:]

    def punch(self, file):
        offset, length = self.range(MOST)
        self.timed(
            f"fallocate, punch, {file.path} {offset}+{length}",
            lambda: fallocate(file.fd, KEEP_SIZE | PUNCH_HOLE, offset, length),
        )
        length = min(length, len(file.model) - offset)
        if length > 0:
            file.put(bytes(length), offset)

    def reserve(self, file):
        offset, length = self.range(MOST)
        self.timed(f"fallocate {file.path} {offset}+{length}", lambda: fallocate(file.fd, 0, offset, length))
        if offset + length > len(file.model):
            file.put(b"", offset + length)

    def sync(self, file):
        self.timed(f"fsync {file.path}", lambda: os.fsync(file.fd))

    def replace(self, file):
        """Deletes the file while it is open, then makes it anew."""
        self.timed(f"unlink {file.path}", lambda: os.unlink(file.path))
        self.read_direct(file)
        file.close()
        self.timed(f"creat {file.path}", file.open)
        self.write(file)

    def look_at_all(self):
        for file in self.files:
            self.read_whole(file)


if __name__ == "__main__":
    sys.exit(FileExerciser(sys.argv[1], int(sys.argv[2])).run())
