"""The reference of repair: a loop receives 256 KiB at a time from one bare socket's peer and sends them to another's.
It has no header, checksum, index or generation; the first peer's memory is warm."""

import contextlib
import mmap
import os
import socket
import struct
import time

from bench_places import MIB, Failure

PIECE = 256 << 10


def _pair(tcp):
    if not tcp:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    return near, far


def _memory(size, warm):
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    if warm:
        for at in range(0, size, PIECE):
            memory[at : at + PIECE] = b"\1" * PIECE
    return memoryview(memory)


def _give(end, size):
    memory = _memory(size, warm=True)
    end.sendall(b"r")
    end.recv(1)
    began = time.process_time()
    for at in range(0, size, PIECE):
        end.sendall(memory[at : at + PIECE])
    end.sendall(struct.pack("d", time.process_time() - began))


def _take(end, size, warm):
    memory = _memory(size, warm)
    end.sendall(b"r")
    at = 0
    while at < size:
        count = end.recv_into(memory[at : at + PIECE])
        if count == 0:
            return
        at += count
    end.sendall(b"d")


def _child(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(OSError, KeyboardInterrupt, SystemExit):
            work()
            code = 0
        os._exit(code)
    return pid


def _pinned(processors, work):
    """A child's function: `work` on these processors alone; None: on any."""

    def pinned():
        if processors is not None:
            os.setsid()  # as a server has a session of its own, by which the kernel may share out processors
            os.sched_setaffinity(0, processors)
        work()

    return pinned


def relay_speed(mib, warm, tcp):
    """MB a second; `warm`: the second peer has touched its memory before."""
    began, ended, _ = relay(mib, warm, tcp)
    return mib * MIB / 1e6 / (ended - began)


def relay(mib, warm, tcp, seconds=0, giver_on=None, rest_on=None):
    """Returns the begin and the end by time.monotonic(), and the first peer's seconds of processor time. The bytes are
    spread over `seconds`. The first peer runs on the processors `giver_on`, all else on `rest_on`."""
    size = mib * MIB
    source, giver = _pair(tcp)
    target, taker = _pair(tcp)
    # Each has only its own end, so that both end with this process.
    give = _pinned(giver_on, lambda: _give(giver, size))
    take = _pinned(rest_on, lambda: _take(taker, size, warm))
    children = [_child(lambda: (source.close(), target.close(), taker.close(), give()))]
    children.append(_child(lambda: (source.close(), target.close(), giver.close(), take())))
    giver.close()
    taker.close()
    buffer = memoryview(bytearray(PIECE))
    before = os.sched_getaffinity(0)
    try:
        if rest_on is not None:
            os.sched_setaffinity(0, rest_on)
        for end in (source, target):
            if end.recv(1) != b"r":
                raise Failure("a peer of the bare relay does not start")
        began = time.monotonic()
        source.sendall(b"g")
        for at in range(0, size, PIECE):
            ahead = began + seconds * at / size - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            have = 0
            while have < PIECE:
                count = source.recv_into(buffer[have:])
                if count == 0:
                    raise Failure("a peer of the bare relay has ended")
                have += count
            target.sendall(buffer)
        if target.recv(1) != b"d":
            raise Failure("a peer of the bare relay has ended")
        took = struct.unpack("d", source.recv(8, socket.MSG_WAITALL))[0]
        ended = time.monotonic()
    finally:
        os.sched_setaffinity(0, before)
        source.close()
        target.close()
        for pid in children:
            os.waitpid(pid, 0)
    return began, ended, took


class BareStore:
    """A peer on the processors `on` with memory of its own, that is read from and written to, a PIECE at a time."""

    def __init__(self, mib, on):
        self.size, self.at = mib * MIB, 0
        self.end, far = _pair(tcp=False)
        self.pid = _child(_pinned(on, lambda: (self.end.close(), self._answer(far))))
        far.close()
        self.buffer = memoryview(bytearray(PIECE))
        if self.end.recv(1) != b"r":
            raise Failure("a bare peer does not start")

    def _answer(self, end):
        memory = _memory(self.size, warm=True)
        end.sendall(b"r")
        at = 0
        while order := end.recv(1):
            if order == b"r":
                end.sendall(memory[at : at + PIECE])
            else:
                end.recv_into(memory[at : at + PIECE], PIECE, socket.MSG_WAITALL)
                end.sendall(b"d")
            at = (at + PIECE) % self.size

    def read(self):
        self.end.sendall(b"r")
        if self.end.recv_into(self.buffer, PIECE, socket.MSG_WAITALL) != PIECE:
            raise Failure("a bare peer has ended")

    def write(self):
        self.end.sendall(b"w")
        self.end.sendall(self.buffer)
        if self.end.recv(1) != b"d":
            raise Failure("a bare peer has ended")

    def close(self):
        self.end.close()
        os.waitpid(self.pid, 0)
