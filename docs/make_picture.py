"""Makes docs/launch.svg: a real run of the README's first command, as a terminal shows it. Needs tmux.

python docs/make_picture.py
"""

import subprocess
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMAND = "dtrain launch examples/digits.py"
COLUMNS, ROWS = 96, 31
DEADLINE_S = 60
SESSION = "dtrain-picture"
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


def screen_of_run() -> str:
    """Return the screen after the run, with its colours."""
    shell = f"{COMMAND}; tmux wait-for -S {SESSION}; sleep {DEADLINE_S}"
    tmux("new-session", "-d", "-s", SESSION, "-x", str(COLUMNS), "-y", str(ROWS), shell)
    try:
        subprocess.run(["tmux", "wait-for", SESSION], check=True, timeout=DEADLINE_S)
        time.sleep(0.2)  # the terminal draws what has been written
        return tmux("capture-pane", "-e", "-p", "-t", SESSION).rstrip()
    finally:
        tmux("kill-session", "-t", SESSION)


def main() -> None:
    """Write the picture."""
    # until exit
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(f"$ {COMMAND}\n{screen_of_run()}"))
    console.save_svg(str(OUTPUT), title="dtrain", theme=MONOKAI, code_format=SVG)


if __name__ == "__main__":
    main()
