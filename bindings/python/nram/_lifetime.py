"""Lifetimes: no resource is given back to libnram while a view or a call may still touch it.

A resource (an open pool, a mapping) knows its holds: its owner's, one for each view of its memory, one for each call
that is under way. It is freed with its last hold, or by close(), which refuses while there are others than the
owner's.
"""

import errno
import os


class Error(OSError):
    """An error of libnram: errno, and a line (strerror) with cause, place and remedy."""


# Kinds of holds. Those of owners do not hinder close().
OWNER, VIEW, CALL = "owner", "view", "call"


class _LastHold:
    __slots__ = ("resource", "key")

    def __init__(self, resource, key):
        self.resource, self.key = resource, key

    def __del__(self):
        self.resource.let_go(self.key)


class Hold:
    """Keeps a resource until release(), the end of a `with`, or the death of the object.

    An object is dead when nothing refers to it any more. A plain __del__ may run earlier: for a cycle of garbage the
    collector calls every __del__ first, in any order, and others of them may still use the memory. So __del__ leaves a
    successor behind, which dies with this object: at once after its last reference, otherwise when the collector takes
    the cycle apart.
    """

    __slots__ = ("resource", "key", "successor")

    def __init__(self, resource, kind):
        self.resource, self.key = resource, object()
        resource.add(self.key, kind)

    def release(self):
        self.resource.let_go(self.key)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.release()

    def __del__(self, successor=_LastHold):
        self.successor = successor(self.resource, self.key)


class Resource:
    """The object that holds keep. Subclasses have free(), which is called once, with `closed` set and no lock held.

    In a child after fork() it does nothing, and does not wait for the lock, which a thread of the parent may have held.
    """

    def __init__(self, what, lock):
        self.what = what
        self.lock = lock  # reentrant: destructors run anywhere
        self.pid = os.getpid()
        self.closed = False
        self.holds = {}

    def is_inherited(self):
        return os.getpid() != self.pid

    def check_process(self):
        if self.is_inherited():
            raise Error(
                errno.ENOTSUP,
                f"this {self.what} was made before fork(), and its memory is not in this child process: start the "
                "process with multiprocessing's \"spawn\" or with subprocess, and attach a named region in it",
            )

    def add(self, key, kind):
        self.check_process()
        with self.lock:
            if self.closed:
                raise ValueError(f"this {self.what} is closed")
            self.holds[key] = kind

    def let_go(self, key):
        if self.is_inherited():
            return
        with self.lock:
            self.holds.pop(key, None)
            if self.holds or self.closed:
                return
            self.closed = True
        self.free()

    def check_unused(self):
        """Raises if there are holds other than the owner's. The caller holds the lock."""
        kinds = list(self.holds.values())
        if VIEW in kinds:
            raise BufferError(
                f"this {self.what} cannot be closed: arrays or memoryviews of it are alive; delete them before (del a)"
            )
        if CALL in kinds:
            raise Error(errno.EBUSY, f"this {self.what} cannot be closed: another thread is in a call of it")
