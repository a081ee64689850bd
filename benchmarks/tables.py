"""The tables of the README and of docs/, written from the files under benchmarks/results.

    python -m benchmarks.tables            writes them anew (make results)
    python -m benchmarks.tables --check    says whether they agree with the files
    python -m benchmarks.tables --all      prints every figure there is

A table stands between two comments, the first of which picks rows by file, case and figure, with * for any:

    <!-- results
    core_cpu / lenet / train_images_per_s
    rounds_* / * / over_sync
    -->
    <!-- end of results -->
"""

import argparse
import fnmatch
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import FOLDER, measured

PAGES = (FOLDER.parents[1] / "README.md", *sorted((FOLDER.parents[1] / "docs").glob("*.md")))
BEGIN, END = "<!-- results\n", "<!-- end of results -->"
BLOCK = re.compile(rf"({re.escape(BEGIN)}(.*?)-->\n)(.*?)({re.escape(END)})", re.S)

FIGURES = {
    "train_images_per_s": "training speed",
    "images_per_s": "training speed",
    "peak_memory_mb": "peak memory",
    "over_hand_loop": "time over a loop written by hand",
    "seconds": "time",
    "compile_seconds": "compiling",
    "first_step_seconds": "from a network to its first step",
    "first_step_again_seconds": "the same in a second process, with what the first has compiled",
    "accuracy": "test accuracy, last epoch",
    "busy_min": "busy share of the least busy worker",
    "over_sync": "speed over synchronous training",
    "over_equal": "speed over that of equal periods",
    "of_ideal": "speed as a part of that of workers that never wait",
    "of_no_link": "speed as a part of that without a link",
    "of_one_node": "speed as a multiple of one node's",
    "of_linear": "speed as a part of as many times one GPU's",
    "predicted": "throughput by the cost model over that measured",
    "seconds_to_target": "time to the same accuracy",
    "to_target_over_sync": "times faster than synchronous training to the same accuracy",
    "of_asked": "measured rate of the rate asked for",
    "us_per_op": "time per operation",
    "of_product": "arithmetic as a part of the product",
    "of_max": "time over the longer of the two",
    "waiting_fraction": "share of the time spent waiting for data",
    "ms": "time",
    "utilization_difference": "difference in utilization",
    "memory_difference": "difference in memory held",
    "power_difference": "difference in power",
    "temperature_difference": "difference in temperature",
    "over_no_panel": "time over training without a panel",
}
UNITS = {"ratio": "", "fraction": "", "us": "µs", "1/s": "/s", "images/s": "images/s", "%": " %"}


class Entry(NamedTuple):
    """One row of one file, and the file."""

    file: Mapping[str, Any]
    row: Mapping[str, Any]


def read(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """Every file of results by its name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def pick(lines: Sequence[str], files: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """The rows that lines such as ``file / case / figure`` pick, in the lines' order, each once.

    Raises:
        ValueError: a line of another form, or one that picks nothing.
    """
    found: list[Entry] = []
    for line in lines:
        wanted = [part.strip() for part in line.split(" / ")]
        if len(wanted) != 3:
            raise ValueError(f"{line!r} is not of the form file / case / figure")
        matching = [entry for entry in _all(files) if all(map(fnmatch.fnmatchcase, _names(entry), wanted))]
        if not matching:
            raise ValueError(f"{line!r} picks no row of benchmarks/results; the files are {', '.join(files)}")
        found += [entry for entry in matching if not any(entry.row is seen.row for seen in found)]
    return found


def table(entries: Sequence[Entry]) -> str:
    """Rows as Markdown: what, how much, beside whom; below it where that was measured and how to repeat it."""
    machines = list(dict.fromkeys(map(_where, entries)))
    with_peer = any("peer" in entry.row for entry in entries)
    head = ["what", "case", "measured", "n"] + ["beside", "ratio"] * with_peer + ["where"]
    lines = [head, ["---", "---", "---:", "---:"] + ["---", "---:"] * with_peer + ["---"]]
    for entry in entries:
        row = entry.row
        cells = [
            FIGURES.get(row["figure"], row["figure"].replace("_", " ")),
            row["case"],
            _measured(row),
            str(row["n"]),
        ]
        if with_peer:
            cells += [_peer(row), f"{row['ratio']:.2f}" if "ratio" in row else ""]
        lines.append([*cells, _letter(machines.index(_where(entry)))])
    commands = list(dict.fromkeys(f"`{measured(*entry)['command']}`" for entry in entries))
    below = [f"{_letter(i)}: {machine}." for i, machine in enumerate(machines)]
    note = "Median ± standard deviation over n." + (" Ratio: above 1, cnnkit is ahead." if with_peer else "")
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"{text}\n\n{note} {' '.join(below)} Measured by {', '.join(commands)}.\n"


def filled(page: str, files: Mapping[str, Mapping[str, Any]]) -> str:
    """A page with every table written anew.

    Raises:
        ValueError: a selection picks nothing.
    """

    def fill(block: re.Match) -> str:
        lines = [line for line in block[2].splitlines() if line.strip()]
        return f"{block[1]}\n{table(pick(lines, files))}\n{block[4]}"

    return BLOCK.sub(fill, page)


def stale(pages: Sequence[Path] = PAGES, folder: Path = FOLDER) -> list[Path]:
    """The pages whose tables differ from the files."""
    files = read(folder)
    return [page for page in pages if filled(text := page.read_text(encoding="utf-8"), files) != text]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description="Write the README's tables from benchmarks/results.")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where pages differ")
    parser.add_argument("--all", action="store_true", help="print every figure there is, and write nothing")
    arguments = parser.parse_args(argv)
    if arguments.all:
        print(table(pick(["* / * / *"], read())))
        return 0
    for page in (old := stale()):
        if not arguments.check:
            page.write_text(filled(page.read_text(encoding="utf-8"), read()), encoding="utf-8")
        print(f"{page.name}: {'differs from benchmarks/results' if arguments.check else 'written anew'}")
    if not old:
        print("the tables agree with benchmarks/results")
    return int(arguments.check and bool(old))


def _all(files: Mapping[str, Mapping[str, Any]]) -> Iterator[Entry]:
    return (Entry(file, row) for file in files.values() for row in file["rows"])


def _names(entry: Entry) -> tuple[str, str, str]:
    return entry.file["name"], entry.row["case"], entry.row["figure"]


def _measured(row: Mapping[str, Any]) -> str:
    # Between 99 and 100 % a tenth of a point is much.
    like = 1.0 if row["unit"] == "%" else row["value"]
    spread = f" ± {_number(row['spread'], like)}" if row["n"] > 1 else ""
    bound = "≤ " if row.get("at_most") else ""  # others used the device too
    return f"{bound}{_number(row['value'], like)}{spread}{_unit(row)}"


def _peer(row: Mapping[str, Any]) -> str:
    if "peer" not in row:
        return ""
    return f"{row['peer']}: {_number(row['peer_value'])}{_unit(row)}" if "peer_value" in row else row["peer"]


def _unit(row: Mapping[str, Any]) -> str:
    unit = UNITS.get(row["unit"], row["unit"])
    return f" {unit}" if unit and unit[0] not in " /" else unit


def _number(value: float, like: float | None = None) -> str:
    """A number with about three digits, or with as many places as another has.

    >>> _number(16950.0), _number(37.42), _number(0.9132), _number(0.004, like=0.9)
    ('16,950', '37.4', '0.913', '0.004')
    """
    size = abs(value if like is None else like)
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{places}f}"


def _where(entry: Entry) -> str:
    found = measured(*entry)
    versions = found["versions"]
    return f"{found['machine']}; Python {versions['python']}, JAX {versions['jax']}"


def _letter(i: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[i]


if __name__ == "__main__":
    sys.exit(main())
