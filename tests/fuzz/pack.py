#!/usr/bin/env python3
"""The kept inputs of a fuzz target: one file, corpus/NAME.pack.

usage: tests/fuzz/pack.py unpack NAME DIRECTORY   writes the inputs as files of DIRECTORY, for libFuzzer
       tests/fuzz/pack.py pack NAME DIRECTORY     makes the pack of the files of DIRECTORY
       tests/fuzz/pack.py add NAME FILE...        adds inputs to the pack

A pack has, for each input, its length (four bytes, little-endian) and its bytes, in the order of their SHA-1 sums. The
same inputs make the same pack."""

import hashlib
import os
import sys

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")


def pack_path(name):
    return os.path.join(CORPUS, f"{name}.pack")


def digest(data):
    return hashlib.sha1(data).hexdigest()


def read_pack(name):
    """The inputs; ValueError if the pack ends within one."""
    with open(pack_path(name), "rb") as file:
        data = file.read()
    inputs = []
    at = 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at:at + 4], "little")
        if end > len(data):
            raise ValueError(f"{pack_path(name)} ends within an input")
        inputs.append(data[at + 4:end])
        at = end
    return inputs


def write_pack(name, inputs):
    path = pack_path(name)
    with open(path + ".new", "wb") as file:
        for data in sorted(set(inputs), key=digest):
            file.write(len(data).to_bytes(4, "little") + data)
    os.replace(path + ".new", path)


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def main():
    words = sys.argv[1:]
    if len(words) < 3 or words[0] not in ("unpack", "pack", "add") or (words[0] != "add" and len(words) != 3):
        sys.exit(__doc__)
    command, name, places = words[0], words[1], words[2:]
    try:
        if command == "add":
            write_pack(name, read_pack(name) + [read_file(place) for place in places])
        elif command == "pack":
            write_pack(name, [read_file(entry.path) for entry in os.scandir(places[0]) if entry.is_file()])
        else:
            os.makedirs(places[0], exist_ok=True)
            for data in read_pack(name):
                with open(os.path.join(places[0], digest(data)), "wb") as file:
                    file.write(data)
    except (OSError, ValueError) as error:
        sys.exit(f"tests/fuzz/pack.py: {error}")


if __name__ == "__main__":
    main()
