#!/usr/bin/python3
"""Random operations on a tree of hundreds of small files, and the same ones on a twin of the tree in a tmpfs.

usage: exercise_tree.py DIRECTORY TWIN SEED

Results, errors, contents and the trees must be the same. Both directories exist and are empty. See exerciser.py."""

import errno
import os
import random
import stat
import sys

from exerciser import Exerciser, Wrong, difference

DIRECTORIES = 10
NAMES = 60  # in each directory
BYTES_MOST = 20_000
LOOK_EVERY = 4000  # operations


def write_file(path, flags, data):
    fd = os.open(path, os.O_WRONLY | flags, 0o640)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(0, "a short write")
    finally:
        os.close(fd)  # which may report an error too


def read_file(path, from_servers):
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if from_servers:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.read(fd, 1 << 20)
    finally:
        os.close(fd)


def attributes(path):
    status = os.lstat(path)
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return f"mode {status.st_mode:o}, {status.st_nlink} links, {size} bytes"


class TreeExerciser(Exerciser):
    def __init__(self, mount, twin, seed):
        super().__init__()
        self.mount, self.twin = mount, twin
        self.random = random.Random(seed)
        self.until_look = LOOK_EVERY
        self.weighted = [
            (20, self.create), (8, self.append), (20, self.read), (12, self.rename), (6, self.link), (3, self.symlink),
            (3, self.readlink), (10, self.unlink), (2, self.mkdir), (1, self.rmdir), (6, self.list), (9, self.stat),
            (2, self.truncate),
        ]  # fmt: skip
        for number in range(DIRECTORIES // 2):
            self.both(f"mkdir d{number}", lambda at: os.mkdir(f"{at}/d{number}"))

    def step(self):
        acts = [act for _, act in self.weighted]
        self.random.choices(acts, [weight for weight, _ in self.weighted])[0]()
        self.until_look -= 1
        if self.until_look == 0:
            self.until_look = LOOK_EVERY
            self.look_at_all()

    def both(self, what, act):
        """Does it in the mount and in the twin; both must give the same. act(top) returns something to compare."""

        def tried(top):
            try:
                return act(top)
            except OSError as error:
                return error.errno and errno.errorcode[error.errno] or str(error)

        expected = tried(self.twin)
        got = self.timed(what, lambda: tried(self.mount))
        if got != expected:
            if isinstance(expected, bytes) and isinstance(got, bytes):
                raise Wrong(f"{what}: {difference(expected, got)}; again: {self.again(tried, expected)}")
            raise Wrong(f"{what}: {got!r} instead of {expected!r}; again: {self.again(tried, expected)}")
        return expected

    def again(self, tried, expected):
        got = tried(self.mount)
        return "right" if got == expected else f"wrong, {str(got)[:80]!r}"

    def directory(self):
        return f"d{self.random.randrange(DIRECTORIES)}"

    def path(self):
        return f"{self.directory()}/f{self.random.randrange(NAMES)}"

    def data(self):
        return self.random.randbytes(int(BYTES_MOST ** self.random.random()))

    def create(self):
        path, data = self.path(), self.data()
        flags = os.O_CREAT | self.random.choice([os.O_EXCL, os.O_TRUNC, 0])
        self.both(f"write {path}, {len(data)} bytes", lambda at: write_file(f"{at}/{path}", flags, data))

    def append(self):
        path, data = self.path(), self.data()
        # With a bound, for the twin's memory.
        self.both(
            f"append to {path}, {len(data)} bytes",
            lambda at: os.lstat(f"{at}/{path}").st_size < 10 * BYTES_MOST
            and write_file(f"{at}/{path}", os.O_APPEND, data),
        )

    def truncate(self):
        path, size = self.path(), self.random.randrange(BYTES_MOST)
        self.both(f"truncate {path} to {size}", lambda at: os.truncate(f"{at}/{path}", size))

    def read(self):
        path, from_servers = self.path(), self.random.random() < 0.4
        self.both(
            f"read {path}{', past the cache' if from_servers else ''}",
            lambda at: read_file(f"{at}/{path}", from_servers),
        )

    def rename(self):
        if self.random.random() < 0.1:
            old, new = self.directory(), self.directory()
        else:
            old, new = self.path(), self.path()
        self.both(f"rename {old} to {new}", lambda at: os.rename(f"{at}/{old}", f"{at}/{new}"))

    def link(self):
        old, new = self.path(), self.path()
        self.both(f"link {old} to {new}", lambda at: os.link(f"{at}/{old}", f"{at}/{new}", follow_symlinks=False))

    def symlink(self):
        target, path = self.path(), self.path()
        self.both(f"symlink {path}", lambda at: os.symlink(f"../{target}", f"{at}/{path}"))

    def readlink(self):
        path = self.path()
        self.both(f"readlink {path}", lambda at: os.readlink(f"{at}/{path}"))

    def unlink(self):
        path = self.path()
        self.both(f"unlink {path}", lambda at: os.unlink(f"{at}/{path}"))

    def mkdir(self):
        path = self.directory()
        self.both(f"mkdir {path}", lambda at: os.mkdir(f"{at}/{path}"))

    def rmdir(self):
        path = self.directory()
        self.both(f"rmdir {path}", lambda at: os.rmdir(f"{at}/{path}"))

    def list(self):
        path = self.random.choice([self.directory(), "."])
        self.both(f"list {path}", lambda at: sorted(os.listdir(f"{at}/{path}")))

    def stat(self):
        path = self.path()
        self.both(f"stat {path}", lambda at: attributes(f"{at}/{path}"))

    def look_at_all(self):
        for name in self.both("list .", lambda at: sorted(os.listdir(at))):
            for entry in self.both(f"list {name}", lambda at: sorted(os.listdir(f"{at}/{name}"))):
                path = f"{name}/{entry}"
                self.both(f"stat {path}", lambda at: attributes(f"{at}/{path}"))
                self.both(f"read {path}", lambda at: read_file(f"{at}/{path}", True))


if __name__ == "__main__":
    sys.exit(TreeExerciser(sys.argv[1], sys.argv[2], int(sys.argv[3])).run())
