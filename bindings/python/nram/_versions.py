"""Publishing: the chosen regions, and descriptions of their arrays."""

import ctypes
import json
import os

from . import _library
from ._arguments import _check, _choice, _integer, _milliseconds, _text
from ._lifetime import CALL, Hold

_c = _library.library


def _address_of(array):
    try:
        return array.__array_interface__["data"][0]
    except AttributeError:
        raise TypeError(f"{type(array).__name__}: expected a NumPy array that lies in a mapping") from None


def _description(name, array):
    """An array of NumPy's in the form of nram_array; ValueError: nram_array cannot describe it."""
    address = _address_of(array)
    kind = array.dtype.name
    if kind not in _library.ELEMENTS or not array.dtype.isnative:
        raise ValueError(f"array {name!r}: {array.dtype}: expected elements of {', '.join(_library.ELEMENTS)}")
    if array.ndim > _library.DIMENSIONS_MAX:
        raise ValueError(f"array {name!r} has {array.ndim} dimensions: expected {_library.DIMENSIONS_MAX} at most")
    if not array.flags.forc:
        raise ValueError(f"array {name!r} is not contiguous: publish the one that it is a part of")
    described = _library.Array(size=ctypes.sizeof(_library.Array), name=_text(name, "arrays"))
    described.data = address if array.size > 0 else None  # the place of an empty array does not matter
    described.type = _library.ELEMENTS[kind]
    described.order = _library.ORDER_C if array.flags.c_contiguous else _library.ORDER_FORTRAN
    described.dimensions = array.ndim
    described.extents[: array.ndim] = array.shape
    return described


def _region_of(pool, array):
    address = _address_of(array)
    with pool.lock:
        for region in pool.regions:
            if region.address <= address < region.address + region.length:
                return region
    raise ValueError("an array that is published lies in no mapping of this nram.Memory")


def _chosen(pool, mappings, arrays, joins):
    """The regions to publish, once each, and descriptions of their arrays. `joins`: also the regions of `arrays`."""
    regions, described = [], []
    for one in mappings:
        is_mapping = hasattr(one, "_region")
        region = one._region if is_mapping else _region_of(pool, one)
        if region not in regions or is_mapping:
            regions.append(region)
        if arrays is not None:
            continue
        if not is_mapping:
            described.append(_description(os.fsdecode(region.name or b""), one))
        elif region.described is not None:
            described.append(region.described)
    for name, array in (arrays or {}).items():
        described.append(_description(name, array))
        if joins and array.size > 0 and _region_of(pool, array) not in regions:
            regions.append(_region_of(pool, array))
    return regions, described


def _publish(pool, mappings, arrays, joins, keep, history, step, header, most, when_full, wait):
    regions, described = _chosen(pool, mappings, arrays, joins)
    options = _library.PublishOptions(size=ctypes.sizeof(_library.PublishOptions))
    options.keep = keep if isinstance(keep, int) and 0 <= keep < 2**31 else _choice(keep, _library.VERSION_KEEP, "keep")
    options.history = _integer(history, "history", 32)
    options.step = _integer(step, "step")
    options.most = _integer(most, "most", 32)
    options.when_full = _choice(when_full, _library.VERSION_FULL, "when_full")
    options.wait_ms = _milliseconds(wait)
    options.header = None if header is None else json.dumps(header).encode()
    options.arrays = (_library.Array * len(described))(*described)
    options.array_count = len(described)
    addresses = (ctypes.c_void_p * len(regions))(*[region.address for region in regions])
    version = ctypes.c_uint64()
    holds = [Hold(region, CALL) for region in regions]
    try:
        _check(
            _c.nram_publish_all(pool.pointer, addresses, len(regions), ctypes.byref(options), ctypes.byref(version))
        )
    finally:
        for hold in holds:
            hold.release()
    return version.value
