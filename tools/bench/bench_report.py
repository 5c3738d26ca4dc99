#!/usr/bin/python3
"""nram bench report: the JSON of `nram bench --json` on standard input, a page with plots on standard output."""

import argparse
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
.wide { overflow-x: auto } /* a table scrolls by itself on a narrow screen */
.note { color: #666; font-size: 13px } svg { width: 100%; height: auto }"""
COLOURS = ["#1b6ca8", "#4aa3df", "#7f8c8d", "#c0392b", "#e67e22", "#16a085", "#8e44ad"]


HELP = """usage: nram bench report < RESULTS > PAGE
       nram bench report --picture [--rows=TEXT,...] < RESULTS > PICTURE

Makes a page with plots and tables of the results of `nram bench --json=RESULTS`, or, with
--picture, one SVG of the plots. Plots need Debian's python3-matplotlib.

  --picture           only the plots, two side by side, as one SVG
  --rows=TEXT,...     only rows whose name contains one of the texts (default: all)
  --help              this text

example: nram bench --json=results.json && nram bench report < results.json > report.html
"""


def load_pyplot():
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as pyplot

    # The same figures make the same file.
    pyplot.rcParams.update(
        {"font.family": "sans-serif", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "nram"}
    )
    return pyplot


def to_svg(pyplot, figure):
    out = io.StringIO()
    figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    text = out.getvalue()
    return text[text.index("<svg") :]


def draw(axes, entries):
    """A bar a target, with a line from the least to the most of its values."""
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


def plot(entries):
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 0.45 * len(entries) + 0.8))
    draw(axes, entries)
    return to_svg(pyplot, figure)


def picture(rows, about):
    """All rows in one SVG; `rows`: a name and entries each."""
    pyplot = load_pyplot()
    lines = (len(rows) + 1) // 2
    most = max(len(entries) for _, entries in rows)
    figure, places = pyplot.subplots(lines, 2, figsize=(11, lines * (0.3 * most + 1)), squeeze=False)
    for axes in places.flat[len(rows) :]:
        axes.set_visible(False)
    for axes, (row, entries) in zip(places.flat, rows):
        draw(axes, entries)
        axes.set_title(row, loc="left", fontsize=10)
    note = f"{about['processor']}, {about['processors']} processors, clients and servers on one machine"
    figure.text(0.99, 0, note, ha="right", fontsize=7, color="#666")
    figure.tight_layout(h_pad=2, w_pad=2)
    return to_svg(pyplot, figure)


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def table(entries):
    reference = next((entry["median"] for entry in entries if entry["target"] == "tmpfs"), None)
    lines = [
        "<div class='wide'><table><tr><th></th><th>median</th><th>least</th><th>most</th><th>&times; tmpfs</th>"
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
    return "\n".join(lines) + "</table></div>"


def choose(rows, texts):
    names = list(dict.fromkeys(entry["row"] for entry in rows))
    names = [name for name in names if not texts or any(text in name for text in texts)]
    if not names:
        sys.exit(f"nram bench report: no row's name contains {' or '.join(texts)}")
    return [(name, [entry for entry in rows if entry["row"] == name]) for name in names]


def parse():
    parser = argparse.ArgumentParser(prog="nram bench report", add_help=False, allow_abbrev=False)
    parser.add_argument("--picture", action="store_true")
    parser.add_argument("--rows", default="")
    parser.add_argument("--help", "-h", action="store_true")
    options = parser.parse_args()
    if options.help:
        print(HELP, end="")
    return options


def main():
    options = parse()
    if options.help:
        return
    try:
        results = json.load(sys.stdin)
        rows = results["rows"]
        about = results["machine"]
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"this is not a result of `nram bench --json`: {error}")
    try:
        import matplotlib  # noqa: F401

        plots = True
    except ImportError:
        plots = False
        print("no plots: install python3-matplotlib for them", file=sys.stderr)
    targets = list(dict.fromkeys(entry["target"] for entry in rows))
    for entry in rows:
        entry["colour"] = COLOURS[targets.index(entry["target"]) % len(COLOURS)]
    chosen = choose(rows, [text for text in options.rows.split(",") if text])
    if options.picture:
        if not plots:
            sys.exit(1)
        print(picture(chosen, about), end="")
        return
    print(
        "<!DOCTYPE html><html lang='en'><meta charset='utf-8'><title>nram bench</title>"
        f"<style>{STYLE}</style><h1>Network RAM compared with disk and tmpfs</h1>"
    )
    print(
        f"<p>{html.escape(about['processor'])}, {about['processors']} processors, {about['memory_gib']} GiB, Linux "
        f"{html.escape(about['kernel'])}; {html.escape(about.get('version') or 'nram')}; {about['date']}. "
        + (
            "Clients and memory servers share this one machine: a network between them would add its time, but the "
            "servers would not use this machine's processors."
            if results.get("own_pool")
            else ""
        )
        + "</p>"
    )
    print(
        f"<p class='note'>Rounds: {results['rounds']}, alternating between the targets; medians, least and most. "
        + (
            "Jobs ran in a memory cgroup of their memory and 150 MB, which bounds the help of the page cache. "
            "Exceptions are tmpfs, whose files are memory, and the metadata rows. "
            if results["cgroup"]
            else "No memory cgroup could be made: the page cache may have served part of this. "
        )
        + ("Caches were dropped before each run. " if results["caches_dropped"] else "Caches were not dropped. ")
        + "Where the machine was nearly 100 % busy, a row measures its processors more than the storage. A disk "
        "that is a file of a virtual machine's host may itself be served from the host's memory.</p>"
    )
    for row, entries in chosen:
        print(f"<h2>{html.escape(row)}</h2>")
        if plots:
            print(plot(entries))
        print(table(entries))
    print("</html>")


def main_with_output():
    """A page of which a part is missing, because the disk is full, is an error; it needs no traceback."""
    try:
        main()
        sys.stdout.flush()
    except OSError as error:
        # Else the interpreter tries to write the rest once more when it ends.
        sys.stdout = None
        sys.exit(f"nram bench report: the standard output could not be written: {error.strerror}")


if __name__ == "__main__":
    main_with_output()
