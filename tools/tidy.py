#!/usr/bin/env python3
"""Checks the style that a program can check, in all files that git knows; tools/test runs it.

Each problem is a line FILE:LINE: TEXT or FILE: TEXT, and the text says how to mend it. Five rules are ratchets. Their
exceptions, the numbers that were above the limit when the rule was made, are in tools/tidy.json and may only shrink:

  methods    methods of a class, at most 30 (tools/tidy_classes.py says which count)
  files      .cc files that define methods of one class, at most 2
  sleeps     calls in a product source that wait for time to pass, none
  documents  each of the four habits of tools/tidy_english.py in a document, 1 for each 2,000 words and 1 in any case
  comments   all four habits in the comments of a source, fewer than 1 for each 1,000 words

After a change that lowers such a number, run `python3 tools/tidy.py --update`. It lowers entries, removes entries that
are no longer needed, and renames entries of files that have moved; it never raises or adds one. Raising a number is a
decision: edit tools/tidy.json by hand, and give the reason in the commit.
"""

import argparse
import glob
import io
import os
import re
import subprocess
import sys
import unittest

import tidy_classes
import tidy_english
import tidy_ratchet
import tidy_sleeps
from tidy_ratchet import Measure
from tidy_source import CXX, Source, find_functions

LINES_MAX = 600  # of a file; tests are exempt
FUNCTION_LINES_MAX = 70  # from the signature to the last brace
COLUMNS_MAX = 120  # as .clang-format says, and of documents too: tables and code are exempt
# The folders that a folder may see besides itself and base (docs/design.md).
MAY_SEE = {
    "base": set(),
    "proto": set(),
    "members/etcd": {"proto"},
    "members": {"members/etcd"},
    "memserver": {"members/etcd", "proto"},
    "client/transport": {"proto"},
    "client/seal": {"proto"},
    "client/pool": {"client/seal", "client/transport", "members", "proto"},
    "client/managed": {"client/memory", "client/pool"},
    "client/memory": {"client/pool"},
    "client/run": {"client/memory", "client/pool"},
    "fsd": {"client/pool"},
    "sort": {"client/pool"},
    "swap": {"client/pool", "fsd"},
    "tools": {
        "client/managed",
        "client/memory",
        "client/pool",
        "client/run",
        "client/seal",
        "client/transport",
        "fsd",
        "members",
        "proto",
        "sort",
        "swap",
    },
}
# Variables by which programs of nram call each other; no user sets them.
OWN_VARIABLES = {"NRAM_RUN_START", "NRAM_SELF", "NRAM_SEED"}
GRPC_ONLY_IN = {"members/etcd", "memserver", "client/transport", "proto"}
NOTES = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

SOURCES = CXX + (".py", ".sh", ".proto", ".f90", ".f90.in")
SCRIPT = re.compile(r"tools/\w+|\.ci/run")  # without an extension
# A path from the top of the tree, or a decision record by its number.
ROOMS = "base|bindings|client|deploy|docs|experiments|fsd|members|memserver|proto|sort|swap|third_party|tests|tools"
PATH = re.compile(rf"(?<![\w./$-])((?:{ROOMS})/[\w./-]*\w|adr/\d{{4}})")

problems = []


def problem(path, line, text):
    problems.append(f"{path}:{line}: {text}")


def room_of(path):
    for room in sorted(MAY_SEE, key=len, reverse=True):
        if path.startswith(room + "/"):
            return room
    return None


def check_source(path, lines):
    if len(lines) > LINES_MAX and not path.startswith("tests/") and not path.endswith("_test.cc"):
        problem(path, len(lines), f"{len(lines)} lines; at most {LINES_MAX}: move a whole class or a concern out of it")
    room = room_of(path)
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            remedy = "run clang-format" if path.endswith(CXX) else "break the line"
            problem(path, number, f"{len(line)} columns; at most {COLUMNS_MAX}: {remedy}")
        if NOTES.search(line) and path != "tools/tidy.py":
            problem(path, number, "a note to self: do it, or write an issue")
        if line != line.rstrip():
            problem(path, number, "trailing white space")
        include = re.match(r'#include "([^"]+)"', line)
        if include and room and not path.endswith("_test.cc"):
            seen = room_of(include.group(1))
            if seen and seen not in MAY_SEE[room] | {room, "base"}:
                problem(path, number, f"{room} must not see {seen} (docs/design.md, rooms and arrows)")
            if include.group(1).startswith(("tests/", "experiments/")):
                problem(path, number, f"{room} must not see tests or experiments")
        is_grpc = re.match(r"#include <(grpc|grpcpp)/", line)
        if is_grpc and room not in GRPC_ONLY_IN and not path.startswith("tests/util/"):
            problem(path, number, "gRPC lives in memserver, client/transport, members/etcd and proto only")
        if re.match(r"#include <fuse", line) and not path.startswith("fsd/"):
            problem(path, number, "libfuse lives in fsd only")
    if path.endswith(".h"):
        guard = "NRAM_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
        if f"#ifndef {guard}" not in lines:
            problem(path, 1, f"the header guard should be {guard}")


def check_functions(path, code):
    for line, length, name in find_functions(code):
        if length > FUNCTION_LINES_MAX:
            problem(path, line, f"{name} has {length} lines; at most {FUNCTION_LINES_MAX}: take steps of it out")


def check_comments(path, comments):
    for first, text in comments:
        for offset, line in enumerate(text.split("\n")):
            for target in PATH.findall(line):
                found = glob.glob(f"docs/{target}-*.md") if target.startswith("adr/") else glob.glob(target + "*")
                if not found:
                    problem(path, first + offset, f"{target} does not exist")


def check_width(path, lines):
    fenced = False
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            fenced = not fenced
        exempt = fenced or line.startswith(("|", "    ", "\t"))
        if len(line) > COLUMNS_MAX and not exempt:
            problem(path, number, f"{len(line)} columns; at most {COLUMNS_MAX}: break the line")


def anchors_of(text):
    """The anchors of a document's headings, as GitHub makes them."""
    anchors = set()
    for heading in re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchors.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return anchors


def check_anchors(path, documents):
    for number, line in enumerate(documents[path].split("\n"), 1):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", line):
            place = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if place in documents and anchor not in anchors_of(documents[place]):
                problem(path, number, f"{place} has no heading #{anchor}")


def check_document(path, lines):
    for number, line in enumerate(lines, 1):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            if not os.path.exists(os.path.join(os.path.dirname(path), target)):
                problem(path, number, f"dead link to {target}")
        # Paths in backticks that look like ours.
        for target in re.findall(rf"`((?:{ROOMS})/[\w./-]+)`", line):
            if not os.path.exists(target) and not os.path.exists(target.rstrip("/")):
                problem(path, number, f"{target} does not exist")


def check_variables(sources, table):
    """The environment variables of the product, and the rows of the operators' table, are the same."""
    path = "docs/operating.md"
    named = {name for row in re.findall(r"^\| (`NRAM_.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    read = {}
    for source in sources:
        if source.is_product and source.path.endswith((".cc", ".h", ".py")):
            for name in re.findall(r"""["'](NRAM_[A-Z_]*[A-Z])["']""", source.text):
                read.setdefault(name, source.path)
    for name in sorted(read.keys() - named - OWN_VARIABLES):
        if not name.endswith("_FOR_TEST"):
            problem(read[name], 1, f"{name} has no row in the table of environment variables of {path}")
    for name in sorted(named - read.keys()):
        problem(path, 1, f"{name} has a row in the table of environment variables, and no program reads it")


def check_unsignalled(sources):
    for path, line, name in tidy_sleeps.find_unsignalled(sources):
        text = f"no thread signals {name}: signal it, or call SleepMs or PollUntil (base/poll_until.h)"
        problem(path, line, text)


def measure_classes(sources):
    methods, files = tidy_classes.measure(sources)
    for name, number in methods.items():
        path, _, of_class = name.partition(" ")
        yield Measure("methods", path, of_class, number, tidy_classes.METHODS_MAX, f"methods of {of_class}",
                      "give one concern, with its state, a class of its own")
    for name, number in files.items():
        path, _, of_class = name.partition(" ")
        yield Measure("files", path, of_class, number, tidy_classes.FILES_MAX, f".cc files that define {of_class}",
                      "divide the class, not its text")


def measure_sleeps(sources):
    for source in sources:
        yield Measure("sleeps", source.path, "", tidy_sleeps.count_sleeps(source), 0, "sleeps",
                      "wait for a signal; base/poll_until.h says when there is none")


def measure_comments(sources):
    for source in sources:
        text = tidy_english.text_of_comments(source.comments)
        number = sum(tidy_english.count(text).values())
        yield Measure("comments", source.path, "", number, tidy_english.allowed_in_comments(text), "habits in comments",
                      f"`python3 tools/tidy_english.py {source.path}` prints them")


def measure_documents(documents):
    for path, text in documents.items():
        prose = tidy_english.text_of_document(text)
        for habit, number in tidy_english.count(prose).items():
            yield Measure("documents", path, habit, number, tidy_english.allowed_in_document(prose),
                          f'habit "{habit}"', f"`python3 tools/tidy_english.py {path}` prints them")


def check_ratchet(measures, update):
    entries = tidy_ratchet.read()
    found, fitting = tidy_ratchet.compare(entries, measures)
    problems.extend(found)
    stale = tidy_ratchet.describe(entries, fitting)
    if update:
        tidy_ratchet.write(fitting)
    elif stale:
        shown = "; ".join(stale[:5])
        problems.append(f"{tidy_ratchet.FILE}: run `python3 tools/tidy.py --update` for {len(stale)} entries: {shown}")


def check_arrows():
    seen = subprocess.run(["bazel", "query", "--noshow_progress", "somepath(//memserver/..., //client/...)"],
                          capture_output=True, text=True, check=False)
    if seen.returncode != 0:
        problems.append("bazel query failed: " + seen.stderr.strip().split("\n")[-1])
    elif seen.stdout.strip():
        problems.append("memserver must not see client: " + " -> ".join(seen.stdout.split()))


def test_tidy():
    """Runs tools/tidy_test.py."""
    tests = unittest.defaultTestLoader.loadTestsFromName("tidy_test")
    result = unittest.TextTestRunner(stream=io.StringIO()).run(tests)
    for case, why in result.failures + result.errors:
        problems.append(f"tools/tidy_test.py: {case}: {why.strip().splitlines()[-1]}")


def read_tree():
    """The sources, and {path: text} of the documents."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = {}
    for path in listed:
        written = path.endswith(SOURCES + (".md",)) or SCRIPT.fullmatch(path)
        if written and not path.startswith("third_party/") and os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                texts[path] = file.read()
    sources = [Source.of(path, text) for path, text in texts.items() if not path.endswith(".md")]
    return sources, {path: text for path, text in texts.items() if path.endswith(".md")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="lower the numbers of tools/tidy.json to those of today")
    arguments = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    sources, documents = read_tree()
    cxx = [source for source in sources if source.path.endswith(CXX)]
    product = [source for source in cxx if source.is_product]
    for source in sources:
        check_source(source.path, source.text.split("\n"))
        check_comments(source.path, source.comments)
    for source in cxx:
        check_functions(source.path, source.code)
    check_unsignalled(product)
    check_variables([source for source in sources if not source.path.startswith("bindings/python/test")],
                    documents["docs/operating.md"])
    for path, text in documents.items():
        check_document(path, text.split("\n"))
        check_anchors(path, documents)
        check_width(path, text.split("\n"))
    written = [source for source in sources if not source.path.endswith(".proto")]
    check_ratchet([*measure_classes(product), *measure_sleeps(product), *measure_comments(written),
                   *measure_documents(documents)], arguments.update)
    test_tidy()
    check_arrows()
    for text in problems:
        print(text)
    print(f"tidy: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
