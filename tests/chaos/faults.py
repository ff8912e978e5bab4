"""What happens to the tasks of one launch, by keys of a spec's `simulate`; three themes, of which a seed
draws one.
"""

from dataclasses import dataclass, field
from random import Random

LEASE_S = 5.0
"""A task that is silent for longer is lost, as docs/guide/faults.md says."""
THEMES = {"any": 4, "still": 3, "far": 4}
"""What happens to a launch, and how often of 11 times."""


@dataclass(frozen=True)
class Cast:
    """The tasks of a launch, and the steps between which something happens to them."""

    workers: int
    servers: int
    first: int
    last: int

    def replicas(self):
        return ["chief:0", *(f"worker:{index}" for index in range(self.workers))]

    def tasks(self):
        return [*self.replicas(), *(f"ps:{index}" for index in range(self.servers))]


@dataclass
class Faults:
    """The faults of a launch, each a mapping in YAML's flow style."""

    kill: list[str] = field(default_factory=list)
    pause: list[str] = field(default_factory=list)
    network: list[str] = field(default_factory=list)

    def settings(self):
        """What `--set` is given."""
        return [f"simulate.{key}=[{', '.join(of_kind)}]" for key, of_kind in vars(self).items() if of_kind]

    def strike(self, task, step):
        """Kill a task."""
        self.kill.append(f"{{task: {task}, at_step: {step}}}")

    def hold(self, task, step, for_s):
        """Stop a task for a while."""
        self.pause.append(f"{{task: {task}, at_step: {step}, for_s: {for_s}}}")

    def lengthen(self, replica, server, latency_ms, bandwidth=""):
        """Make a link slow."""
        self.network.append(f"{{between: [{replica}, ps:{server}], latency_ms: {latency_ms}{bandwidth}}}")


def draw(random: Random, theme: str, cast: Cast, *, waits: bool) -> Faults:
    """Draw the faults of a launch; `waits`: every step waits for a replica that is far."""
    faults = Faults()
    if theme == "any":
        _any(random, cast, faults)
    elif theme == "still":
        _still(random, cast, faults)
    elif theme == "far":
        _far(random, cast, faults, random.choice([50, 100, 200]) if waits else random.choice([150, 400]))
    return faults


def _any(random, cast, faults):
    """One or two tasks of any role are killed; one may stand still for a moment; a link may be slow."""
    for task in random.choices(cast.tasks(), k=random.choice([1, 1, 2])):
        faults.strike(task, _step(random, cast))
    if random.random() < 0.3:
        faults.hold(random.choice(cast.tasks()), _step(random, cast), 0.4)
    _slow_link(random, cast, faults)


def _still(random, cast, faults):
    """A task stands still for longer than its lease, mostly a replica; another replica may be killed."""
    held = random.choice([*cast.replicas() * 2, f"ps:{random.randrange(cast.servers)}"])
    soon = Cast(cast.workers, cast.servers, cast.first, cast.first + (cast.last - cast.first) // 4)
    faults.hold(held, _step(random, soon), LEASE_S + 1.5)
    if random.random() < 0.3:
        faults.strike(random.choice([task for task in cast.replicas() if task != held]), _step(random, cast))
    _slow_link(random, cast, faults)


def _far(random, cast, faults, latency_ms):
    """A replica is far from one server alone and is killed, likely while its push has arrived at the others
    only.
    """
    replica = random.choice(cast.replicas())
    latency_ms = 50 if replica == "chief:0" else latency_ms  # who leads has more to say
    faults.lengthen(replica, random.randrange(cast.servers), latency_ms)
    early = Cast(cast.workers, cast.servers, cast.first, cast.first + (cast.last - cast.first) * 2 // 3)
    for _ in range(2):
        faults.strike(replica, _step(random, early))
    if random.random() < 0.2:
        faults.strike(random.choice(cast.tasks()), _step(random, cast))


def _slow_link(random, cast, faults):
    if random.random() < 0.4:
        bandwidth = random.choice(["", ", bandwidth_mbit_s: 200"])
        faults.lengthen(
            random.choice(cast.replicas()), random.randrange(cast.servers), random.choice([5, 40]), bandwidth
        )


def _step(random, cast):
    return random.randint(cast.first, max(cast.first, cast.last - 1))
