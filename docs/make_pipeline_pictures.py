"""Makes docs/pipeline_*.svg: who computes what when in a step of a pipeline, from real runs on this machine.

python docs/make_pipeline_pictures.py

The layers sleep, so that the number of cores does not decide. Each picture is one step of four stages; their
program is in `tests/strategies/measured_pipelines.py`, which also measures the bubble.
"""

import statistics
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.append(str(FOLDER.parent / "tests" / "strategies"))
sys.path.append(str(FOLDER.parent / "tests"))

from measured_pipelines import BACK_S, FORWARD_S, spans_of  # noqa: E402

STAGES, MICROBATCHES, STEPS = 4, 8, 4
STEPS_OF = {"gpipe": STEPS, "1f1b": STEPS, "pipedream": 2 * MICROBATCHES}
"""The schedules that are drawn, and how many batches an epoch has; with pipedream a batch is a microbatch."""
LABELS, WIDTH, ROW, TOP = 64, 760, 28, 34
"""Pixels: for the names, of all, of a row, above the first one."""
STYLE = """
.ground { fill: #fff } text { fill: #1c2430 } .F { fill: #8fb8de } .B { fill: #f2b36b } .n { fill: #1c2430 }
.F, .B { stroke: #fff }
@media (prefers-color-scheme: dark) { .ground { fill: #161b22 } .F, .B { stroke: #161b22 }
text { fill: #e6edf3 } .n { fill: #1c2430 } }
"""
Spans = list[tuple[str, float, float]]


def picture(title: str, stages: list[Spans], numbered: str, said: str) -> str:
    """Return an SVG: a row a stage, a box a microbatch forward or back, when it was computed.

    Args:
        stages: of each stage the kind ("F" or "B"), begin and end in seconds of what it did, in its order.
        numbered: what the numbers in boxes are of.
        said: what the picture shows besides, at the end of the line below it.
    """
    begun = min(begin for spans in stages for _, begin, _ in spans)
    ended = max(end for spans in stages for *_, end in spans)
    scale = (WIDTH - LABELS - 12) / (ended - begun)
    boxes = []
    for stage, spans in enumerate(stages):
        top = TOP + ROW * stage
        numbers = {"F": 0, "B": 0}
        boxes.append(f'<text x="{LABELS - 8}" y="{top + 15}" text-anchor="end">stage {stage}</text>')
        for kind, begin, end in spans:
            x, width = LABELS + (begin - begun) * scale, (end - begin) * scale
            boxes.append(
                f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{ROW - 6}" class="{kind}"/>'
                f'<text class="n" x="{x + width / 2:.1f}" y="{top + 15}" text-anchor="middle">'
                f"{numbers[kind]}</text>"
            )
            numbers[kind] += 1
    waits = 1 - statistics.mean(
        sum(end - begin for _, begin, end in spans) / (ended - begun) for spans in stages
    )
    height = TOP + ROW * len(stages) + 26
    key = (
        f"blue: forward, {FORWARD_S * 1000:.0f} ms; orange: back, {BACK_S * 1000:.0f} ms; numbers: "
        f"{numbered}; a stage waited {waits:.0%} of {ended - begun:.2f} s{said}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="11">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect class="ground" width="100%" height="100%"/><text x="8" y="20" font-size="14">{title}</text>'
        f'{"".join(boxes)}<text x="8" y="{height - 10}">{key}</text></svg>\n'
    )


def updates_between(spans: Spans) -> int:
    """Return how often a stage updates its weights between forward and backward of a batch, at most."""
    kinds = [kind for kind, *_ in spans]
    places = {kind: [place for place, each in enumerate(kinds) if each == kind] for kind in "FB"}
    pairs = zip(places["F"], places["B"], strict=True)
    return max(kinds[forward:back].count("B") for forward, back in pairs)


def main() -> None:
    """Make a run for each schedule, and a picture of its third step, or of an epoch that does not stop."""
    for schedule, steps in STEPS_OF.items():
        flows = schedule == "pipedream"
        count = 1 if flows else MICROBATCHES
        spans = spans_of(schedule, STAGES, count, steps)
        title, said = f"{schedule}: one step of {STAGES} stages, {count} microbatches", ""
        if flows:
            title = f"{schedule}: an epoch of {steps} batches in {STAGES} stages"
            updates = ", ".join(str(updates_between(found)) for found in spans)
            said = f"; updates between forward and back: {updates}"
        else:
            spans = [found[4 * count : 6 * count] for found in spans]
        numbered = "batches" if flows else "microbatches"
        (FOLDER / f"pipeline_{schedule}.svg").write_text(picture(title, spans, numbered, said))


if __name__ == "__main__":
    main()
