#!/usr/bin/env python3
"""tools/man.py NAME SECTION SUMMARY: makes a man page of a --help text on standard input: both say the same.
tools/man.py --header HEADER: prints such a text of a C header, from its comments and declarations."""

import os
import re
import sys
import time

FILES = """/etc/nram/pool       the pool of commands without --pool and NRAM_POOL
/etc/nram/tls        certificates of servers and clients
$NRAM_STATE_DIR      local pools, logs, process ids; else /run/nram for root,
                     $XDG_RUNTIME_DIR/nram or /tmp/nram-UID"""
EXIT = "0: done. 1: it failed. 2: the command line is wrong. nram run: see nram\\-run(1)."


def of_nram():
    """The sections that nram(1) has beside its help; the variables are those of docs/operating.md."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docs/operating.md")) as file:
        rows = re.findall(r"^\| (`NRAM_.*?) \| (.*) \|$", file.read(), re.MULTILINE)
    print(".SH ENVIRONMENT")
    for names, meaning in rows:
        print(".TP\n" + escape(names.replace("`", "")) + "\n" + escape(meaning.replace("`", "")))
    print(".SH FILES\n.nf\n" + "\n".join(escape(line) for line in FILES.split("\n")) + "\n.fi")
    print(".SH EXIT STATUS\n" + EXIT)
    print(".SH SEE ALSO\nnram\\-memserver(8), nram\\-fsd(8), mount.fuse.nram(8), nram.h(3), nram\\-COMMAND(1)")


def escape(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def print_header(path):
    """The header's first comment, and each declaration in a table of its own after its comment."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    first = re.search(r"^/\*\n( \* nram:.*?)\n \*/", text, re.MULTILINE | re.DOTALL)
    print(f"usage: #include <{re.sub(r'.*/(memory|managed)/', '', path)}>\n")
    print(re.sub(r"^ \* ?", "", first[1], flags=re.MULTILINE))
    declared = text[text.index('extern "C" {') :].split("\n#endif\n", 1)[1].rsplit("\n#ifdef __cplusplus", 1)[0]
    # An inline function is its signature.
    declared = re.sub(r"^(static inline [^{]*) \{\n.*?^\}", r"\1;", declared, flags=re.MULTILINE | re.DOTALL)
    for comment, code in re.findall(r"^/\*(.*?)\*/$|^(?!/\*)([^\n]*)$", declared, re.MULTILINE | re.DOTALL):
        if comment:
            print(re.sub(r"^ \* ?", "", comment, flags=re.MULTILINE).strip())
        else:
            print("\n".join("  " + line if line else "" for line in code.split("\n")))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--header":
        return print_header(sys.argv[2])
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    name, section, summary = sys.argv[1:]
    lines = sys.stdin.read().rstrip("\n").split("\n")
    synopsis = []
    while lines and (lines[0].startswith("usage:") or (synopsis and lines[0].strip())):
        synopsis.append(re.sub(r"^usage:", "", lines.pop(0)).strip())
    print(
        f'.TH {escape(name).upper()} {section} {time.strftime("%Y-%m-%d")} nram nram\n'
        f'.SH NAME\n{escape(name)} \\- {escape(summary)}'
    )
    print(".SH SYNOPSIS\n.nf\n" + "\n".join(escape(line) for line in synopsis) + "\n.fi\n.SH DESCRIPTION")
    filled = True
    for line in lines:
        if line.startswith("example:"):
            print(
                (".fi\n" if not filled else "")
                + f".SH EXAMPLE\n.nf\n{escape(line.removeprefix('example:').strip())}\n.fi"
            )
            filled = True
            continue
        # Tables of flags and commands keep their columns.
        table = line.startswith("  ")
        if table and filled:
            print(".nf")
        if not table and line and not filled:
            print(".fi")
        filled = (not table) if line else filled
        print(escape(line) if line else ".PP" if filled else "")
    if not filled:
        print(".fi")
    if name == "nram":
        of_nram()


if __name__ == "__main__":
    main()
