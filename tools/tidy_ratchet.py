"""The ratchet: tools/tidy.json lists each number that is above its limit today, and an entry may only shrink."""

import json
import os
from dataclasses import dataclass

FILE = "tools/tidy.json"


@dataclass
class Measure:
    rule: str  # the section of the file
    path: str
    part: str  # of the file: a class, a habit; "" for all of it
    number: int
    allowed: int  # without an entry
    what: str  # is counted
    remedy: str

    @property
    def key(self):
        return f"{self.path} {self.part}".strip()


def read():
    with open(FILE, encoding="utf-8") as file:
        return json.load(file)


def write(entries):
    with open(FILE, "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1, sort_keys=True)
        file.write("\n")


def tail_of(key):
    path, _, part = key.partition(" ")
    return os.path.basename(path), part


def follow_moves(entries, measures):
    """`entries` of one rule, with those of files that have moved under their new paths."""
    measured = {measure.key for measure in measures}
    followed = dict(entries)
    for key in set(entries) - measured:
        above = [measure.key for measure in measures if measure.number > measure.allowed]
        new = [name for name in above if tail_of(name) == tail_of(key) and name not in entries]
        if len(new) == 1:
            followed[new[0]] = followed.pop(key)
    return followed


def compare(entries, measures):
    """(problems, entries that fit today's numbers). No entry of the result is new or above that of `entries`."""
    problems = []
    fitting = {}
    for rule in sorted({measure.rule for measure in measures} | set(entries)):
        of_rule = [measure for measure in measures if measure.rule == rule]
        old = follow_moves(entries.get(rule, {}), of_rule)
        fitting[rule] = {}
        for measure in of_rule:
            entry = old.get(measure.key, 0)
            if measure.number > max(entry, measure.allowed):
                limit = f"{FILE} allows {entry}" if entry > measure.allowed else f"at most {measure.allowed}"
                problems.append(f"{measure.path}: {measure.what}: {measure.number}, {limit}; {measure.remedy}")
            if entry > measure.allowed and measure.number > measure.allowed:
                fitting[rule][measure.key] = min(entry, measure.number)
    return problems, fitting


def describe(entries, fitting):
    """A line for each entry that is to be lowered, renamed or removed."""
    lines = []
    for rule, numbers in sorted(entries.items()):
        for key, number in sorted(numbers.items()):
            now = fitting.get(rule, {}).get(key)
            if now is None:
                lines.append(f"{rule}: {key}: remove or rename the entry")
            elif now != number:
                lines.append(f"{rule}: {key}: lower the entry from {number} to {now}")
    return lines
