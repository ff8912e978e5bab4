"""Families of scenarios in which one thing goes wrong again and again: where a certain fault shows within few
seeds.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from simulation.scenario import Fault, Resume, Scenario

from dtrain.config import TrainingSection, training_section


def _scenario(
    seed: int,
    tasks: tuple[int, int],
    max_steps: int,
    rule: TrainingSection,
    *,
    delay_s: float,
    compute_s: float,
    **more: Any,
) -> Scenario:
    """Return a scenario without NaN for so many replicas and servers."""
    times = {"mean_delay_s": delay_s, "compute_s": compute_s, "nan_rate": 0.0}
    return Scenario(seed, *tasks, max_steps, rule, **times, **more)


def _faults(
    random: Random, count: int, kinds: Sequence[str], targets: Sequence[int], lasts_s: tuple[float, float]
) -> tuple[Fault, ...]:
    drawn = [
        Fault(random.uniform(1, 10), random.choice(kinds), random.choice(targets), random.uniform(*lasts_s))
        for _ in range(count)
    ]
    return tuple(sorted(drawn, key=lambda fault: fault.at_s))


def dies_while_it_pushes(seed: int) -> Scenario:
    """Sync: messages take long, so that a worker that dies has often pushed to some servers only; it is soon
    back.
    """
    faults = _faults(Random(seed), 4, ["crash"], (1, 2), (0.0, 1.0))
    rule = training_section(updates="sync")
    return _scenario(seed, (3, 3), 16, rule, delay_s=0.3, compute_s=0.5, faults=faults)


def stands_still(seed: int) -> Scenario:
    """Sync, with and without a backup: replicas are away for longer than a lease, and come back."""
    random = Random(seed)
    too_few, backups = random.choice(("wait", "shrink")), random.choice((0, 0, 1))
    rule = training_section(
        updates="sync", too_few=too_few, backup_workers=backups, on_stale="retry_same_batch"
    )
    delay_s = random.choice((0.05, 0.3))
    faults = _faults(random, 3, ["pause", "partition"], (0, 1, 2), (5.0, 8.0))
    return _scenario(seed, (3, 2), 16, rule, delay_s=delay_s, compute_s=0.5, faults=faults)


def stands_still_async(seed: int) -> Scenario:
    """Async: the same."""
    random = Random(seed)
    delay_s = random.choice((0.05, 0.3))
    faults = _faults(random, 3, ["pause", "partition"], (0, 1, 2), (5.0, 8.0))
    return _scenario(seed, (3, 2), 24, training_section(), delay_s=delay_s, compute_s=1.0, faults=faults)


def averages_async(seed: int) -> Scenario:
    """Async with averages: workers die while they push."""
    faults = _faults(Random(seed), 3, ["crash"], (1, 2), (0.0, 2.0))
    rule = training_section()
    return _scenario(seed, (3, 2), 24, rule, delay_s=0.3, compute_s=0.5, optimizer="ema", faults=faults)


def drops(seed: int) -> Scenario:
    """Async, nothing goes wrong; what is too stale is dropped."""
    rule = training_section(stale_gradients="drop", max_staleness=2)
    return _scenario(seed, (3, 2), 16, rule, delay_s=0.05, compute_s=0.1)


def assigns(seed: int) -> Scenario:
    """Sync: the leader assigns values by messages that take long, and in some runs it dies, or servers
    fall.
    """
    random = Random(seed)
    faults = _faults(random, random.randint(0, 4), ["fall", "crash", "crash"], (0,), (0.0, 2.0))
    rule = training_section(updates="sync")
    return _scenario(seed, (2, 3), 24, rule, delay_s=0.3, compute_s=0.1, faults=faults, assigns=True)


def resumed(seed: int) -> Scenario:
    """Sync: killed and resumed with another number of replicas and servers; nothing else goes wrong."""
    random = Random(seed)
    replicas, at_s, after = random.randint(2, 5), random.uniform(0.5, 1.8), random.randint(2, 5)
    resume = Resume(at_s, after, random.randint(1, 3))
    return _resumed(seed, (replicas, 2), training_section(updates="sync"), resume)


def recut(seed: int) -> Scenario:
    """Sync with backups: killed and resumed with so many replicas that batches are cut otherwise."""
    random = Random(seed)
    rule = training_section(
        updates="sync",
        replicas_to_aggregate=random.randint(1, 4),
        too_few="shrink",
        on_stale="retry_same_batch",
    )
    replicas, at_s, after = random.randint(2, 5), random.uniform(0.5, 1.8), random.randint(1, 5)
    return _resumed(seed, (replicas, 1), rule, Resume(at_s, after, 1))


def _resumed(seed: int, tasks: tuple[int, int], rule: TrainingSection, resume: Resume) -> Scenario:
    return _scenario(seed, tasks, 12, rule, delay_s=0.01, compute_s=0.1, last_rows=7, resume=resume)


def turns(seed: int) -> Scenario:
    """Sync: workers join, so that more replicas live than a batch has parts."""
    random = Random(seed)
    joins = tuple(random.uniform(0.0, 2.0) for _ in range(2))
    rule = training_section(updates="sync")
    return _scenario(seed, (3, 2), 16, rule, delay_s=0.01, compute_s=0.2, joins=joins)


def servers_fall(seed: int) -> Scenario:
    """Sync and async: servers are started again while replicas push to them."""
    random = Random(seed)
    faults = _faults(random, 3, ["fall"], (0, 1), (0.0, 1.0))
    rule = training_section(updates=random.choice(("sync", "async")))
    return _scenario(seed, (3, 2), 16, rule, delay_s=0.1, compute_s=0.5, faults=faults)
