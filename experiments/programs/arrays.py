"""NumPy arrays of MIB mebibytes: a product, a sum by columns, a sort: arrays.py MIB."""
import hashlib
import sys

import numpy

side = int((int(sys.argv[1]) * (1 << 20) / 8) ** 0.5)
matrix = numpy.random.default_rng(1).random((side, side))
vector = numpy.ones(side)
for _ in range(3):
    vector = matrix @ vector
    vector /= numpy.abs(vector).max()
print(hashlib.sha256(vector.tobytes() + matrix.sum(axis=0).tobytes()).hexdigest())
matrix += matrix[::-1].copy()
matrix.sort(axis=1)
print(hashlib.sha256(matrix.tobytes()).hexdigest())
