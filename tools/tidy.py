#!/usr/bin/env python3
"""Style that a program can check; run by tools/test. Each rule says how to mend what it finds."""

import os
import re
import subprocess
import sys

LINES_MAX = 600
COLUMNS_MAX = 120  # as .clang-format says
# Who may see whom (docs/design.md). A folder sees itself, base, and these.
MAY_SEE = {
    "base": set(),
    "proto": set(),
    "memserver": {"proto"},
    "client/transport": {"proto"},
    "client/pool": {"client/transport", "proto"},
    "client/memory": {"client/pool"},
    "fsd": {"client/pool"},
    "tools": {"client/memory", "client/pool", "client/transport", "fsd", "proto"},
}
GRPC_ONLY_IN = {"memserver", "client/transport"}
NOTES = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

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
        problem(path, len(lines), f"{len(lines)} lines; at most {LINES_MAX}: split the file by concept")
    room = room_of(path)
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX:
            problem(path, number, f"{len(line)} columns; at most 120: run clang-format")
        if NOTES.search(line) and path != "tools/tidy.py":
            problem(path, number, "a note to self: do it, or write an issue")
        if line != line.rstrip():
            problem(path, number, "trailing white space")
        include = re.match(r'#include "([^"]+)"', line)
        if include and room and not path.endswith("_test.cc"):
            seen = room_of(include.group(1))
            if seen and seen not in MAY_SEE[room] | {room, "base"}:
                problem(path, number, f"{room} must not see {seen} (docs/design.md, rooms and arrows)")
        is_grpc = re.match(r"#include <(grpc|grpcpp)/", line)
        if is_grpc and room not in GRPC_ONLY_IN and not path.startswith("tests/util/"):
            problem(path, number, "gRPC lives in memserver and client/transport only")
        if re.match(r"#include <fuse", line) and not path.startswith("fsd/"):
            problem(path, number, "libfuse lives in fsd only")
    if path.endswith(".h"):
        guard = "NRAM_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
        if f"#ifndef {guard}" not in lines:
            problem(path, 1, f"the header guard should be {guard}")


def check_document(path, lines):
    for number, line in enumerate(lines, 1):
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", line):
            if re.match(r"[a-z]+:", target):
                continue
            if not os.path.exists(os.path.join(os.path.dirname(path), target)):
                problem(path, number, f"dead link to {target}")
        # Paths in backticks that look like ours.
        for target in re.findall(r"`((?:base|client|deploy|docs|fsd|memserver|proto|tests|tools)/[\w./-]+)`", line):
            if not os.path.exists(target) and not os.path.exists(target.rstrip("/")):
                problem(path, number, f"{target} does not exist")


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    for path in listed.stdout.splitlines():
        if path.startswith("third_party/") or not os.path.isfile(path):
            continue
        if path.endswith((".cc", ".h", ".c", ".py", ".sh", ".proto")):
            check_source(path, open(path, encoding="utf-8").read().split("\n"))
        elif path.endswith(".md"):
            check_document(path, open(path, encoding="utf-8").read().split("\n"))
    seen = subprocess.run(["bazel", "query", "--noshow_progress", "somepath(//memserver/..., //client/...)"],
                          capture_output=True, text=True, check=False)
    if seen.returncode != 0:
        problems.append("bazel query failed: " + seen.stderr.strip().split("\n")[-1])
    elif seen.stdout.strip():
        problems.append("memserver must not see client: " + " -> ".join(seen.stdout.split()))
    for text in problems:
        print(text)
    print(f"tidy: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
