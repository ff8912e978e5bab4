"""Makes docs/launch.svg: a real run with a slow worker, in its midst and at its end. Needs tmux.

python docs/make_picture.py
"""

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMAND = "dtrain launch --staleness-bound 4 --set simulate.slow.worker:1=400 examples/digits.py --steps 120"
TELLS = (
    *(r"\nworker:1 .* x slower", r"\n(chief|worker):0 .*waits for worker:1", r"\nevaluator:0 .* idle"),
    r"step [4-9]\d/120",
)
"""What the first of the two tables says, all in one moment."""
COLUMNS, ROWS = 108, 31
DEADLINE_S = 120
SESSION = "dtrain-picture"
RUNS = "/tmp/runs"
OUTPUT = Path(__file__).with_name("launch.svg")

# rich's own frame fetches fonts from a content network; a picture in a repository should need nothing.
SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""


def tmux(*arguments: str) -> str:
    """Run tmux; returns what it printed."""
    return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True).stdout


def screen_when(holds: Callable[[str], object]) -> str:
    """Return the first screen, with its colours, whose plain text a condition holds of."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        screen = tmux("capture-pane", "-e", "-p", "-t", SESSION).rstrip()
        if holds(Text.from_ansi(screen).plain):
            return screen
        time.sleep(0.1)
    raise TimeoutError(f"{COMMAND}: the screen that is to be shown did not come:\n{screen}")


def screens_of_run() -> tuple[str, str]:
    """Return the screen when it tells most, and the last table with what follows."""
    shell = f"DTRAIN_RUNS_DIR={RUNS} {COMMAND}; sleep {DEADLINE_S}"
    tmux("new-session", "-d", "-s", SESSION, "-x", str(COLUMNS), "-y", str(ROWS), shell)
    try:
        live = screen_when(lambda text: all(re.search(each, text) for each in TELLS))
        end = screen_when(lambda text: "dtrain: succeeded" in text).splitlines()
    finally:
        tmux("kill-session", "-t", SESSION)
    begin = max(number for number, line in enumerate(end) if Text.from_ansi(line).plain.startswith("task "))
    return live, "\n".join(end[begin:])


def main() -> None:
    """Write the picture."""
    live, end = screens_of_run()
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(f"$ {COMMAND}\n{live}"))
        console.print("\n[dim]... and at the end:[/]\n")
        console.print(Text.from_ansi(end))
        console.save_svg(str(OUTPUT), title="dtrain", theme=MONOKAI, code_format=SVG)


if __name__ == "__main__":
    main()
