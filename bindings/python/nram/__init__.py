"""nram: memory that lives in other machines' RAM, with a budget of local memory that you choose.

    import nram

    with nram.Memory(budget="512M") as memory:                       # the pool from the environment
        a = memory.map("64G").array("float64", (8, 1 << 30))         # 64 GiB, of which the budget is here at a time
        a[3] = 1.5                                                   # NumPy as ever

Memory is never unmapped while something can still see it: an array or a memoryview holds it, and the pool's handle,
for as long as it lives. See Memory and Mapping for what close() and the end of a `with` do then.

Pages come while they are touched. A thread that waits for one may hold Python's interpreter lock, so other threads of
Python wait with it. A page that is lost (its server died) is a line on stderr, then SIGBUS: the program ends.

After os.fork(), in the child, all methods raise Error with ENOTSUP, and touching an array or a view ends the child
with SIGSEGV. multiprocessing is to be used with "spawn"; processes share memory by named regions.
"""

from ._memory import Error, Mapping, Memory

__all__ = ["Error", "Mapping", "Memory"]
