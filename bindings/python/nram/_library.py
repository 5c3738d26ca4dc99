"""libnram-core.so.0 by ctypes: the parts of client/memory/nram.h that Python uses."""

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

SONAME = "libnram-core.so.0"

POLICIES = {"default": 0, "second_chance": 1, "fifo": 2, "random": 3}
ADVICE = {
    "normal": 0,
    "sequential": 1,
    "random": 2,
    "will_need": 3,
    "dont_need": 4,
    "pin": 5,
    "unpin": 6,
    "drop": 7,
}
BUDGET_AUTO = 2**64 - 1
MAP_READ_ONLY = 1
MAP_ATTACH = 2
MAP_KEEP = 4
VERSION_KEEP = {"with_owner": 0, "until_dropped": -1}
VERSION_FULL = {"drop_oldest": 0, "wait": 1, "fail": 2}
MAPPINGS_MAX = 64  # of one version
DIMENSIONS_MAX = 8  # of an array
ELEMENTS = {
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "uint8": 5,
    "uint16": 6,
    "uint32": 7,
    "uint64": 8,
    "float16": 9,
    "float32": 10,
    "float64": 11,
    "complex64": 12,
    "complex128": 13,
    "bool": 14,
}
ORDER_C = 0
ORDER_FORTRAN = 1


class Options(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("budget_bytes", c_uint64),
        ("page_bytes", c_uint64),
        ("handlers", c_uint32),
        ("policy", c_int),
        ("timeout_ms", c_uint32),
        ("local_below", c_uint64),
        ("on_loss", c_void_p),
        ("on_loss_context", c_void_p),
        ("copies", c_uint32),
        ("key_file", c_char_p),
        ("budget_min_bytes", c_uint64),
        ("budget_max_bytes", c_uint64),
        ("on_budget", c_void_p),
        ("on_budget_context", c_void_p),
    ]


class Stats(ctypes.Structure):
    _fields_ = [("size", c_size_t)] + [
        (name, c_uint64)
        for name in (
            "budget_bytes",
            "mapped_bytes",
            "resident_bytes",
            "faults",
            "write_faults",
            "hits",
            "zero_pages",
            "fetched_bytes",
            "prefetched_bytes",
            "prefetch_wasted_bytes",
            "written_bytes",
            "evicted_pages",
            "lost_pages",
            "wait_ns",
            "metadata_bytes",
            "budget_shrank",
            "budget_grew",
        )
    ]


class Array(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("data", c_void_p),
        ("type", c_int),
        ("order", c_int),
        ("dimensions", c_uint32),
        ("mapping", c_uint32),
        ("offset", c_uint64),
        ("extents", c_uint64 * DIMENSIONS_MAX),
    ]


class PublishOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("keep", c_int),
        ("history", c_uint32),
        ("step", c_uint64),
        ("header", c_char_p),
        ("most", c_uint32),
        ("when_full", c_int),
        ("wait_ms", c_uint32),
        ("arrays", POINTER(Array)),
        ("array_count", c_size_t),
    ]


class VersionInfo(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("version", c_uint64), ("step", c_uint64), ("time_ns", c_int64)]


FUNCTIONS = {
    "nram_open": (c_void_p, [c_char_p, POINTER(Options)]),
    "nram_close": (c_int, [c_void_p]),
    "nram_set_budget": (c_int, [c_void_p, c_uint64]),
    "nram_error": (c_char_p, []),
    "nram_mmap": (c_void_p, [c_void_p, c_size_t, c_char_p, c_int]),
    "nram_munmap": (c_int, [c_void_p, c_void_p]),
    "nram_length": (c_size_t, [c_void_p, c_void_p]),
    "nram_advise": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "nram_prefetch": (c_int, [c_void_p, c_void_p, c_size_t]),
    "nram_flush": (c_int, [c_void_p, c_void_p, c_size_t]),
    "nram_get_stats": (c_int, [c_void_p, POINTER(Stats)]),
    "nram_publish_all": (
        c_int,
        [c_void_p, POINTER(c_void_p), c_size_t, POINTER(PublishOptions), POINTER(c_uint64)],
    ),
    "nram_published": (c_int, [c_void_p, c_void_p, c_uint64, c_uint32]),
    "nram_drop_version": (c_int, [c_void_p, c_void_p, c_uint64]),
    "nram_observe": (c_void_p, [c_void_p, c_char_p, c_uint64, POINTER(c_uint64)]),
    "nram_observe_all": (
        c_int,
        [c_void_p, c_char_p, c_uint64, POINTER(c_void_p), POINTER(c_size_t), POINTER(c_uint64)],
    ),
    "nram_next": (c_int, [c_void_p, c_void_p, c_uint32, POINTER(c_uint64)]),
    "nram_version_header": (c_char_p, [c_void_p, c_void_p]),
    "nram_get_array": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(Array)]),
    "nram_get_version_info": (c_int, [c_void_p, c_void_p, POINTER(VersionInfo)]),
}


def installed():
    """The path of the library in the same PREFIX/lib as this package, where tools/install puts it; None: none there."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    path = os.path.join(os.path.dirname(os.path.dirname(packages)), SONAME)
    return path if os.path.exists(path) else None


def load():
    """The library of $NRAM_LIBRARY, else the one installed with this package, else the one that the loader finds.
    ImportError names the remedy."""
    named = os.environ.get("NRAM_LIBRARY")
    try:
        library = ctypes.CDLL(named or installed() or SONAME, use_errno=True)
    except OSError as error:
        if named:
            advice = f"set NRAM_LIBRARY to the path of {SONAME}, or unset it to have the loader search"
        else:
            advice = (
                f"install nram (tools/install PREFIX, then ldconfig, or LD_LIBRARY_PATH=PREFIX/lib), or set "
                f"NRAM_LIBRARY to the path of {SONAME}"
            )
        raise ImportError(f"nram cannot load its library: {error}; {advice}") from None
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise ImportError(f"{named or SONAME} has no {name}: it is not nram's library, or of another version")
        function.restype = result
        function.argtypes = arguments
    return library


library = load()
