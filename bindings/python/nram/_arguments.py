"""Arguments of callers in the form that libnram takes, and errors of libnram as exceptions."""

import ctypes
import errno
import operator
import os
import re

from . import _library
from ._lifetime import Error

_c = _library.library


def _error():
    """The exception for the call that has just failed in this thread."""
    number = ctypes.get_errno() or errno.EIO
    return Error(number, (_c.nram_error() or b"").decode("utf-8", "replace") or os.strerror(number))


def _check(result):
    if result != 0:
        raise _error()


def _integer(value, what, bits=64):
    value = operator.index(value)
    if not 0 <= value < 1 << bits:
        raise ValueError(f"{what}: {value} is not in 0 to 2**{bits} - 1")
    return value


def _size(value, what):
    """Bytes, of an int or of text in the command's form: "4096", "512M", "1.5GiB"."""
    if not isinstance(value, str):
        return _integer(value, what)
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?)(?:B|([KMGTP])(?:iB)?|([kmgtp]))?", value)
    if not match:
        raise ValueError(
            f'{what}: "{value}" is not a size; write a number of bytes or use K, M, G, T (powers of 1024), '
            "for example 512M or 1.5GiB"
        )
    number, upper, lower = match.groups()
    unit = 1024 ** " KMGTP".index((upper or lower or " ").upper())
    return _integer(int(float(number) * unit) if "." in number else int(number) * unit, what)


def _budget(value):
    """Size, floor and ceiling in the form of nram_options."""
    if value is None:
        return 0, 0, 0
    if isinstance(value, str) and value.startswith("auto"):
        match = re.fullmatch(r"auto(?::([^-]+)-([^-]+))?", value)
        if not match:
            raise ValueError(f'budget: "{value}": expected a size, "auto" or "auto:FLOOR-CEILING"')
        bounds = [_size(bound, "budget") for bound in match.groups() if bound is not None] or [0, 0]
        if match.group(1) is not None and 0 in bounds:
            raise ValueError(f'budget: "{value}": a bound is 0')
        return _library.BUDGET_AUTO, *bounds
    size = _size(value, "budget")
    if size in (0, _library.BUDGET_AUTO):
        raise ValueError('budget: 4M or more, "auto", or None for $NRAM_BUDGET, else 256 MiB')
    return size, 0, 0


def _milliseconds(seconds):
    if not 0 <= seconds <= 4_000_000:
        raise ValueError(f"timeout: {seconds} is not in 0 to 4,000,000 seconds")
    return int(seconds * 1_000)


def _choice(value, choices, what):
    if value not in choices:
        raise ValueError(f'{what}: "{value}" is none of {", ".join(choices)}')
    return choices[value]


def _text(value, what):
    encoded = None if value is None else os.fsencode(value)
    if encoded is not None and b"\0" in encoded:
        raise ValueError(f"{what}: a null character")
    return encoded
