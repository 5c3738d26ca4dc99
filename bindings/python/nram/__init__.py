"""nram: memory that lives in other machines' RAM, with a budget of local memory that you choose.

    import nram

    with nram.Memory(budget="512M") as memory:                       # the pool from the environment
        a = memory.map("64G").array("float64", (8, 1 << 30))         # 64 GiB, of which the budget is here at a time
        a[3] = 1.5                                                   # plain NumPy

Memory is never unmapped under an array or a memoryview: each holds its mapping and the pool's handle as long as it
lives. Memory and Mapping tell how close() and the end of a `with` deal with them.

A page is fetched when it is touched. A thread that waits for one may hold Python's interpreter lock, so other threads
of Python wait with it. A lost page (its server died) is a line on stderr, then SIGBUS: the program ends.

In a child after os.fork() all methods raise Error with ENOTSUP, and touching an array or a view is SIGSEGV. Use
multiprocessing with "spawn"; processes share memory by named regions.

Devices and other processes that write to physical pages (O_DIRECT, RDMA, process_vm_writev) need pinned memory:
Mapping.pin(). docs/memory.md has the limits.
"""

from ._memory import Error, Mapping, Memory

__all__ = ["Error", "Mapping", "Memory"]
