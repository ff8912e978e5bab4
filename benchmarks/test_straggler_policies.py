"""What one replica of 4 that is five times slower costs, by the way in which the others deal with it. Prints
the guide's table.
"""

import re
from statistics import median

from benchmarks.test_straggler import training_s

SLOW = ("--set", "simulate.slow.worker:2=5")
POLICIES = {
    "wait: `updates: sync`": ("--updates", "sync"),
    "do not wait for the last: `sync`, `backup_workers: 1`": ("--updates", "sync", "--backup-workers", 1),
    "wait for no replica: `async`": ("--updates", "async"),
    "and trust it less: `async`, `stale_gradients: scale`": (
        "--updates",
        "async",
        "--set",
        "training.stale_gradients=scale",
    ),
}
HEADINGS = (
    "the others",
    "seconds without a slow one",
    "with it",
    "ratio",
    "gradients too late",
    "staleness of the slow one",
    "accuracy",
)


class Policy:
    """The pairs of launches, without and with a slow replica, that have been measured of one policy."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fast_s: list[float] = []
        self.slow_s: list[float] = []
        self.late: list[int] = []
        self.staleness: list[float] = []
        self.accuracies: list[float] = []

    def add(self, fast, slow) -> None:
        """One pair; what is lost by the slow one shows in the launch that it took part in."""
        self.fast_s.append(training_s(fast))
        self.slow_s.append(training_s(slow))
        self.late.append(sum(task["stale_gradients"] or 0 for task in slow.status["tasks"]))
        self.staleness.append(max(task["staleness_mean"] or 0 for task in slow.status["tasks"]))
        self.accuracies.append(float(re.search(r"held-out accuracy ([\d.]+)", slow.log("chief:0"))[1]))

    @property
    def ratios(self) -> list[float]:
        """With a slow replica to without one, pair by pair."""
        return [slow_s / fast_s for fast_s, slow_s in zip(self.fast_s, self.slow_s, strict=True)]

    def to_row(self) -> str:
        """Medians; of the ratio the range too."""
        ratio = f"{median(self.ratios):.2f} ({min(self.ratios):.2f} - {max(self.ratios):.2f})"
        times = f"{median(self.fast_s):.1f} | {median(self.slow_s):.1f} | {ratio}"
        return (
            f"| {self.name} | {times} | {median(self.late):,.0f} | {median(self.staleness):.1f} | "
            f"{median(self.accuracies):.3f} |"
        )


def test_one_slow_replica_of_four(cluster, figure, real, runs, capsys):
    measured = POLICIES if real else dict([*POLICIES.items()][-1:])
    policies = {name: Policy(name) for name in measured}
    steps = 4000 if real else 10
    for _ in range(runs):
        for name, words in measured.items():  # one after the other, so that a busy moment meets them all
            launch = ("--workers", 3, "--no-evaluator", *words, "examples/digits.py", "--steps", steps)
            slow = cluster(*SLOW, *launch).end()
            fast = cluster(*launch).end() if real else slow
            assert fast.status["global_step"] == slow.status["global_step"] == steps
            policies[name].add(fast, slow)
    assert all(0.1 < accuracy <= 1 for policy in policies.values() for accuracy in policy.accuracies)
    if real:
        for name, policy in policies.items():
            figure(
                f"straggler: {name}",
                policy.ratios,
                "x",
                result=[steps],
                note=f"accuracies {policy.accuracies}",
            )
        table = [
            f"| {' | '.join(HEADINGS)} |",
            "|---" * len(HEADINGS) + "|",
            *(policy.to_row() for policy in policies.values()),
        ]
        with capsys.disabled():
            print("", *table, sep="\n", flush=True)
