"""Stories of deterministic trainings, drawn from a seed: roles are killed, servers restored, the run is
stopped and resumed.
"""

from dataclasses import dataclass
from random import Random

from chaos.faults import Faults
from chaos.stretch import Stretch

STEPS = 32
EXACT = ("training.deterministic=true",)
SYNC = ("--updates", "sync")
QUIET = Stretch((*SYNC, "--workers", "2", "--ps", "1"), EXACT)
"""Nothing happens to it."""


@dataclass(frozen=True)
class BitsStory:
    """What happens to a run of three replicas whose result must show nothing of it."""

    seed: int
    stretches: tuple[Stretch, ...]
    program: tuple[str, ...]

    def __str__(self):
        launches = "\n    then --resume ".join(map(str, self.stretches))
        return f"seed {self.seed}: {launches}\n    {' '.join(self.program)}"


def has_dropout(seed):
    """Every second story has it."""
    return seed % 2 == 0


def draw(seed):
    """The story of a seed."""
    random = Random(f"bits {seed}")
    program = (
        "--dropout",
        "0.3" if has_dropout(seed) else "0.0",
        "--pace_s",
        f"{random.uniform(0.03, 0.1):.3f}",
    )
    if random.random() < 0.5:
        return BitsStory(seed, (_stretch(random, 0, STEPS),), program)
    at = random.randint(3, STEPS - 8)
    resumed = _stretch(random, at, STEPS, workers=random.choice([2, 2, 2, 1, 3]))
    return BitsStory(seed, (_stretch(random, 0, at, stop_at=at), resumed), program)


def _stretch(random, first, last, *, workers=2, stop_at=None):
    servers = random.choice([1, 2, 2, 3])
    tasks = [
        "chief:0",
        "worker:0",
        f"worker:{workers - 1}",
        *(f"ps:{index}" for index in range(servers)),
        "ps:0",
    ]
    struck = random.sample(
        tasks, k=min(len(tasks), random.choice([1, 2, 3] if stop_at is None else [0, 1, 2]))
    )
    faults = Faults()
    for task in struck:
        faults.strike(task, random.randint(first + 1, last - 1))
    settings = [
        *EXACT,
        f"checkpoint.every_steps={random.choice([3, 8])}",
        f"training.transport={random.choice(['auto', 'grpc'])}",
    ]
    settings.append(f"training.partitioner={{fixed_shards: {random.choice([2, 3])}}}")
    return Stretch(
        (*SYNC, "--workers", str(workers), "--ps", str(servers)), (*settings, *faults.settings()), stop_at
    )
