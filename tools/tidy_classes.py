"""Classes by concept: how many methods each has, and over how many .cc files each is spread.

A method is a member function that a class declares. These do not count: constructors, destructors, operators, functions
that are `= default` or `= delete`, friends, and functions that stand on one line with their body (accessors). A nested
class counts alone; its methods outside of it belong to the files of the outermost class.
"""

import re

from tidy_source import ANNOTATIONS, name_of, walk

METHODS_MAX = 30
FILES_MAX = 2
NO_METHOD = re.compile(r"(?:using|typedef|friend|static_assert|enum|class|struct|union)\b")


def is_method(head, name):
    """Whether `head`, a member of the class `name` without its body, declares a method."""
    head = ANNOTATIONS.sub("", head).strip()
    while re.search(r"<[^<>]*>", head) and "operator" not in head:
        head = re.sub(r"<[^<>]*>", "", head)
    head = re.sub(r"^template\s*", "", head)
    before, bracket, after = head.partition("(")
    if not bracket or "=" in before or NO_METHOD.match(head) or re.search(r"\boperator\b|~\s*$", before):
        return False
    if re.match(r"\s*[*&]", after) or re.search(r"=\s*(?:default|delete)$", head):
        return False  # a pointer to a function; a function without a body to read
    words = re.findall(r"~?\w+", before)
    return len(words) > 1 and words[-1] != name and not words[-1].startswith("~")


def count_methods(code):
    """{class: methods} of one file; the name of a nested class has that of the outer one before it."""
    methods = {}
    for kind, head, first, last, classes in walk(code):
        if kind == "class":
            methods.setdefault("::".join(classes + [head]), 0)
        elif classes and is_method(head, classes[-1]):
            if kind == "declaration" or "\n" in code[first:last]:
                name = "::".join(classes)
                methods[name] = methods.get(name, 0) + 1
    return methods


def defined_in(code):
    """The outermost classes whose methods the file defines outside of their classes."""
    names = (name_of(re.sub(r"<[^<>]*>", "", head)) for kind, head, _, _, _ in walk(code) if kind == "function")
    return {name.split("::")[0] for name in names if "::" in name}


def measure(sources):
    """({class: methods}, {class: .cc files}) of C++ sources. A key is the declaring file and the name of the class."""
    methods = {
        f"{source.path} {name}": count for source in sources for name, count in count_methods(source.code).items()
    }
    files = {}
    for source in sources:
        if not source.path.endswith(".cc"):
            continue
        for name in defined_in(source.code):
            for path in source.includes | {source.path}:
                if f"{path} {name}" in methods:
                    files[f"{path} {name}"] = files.get(f"{path} {name}", 0) + 1
    return methods, files
