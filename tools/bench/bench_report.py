#!/usr/bin/python3
"""nram bench report: the JSON of `nram bench --json` on standard input, a page with plots on standard output."""

import html
import io
import json
import statistics
import sys

STYLE = """body { font: 15px/1.5 Georgia, serif; max-width: 56em; margin: 2em auto; padding: 0 1em; color: #222 }
h1, h2 { font-weight: normal }
table { border-collapse: collapse; width: 100%; font: 13px/1.4 sans-serif; margin: .5em 0 2em }
td, th { text-align: right; padding: .25em .6em; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left }
.note { color: #666; font-size: 13px } svg { width: 100%; height: auto }"""
COLOURS = ["#1b6ca8", "#4aa3df", "#7f8c8d", "#c0392b", "#e67e22", "#16a085", "#8e44ad"]


def plot(row, entries):
    """A bar a target, with a line from the least to the most of its values; SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot

    pyplot.rcParams.update({"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(7, 0.45 * len(entries) + 0.8))
    medians = [entry["median"] for entry in entries]
    errors = [
        [entry["median"] - min(entry["values"]) for entry in entries],
        [max(entry["values"]) - entry["median"] for entry in entries],
    ]
    places = range(len(entries))
    axes.barh(
        places,
        medians,
        xerr=errors,
        color=[entry["colour"] for entry in entries],
        height=0.6,
        error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#333"},
    )
    axes.set_yticks(list(places), [entry["target"] for entry in entries])
    axes.invert_yaxis()
    axes.set_xlabel(entries[0]["unit"] + ("" if entries[0]["lower_is_better"] else " (more is better)"))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight")
    pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(entries):
    reference = next((entry["median"] for entry in entries if entry["target"] == "tmpfs"), None)
    lines = [
        "<table><tr><th></th><th>median</th><th>least</th><th>most</th><th>&times; tmpfs</th>"
        "<th>own processor time</th><th>machine busy</th></tr>"
    ]
    for entry in entries:
        cells = [
            html.escape(entry["target"]),
            f"{number(entry['median'])} {entry['unit']}",
            number(min(entry["values"])),
            number(max(entry["values"])),
            f"{entry['median'] / reference:.2f}" if reference else "",
            f"{statistics.median(entry['cpu']):.2f} s" if entry["cpu"] else "",
            f"{statistics.median(entry['busy']) * 100:.0f} %" if entry["busy"] else "",
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join(lines) + "</table>"


def main():
    try:
        results = json.load(sys.stdin)
        rows = results["rows"]
        about = results["machine"]
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"this is not what `nram bench --json` writes: {error}")
    try:
        import matplotlib  # noqa: F401

        plots = True
    except ImportError:
        plots = False
        print("no plots: install python3-matplotlib for them", file=sys.stderr)
    targets = list(dict.fromkeys(entry["target"] for entry in rows))
    for entry in rows:
        entry["colour"] = COLOURS[targets.index(entry["target"]) % len(COLOURS)]
    print(
        "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>nram bench</title>"
        f"<style>{STYLE}</style><h1>Network RAM beside disk and tmpfs</h1>"
    )
    print(
        f"<p>{html.escape(about['processor'])}, {about['processors']} processors, {about['memory_gib']} GiB, Linux "
        f"{html.escape(about['kernel'])}; {html.escape(about.get('version') or 'nram')}; {about['date']}. "
        + (
            "Clients and memory servers share this one machine: a network between them would add its time, and take "
            "away the processor time that the servers need here."
            if results.get("own_pool")
            else ""
        )
        + "</p>"
    )
    print(
        f"<p class='note'>Rounds: {results['rounds']}, alternating between the targets; medians, least and most. "
        + (
            "Jobs ran in a memory cgroup of the memory they were told to use and 150 MB, so that the page cache could "
            "serve no more than that; but for those on tmpfs, whose files are that memory, and for metadata. "
            if results["cgroup"]
            else "No memory cgroup could be made: the page cache may have served part of this. "
        )
        + ("Caches were dropped before each run. " if results["caches_dropped"] else "Caches were not dropped. ")
        + "Where the machine was nearly 100 % busy, a row tells more of its processors than of the storage. A disk "
        "that is a file of a virtual machine's host may itself be served from the host's memory.</p>"
    )
    for row in dict.fromkeys(entry["row"] for entry in rows):
        entries = [entry for entry in rows if entry["row"] == row]
        print(f"<h2>{html.escape(row)}</h2>")
        if plots:
            print(plot(row, entries))
        print(table(entries))
    print("</html>")


if __name__ == "__main__":
    main()
