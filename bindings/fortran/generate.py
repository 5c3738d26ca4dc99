#!/usr/bin/env python3
"""usage: generate.py nram_c.f90 nram.f90.in > nram.f90

Makes one file for users. Fortran has no templates: a pointer of each type and rank needs a subroutine of its own.
nram.f90.in has each of them once, between the lines `!each ...` and `!end`. This program repeats these lines:

  !each kind               for each of KINDS
  !each kind, rank from N  for each of KINDS, and for each rank from N to RANK_MAX
"""

import re
import string
import sys

KINDS = {"r8": "real(real64)", "r4": "real(real32)", "i4": "integer(int32)", "i8": "integer(int64)"}
RANK_MAX = 3
BLOCK = re.compile(r"^ *!each kind(?:, rank from (\d))?\n(.*?)^ *!end\n", re.M | re.S)


def words_of(kind, rank):
    """The words that `$...` stands for."""
    return {
        "kind": kind,
        "type": KINDS[kind],
        "bytes": kind[1],
        "rank": rank,
        "name": f"{kind}_{rank}",
        "shape": f"({', '.join(':' * rank)})" if rank else "",
        "contiguous": ", contiguous" if rank else "",  # a scalar must not have it
        "found_extents": f", found%extents(:{rank})" if rank else "",
    }


def repeat(block):
    first, text = block.groups()
    ranks = [0] if first is None else range(int(first), RANK_MAX + 1)
    return "".join(string.Template(text).substitute(words_of(kind, rank)) for kind in KINDS for rank in ranks)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__.strip())
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            print(BLOCK.sub(repeat, file.read()))


if __name__ == "__main__":
    main()
