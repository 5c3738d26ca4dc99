#!/usr/bin/env python3
"""Style that a program can check; run by tools/test. Each rule says how to mend what it finds."""

import glob
import os
import re
import subprocess
import sys

LINES_MAX = 600  # of a file; tests are exempt
FUNCTION_LINES_MAX = 70  # from the signature to the last brace
COLUMNS_MAX = 120  # as .clang-format says, and of documents too: tables and code are exempt
# Who may see whom (docs/design.md). A folder sees itself, base, and these.
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
GRPC_ONLY_IN = {"members/etcd", "memserver", "client/transport"}
NOTES = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

CXX = (".cc", ".h", ".c", ".hpp")
SOURCES = CXX + (".py", ".sh", ".proto")
# Of a source: comments, and the literals in which something may look like one. Longest first.
TOKENS = {
    "cxx": re.compile(
        r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"""
        r""""(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""",
        re.S,
    ),
    "script": re.compile(r"""(?P<comment>(?<!\S)#[^\n]*)|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""),
}
# A path from the top of the tree, or a decision record by its number.
ROOMS = "base|bindings|client|deploy|docs|experiments|fsd|members|memserver|proto|sort|swap|third_party|tests|tools"
PATH = re.compile(rf"(?<![\w./$-])((?:{ROOMS})/[\w./-]*\w|adr/\d{{4}})")
CONTAINER = re.compile(
    r"(?:template\s*<.*?>\s*)?(?:(?:typedef|inline|static|constexpr)\s+)*(namespace|class|struct|union|enum|extern)\b",
    re.S,
)
LABELS = re.compile(r"(?:\s|(?:public|private|protected)\s*:)*")

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
            problem(path, number, "gRPC lives in memserver, client/transport and members/etcd only")
        if re.match(r"#include <fuse", line) and not path.startswith("fsd/"):
            problem(path, number, "libfuse lives in fsd only")
    if path.endswith(".h"):
        guard = "NRAM_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
        if f"#ifndef {guard}" not in lines:
            problem(path, 1, f"the header guard should be {guard}")


def split_comments(path, text):
    """The text with comments and literals blanked, and the comments as (line, text)."""
    tokens = TOKENS["cxx" if path.endswith(CXX + (".proto",)) else "script"]
    comments = []

    def blank(match):
        token = match.group(0)
        if match.group("comment"):
            comments.append((text.count("\n", 0, match.start()) + 1, token))
            return re.sub(r"[^\n]", " ", token)
        return token[0] + re.sub(r"[^\n]", " ", token[1:-1]) + token[-1]

    return tokens.sub(blank, text), comments


def find_functions(code):
    """(first line, lines, name) of each C++ function, its lambdas included. Comments and literals must be blanked."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: "\n" * match.group(0).count("\n"), code, flags=re.M)
    functions = []
    stack = []  # what each open brace belongs to
    begin = 0  # of the head before the next brace
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group(0) == "{":
            head = code[begin:at]
            kind = "inner" if stack and stack[-1][0] not in ("container", "initialiser") else kind_of(head)
            stack.append((kind, begin + LABELS.match(head).end()))
            if kind == "initialiser":
                continue  # the head goes on behind it
        elif match.group(0) == "}" and stack:
            kind, first = stack.pop()
            if kind == "initialiser":
                continue
            if kind == "function":
                head = " ".join(code[first:at].split("{")[0].split())
                name = head if head.startswith("TEST") else re.split(r"[\s*&]", head.split("(")[0].strip())[-1]
                functions.append((code.count("\n", 0, first) + 1, code.count("\n", first, at) + 1, name))
        elif stack and stack[-1][0] != "container":
            continue
        begin = at + 1
    return functions


def kind_of(head):
    """The kind of thing that begins at the brace behind `head`, which stands outside of functions."""
    head = head[LABELS.match(head).end():].strip()
    if head.count("(") > head.count(")"):
        return "initialiser"  # of a default argument
    if re.search(r"\)\s*(noexcept\s*)?:[^:].*[\w>]$", head, re.S) and not re.search(r"\b(const|override|try)$", head):
        return "initialiser"  # of a member
    if CONTAINER.match(head) and not re.search(r"\)\s*(const)?$", head):
        return "container"
    return "inner" if "(" not in head or head.endswith("=") else "function"


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


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    for path in listed.stdout.splitlines():
        if path.startswith("third_party/") or not os.path.isfile(path):
            continue
        if path.endswith(SOURCES):
            text = open(path, encoding="utf-8").read()
            check_source(path, text.split("\n"))
            code, comments = split_comments(path, text)
            check_comments(path, comments)
            if path.endswith(CXX):
                check_functions(path, code)
        elif path.endswith(".md"):
            lines = open(path, encoding="utf-8").read().split("\n")
            check_document(path, lines)
            check_width(path, lines)
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
