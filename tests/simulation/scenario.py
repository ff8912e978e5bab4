"""What a seed stands for: a cluster, a rule of training, and what goes wrong when."""

from itertools import product
from random import Random

import msgspec
from msgspec.structs import replace
from simulation.data import Data, RoundsOfData

from dtrain.config import (
    AsyncSection,
    OuterSection,
    SyncSection,
    TrainingSection,
    local_steps_of,
    training_section,
)
from dtrain.config.training_section import DEFAULTS
from dtrain.state.rounds import Rounds

USUAL_SEEDS = (
    *(0, 4, 10, 12, 25, 26, 27, 29, 30, 31, 41, 47, 52, 68, 81, 108, 110, 113, 126, 137, 147, 153, 159, 173),
    *(184, 199, 213, 262, 292, 295, 301, 332, 345, 347, 370, 385),
)
"""By day: so few of the first 400 draw every setting together with every fault with which the first 120 draw it
(`pairs`), and 41 finds a planted bug that of those 120 only 80 finds too.
"""
SEEDS_OF_SAME_RUN = 7
"""How many of them `test_same_run` judges, in each of its two processes; `test_simulation` judges the others."""

FAULTS = (
    "break",
    "break",
    "break",
    "crash",
    "crash",
    "die",
    "pause",
    "partition",
    "slow",
    "stall",
    "fall",
    "fall",
    "hang",
)


class Fault(msgspec.Struct, frozen=True):
    """Something that goes wrong.

    Attributes:
        kind: ``break`` a connection, ``crash`` a replica that is started again, let one ``die`` for good,
            ``pause`` it, cut it off from all others (``partition``), make it ``slow``, let it ``stick``: it beats
            and does nothing until it is killed and started again; ``stall`` a server, let it ``fall`` and be
            started again, or ``hang`` until it is killed.
        target: index of the replica or server; -1: the evaluator.
        for_s: until the task is back; a factor for ``slow``; for ``break`` it chooses the connection.
    """

    at_s: float
    kind: str
    target: int
    for_s: float

    def __str__(self) -> str:
        return f"at {self.at_s:.3f}: {self.kind} {self.target} for {self.for_s:.3f}"


class Resume(msgspec.Struct, frozen=True):
    """The whole run is killed, and resumed from its newest checkpoint on another cluster."""

    at_s: float
    replicas: int
    servers: int


class Scenario(msgspec.Struct, frozen=True):
    """A cluster, its rule, and its faults.

    Attributes:
        replicas: T; the chief may be one of them.
        optimizer: one of `model.OPTIMIZERS`.
        rows: of the table that is trained; 0: there are no tables.
        shards: into how many pieces every variable is cut.
        fits: how often the program calls `fit`.
        rows_per_batch, last_rows, batches: of the data; see `Data`.
        steps_per_epoch: global steps.
        joins: when a worker joins that the cluster does not name.
        assigns: whether the leader assigns values now and then, where training waits for it.
        last_round: of an epoch, in local steps; in batches.
        evaluation_s: how long the evaluator takes for a checkpoint; None: there is no evaluator.
        alone: whether the replica of rank 0 computes every part.
    """

    seed: int
    replicas: int
    servers: int
    max_steps: int
    training: TrainingSection
    mean_delay_s: float
    compute_s: float
    nan_rate: float
    optimizer: str = "plain"
    rows: int = 0
    shards: int = 1
    fits: int = 1
    faults: tuple[Fault, ...] = ()
    rows_per_batch: int = 12
    last_rows: int = 12
    batches: int = 4
    steps_per_epoch: int = 4
    joins: tuple[float, ...] = ()
    resume: Resume | None = None
    assigns: bool = False
    alone: bool = False
    evaluation_s: float | None = None
    last_round: int = 1

    @property
    def rounds(self) -> Rounds | None:
        """Which batches make which round, in local steps."""
        length = local_steps_of(self.training)
        return Rounds(length, (self.steps_per_epoch - 1) * length + self.last_round) if length else None

    @property
    def tasks(self) -> int:
        """Chief and workers."""
        return self.replicas + (not self.training.chief_trains)

    @property
    def stream(self) -> Data:
        """What it reads."""
        return Data(self.rows_per_batch, self.last_rows, self.batches)

    @property
    def data(self) -> Data | RoundsOfData:
        """What its steps are made of: batches, or rounds of them."""
        rounds = self.rounds
        if rounds is None:
            return self.stream
        return RoundsOfData(self.stream, rounds.local_steps, rounds.steps_per_epoch)

    @property
    def hears_the_end(self) -> bool:
        """Whether nothing happens by which a server may miss the leader's farewell."""
        away = {"pause", "partition"}
        kinds = [fault.kind for fault in self.faults if fault.kind not in away or fault.target == 0]
        return set(kinds) <= {"crash", "die", "slow"}

    @property
    def harmless(self) -> bool:
        """Whether nothing happens by which a replica loses its lease."""
        return self.resume is None and all(fault.kind in ("break", "slow", "stall") for fault in self.faults)

    def __str__(self) -> str:
        rule, default = msgspec.structs.asdict(self.training), DEFAULTS
        changed = {name: value for name, value in rule.items() if value != default[name]}
        return (
            f"seed {self.seed}: {self.replicas} replicas, {self.servers} servers, {self.fits} x "
            f"{self.max_steps} steps, {changed}, "
            f"{self.optimizer}, {self.rows} rows, {self.shards} shards, "
            f"{self.batches} batches of {self.rows_per_batch}, the last of {self.last_rows}, "
            f"{self.steps_per_epoch} steps an epoch, {self.rounds or 'no rounds'}, joins {self.joins}, {self.resume}, "
            f"{'with' if self.assigns else 'without'} values assigned, {'alone, ' if self.alone else ''}"
            f"evaluations of {self.evaluation_s} s, "
            f"delay {self.mean_delay_s} s, compute {self.compute_s} s, NaN {self.nan_rate}"
        )


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(seed)
    replicas = random.randint(1, 5)
    training = _draw_sync(random, replicas) if random.random() < 0.6 else _draw_async(random)
    on_stale = random.choice(("skip", "retry_same_batch"))
    training = msgspec.structs.replace(training, chief_trains=random.random() < 0.85, on_stale=on_stale)
    compute_s = random.choice((0.02, 0.1, 0.5))
    scenario = Scenario(
        seed,
        replicas,
        servers=random.randint(1, 3),
        max_steps=random.randint(4, 14),
        training=training,
        mean_delay_s=random.choice((0.0005, 0.005, 0.1)),
        compute_s=compute_s,
        nan_rate=random.choice((0.0, 0.0, 0.05)),
        rows=random.choice((0, 0, 5, 9)),
        shards=random.choice((1, 1, 2, 3)),
        fits=random.choice((1, 1, 1, 2)),
    )
    scenario = _with_data(Random(f"data {seed}"), replace(scenario, faults=_draw_faults(random, scenario)))
    scenario = _with_changes(Random(f"changes {seed}"), scenario)
    scenario = _with_absences(Random(f"absences {seed}"), scenario)
    scenario = _with_evaluator(Random(f"evaluator {seed}"), scenario)
    return _with_stuck(Random(f"stuck {seed}"), scenario)


def draw_rounds(seed: int) -> Scenario:
    """The scenario of a seed in local steps: its cluster, its rule where that has them, and its faults.

    A schedule goes on for 36 steps only, which is as far as `units` reads it. What rounds make of the
    rows of tables the judge does not compute; `tests/strategies/test_local_steps.py` does.
    """
    random, drawn = Random(f"rounds {seed}"), draw(seed)
    steps, rule = random.randint(1, 3), drawn.training
    if isinstance(rule, AsyncSection) and rule.stale_gradients in ("compensate", "scale"):
        rule = msgspec.structs.replace(rule, stale_gradients="apply")
    outer = OuterSection(learning_rate=1.0, momentum=0.0, delayed=isinstance(rule, AsyncSection))
    rule = msgspec.structs.replace(rule, local_steps=steps, outer=outer if steps == 1 else None)
    if isinstance(rule, SyncSection) and not rule.backup_workers and rule.replicas_to_aggregate is None:
        by_speed = random.random() < 0.5
        rule = msgspec.structs.replace(rule, local_steps={"by_speed": steps} if by_speed else steps)
    names = ["plain", "plain", "ema"]
    if steps * drawn.max_steps * drawn.fits <= 36:
        names.append("schedule")
    return replace(
        drawn,
        training=rule,
        optimizer=random.choice(names),
        rows_per_batch=min(drawn.rows_per_batch, 8),
        last_rows=min(drawn.last_rows, 8),
        alone=False,
        last_round=random.randint(1, steps),
    )


def pairs(scenario: Scenario) -> set[tuple[str, str]]:
    """Every setting of a scenario's rule, each with everything else that is drawn there."""
    rule, default = msgspec.structs.asdict(scenario.training), DEFAULTS
    settings = {"sync" if isinstance(scenario.training, SyncSection) else "async"}
    for name, value in rule.items():
        if value != default[name]:
            settings.add(f"{name}={value}" if isinstance(value, str) else name)
    drawn = {f"evaluator {each.kind}" if each.target == -1 else each.kind for each in scenario.faults}
    drawn |= {f"{scenario.replicas} replicas", f"{scenario.servers} servers", scenario.optimizer}
    drawn |= {
        name
        for name in ("rows", "assigns", "alone", "joins", "resume", "nan_rate", "evaluation_s")
        if getattr(scenario, name)
    }
    drawn |= {name for name in ("fits", "shards") if getattr(scenario, name) > 1}
    if scenario.last_rows < scenario.rows_per_batch:
        drawn.add("a short batch")
    return set(product(settings, drawn))


def _with_stuck(random: Random, scenario: Scenario) -> Scenario:
    """In some runs replicas beat and do nothing, until the launcher kills them."""
    if random.random() > 0.12:
        return scenario
    length_s = scenario.max_steps * scenario.fits * scenario.compute_s
    faults = [
        Fault(
            random.uniform(0.0, length_s),
            "stick",
            random.randrange(scenario.tasks),
            random.uniform(1.0, 15.0),
        )
        for _ in range(random.randint(1, 3))
    ]
    return replace(scenario, faults=tuple(sorted((*scenario.faults, *faults), key=lambda fault: fault.at_s)))


def _with_evaluator(random: Random, scenario: Scenario) -> Scenario:
    """In some runs an evaluator follows, which is sometimes away, for less than a lease."""
    if random.random() > 0.15:
        return scenario
    faults = list(scenario.faults)
    for _ in range(random.choice((0, 1, 2))):
        at_s = random.uniform(0.0, 1.5 * scenario.max_steps * scenario.fits * scenario.compute_s)
        kind = random.choice(("crash", "crash", "pause", "partition"))
        faults.append(Fault(at_s, kind, -1, random.uniform(0.0, 1.0 if kind == "crash" else 3.0)))
    evaluation_s = random.choice((0.02, 0.3, 2.0))
    faults.sort(key=lambda fault: fault.at_s)
    return replace(scenario, evaluation_s=evaluation_s, faults=tuple(faults))


def _with_absences(random: Random, scenario: Scenario) -> Scenario:
    """In some runs training lasts for longer than a few leases, and replicas are away for longer than one, or
    die as they push.
    """
    if random.random() > 0.12:
        return scenario
    faults = list(scenario.faults)
    for _ in range(random.randint(1, 5)):
        kind = random.choice(("pause", "pause", "partition", "crash", "crash", "crash", "break"))
        for_s = random.uniform(0.0, 2.0) if kind == "crash" else random.uniform(5.0, 8.0)
        faults.append(Fault(random.uniform(0.0, 12.0), kind, random.randrange(scenario.tasks), for_s))
    return replace(
        scenario,
        max_steps=random.randint(20, 36),
        compute_s=0.5,
        mean_delay_s=random.choice((0.005, 0.1, 0.3)),
        fits=1,
        rows_per_batch=min(scenario.rows_per_batch, 6),
        last_rows=min(scenario.last_rows, 6),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def _with_changes(random: Random, scenario: Scenario) -> Scenario:
    """Other optimizers, values that are assigned, workers that join, and a run that is resumed on another
    cluster.
    """
    rule = scenario.training
    names = ["plain", "plain", "momentum", "adagrad", "adam", "schedule", "ema"]
    if isinstance(rule, AsyncSection) and rule.stale_gradients == "scale":
        names = ["adagrad", "adam"]  # what these remember does not depend on the rate
    length_s = scenario.max_steps * scenario.fits * scenario.compute_s
    joins = tuple(random.uniform(0.0, length_s) for _ in range(random.choice((0, 0, 0, 1, 2))))
    resume = None
    if random.random() < 0.2:
        fewest = 1 + (rule.backup_workers if isinstance(rule, SyncSection) else 0)
        replicas = random.choice((scenario.replicas, random.randint(fewest, max(fewest, 5))))
        resume = Resume(random.uniform(0.0, 1.5 * length_s), replicas, random.randint(1, 3))
    return replace(
        scenario,
        optimizer=random.choice(names),
        assigns=random.random() < 0.3,
        alone=random.random() < 0.05,
        joins=joins,
        resume=resume,
    )


def _with_data(random: Random, scenario: Scenario) -> Scenario:
    """Batches that leave some replicas without examples, or with fewer; whole ones that are refused; lost
    leases.
    """
    rule = scenario.training
    parts = rule.replicas_needed(scenario.replicas) if isinstance(rule, SyncSection) else 1
    rows = random.choice((parts, 2 * parts, random.randint(1, 3 * parts + 2)))
    faults = list(scenario.faults)
    mortal = _mortal(scenario)
    if isinstance(rule, SyncSection) and rule.too_few == "shrink" and mortal and random.random() < 0.7:
        at_s = random.uniform(0.0, scenario.max_steps * scenario.fits * scenario.compute_s)
        kind = random.choice(("die", "pause", "partition"))
        faults.append(
            Fault(at_s, kind, random.choice(mortal), random.uniform(5.2, 9.0))
        )  # longer than a lease
    weighting = random.choice(("replicas", "examples"))
    if isinstance(rule, SyncSection):
        rule = msgspec.structs.replace(rule, weighting=weighting)
    return replace(
        scenario,
        training=rule,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        nan_rate=random.choice((scenario.nan_rate,) * 4 + (0.3,)),
        rows_per_batch=rows,
        last_rows=random.choice((rows, random.randint(1, rows))),
        batches=random.randint(1, 4),
        steps_per_epoch=random.randint(1, 5),
    )


def _mortal(scenario: Scenario) -> range:
    """Tasks that may die for good: not the chief, nor the replica of rank 0, which alone trains in the
    warm-up.
    """
    return range(1 + (not scenario.training.chief_trains), scenario.tasks)


def _draw_sync(random: Random, replicas: int) -> TrainingSection:
    too_few = random.choice(("wait", "wait", "shrink", "fail"))
    if random.random() < 0.25:
        return training_section(
            updates="sync", replicas_to_aggregate=random.randint(1, 2 * replicas), too_few=too_few
        )
    return training_section(updates="sync", backup_workers=random.randint(0, replicas - 1), too_few=too_few)


def _draw_async(random: Random) -> TrainingSection:
    return training_section(
        staleness_bound=random.choice((None, None, 1, 2)),
        warmup_steps=random.choice((0, 0, 2)),
        stale_gradients=(policy := random.choice(("apply", "apply", "scale", "drop", "compensate"))),
        max_staleness=random.choice((0, 1, 3)) if policy == "drop" else None,
    )


def _draw_faults(random: Random, scenario: Scenario) -> tuple[Fault, ...]:
    may_die = _mortal(scenario)
    faults = []
    for _ in range(random.choice((0, 1, 3, 6, 10))):
        kind = random.choice(FAULTS)
        longest_s = 3.0 if kind == "stall" else random.choice((0.1, 1.0, 6.0, 12.0))
        for_s = random.uniform(3.0, 20.0) if kind == "slow" else longest_s * random.random()
        targets = may_die if kind == "die" else range(scenario.tasks)
        if targets:
            at_s = random.uniform(0.0, 12 * scenario.fits * scenario.compute_s)
            faults.append(Fault(at_s, kind, random.choice(targets), for_s))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
