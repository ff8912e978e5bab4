"""Makes docs/kill.svg: two real runs of one program, one of which loses a worker, drawn as they went on.

    python docs/make_moving_picture.py

The picture is one SVG without scripts. It stands still for readers who have asked for less motion, and has
a ground of its own, so that it is read on light and on dark pages.
"""

import json
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUTPUT = Path(__file__).with_name("kill.svg")
KILLED, AT_STEP, STEPS, STEPS_PER_POINT = "worker:1", 600, 3200, 40
DEADLINE_S = 120
PROGRAM = """
import json, sys, time
import dtrain as dt
sys.path.insert(0, {examples!r})
import digits

class Note(dt.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        point = [time.time(), {every} * (epoch + 1), logs["val_loss"], logs["val_accuracy"]]
        with open({notes!r}, "a") as file:
            file.write(json.dumps(point) + "\\n")

train, test = digits.load_digits()
strategy = dt.get_strategy()
with strategy.scope():
    layers = [dt.layers.Dense(256, activation="relu"), dt.layers.Dropout(0.5), dt.layers.Dense(10)]
    model = dt.Sequential(layers)
    loss = dt.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=dt.optimizers.SGD(0.01), loss=loss, metrics=["accuracy"])
data = dt.data.Dataset.from_tensor_slices(train).shuffle(2000, seed=0).repeat().batch(128)
model.fit(data, epochs={steps} // {every}, steps_per_epoch={every}, validation_data=test, callbacks=[Note()])
"""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BASE, LANE = 800, 440, 92, 776, 66, 262, 28
SECONDS = 7.0
"""How long the picture takes to draw the run, before it stands still for as long as that and begins again."""
STYLE = """
text { font: 17px system-ui, sans-serif; fill: var(--ink) } .small { font-size: 15px; fill: var(--dim) }
.head { font-size: 21px; font-weight: 600 }
svg { --ground: #fff; --ink: #1c2430; --dim: #5a6675; --rule: #d5dbe3;
  --loss: #0a6bd1; --alive: #7fb7e8; --dead: #c2410c }
@media (prefers-color-scheme: dark) { svg { --ground: #161b22; --ink: #e6edf3; --dim: #9aa7b4;
  --rule: #30363d; --loss: #58a6ff; --alive: #27578f; --dead: #ff8552 } }
.curve { fill: none; stroke: var(--loss); stroke-width: 3; stroke-linejoin: round }
.other { fill: none; stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 2 7; opacity: .8 }
.life { fill: var(--alive); rx: 3px }
@keyframes draw { from { transform: scaleX(0) } 50%, to { transform: scaleX(1) } }
#shown { transform-origin: LEFTpx 0; animation: draw TWICEs linear infinite }
@media (prefers-reduced-motion: reduce) { #shown { animation: none } }
"""

Point = tuple[float, float, float, float]
"""Seconds, step, held-out loss, held-out accuracy."""
Event = dict[str, object]


def run(folder: Path, *options: str) -> tuple[list[Point], list[Event]]:
    """Launch the program; return its points, and the events of the run."""
    folder.mkdir()
    program = folder / "program.py"
    given = {"examples": str(ROOT / "examples"), "notes": str(folder / "notes.jsonl")}
    program.write_text(PROGRAM.format(**given, every=STEPS_PER_POINT, steps=STEPS))
    command = [sys.executable, "-m", "dtrain_cli.main", "launch", "--run-dir", str(folder / "run")]
    command += ["--strategy", "multi_worker_mirrored", "--workers", "3", "--no-evaluator", *options]
    subprocess.run([*command, str(program)], check=True, timeout=DEADLINE_S, cwd=folder)
    notes = [json.loads(line) for line in (folder / "notes.jsonl").read_text().splitlines()]
    return notes, [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]


def lanes(events: list[Event], zero_s: float, end_s: float) -> dict[str, list[tuple[float, float]]]:
    """Return when each task lived, in seconds from `zero_s`, as one pair for each of its processes."""
    found: dict[str, list[tuple[float, float]]] = {}
    for each in events:
        at_s = datetime.fromisoformat(str(each["time"])).timestamp() - zero_s
        lives = found.setdefault(str(each.get("task")), [])
        if each["event"] == "started":
            lives.append((max(at_s, 0), end_s))
        elif each["event"] == "exited":
            lives[-1] = (lives[-1][0], min(at_s, end_s))
    return {task: lives for task, lives in sorted(found.items()) if lives}


def draw(quiet: list[Point], killed: list[Point], events: list[Event]) -> str:
    """Return the picture of both runs; the time is that of the run in which a worker is killed."""
    zero_s = killed[0][0]
    end_s = killed[-1][0] - zero_s
    top = max(point[2] for point in killed)

    def x(at_s: float) -> float:
        return LEFT + (RIGHT - LEFT) * at_s / end_s

    def y(loss: float) -> float:
        return BASE - (BASE - TOP) * loss / top

    def line(points: list[Point], kind: str) -> str:  # both over the same seconds: one point a step
        places = " ".join(
            f"{x(own[0] - zero_s):.1f},{y(point[2]):.1f}" for own, point in zip(killed, points, strict=True)
        )
        return f'<polyline class="{kind}" points="{places}"/>'

    lives = lanes(events, zero_s, end_s)
    death_s, back_s = lives[KILLED][0][1], lives[KILLED][1][0]
    at_step = max(point[1] for point in killed if point[0] - zero_s <= death_s)
    apart = max(abs(one[2] - other[2]) for one, other in zip(quiet, killed, strict=True))
    said = "equal to the last bit" if apart == 0 else f"at most {apart:.1g} apart"
    moving = [line(killed, "curve"), line(quiet, "other")]
    still = []
    for row, (task, spans) in enumerate(lives.items()):
        place = BASE + 34 + LANE * row
        still.append(f'<text x="{LEFT - 10}" y="{place + 13}" text-anchor="end" class="small">{task}</text>')
        moving += [
            f'<rect class="life" x="{x(begin):.1f}" y="{place}" width="{x(end) - x(begin):.1f}" height="16"/>'
            for begin, end in spans
        ]
        if task == KILLED:
            moving.append(
                f'<text x="{x(death_s) + 4:.0f}" y="{place + 14}" style="fill:var(--dead)">✕ kill -9</text>'
            )
    moving.append(f'<path d="M{x(death_s):.1f} {TOP}V{BASE + 34 + LANE * len(lives)}" stroke="var(--dead)"/>')
    step, _, accuracy = killed[-1][1:]
    return f"""<svg viewBox="0 0 {WIDTH} {HEIGHT}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>A worker is killed. The loss of the run goes on as that of a run without a death.</title>
<style>{STYLE.replace("LEFT", str(LEFT)).replace("TWICE", str(2 * SECONDS))}</style>
<defs><clipPath id="reveal">
<rect id="shown" x="{LEFT}" width="{WIDTH - LEFT}" height="{HEIGHT}"/></clipPath></defs>
<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="var(--ground)" stroke="var(--rule)"/>
<text x="20" y="32" class="head">One of four replicas is killed: the curve does not move</text>
<text x="20" y="54" class="small">Held-out loss. Dotted: the same program without the death; {said}.</text>
<path d="M{LEFT} {TOP}V{BASE}H{RIGHT}" fill="none" stroke="var(--rule)"/>
<text x="{LEFT - 10}" y="{TOP + 12}" text-anchor="end" class="small">{top:.1f}</text>
<text x="{LEFT - 10}" y="{BASE}" text-anchor="end" class="small">0</text>
<text x="{LEFT}" y="{BASE + 18}" class="small">0 s</text>
<text x="{RIGHT}" y="{BASE + 18}" text-anchor="end" class="small">{end_s:.1f} s, step {step:,}</text>
{"".join(still)}
<g clip-path="url(#reveal)">
{"".join(moving)}
</g>
<text x="20" y="{HEIGHT - 14}" class="small">Two real runs. Killed near step {at_step:,},
 back {back_s - death_s:.1f} s later. Held-out accuracy at the end: {accuracy:.3f}.</text>
</svg>
"""


def main() -> None:
    """Run the program twice, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        quiet, _ = run(Path(folder, "quiet"))
        kill = f"simulate.kill=[{{task: {KILLED}, at_step: {AT_STEP}}}]"
        killed, events = run(Path(folder, "killed"), "--set", kill)
    OUTPUT.write_text(draw(quiet, killed, events))


if __name__ == "__main__":
    main()
