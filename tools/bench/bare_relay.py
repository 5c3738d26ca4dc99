"""The reference of repair: bytes from one bare socket's peer to another's, through a loop that receives and sends 256
KiB at a time. No header, no checksum, no index, no generation; the first peer's memory is warm."""

import contextlib
import mmap
import os
import socket
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
    for at in range(0, size, PIECE):
        end.sendall(memory[at : at + PIECE])


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


def relay_speed(mib, warm, tcp):
    """MB a second; `warm`: the second peer has touched its memory before."""
    size = mib * MIB
    source, giver = _pair(tcp)
    target, taker = _pair(tcp)
    # Each has only its own end, so that they end with this process.
    children = [_child(lambda: (source.close(), target.close(), taker.close(), _give(giver, size)))]
    children.append(_child(lambda: (source.close(), target.close(), giver.close(), _take(taker, size, warm))))
    giver.close()
    taker.close()
    buffer = memoryview(bytearray(PIECE))
    try:
        for end in (source, target):
            if end.recv(1) != b"r":
                raise Failure("a peer of the bare relay does not start")
        began = time.monotonic()
        source.sendall(b"g")
        for _ in range(0, size, PIECE):
            have = 0
            while have < PIECE:
                count = source.recv_into(buffer[have:])
                if count == 0:
                    raise Failure("a peer of the bare relay has ended")
                have += count
            target.sendall(buffer)
        if target.recv(1) != b"d":
            raise Failure("a peer of the bare relay has ended")
        seconds = time.monotonic() - began
    finally:
        source.close()
        target.close()
        for pid in children:
            os.waitpid(pid, 0)
    return size / 1e6 / seconds
