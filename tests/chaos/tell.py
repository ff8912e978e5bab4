"""Tell one story and judge it: `python tests/chaos/tell.py counting|bits|input|deaths SEED FOLDER`.

A process of its own, so that several stories run at once. One that this machine cannot tell ends with the code SKIPPED.
"""

import signal
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[0] = str(HERE.parent)

from chaos import bits_story, counts, deaths, digest, input_story, story, stretch  # noqa: E402
from failed_execs import start_again  # noqa: E402
from launching import Launcher  # noqa: E402

SKIPPED = 77


def counting(launcher, seed):
    """Return what is wrong with the counts of a story."""
    return _counted(launcher, story.draw(seed))


def reading(launcher, seed):
    """Return what is wrong with the counts of a story of input."""
    return _counted(launcher, input_story.draw(seed))


def _counted(launcher, told):
    print(told, flush=True)
    program = (str(HERE / "counted_rows.py"), *told.program)
    return counts.wrong(counts.read(stretch.tell(launcher, told.stretches, program)), told)


def bits(launcher, seed):
    """Return which arrays differ from those of the run to which nothing happened."""
    told = bits_story.draw(seed)
    print(told, flush=True)
    program = (str(HERE / "dropped_units.py"), *told.program)
    quiet = digest.read(stretch.tell(launcher, (bits_story.QUIET,), program, "quiet"))
    disturbed = digest.read(stretch.tell(launcher, told.stretches, program))
    return [
        f"{name} has other bits"
        for name in sorted(quiet.keys() | disturbed.keys())
        if quiet.get(name) != disturbed.get(name)
    ]


def main():
    kind, seed, folder = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    start_again()
    launcher = Launcher(Path(folder))
    try:
        told = {"counting": counting, "bits": bits, "input": reading, "deaths": deaths.tell}[kind]
        faults = told(launcher, int(seed))
    except pytest.skip.Exception as skipped:
        print(skipped)
        sys.exit(SKIPPED)
    finally:
        launcher.close()
    print("\n".join(faults) or "as promised")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
