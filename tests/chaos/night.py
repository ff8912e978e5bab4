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
    whole = (
        [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if file.exists()
        else []
    )
    file.write_text("".join(whole))
    return {told["seed"]: told for told in map(json.loads, whole) if told["kind"] == kind}


def table(lines):
    """A row for each strategy: of each fault how many were as promised, of how many."""
    counts = collections.defaultdict(lambda: [0, 0])
    for line in (line for line in lines if line["code"] != SKIPPED):
        for key in ((line["of"], line["fault"]), (line["of"], "all"), ("all", "all")):
            counts[key][0] += line["code"] == 0
            counts[key][1] += 1
    rows = dict.fromkeys([*sorted({of for of, _ in counts} - {"all"}), "all"])
    width = max(map(len, rows))
    return "\n".join(
        f"{of:{width}}  "
        + ", ".join(
            f"{fault} {good}/{told}"
            for (other, fault), (good, told) in sorted(counts.items(), key=lambda each: each[0][1] != "all")
            if other == of
        )
        for of in rows
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
    print(
        f"{args.kind}: seeds {seeds.start} to {seeds.stop - 1}, {len(todo)} of them are still to be told",
        flush=True,
    )
    folder = Path(tempfile.mkdtemp(prefix="dtrain-night-"))
    telling = Telling(folder)
    begun = {telling.begin(args.kind, seed): seed for seed in todo}
    try:
        for each in as_completed(begun):
            seed = begun[each]
            code, out = each.result()
            death = deaths.draw(seed) if args.kind == "deaths" else None
            of, fault = (death.strategy, death.fault) if death else (args.kind, "any")
            line = {
                "kind": args.kind,
                "seed": seed,
                "of": of,
                "fault": fault,
                "code": code,
                "out": out[-LAST_CHARACTERS:] if code else out,
            }
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    start_again()
    sys.exit(main(sys.argv[1:]))
