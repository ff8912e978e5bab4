"""Makes docs/strategies_*.svg: examples per second of one model under every strategy, as bars.

pytest benchmarks/test_strategies.py --real --json FIGURES && python docs/make_strategy_pictures.py FIGURES
"""

import json
import sys
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
TITLES = {
    "mlp": "784-512-512-10 perceptron, 64 examples a replica",
    "cnn": "small convolutional network, 64 images a replica",
    "wide": "8 million weights, 64 examples a replica",
}
LABELS, BAR, ROW, TOP, WIDTH = 190, 360, 26, 40, 640
"""Pixels: for the names, for the longest bar, for a row, above the first one, in all."""


def read(path: Path) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return, by model and strategy, the median, least and largest number of examples per second."""
    found: dict[str, dict[str, tuple[float, float, float]]] = {}
    for line in path.read_text().splitlines():
        figure = json.loads(line)
        model, comma, strategy = figure["name"].partition(", ")
        if comma and model in TITLES and figure["unit"] == "examples/s":
            runs = figure["runs"]
            found.setdefault(model, {})[strategy] = (figure["figure"], min(runs), max(runs))
    return found


def picture(title: str, rates: dict[str, tuple[float, float, float]]) -> str:
    """Return the bars of one model; a thin line shows the range of the runs."""
    longest = max(most for _, _, most in rates.values())
    height = TOP + ROW * len(rates) + 12
    rows = []
    for row, (name, (median, least, most)) in enumerate(rates.items()):
        top = TOP + ROW * row
        middle = top + ROW / 2 - 3
        ends = [LABELS + BAR * value / longest for value in (median, least, most)]
        rows.append(
            f'<text x="{LABELS - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{LABELS}" y="{top}" width="{ends[0] - LABELS:.1f}" height="{ROW - 8}" fill="#4c78a8"/>'
            f'<line x1="{ends[1]:.1f}" x2="{ends[2]:.1f}" y1="{middle}" y2="{middle}" stroke="#f58518" '
            'stroke-width="2"/>'
            f'<text x="{ends[2] + 8:.1f}" y="{middle + 4}">{median:,.0f}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="8" y="20" font-size="14">{escape(title)}: examples per second, 2 replicas</text>'
        f"{''.join(rows)}</svg>\n"
    )


def main() -> None:
    """Write a picture for each model of the file."""
    for model, rates in read(Path(sys.argv[1])).items():
        (FOLDER / f"strategies_{model}.svg").write_text(picture(TITLES[model], rates))


if __name__ == "__main__":
    main()
