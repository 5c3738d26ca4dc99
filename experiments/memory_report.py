"""The table of memory_bench.py."""

import statistics


class Row:
    """One line of the table. `judged` is the figure of a round that the mark judges; else the ratio to the reference.
    """

    def __init__(self, name, unit, mark, at_most):
        self.name, self.unit, self.mark, self.at_most = name, unit, mark, at_most
        self.reference, self.value, self.judged, self.notes = [], [], [], {}

    def add(self, reference, value, judged, notes):
        self.reference.append(reference)
        self.value.append(value)
        self.judged.append(value / reference if judged is None else judged)
        for name, number in notes.items():
            self.notes.setdefault(name, []).append(number)

    def ok(self):
        median = statistics.median(self.judged)
        return None if self.mark is None else median <= self.mark if self.at_most else median >= self.mark

    def line(self):
        mark = ""
        if self.mark is not None:
            mark = f"at {'most' if self.at_most else 'least'} {self.mark:g}: {'ok' if self.ok() else 'missed'}"
        cells = [
            self.name,
            f"{number(statistics.median(self.reference))} {self.unit}",
            f"{number(statistics.median(self.value))} {self.unit}",
            f"{statistics.median(self.judged):.2f} [{min(self.judged):.2f} {max(self.judged):.2f}]",
            mark,
        ]
        return "| " + " | ".join(cells) + " |"


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def table(rows, failures):
    """The table as text that is also Markdown; below it the other figures, medians."""
    lines = ["| row | reference | nram, or as the row says | ratio [min max] | mark |", "|---|---|---|---|---|"]
    lines += [row.line() for row in rows]
    lines += [""]
    for row in rows:
        notes = [f"{name} {number(statistics.median(values))}" for name, values in row.notes.items()]
        if notes:
            lines.append(f"- {row.name}: {', '.join(notes)}")
    lines += [f"- **failed**: {failure}" for failure in failures]
    return "\n".join(lines)
