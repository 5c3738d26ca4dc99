"""Sources without a compiler: comments and literals blanked, and the functions and classes of C++."""

import functools
import re
from dataclasses import dataclass

CXX = (".cc", ".h", ".c", ".hpp")
# The comments of a source, and the literals in which something may look like a comment. Longest first.
TOKENS = {
    "cxx": re.compile(
        r"""(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|"""
        r""""(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'""",
        re.S,
    ),
    "script": re.compile(r"""(?P<comment>(?<!\S)#[^\n]*)|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""),
    "fortran": re.compile(r"""(?P<comment>![^\n]*)|"[^"\n]*"|'[^'\n]*'"""),
}
CONTAINER = re.compile(
    r"(?:template\s*<.*?>\s*)?(?:(?:typedef|inline|static|constexpr)\s+)*(namespace|class|struct|union|enum|extern)\b",
    re.S,
)
LABELS = re.compile(r"(?:\s|(?:public|private|protected)\s*:)*")
# Parts of a head with parentheses that are no parameters.
ANNOTATIONS = re.compile(
    r"\[\[.*?\]\]|\b(?:ABSL_\w+|alignas|__attribute__)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", re.S
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)


@dataclass
class Source:
    """A file; its code has comments and literals blanked."""

    path: str
    text: str
    code: str
    comments: list  # of (line, text)

    @classmethod
    def of(cls, path, text):
        return cls(path, text, *split_comments(path, text))

    @property
    def is_product(self):
        """Part of the programs and libraries that users get: no test, benchmark or experiment."""
        return not self.path.startswith(("tests/", "experiments/", "tools/bench/")) and "_test." not in self.path

    @functools.cached_property
    def includes(self):
        return set(re.findall(r'^#include "([^"]+)"', self.text, re.M))


def split_comments(path, text):
    """The text with comments and literals blanked, and the comments as (line, text)."""
    fortran = path.endswith((".f90", ".f90.in"))
    tokens = TOKENS["cxx" if path.endswith(CXX + (".proto",)) else "fortran" if fortran else "script"]
    comments = []

    def blank(match):
        token = match.group(0)
        if match.group("comment"):
            comments.append((text.count("\n", 0, match.start()) + 1, token))
            return re.sub(r"[^\n]", " ", token)
        return token[0] + re.sub(r"[^\n]", " ", token[1:-1]) + token[-1]

    return tokens.sub(blank, text), comments


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


def class_of(head):
    """The name of the class or struct that `head` opens; None for a namespace, an enum and the like."""
    head = re.sub(r"<[^<>]*>|\bfinal\b", "", ANNOTATIONS.sub("", head[LABELS.match(head).end():]))
    match = re.match(r"\s*(?:template\s*)?(?:class|struct|union)\b((?:\s+[\w:]*\w)*)", head)
    return (match.group(1).split() or ["(anonymous)"])[-1] if match else None


@functools.lru_cache(maxsize=None)
def walk(code):
    """(kind, head, first, last, classes) of each "function", "class" and "declaration" outside of functions.

    `first` and `last` are offsets in `code`, whose comments and literals must be blanked; `classes` are the names of
    the classes around it.
    """
    found = []
    code = DIRECTIVE.sub(lambda match: re.sub(r"[^\n]", " ", match.group(0)), code)
    stack = []  # (kind, first, name of the class) of each open brace
    begin = 0  # of the head before the next brace
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group(0) == "{":
            head = code[begin:at]
            kind = "inner" if stack and stack[-1][0] not in ("container", "initialiser") else kind_of(head)
            stack.append((kind, begin + LABELS.match(head).end(), class_of(head) if kind == "container" else None))
            if kind == "initialiser":
                continue  # the head goes on behind it
        elif match.group(0) == "}" and stack:
            kind, first, name = stack.pop()
            if kind == "initialiser":
                continue
            if kind == "function" or name:
                head = " ".join(code[first:at].split("{")[0].split())
                classes = [frame[2] for frame in stack if frame[2]]
                found.append(("class" if name else "function", name or head, first, at, classes))
        elif stack and stack[-1][0] != "container":
            continue
        else:
            first = LABELS.match(code, begin).end()
            classes = [frame[2] for frame in stack if frame[2]]
            found.append(("declaration", " ".join(code[first:at].split()), first, at, classes))
        begin = at + 1
    return found


def name_of(head):
    """The name in the head of a function, with its classes."""
    return head if head.startswith("TEST") else re.split(r"[\s*&]", head.split("(")[0].strip())[-1]


def find_functions(code):
    """(first line, lines, name) of each C++ function, its lambdas included. Comments and literals must be blanked."""
    return [
        (code.count("\n", 0, first) + 1, code.count("\n", first, last) + 1, name_of(head))
        for kind, head, first, last, _ in walk(code)
        if kind == "function"
    ]
