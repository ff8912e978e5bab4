"""The goodput ledger of real clusters, against what a program of known cost has counted for itself: see
`counted_seconds`. None of the rules by which a ledger is made is used here.
"""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
from clusters.watching import report_of, succeeded
from row_by_row import by_night

COUNTED = str(Path(__file__).parent / "counted_seconds.py")
SYNC = ("--no-evaluator", "--workers", "2", "--updates", "sync")
ASYNC = ("--no-evaluator", "--workers", "2", "--ps", "1", "--updates", "async")
REDUCED = ("--no-evaluator", "--workers", "2", "--strategy", "multi_worker_mirrored")
DROPPED = ("--set", "training.stale_gradients=drop", "--set", "training.max_staleness=2")
OFTEN = ("--set", "checkpoint.every_steps=10")
KILL = 'simulate.kill=[{task: "ps:1", at_step: 15}]'
STEP_S = 0.1
"""Twice what a part costs that is not slow on purpose."""
WASTED = {"late", "stale", "recomputed", "rolled_back"}

# What is launched, and by which causes computed seconds are lost in it.
STORIES = {
    "a worker is killed in a step of all": (
        (*SYNC, "--ps", "2", COUNTED, "--parts", "3", "--die", "worker:1@10"),
        {"recomputed"},
    ),
    "a server dies after a checkpoint": (
        (*SYNC, "--ps", "2", *OFTEN, "--set", KILL, COUNTED, "--parts", "3", "--steps", "50"),
        {"rolled_back"},
    ),
    "backups skip a slow replica": (
        (
            *SYNC,
            "--ps",
            "1",
            "--backup-workers",
            "1",
            COUNTED,
            "--parts",
            "2",
            "--steps",
            "50",
            "--slow",
            "worker:1",
        ),
        {"late"},
    ),
    "a slow replica is waited for": (
        (*SYNC, "--ps", "1", COUNTED, "--parts", "3", "--steps", "15", "--slow", "worker:1"),
        set(),
    ),
    "stale gradients are dropped": (
        (*ASYNC, *DROPPED, COUNTED, "--steps", "60", "--slow", "worker:1"),
        {"stale"},
    ),
    "an asynchronous worker is killed": (
        (*ASYNC, COUNTED, "--steps", "60", "--die", "worker:1@8"),
        {"recomputed"},
    ),
    "one process is killed after a checkpoint": (
        ("--strategy", "single", *OFTEN, COUNTED, "--steps", "80", "--die", "chief:0@25"),
        {"recomputed", "rolled_back"},
    ),
    "a replica without servers is killed": (
        (*REDUCED, COUNTED, "--parts", "3", "--die", "worker:1@10"),
        {"recomputed"},
    ),
    "backups without servers": (
        (*REDUCED, "--backup-workers", "1", COUNTED, "--parts", "2", "--steps", "50", "--slow", "worker:1"),
        {"late"},
    ),
    "replicas are threads": (
        ("--strategy", "mirrored", "--set", "training.replicas=2", "--no-evaluator", COUNTED, "--parts", "2"),
        set(),
    ),
}

BY_DAY = (
    "a worker is killed in a step of all",
    "a server dies after a checkpoint",
    "backups skip a slow replica",
)


def told(folder):
    """The lines of each attempt of each task, in the order of time."""
    found = defaultdict(dict)
    for path in folder.glob("parts-*.jsonl"):
        _, role, index, attempt = path.stem.split("-")
        found[f"{role}:{index}"][int(attempt)] = sorted(
            map(json.loads, path.read_text().splitlines()), key=lambda line: line[1]
        )
    return found


def computations(lines):
    """(batch, end, seconds, whether it was killed in it) of each part that was computed."""
    begun = {}
    for what, at_s, batch in lines:
        if what == "begun":
            begun[batch] = at_s
        elif what in ("ended", "killed"):
            yield batch, at_s, at_s - begun.pop(batch), what == "killed"


def counted(launch, replicas):
    """Seconds by what the program and the launcher's journal say: good, killed, lost, rest, idle."""
    weights = json.loads((launch.folder / "weights.json").read_text())
    assert all(count == pytest.approx(round(count)) and 0 <= round(count) <= 1 for count in weights), weights
    moments = {(line["task"], line["attempt"]): line["monotonic_s"] for line in launch.events("exited")}
    seconds = defaultdict(float)
    ended = defaultdict(list)
    for task, attempts in told(launch.folder).items():
        since_s = attempts[0][0][1]  # the birth of its first process
        for attempt, lines in sorted(attempts.items()):
            first_s, until_s = lines[1][1], moments[task, attempt]
            seconds["idle"] += replicas * (first_s - since_s)
            seconds["rest"] += replicas * (until_s - first_s)
            since_s = until_s
            for batch, at_s, for_s, killed in computations(lines):
                seconds["rest"] -= for_s
                if killed:
                    seconds["killed"] += for_s
                else:
                    ended[batch].append((at_s, for_s))
    for batch, made in ended.items():
        *lost, last = [for_s for _, for_s in sorted(made)]
        seconds["good" if weights[batch] else "lost"] += last
        seconds["lost"] += sum(lost)
    return seconds


@pytest.mark.parametrize("story", [*BY_DAY, *by_night(*sorted(STORIES.keys() - set(BY_DAY)))])
def test_the_ledger_says_what_a_program_has_counted_for_itself(launcher, story):
    words, causes = STORIES[story]
    launch = launcher.start("--prometheus", launcher.folder / "run.prom", *words)
    succeeded(launch)
    ledger = report_of(launch.run_dir)["goodput"]
    said, whole_s = ledger["seconds"], ledger["allocated_s"]
    assert sum(said.values()) == pytest.approx(whole_s, rel=0.001)
    assert ledger["share"] == pytest.approx(said["good"] / whole_s, abs=0.0001)
    by_itself = counted(launch, 2 if "mirrored" in words else 1)
    assert sum(by_itself.values()) == pytest.approx(whole_s, rel=0.01)
    near = pytest.approx(0, abs=0.01 * whole_s)
    assert {cause for cause in WASTED if said[cause] > 0} == causes, said
    assert said["good"] - by_itself["good"] == near, (said, by_itself)
    assert said["recomputed"] - by_itself["killed"] == near, (said, by_itself)
    assert said["late"] + said["stale"] + said["rolled_back"] - by_itself["lost"] == near, (said, by_itself)
    idle_s = said["start"] + said["down"]
    rest_s = sum(said[cause] for cause in ("input", "send", "wait", "checkpoint", "other"))
    assert idle_s + rest_s - by_itself["idle"] - by_itself["rest"] == near, (said, by_itself)
    # A replica that comes back may wait for a step before its first part: the program has not begun yet.
    unseen_s = STEP_S * len(launch.events("started"))
    assert -0.01 * whole_s <= by_itself["idle"] - idle_s <= 0.01 * whole_s + unseen_s, (said, by_itself)
    exported = (launcher.folder / "run.prom").read_text()
    assert f'dtrain_goodput_ratio{{run="{launch.record()["run"]}"}} {ledger["share"]:.10g}\n' in exported
    assert re.search(r"^dtrain_up\{.*\} 0$", exported, re.MULTILINE)
    line = next(line for line in launch.err.splitlines() if line.startswith("dtrain: goodput "))
    shares = [float(share) for share in re.findall(r"([\d.]+) %", re.sub(r"\(.*?\)", "", line))]
    assert shares[0] == pytest.approx(100 * ledger["share"], abs=0.1)
    assert sum(shares) == pytest.approx(100, abs=0.1)
