"""Compare figures with a stored baseline: `python -m benchmarks.compare FIGURES [BASELINE]`.

FIGURES is what `pytest benchmarks --real --json FIGURES` wrote. A baseline was measured on another day and perhaps
on another machine, so a figure in seconds or in steps per second says little by itself: ratios to a peer or a
limit, which were measured in the same run, are compared as well, and count. A figure whose result hash differs has
computed something else.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BASELINES = Path(__file__).parent / "baselines"
WORSE_AT = 0.93
"""A ratio below this one is worse than noise on a shared machine."""
MORE_IS_BETTER = ("steps/s", "examples/s", "MB/s", "x", "")


def read_figures(file: Path) -> dict[str, dict[str, Any]]:
    """Read the lines of a file of figures, by name; a later line replaces an earlier one of the same name.

    Raises:
        ValueError: a line is no figure; the message names the file and the line.
    """
    figures = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            figure = json.loads(line)
            figures[figure["name"]] = figure
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{number}: this line is no figure of a benchmark ({error!r})") from None
    return figures


def improvement(before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
    """Return how many times as good a figure is as it was: above 1 is better, whatever its unit."""
    if not before["figure"] or not after["figure"]:
        return 1.0 if before["figure"] == after["figure"] else float("nan")
    ratio = float(after["figure"]) / float(before["figure"])
    promised = after["promised"] or before["promised"]
    rises = promised.startswith(">=") if promised else after["unit"] in MORE_IS_BETTER
    return ratio if rises else 1 / ratio


def verdict(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what there is to say of a figure beside its baseline: nothing, "worse" or "another result"."""
    if before["result_hash"] != after["result_hash"]:
        return "another result"
    measured_in_one_run = after["unit"] == "x"
    return "worse" if measured_in_one_run and improvement(before, after) < WORSE_AT else ""


def rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return a row for every figure that stands in both: name, baseline, now, times as good, verdict."""
    return [
        (
            name,
            f"{before[name]['figure']:g} {before[name]['unit']}",
            f"{figure['figure']:g} {figure['unit']}",
            f"{improvement(before[name], figure):.2f}",
            verdict(before[name], figure),
        )
        for name, figure in after.items()
        if name in before
    ]


def newest_baseline() -> Path:
    """Return the stored baseline of the last day."""
    return max(BASELINES.glob("*.jsonl"))


def main(words: Sequence[str]) -> int:
    """Print the table; return 1 if a ratio is worse or a result differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="Compare figures.")
    parser.add_argument("figures", type=Path)
    parser.add_argument("baseline", type=Path, nargs="?", help="default: the newest of benchmarks/baselines")
    arguments = parser.parse_args(words)
    try:
        before = read_figures(arguments.baseline or newest_baseline())
        after = read_figures(arguments.figures)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    table = [("figure", "baseline", "now", "times as good", ""), *rows(before, after)]
    widths = [max(len(row[column]) for row in table) for column in range(4)]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[4]]).rstrip())
    for name in sorted(before.keys() - after.keys()):
        print(f"{name}: was not measured now")
    return int(any(row[4] for row in table[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
