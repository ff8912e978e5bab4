"""Plants bugs one at a time in a copy of the tree and says which of them the tests find; see the README
beside it.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import listed_alive
import listed_data
import listed_files
import listed_protocol
import listed_replicas
import listed_roles
import listed_settings
import listed_training
import listed_wire
from copies import Copy, copied
from drawing import Drawn, draw
from mutant import Mutant
from planting import DoesNotFitError
from tests_of import MIRRORED, stages

LISTED: dict[str, list[Mutant]] = {
    "lived": listed_alive.LIVED,
    "wider": listed_alive.FOUND_BY_WIDER_TESTS,
    "harmless": listed_alive.HARMLESS,
    "found": [*listed_protocol.FOUND, *listed_roles.FOUND, *listed_replicas.FOUND],
    "rooms": [
        *listed_data.FOUND,
        *listed_settings.FOUND,
        *listed_files.FOUND,
        *listed_wire.FOUND,
        *listed_training.FOUND,
    ],
}
"""By what was known of them when the list was made."""


def chosen(arguments: argparse.Namespace, copy: Copy) -> Iterator[tuple[str, Mutant | Drawn]]:
    """Yield every bug that is asked for, with its name."""
    for kind, mutants in LISTED.items():
        if arguments.kind in (kind, "listed", "all"):
            yield from ((f"{kind} {number}", mutant) for number, mutant in enumerate(mutants, 1))
    if arguments.kind in ("drawn", "all"):
        sources = {file: text for file in MIRRORED if (text := copy.source(file))}
        drawn = draw(sources, arguments.seed, arguments.count)
        yield from ((f"drawn {arguments.seed}.{number}", mutant) for number, mutant in enumerate(drawn, 1))


def judged(mutant: Mutant | Drawn, copy: Copy, *, most: int, check: bool) -> dict[str, Any]:
    """Plant one bug and run the tests: what became of it, and by which test."""
    if mutant.void:
        return {"state": "void", "why": mutant.void}
    try:
        place = mutant.place(copy.sources())
        text = mutant.planted(copy.source(place))
    except DoesNotFitError as error:
        return {"state": "unfit", "why": f"this mutant no longer fits the code: {error}"}
    if check:
        return {"state": "fits", "why": "" if place == mutant.file else f"now in {place}"}
    begun_s = time.monotonic()
    for stage, tests in enumerate(stages(place)[: 1 if mutant.harmless else most]):
        if (usual := copy.usual(tests)).failed is not None:
            return {"state": "broken", "why": f"the tests fail without any bug: {usual.failed}"}
        with copy.with_bug(place, text):
            run = copy.run(tests, copy.limit_s(tests))
        if run.failed is not None:
            by = "mirrored" if stage == 0 else "wider"
            return {
                "state": "killed",
                "why": run.failed,
                "by": by,
                "seconds": round(time.monotonic() - begun_s, 1),
            }
    return {"state": "alive", "why": mutant.harmless, "seconds": round(time.monotonic() - begun_s, 1)}


def known(results: Path | None) -> dict[str, dict[str, Any]]:
    """Return what an earlier run has found, by file and words: numbers change with the list."""
    if results is None or not results.exists():
        return {}
    return {_key(row["file"], row["says"]): row for row in map(json.loads, results.read_text().splitlines())}


def _key(file: str, says: str) -> str:
    return f"{file} {says}"


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=[*LISTED, "listed", "drawn", "all"], nargs="?", default="all")
    parser.add_argument("--seed", type=int, default=12, help="of the drawn ones")
    parser.add_argument("--count", type=int, default=100, help="how many are drawn")
    parser.add_argument("--only", default="", help="those whose name, file or words contain this")
    parser.add_argument(
        "--stages",
        type=int,
        default=9,
        help="how many lists of tests are run at most: 1 are the mirrored ones",
    )
    parser.add_argument("--workers", type=int, default=0, help="of pytest-xdist, in each run of tests")
    parser.add_argument(
        "--check", action="store_true", help="say which of them fit the code, and run nothing"
    )
    parser.add_argument(
        "--results", type=Path, help="a file to add findings to; what stands in it is not run again"
    )
    return parser.parse_args(words)


def main() -> int:
    """Run; 1 if a bug lives without a reason, does not fit, or could not be tried."""
    arguments = parsed()
    os.nice(10)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # so that nothing is left behind
    before, states = known(arguments.results), Counter[str]()
    print(f"seed {arguments.seed} of the drawn ones", flush=True)
    with copied(arguments.workers) as copy:
        for name, mutant in chosen(arguments, copy):
            if arguments.only not in f"{name} {mutant.file} {mutant.says}":
                continue
            found = before.get(_key(mutant.file, mutant.says)) if not arguments.check else None
            if (
                found is None
                or found["state"] == "broken"
                or (found["state"] == "alive" and found["stages"] < arguments.stages)
            ):
                found = judged(mutant, copy, most=arguments.stages, check=arguments.check)
                found |= {"name": name, "file": mutant.file, "says": mutant.says, "stages": arguments.stages}
                if arguments.results is not None and not arguments.check:
                    with arguments.results.open("a") as file:
                        print(json.dumps(found), file=file)
            lives = found["state"] == "alive" and bool(found["why"])
            state = (
                "alive, with a reason"
                if lives
                else f"killed by {found['by']} tests"
                if "by" in found
                else found["state"]
            )
            states[state] += 1
            print(
                f"{state:24} {name:12} {mutant.file} {mutant.says}"
                + (f"  [{found['why']}]" if found["why"] else ""),
                flush=True,
            )
    print("; ".join(f"{count} {state}" for state, count in states.items()))
    return int(any(state in states for state in ("alive", "unfit", "broken")))


if __name__ == "__main__":
    sys.exit(main())
