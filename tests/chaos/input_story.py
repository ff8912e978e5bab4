"""Stories of trainings that count examples, whose data are pipelines of a function or are read ahead, drawn from
a seed: replicas are killed, some for good, workers join, and runs are stopped and resumed with other ones.
"""

from dataclasses import replace
from random import Random

from chaos.faults import Faults
from chaos.story import LARGE_MB, Story
from chaos.stretch import Join, Stretch
from clusters.watching import IN_SHARDS

MODES = {
    "async": ("--updates", "async", "--ps", "2", *IN_SHARDS),
    "sync": ("--updates", "sync", "--ps", "2", *IN_SHARDS),
    "replicas": ("--strategy", "multi_worker_mirrored"),
}
INPUTS = ("pipelines", "ahead")
BATCHES = 48
"""Of a pass: as many for each of two, three or four pipelines."""
JOINING_S = 4.0
"""How much longer a story lasts in which workers join: they take as long to start."""


def draw(seed):
    """The story of a seed: every mode with every kind of input in turn."""
    random = Random(f"input {seed}")
    mode, kind = list(MODES)[seed % len(MODES)], INPUTS[seed // len(MODES) % len(INPUTS)]
    workers, epochs = random.choice([1, 2, 3]), random.choice([1, 1, 2])
    batch = random.choice([2, 3]) if kind == "pipelines" else 4
    together = 1 if mode == "async" or kind == "ahead" else workers + 1
    steps = epochs * BATCHES // together
    parts_at_once = workers + 1 if mode == "async" else 1
    pace_s = random.uniform(1.5, 3.0) * parts_at_once / steps
    width = 3 if mode == "replicas" else round(LARGE_MB[0] * 1e6 / (4 * BATCHES * batch))
    program = {
        "examples": BATCHES * batch,
        "batch": batch,
        "epochs": epochs,
        "input": kind,
        "width": width,
    }
    stretches = [_stretch(random, mode, workers, 1, steps)]
    if random.random() < 0.5:
        at = random.randint(2, steps * 3 // 4)
        others = random.choice([1, 2, 3])
        stretches = [_stretch(random, mode, workers, 1, steps, at), _stretch(random, mode, others, at, steps)]
    stretches = _joined(seed, stretches, steps)
    if any(stretch.joins for stretch in stretches):
        pace_s += JOINING_S * parts_at_once / steps
    program["pace_s"] = round(pace_s, 4)
    return Story(
        seed,
        f"{mode}, {kind}",
        stretches,
        tuple(word for name, value in program.items() for word in (f"--{name}", str(value))),
        BATCHES * batch,
        epochs,
        epochs * BATCHES * batch,
        averages=False,
    )


def _joined(seed, stretches, steps):
    """Let one or two workers join some of the launches; some of them are killed before the end."""
    random = Random(f"joins {seed}")
    found = []
    first = 1
    for stretch in stretches:
        last = stretch.stop_at or steps
        joins = []
        for _ in range(random.choice([0, 0, 1, 1, 2])):
            at = random.randint(first, first + (last - first) // 4)
            killed_at = random.randint(at + 1, max(at + 1, last - 2)) if random.random() < 0.4 else None
            joins.append(Join(at, killed_at))
        found.append(replace(stretch, joins=tuple(joins)))
        first = last
    return tuple(found)


def _stretch(random, mode, workers, first, steps, stop_at=None):
    settings = [f"checkpoint.every_steps={random.choice([3, 7])}"]
    faults = Faults()
    last = max(first + 1, steps - 2)
    if mode != "async":
        settings.append("training.weighting=examples")
    if random.random() < 0.4:
        settings += ["restart.worker.policy=never"]
        settings += ["training.too_few=shrink"] if mode == "sync" else []
        faults.strike(f"worker:{random.randrange(workers)}", random.randint(first, last))
    else:
        tasks = ["chief:0", *(f"worker:{worker}" for worker in range(workers))]
        for task in random.sample(tasks, k=random.choice([1, 1, 2])):
            faults.strike(task, random.randint(first, last))
    return Stretch((*MODES[mode], "--workers", str(workers)), (*settings, *faults.settings()), stop_at)
