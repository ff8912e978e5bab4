"""A page that is complete in itself: tables, small drawings and charts, without network.

Charts are drawn by uPlot from data that stand in the page as JSON. Every text comes in escaped. Points of a
drawing are of the unit square, x to the right and y upwards.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

_FILES = Path(__file__).parent
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
SWITCH = (
    '<p><label><input type="radio" name="x" value="step" checked> over steps</label> '
    '<label><input type="radio" name="x" value="s"> over seconds</label> &emsp; '
    '<label><input type="radio" name="y" value="linear" checked> linear</label> '
    '<label><input type="radio" name="y" value="log"> logarithmic</label></p>'
)
"""The choice of the axes of all charts."""
Point = tuple[float, float]


class Markup(str):
    """A piece of a page that is not escaped any more."""

    __slots__ = ()


class ChartLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A series of a chart: `x` has its values by each axis; `dots` without `dash` are joined by no line."""

    label: str
    colour: int
    x: dict[str, list[float]]
    y: list[float]
    dots: bool = False
    dash: list[int] | None = None
    thin: bool = False


class PageChart(msgspec.Struct, frozen=True):
    """Lines with one unit; `axes` has the label of each axis x, `below` stands under the chart."""

    title: str
    axes: dict[str, str]
    series: list[ChartLine]
    marked: bool = False
    below: str = ""


def page(
    title: str,
    parts: Iterable[str],
    charts: Sequence[PageChart] = (),
    marks: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the page; the charts stand where `parts` has what `chart_places` makes of them."""
    style = _file("page.css") + (_file("uplot/uPlot.min.css") if charts else "")
    text = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body><h1>{escape(title)}</h1>",
        *parts,
    ]
    if charts:
        drawn = [{name: getattr(chart, name) for name in ("axes", "series", "marked")} for chart in charts]
        data = msgspec.json.encode({"charts": drawn, "marks": marks}).decode()
        safe = data.replace("<", "\\u003c")  # a text may not end the element
        text.append(f'<script type="application/json" id="data">{safe}</script>')
        text += [f"<script>{_file(name)}</script>" for name in ("uplot/uPlot.iife.min.js", "page.js")]
    return "\n".join([*text, "</body></html>\n"])


def _file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def chart_places(charts: Sequence[PageChart]) -> str:
    places = (
        f'<section><h2>{escape(chart.title)}</h2><div class="chart" id="chart-{index}" role="img" '
        f'aria-label="{escape(chart.title)}"></div>{chart.below}</section>'
        for index, chart in enumerate(charts)
    )
    return f'<div class="charts">{"".join(places)}</div><noscript>The charts need JavaScript.</noscript>'


def table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [("th", heads), *(("td", row) for row in rows)]
    cells = ("".join(f"<{kind}>{_cell(cell)}</{kind}>" for cell in row) for kind, row in lines)
    return '<div class="wide"><table>' + "\n".join(f"<tr>{row}</tr>" for row in cells) + "</table></div>"


def _cell(cell: object) -> str:
    return cell if isinstance(cell, Markup) else escape("" if cell is None else str(cell))


def folded(title: str, part: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{part}</details>"


def stack(shares: Mapping[str, float]) -> Markup:
    """Return a bar of parts, whose names are colours of page.css."""
    said = ", ".join(f"{name.replace('_', ' ')} {share:.1%}" for name, share in shares.items())
    parts = (
        f'<i style="width:{share:.2%};background:var(--{escape(name)})"></i>'
        for name, share in shares.items()
    )
    about = f'role="img" title="{escape(said)}" aria-label="{escape(said)}"'
    return Markup(f'<div class="stack" {about}>{"".join(parts)}</div>')


def strip(bins: Sequence[Sequence[float] | None], names: Sequence[str]) -> Markup:
    """Return shares over time: at each of `bins` those of `names`, from below; None leaves a gap."""
    paths = []
    for place, name in enumerate(names):
        shape = []
        for x, shares in enumerate(bins):
            if shares is not None and (height := shares[place]):
                top = 1 - sum(shares[: place + 1])
                shape.append(f"M{x} {top:.2f}h1v{height:.2f}h-1z")
        paths.append(f'<path d="{"".join(shape)}" style="fill:var(--{escape(name)})"/>')
    return Markup(
        f'<svg class="strip" viewBox="0 0 {len(bins)} 1" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(paths)}</svg>"
    )


def key(names: Iterable[str]) -> str:
    keys = (
        f'<span class="key"><i style="background:var(--{escape(name)})"></i>'
        f"{escape(name.replace('_', ' '))}</span>"
        for name in names
    )
    return f"<p>{''.join(keys)}</p>"


def plain_json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"


def drawing(title: str, shapes: Iterable[str]) -> str:
    head = f'<h2>{escape(title)}</h2><svg class="drawing" viewBox="0 0 800 260" role="img">'
    return f"{head}{''.join(shapes)}</svg>"


def line(points: Sequence[Point], colour: str = "", hint: str = "") -> str:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(_place, points))
    style = f' style="stroke:{colour}"' if colour else ""
    return f'<polyline points="{where}"{style}><title>{escape(hint)}</title></polyline>'


def label(point: Point, text: object, anchor: str = "middle") -> str:
    x, y = _place(point)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(text))}</text>'


def _place(point: Point) -> Point:
    return 80 + 640 * point[0], 235 - 200 * point[1]
