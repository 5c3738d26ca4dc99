"""Processes of a Python program that has MIB mebibytes: forks.py MIB HOW.

before  four are forked first, and work while the memory grows
after   one is forked when the memory is there
spawn   four are started anew (multiprocessing's "spawn") when the memory is there
"""
import hashlib
import multiprocessing
import os
import subprocess
import sys


def work(number):
    return hashlib.sha256(bytes([number]) * 1_000_000).hexdigest()


def main():
    mib, how = int(sys.argv[1]), sys.argv[2]
    pool = multiprocessing.get_context("fork").Pool(4) if how == "before" else None
    blocks = [bytes([number % 251 + 1]) * (1 << 20) for number in range(mib)]
    if how == "after":
        try:
            child = os.fork()
        except OSError as error:
            print("fork:", error.strerror, file=sys.stderr)
        else:
            if child == 0:
                os._exit(0 if len(set(blocks)) > 1 else 1)
            print("fork: the child's end is", os.waitpid(child, 0)[1], file=sys.stderr)
    elif how == "spawn":
        pool = multiprocessing.get_context("spawn").Pool(4)
    if pool is not None:
        with pool:
            print("\n".join(pool.map(work, range(16))))
    print(subprocess.run(["echo", "another program"], capture_output=True, check=True, text=True).stdout.strip())
    print(hashlib.sha256(b"".join(block[::4096] for block in blocks)).hexdigest())


if __name__ == "__main__":
    main()
