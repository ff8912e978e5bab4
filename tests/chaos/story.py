"""Stories of trainings that count examples, drawn from a seed: which mode, which cluster, which faults, which
resume.
"""

from dataclasses import dataclass
from random import Random

from chaos import faults as faulty
from chaos.faults import LEASE_S, THEMES, Cast
from chaos.stretch import Stretch

MODES = {
    "single": ("--strategy", "single"),
    "sync": ("--updates", "sync"),
    "backup, skip": ("--updates", "sync", "--backup-workers", "1"),
    "backup, retry": (
        "--updates",
        "sync",
        "--backup-workers",
        "1",
        "--set",
        "training.on_stale=retry_same_batch",
    ),
    "async": ("--updates", "async"),
    "ssp": ("--updates", "async", "--staleness-bound", "2"),
    "drop, skip": (
        "--updates",
        "async",
        "--set",
        "training.stale_gradients=drop",
        "--set",
        "training.max_staleness=1",
    ),
    "drop, retry": (
        *(
            "--updates",
            "async",
            "--set",
            "training.stale_gradients=drop",
            "--set",
            "training.max_staleness=1",
        ),
        *("--set", "training.on_stale=retry_same_batch"),
    ),
    "async, averages": ("--updates", "async"),
}
EXACT_MODES = [mode for mode in MODES if not mode.endswith(("skip", "averages"))]
"""Those between which a resumed run may change: every example counts exactly once in each."""
LARGE_MB = (3.0, 4.5)
"""The variables of most stories, so that every server takes messages of more than 1 MiB."""
BACKUP_BATCH = 6
"""The size of batches that backups cut into equal parts, so that every example has the same weight."""
SPARE = 8
"""Where what comes too late is skipped, a `fit` has so many times the examples that its steps take, and never
begins anew.
"""


@dataclass(frozen=True)
class Story:
    """What happens in a run, and what its weights are to say in the end.

    Attributes:
        rows: how many examples there are.
        passes: how often each of them counts; None: at most once.
        total: how often all of them together count.
        averages: whether the weights are averages in the end, which count nothing.
    """

    seed: int
    mode: str
    stretches: tuple[Stretch, ...]
    program: tuple[str, ...]
    rows: int
    passes: int | None
    total: int
    averages: bool

    def __str__(self):
        launches = "\n    then --resume ".join(map(str, self.stretches))
        return f"seed {self.seed}, {self.mode}: {launches}\n    {' '.join(self.program)}"


def mode_of(seed):
    """Every mode in turn."""
    return list(MODES)[seed % len(MODES)]


def draw(seed):
    """The story of a seed."""
    random, mode = Random(f"counting {seed}"), mode_of(seed)
    skips, averages = mode.endswith("skip"), mode.endswith("averages")
    fits, epochs = random.choice([(1, 1), (2, 1), (3, 1), (1, 1 if skips else 2)])
    batch = BACKUP_BATCH if mode.startswith("backup") else random.choice([3, 4, BACKUP_BATCH])
    uneven = mode in EXACT_MODES and not mode.startswith("backup") and random.random() < 0.4
    used = 12 * batch + (batch // 2 if uneven else 0)
    steps = -(-used // batch)
    all_steps = fits * epochs * steps
    theme = random.choices(list(THEMES), list(THEMES.values()))[0]
    theme = {"single": "any", "async, averages": "far"}.get(mode, theme)
    program = {"examples": used * SPARE if skips else used, "batch": batch, "fits": fits, "epochs": epochs}
    mbytes = random.choice([0.0, *LARGE_MB, *LARGE_MB])
    program["width"] = max(1, round(mbytes * 1e6 / (4 * fits * program["examples"])))
    program["pace_s"] = round(_lasting_s(random, mode, theme) / all_steps, 4)
    switches = ["--ema"] if averages else ["--plain"] if not uneven and random.random() < 0.4 else []
    switches += ["--steps", str(steps)] if skips else []
    return Story(
        seed,
        mode,
        tuple(_stretches(random, mode, theme, all_steps, equal=batch == BACKUP_BATCH and not uneven)),
        (*(word for name, value in program.items() for word in (f"--{name}", str(value))), *switches),
        fits * program["examples"],
        None if skips else epochs,
        fits * epochs * used,
        averages,
    )


def _lasting_s(random, mode, theme):
    """How long all steps are to take one replica, or the three that share them in async."""
    waits = mode in ("single", "sync") or mode.startswith("backup")
    if theme == "still" and mode != "sync":  # the others go on, and are still at work when the lease is over
        lasting_s = LEASE_S + 4.0
    elif theme == "far":  # its pushes are to be on the way most of the time
        lasting_s = 0.5 if waits else 2.0
    else:
        lasting_s = random.uniform(1.0, 3.0)
    return lasting_s * (1 if waits else 3)


def _stretches(random, mode, theme, steps, equal):
    """The launches of a run: one to its end, or one that is stopped and one with `--resume`, maybe in another
    mode: with backups where parts of batches are `equal`.
    """
    if random.random() < 0.65:
        return [_stretch(random, mode, theme, 1, steps)]
    at = random.randint(2, steps * 3 // 4)
    others = [other for other in EXACT_MODES if equal or not other.startswith("backup")]
    other = random.choice(others) if mode in EXACT_MODES and random.random() < 0.4 else mode
    return [
        _stretch(random, mode, theme, 1, steps, at),
        _stretch(random, other, random.choice(["any", "none"]), at, steps),
    ]


def _stretch(random, mode, theme, first, steps, stop_at=None):
    """One launch in a mode, on a cluster that is drawn, with faults between two steps."""
    if mode == "single":
        faults = faulty.Faults()
        for _ in range(random.choice([0, 1, 2])):
            faults.strike("chief:0", random.randint(first, steps - 1))
        return Stretch(
            MODES[mode], (f"checkpoint.every_steps={random.choice([1, 3])}", *faults.settings()), stop_at
        )
    cast = Cast(
        random.choice([1, 2, 2, 3]),
        random.choice([2, 2, 3] if theme == "far" else [1, 2, 2, 3]),
        first,
        steps,
    )
    settings = [
        f"checkpoint.every_steps={random.choice([2, 5, 9])}",
        f"training.transport={random.choice(['auto', 'grpc'])}",
    ]
    if mode == "sync":
        settings.append("training.weighting=examples")
    settings.append(f"training.partitioner={{fixed_shards: {random.choice([2, 2, 3])}}}")
    if random.random() < 0.2:
        settings.append("training.placement=greedy")
    # a resume goes on with the strategy of the run, which may be `single`, unless it names another one
    options = ("--strategy", "parameter_server", *MODES[mode])
    options += ("--workers", str(cast.workers), "--ps", str(cast.servers))
    return Stretch(
        options,
        (*settings, *faulty.draw(random, theme, cast, waits="sync" in MODES[mode]).settings()),
        stop_at,
    )
