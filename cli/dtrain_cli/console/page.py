"""A page that is complete in itself: tables and small drawings, without scripts, and without network.

Points of a drawing are of the unit square, x to the right and y upwards.
"""

from collections.abc import Iterable, Sequence
from html import escape

_STYLE = (
    "body{font:14px sans-serif;margin:2em;color:#222}table{border-collapse:collapse}svg{max-width:60em}"
    "th,td{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}text{font-size:11px}"
)
Point = tuple[float, float]


def page(title: str, parts: Iterable[str]) -> str:
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    return "\n".join([f"{head}<style>{_STYLE}</style><h1>{escape(title)}</h1>", *parts, "</html>\n"])


def table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [("th", heads), *(("td", row) for row in rows)]
    cells = (
        "".join(f"<{kind}>{escape('' if cell is None else str(cell))}</{kind}>" for cell in row)
        for kind, row in lines
    )
    return "<table>" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "</table>"


def drawing(title: str, shapes: Iterable[str]) -> str:
    return f'<h2>{escape(title)}</h2><svg viewBox="0 0 800 260" role="img">{"".join(shapes)}</svg>'


def line(points: Sequence[Point], colour: str, hint: str = "") -> str:
    where = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(_place, points))
    return (
        f'<polyline points="{where}" fill="none" stroke="{colour}"><title>{escape(hint)}</title></polyline>'
    )


def dot(point: Point, colour: str, hint: str) -> str:
    x, y = _place(point)
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{escape(hint)}</title></circle>'


def label(point: Point, text: object, anchor: str = "middle") -> str:
    x, y = _place(point)
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(str(text))}</text>'


def _place(point: Point) -> Point:
    return 80 + 640 * point[0], 235 - 200 * point[1]
