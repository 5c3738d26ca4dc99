#!/usr/bin/env python3
"""Writes inputs that reach states that long runs rarely reach: seals, generations of spans, versions, every reason.

An input is in its target's own language, not in the wire's, so a new version of the wire does not make the corpus
meaningless. Run it when the language of a target changes, or the wire has something new."""

from pack import read_pack, write_pack

SPARSE, RESERVATION, WHOLE_FRAMES, SEALED, REPLY, CREATE = 2, 32, 64, 128, 1, 16
HELLO, PING, MAKE, READ, WRITE, TRIM, DESTROY, SEAL, DROP = range(1, 10)
REASONS = 15


def number(value):
    """As FuzzInput::AnyNumber."""
    length = (value.bit_length() + 7) // 8
    return bytes([length]) + value.to_bytes(length, "little")


def message(op, flags, how=1, reason=None, first=0, count=8, epoch=1, generation=0, last=0, seed=7, payload_bytes=None,
            flip=None):
    """As TakeMessage of messages_target.cc."""
    how |= (4 if reason is not None else 0) | (64 if payload_bytes is not None else 0) | (128 if flip else 0)
    out = bytes([how, op - 1, flags])
    if reason is not None:
        out += bytes([reason])
    out += bytes([8]) + number(5) + bytes([first])  # request id, region, where the range begins
    out += number(count) if how & 16 else bytes([count])
    out += number(generation << 32 | epoch) + number(last) + bytes([seed])
    if payload_bytes is not None:
        out += number(payload_bytes)
    if flip:
        out += flip[0].to_bytes(2, "little") + bytes([flip[1]])
    return out


def messages():
    for pieces in (0, 1, 2, 5, 12):
        yield bytes([pieces]) + message(WRITE, SEALED) + message(WRITE, SEALED | SPARSE) + message(READ, SEALED | REPLY)
    yield bytes([1]) + message(WRITE, SEALED | SPARSE, how=1 | 32)  # masks of parts, seals without pages
    yield bytes([1]) + message(WRITE, SEALED, how=1 | 16, count=15)  # not whole pages
    yield bytes([1]) + message(WRITE, SEALED | SPARSE, flip=(64 + 2 + 5, 1))  # in a seal
    yield bytes([1]) + message(WRITE, SEALED, payload_bytes=4096)
    yield bytes([1]) + message(READ, SEALED | REPLY | SPARSE, reason=1)
    for op in (READ, WRITE, TRIM):
        yield bytes([1]) + message(op, 0, generation=3, last=4) + message(op, REPLY, last=9, count=8)
    for op in (HELLO, PING, MAKE, READ, TRIM, DESTROY):
        yield bytes([1]) + message(op, 0) + message(op, REPLY, reason=2, last=1 << 40) + message(op, 0, flip=(63, 128))
    for last in (1, 1 << 32 | 1, 2 << 32 | 1, 0, 0xFFFFFFFF, 0xFFFFFFFE << 32 | 1):
        for op in (SEAL, DROP):
            yield bytes([1]) + message(op, 0, last=last) + message(op, REPLY, last=last)
            yield bytes([1]) + message(op, 0, last=last, generation=1) + message(op, REPLY, reason=14)
    yield bytes([1]) + b"".join(message(PING, REPLY, reason=reason) for reason in range(REASONS))


def request(op, place=1, epoch=0, upper=0, flags=0, first=0, count=7, fill=1, step=1, grant=4, mask=0, mask_step=0):
    """As RunOne of session_target.cc; op counts in its table."""
    out = bytes([op, place, upper << 4 | epoch, flags, 0, first, count, fill, step, grant, mask, mask_step, 0])
    return out.ljust(16, b"\0")


def session():
    write = request(0, flags=CREATE)
    for flags in (0, RESERVATION, WHOLE_FRAMES, RESERVATION | WHOLE_FRAMES):
        yield (write + request(0, upper=13, flags=CREATE | flags) + request(1) + request(3, upper=13, flags=flags)
               + request(1, upper=13) + request(1, upper=12) + request(1) + request(7))
    # Versions: sealed, written over, read, trimmed, read, dropped. A read of generation 3 is of version 1.
    third = request(0, upper=12, flags=CREATE)
    seal, drop = request(240, count=8), request(247, count=8)
    yield (third + seal + request(0, upper=12, fill=2) + request(1, upper=12) + seal + request(3, upper=12)
           + request(1, upper=12) + request(240, count=9) + request(0, upper=13, flags=CREATE) + request(1, upper=12)
           + drop + request(1, upper=12) + drop + request(7))
    yield seal + third + request(1, upper=12) + request(240, count=10) + request(240, count=9) + seal + request(7)
    yield write + request(0, upper=13, mask=0x33, mask_step=1) + request(1) + request(0, mask=0x33) + request(1)


def replies():
    for reason in range(REASONS):
        # A hello as it should be, four calls, an answer to each.
        calls = b"".join(bytes([kind, 0, 7]) if kind < 4 else bytes([kind, 0, 7])[:3 if kind == 4 else 1]
                         for kind in (0, 3, 4, 5))
        answers = b"".join(bytes([1 | 4, which, reason]) + (bytes([9]) if which == 0 and reason == 0 else b"")
                           for which in range(4))
        yield bytes([4 * 3]) + calls + answers
        # And a hello that is refused.
        yield bytes([3, HELLO - 1, REPLY, reason, 8, 8, 8])
    # A sealed answer without a request.
    yield bytes([0, 0, 0, 7]) + bytes([1 | 16, 0, READ - 1, REPLY | SEALED, 16, 0, 0, 64, 9])


def publication():
    text = (b'{"header":"","number":7,"regions":[{"id":"0x0000000000000005","least_in_sync":1,"length":4096,"members":'
            b'[18446744073709551615,3],"name":"a","version":2}],"step":1,"time_ns":5}')
    yield bytes([2]) + text
    yield bytes([3]) + text[:-1]
    yield bytes([1]) + number(7) + text
    yield bytes([1]) + number(8) + text
    for old, new in ((b"4096", b"-1"), (b"\"a\"", b"\"\\u0007\""), (b":2}", b":4294967295}"), (b"[{", b"[[[[{"),
                     (b'"header":""', b'"header":"{\\"a\\":[1,2.5e3,null]}"')):
        yield bytes([2]) + text.replace(old, new)
    arrays = (b'{"arrays":[{"dims":[8,8],"mapping":0,"name":"u","offset":8,"order":"C","type":"float64"},{"dims":[],'
              b'"mapping":0,"name":"n","offset":0,"order":"Fortran","type":"int64"}],')
    for old, new in ((b"", b""), (b"[8,8]", b"[8,4294967296,4294967296]"), (b'"offset":8', b'"offset":-8'),
                     (b'"n"', b'"u"'), (b"float64", b"float65"), (b"[8,8]", b"[0,511]"), (b"[8,8]", b"[0,512]"),
                     (b"[]", b"[1,1,1,1,1,1,1,1,1]"), (b'"offset":0', b'"offset":4096'),
                     (b'"mapping":0', b'"mapping":1'), (b'"u"', b'"\\u0000"')):
        yield bytes([2]) + arrays.replace(old, new) + text[1:]
    for magic in (b"NRMV", bytes(4)):
        yield bytes([0]) + magic + (1).to_bytes(4, "little") + bytes(504)


def main():
    for name, inputs in (("messages", messages()), ("session", session()), ("replies", replies()),
                         ("publication", publication())):
        write_pack(name, read_pack(name) + list(inputs))


if __name__ == "__main__":
    main()
