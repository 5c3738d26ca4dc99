"""The programs of run_programs.py: their needs, their files, and their commands."""

import dataclasses
import hashlib
import os
import shutil
import subprocess

from bench_places import run

SOURCES = f"{os.path.dirname(os.path.realpath(__file__))}/programs"
PYTHON = "/usr/bin/python3"


@dataclasses.dataclass
class Lab:
    """The place of the programs' files, and the size of their data."""

    directory: str
    mib: int

    def text(self):
        """A file of lines in no order; GNU sort takes about twice as much memory for them."""
        path = f"{self.directory}/text"
        if not os.path.exists(path):
            with open(path, "w") as file:
                for i in range(self.mib * (1 << 20) // 2 // 80):
                    key = hashlib.sha256(str(i).encode()).hexdigest()
                    file.write(f"{key} line {i:08}\n")
        return path

    def source(self):
        """A C program of many functions."""
        path = f"{self.directory}/many.c"
        with open(path, "w") as file:
            for i in range(self.mib * 50):
                file.write(f"int f{i}(int a, int b) {{\n  int s = {i};\n  for (int k = a; k < b; ++k) {{\n"
                           f"    switch ((s ^ k) % 7) {{ case 0: s += k * {i % 13}; break; case 3: s -= b; break;\n"
                           f"      case 5: s = s * 31 + a; break; default: s ^= k; }}\n  }}\n  return s;\n}}\n")
        return path


@dataclasses.dataclass
class Row:
    """`words` are the program's command; {mib}, {dir} and {src} stand for the lab's. `make` is a command of the same
    kind."""

    name: str
    needs: list
    line: list
    make: list = dataclasses.field(default_factory=list)
    drives: bool = False  # it is given the prefix, and starts the program itself

    def fill(self, lab, words):
        special = {"{text}": Lab.text, "{source}": Lab.source}
        made = [special[word](lab) if word in special else
                word.replace("{mib}", str(lab.mib)).replace("{dir}", lab.directory).replace("{src}", SOURCES)
                for word in words]
        return made

    def prepare(self, lab):
        if self.make:
            run(*self.fill(lab, self.make))
        self.fill(lab, self.line)

    def words(self, lab, prefix):
        words = self.fill(lab, self.line)
        if not self.drives:
            return [*prefix, *words]
        at = words.index("{program}")
        return [*words[:at], *prefix, *words[at + 1 :]]


def compiler_proper():
    """gcc(1) only starts it."""
    if shutil.which("gcc") is None:
        return "cc1"
    return subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()


def gcc(source, program, *flags):
    return ["gcc", "-O2", "-o", f"{{dir}}/{program}", f"{{src}}/{source}", *flags]


ROWS = [
    Row("python", [PYTHON], [PYTHON, "{src}/dicts.py", "{mib}"]),
    Row("numpy", [PYTHON], [PYTHON, "{src}/arrays.py", "{mib}"]),
    Row("perl", ["perl"], ["perl", "{src}/hash.pl", "{mib}"]),
    Row("octave", ["octave-cli"], ["octave-cli", "--norc", "{src}/product.m", "{mib}"]),
    Row("r", ["Rscript"], ["Rscript", "--vanilla", "{src}/vectors.R", "{mib}"]),
    Row("sort-internal", ["sort"], ["env", "LC_ALL=C", "sort", "-S", "1G", "{text}"]),
    Row("sort-external", ["sort"], ["env", "LC_ALL=C", "sort", "-S", "40M", "-T", "{dir}", "{text}"]),
    Row("redis", ["redis-server", "redis-benchmark"],
        [PYTHON, "{src}/redis.py", "{mib}", "{dir}", "{program}", "redis-server"], drives=True),
    Row("sqlite", ["sqlite3"],
        ["sqlite3", ":memory:", ".parameter init", ".parameter set :count {mib}*5000", ".read {src}/tables.sql"]),
    Row("jvm", ["java", "javac"], ["java", "-Xmx256m", "-cp", "{dir}", "Trees", "{mib}"],
        ["javac", "-d", "{dir}", "{src}/Trees.java"]),
    Row("go", ["go"], ["{dir}/maps", "{mib}"], ["go", "build", "-o", "{dir}/maps", "{src}/maps.go"]),
    Row("node", ["node"], ["node", "{src}/objects.js", "{mib}"]),
    Row("ruby", ["ruby"], ["ruby", "{src}/hashes.rb", "{mib}"]),
    Row("lisp", ["sbcl"], ["sbcl", "--noinform", "--script", "{src}/lists.lisp", "{mib}"]),
    Row("openmp", ["gcc"], ["{dir}/stencil", "{mib}"], gcc("stencil.c", "stencil", "-fopenmp")),
    Row("static", ["gcc"], ["{dir}/records", "{mib}"], gcc("records.c", "records", "-static")),
    Row("gcc", ["gcc"], ["gcc", "-O1", "-S", "-o", "-", "{source}"]),
    Row("cc1", ["gcc"], [compiler_proper(), "-quiet", "-O1", "{source}", "-o", "-"]),
    Row("fork-before", [PYTHON], [PYTHON, "{src}/forks.py", "{mib}", "before"]),
    Row("fork-after", [PYTHON], [PYTHON, "{src}/forks.py", "{mib}", "after"]),
    Row("fork-spawn", [PYTHON], [PYTHON, "{src}/forks.py", "{mib}", "spawn"]),
]
