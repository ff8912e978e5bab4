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
PICTURES = {"pipeline_gpipe.svg": "gpipe", "pipeline_1f1b.svg": "1f1b"}
"""The schedule of each file. One that goes on with the next batch belongs here too."""
LABELS, WIDTH, ROW, TOP = 64, 760, 28, 34
"""Pixels: for the names, of all, of a row, above the first one."""
STYLE = """
.ground { fill: #fff } text { fill: #1c2430 } .F { fill: #8fb8de } .B { fill: #f2b36b } .n { fill: #1c2430 }
.F, .B { stroke: #fff }
@media (prefers-color-scheme: dark) { .ground { fill: #161b22 } .F, .B { stroke: #161b22 }
text { fill: #e6edf3 } .n { fill: #1c2430 } }
"""
Spans = list[tuple[str, float, float]]


def picture(title: str, stages: list[Spans]) -> str:
    """Return one step as an SVG: a row a stage, a box a microbatch forward or back, when it was computed.

    Args:
        stages: of each stage the kind ("F" or "B"), begin and end in seconds of what it did, in its order.
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
        f"microbatches; the step took {ended - begun:.2f} s, a stage waited {waits:.0%} of it"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="11">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect class="ground" width="100%" height="100%"/><text x="8" y="20" font-size="14">{title}</text>'
        f'{"".join(boxes)}<text x="8" y="{height - 10}">{key}</text></svg>\n'
    )


def main() -> None:
    """Make a run and a picture of its third step for each schedule."""
    for name, schedule in PICTURES.items():
        each = 2 * MICROBATCHES
        spans = [found[2 * each : 3 * each] for found in spans_of(schedule, STAGES, MICROBATCHES, STEPS)]
        title = f"{schedule}: one step of {STAGES} stages, {MICROBATCHES} microbatches"
        (FOLDER / name).write_text(picture(title, spans))


if __name__ == "__main__":
    main()
