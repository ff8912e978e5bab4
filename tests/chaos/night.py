"""Many stories in one night: `python tests/chaos/night.py KIND N FILE [--from SEED]` tells those of N seeds, as many at once as
there are cores, and writes a line of JSON for each into FILE. The same command goes on where it was stopped. At the end
there is a table, and the exit code is 1 if anything was not as promised.
"""

import argparse
import collections
import json
import shutil
import signal
import sys
import tempfile
from concurrent.futures import as_completed
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from chaos import deaths
from chaos.tell import SKIPPED
from chaos.telling import Telling
from failed_execs import start_again

LAST_CHARACTERS = 6000
SAID = {0: "as promised", SKIPPED: "cannot be told here"}


def told_before(file, kind):
    """The lines of a kind of story by seed; one that was cut off by a stop is told again."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    file.write_text("".join(whole))
    return {told["seed"]: told for told in map(json.loads, whole) if told["kind"] == kind}


def table(lines):
    """A row for each strategy: of each fault how many were as promised, of how many."""
    rows = collections.defaultdict(lambda: collections.defaultdict(lambda: [0, 0]))
    for line in (line for line in lines if line["code"] != SKIPPED):
        for of, fault in ((line["of"], "all"), (line["of"], line["fault"]), ("all", "all")):
            rows[of][fault][0] += line["code"] == 0
            rows[of][fault][1] += 1
    width = max(map(len, rows), default=0)
    cells = {
        of: (f"{fault} {good}/{told}" for fault, (good, told) in row.items()) for of, row in rows.items()
    }
    return "\n".join(
        f"{of:{width}}  {', '.join(cells[of])}" for of in sorted(rows, key=lambda of: (of == "all", of))
    )


def main(words):
    """Tell what has not been told, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["deaths", "counting", "bits", "input"])
    parser.add_argument("count", type=int, metavar="N")
    parser.add_argument("file", type=Path)
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="SEED")
    args = parser.parse_args(words)
    seeds = range(args.first, args.first + args.count)
    lines = told_before(args.file, args.kind)
    todo = [seed for seed in seeds if seed not in lines]
    first, last = seeds.start, seeds.stop - 1
    print(f"{args.kind}: seeds {first} to {last}, {len(todo)} of them are still to be told", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="dtrain-night-"))
    telling = Telling(folder)
    begun = {telling.begin(args.kind, seed): seed for seed in todo}
    try:
        for each in as_completed(begun):
            seed = begun[each]
            code, out = each.result()
            death = deaths.draw(seed) if args.kind == "deaths" else None
            of, fault = (death.strategy, death.fault) if death else (args.kind, "any")
            out = out[-LAST_CHARACTERS:]
            line = {"kind": args.kind, "seed": seed, "of": of, "fault": fault, "code": code, "out": out}
            lines[seed] = line
            with args.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"seed {seed}, {of}, {fault}: {SAID.get(code, 'NOT AS PROMISED')}", flush=True)
            shutil.rmtree(folder / f"{args.kind}-{seed}", ignore_errors=True)
    finally:
        telling.close()
        shutil.rmtree(folder, ignore_errors=True)
    told = [lines[seed] for seed in seeds]
    print(table(told))
    return int(any(line["code"] not in SAID for line in told))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    start_again()
    sys.exit(main(sys.argv[1:]))
