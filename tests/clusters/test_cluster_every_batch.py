"""Async: every batch counts once on every server; a push that a death halves, or that one server finds too
stale, is no mixture.
"""

import json
import re
from pathlib import Path

import pytest
from clusters.watching import report_of, succeeded, tasks_of

COUNTED = str(Path(__file__).parent / "counted_on_servers.py")
TWO = ("--workers", "2", "--ps", "2", "--no-evaluator", "--updates", "async")
BATCHES = 120
PACE = ("--pace_s", "0.1")
"""Training is slow enough to go on when the third push over the slow link comes."""
SLOW = ("--set", "simulate.network=[{between: [worker:1, ps:1], latency_ms: 1000}]")
RESTARTED = ("--set", "restart.worker={max: 9, backoff_s: 0.1}")
GONE = ("--set", "restart.worker.policy=never")


def counts(launch):
    """What every batch has added, by variable."""
    [text] = re.findall(
        r"counts (\{.*\})", launch.out + "".join(path.read_text() for path in launch.run_dir.glob("logs/*"))
    )[:1]
    return json.loads(text)


def steps_of_servers(launch):
    tasks = tasks_of(report_of(launch.run_dir))
    return [tasks[f"ps:{server}"]["step"] for server in (0, 1)]


@pytest.fixture(scope="module", autouse=True)
def still_for_long(early):
    """A run of which a replica stands still for longer than its lease."""
    pause = ("--set", "simulate.pause=[{task: worker:1, at_step: 10, for_s: 6.5}]")
    return early.start(*TWO, *pause, COUNTED, "--pace_s", "0.2")


@pytest.fixture(scope="module", autouse=True)
def halved(early):
    """Runs of which a replica dies while a push is under way: its task comes back or not, and averages are taken."""
    words = (*TWO, *SLOW)
    counted = [early.start(*words, *then, COUNTED, "--die", *PACE) for then in (RESTARTED, GONE)]
    return counted, early.start(*words, *RESTARTED, COUNTED, "--die", "--ema", *PACE)


def test_a_gradient_is_too_stale_for_both_servers_or_for_none(launcher):
    """Whether the batch is computed again or not; both at the same time."""
    words = (
        "--workers",
        "3",
        *TWO[2:],
        "--set",
        "training.stale_gradients=drop",
        "--set",
        "training.max_staleness=1",
    )
    link = ("--set", "simulate.network=[{between: [worker:1, ps:1], latency_ms: 5}]")
    rules = [("--set", f"training.on_stale={on_stale}") for on_stale in ("skip", "retry_same_batch")]
    skipped, repeated = [launcher.start(*words, *link, *rule, COUNTED, "--pace_s", "0.004") for rule in rules]
    for launch in (skipped, repeated):
        succeeded(launch)
        assert steps_of_servers(launch) == [BATCHES, BATCHES]
    found = counts(skipped)
    assert found["first"] == found["second"]
    assert sum(found["first"]) == BATCHES, (
        "where batches are dropped, some of the next pass make the last steps"
    )
    assert counts(repeated) == {"first": [1.0] * BATCHES, "second": [1.0] * BATCHES}


def test_a_push_that_a_death_halves_counts_once_on_both_servers(halved):
    """Whether its task comes back or not; and averages are taken on both."""
    counted, averaged = halved
    for launch in counted:
        succeeded(launch)
        assert steps_of_servers(launch) == [BATCHES, BATCHES]
        assert counts(launch) == {"first": [1.0] * BATCHES, "second": [1.0] * BATCHES}
    succeeded(averaged)
    assert steps_of_servers(averaged) == [BATCHES, BATCHES]
    for values in counts(averaged).values():
        assert min(values) < 0.9, "an average has half of the last batch at most: these are no weights"


def test_a_replica_that_stands_still_for_longer_than_its_lease_counts_every_batch_once(still_for_long):
    succeeded(still_for_long)
    assert counts(still_for_long) == {"first": [1.0] * BATCHES, "second": [1.0] * BATCHES}
