"""Each piece of advice comes where it helps, and nowhere else; its section is in the guide."""

import re
from pathlib import Path
from statistics import median

import pytest

from dtrain.cluster import TaskId
from dtrain.messages.membership import TaskStatus
from dtrain_cli.runs.advice import PAGE, LastingAdvice, Row, advice, slow_replicas, total_examples_per_s

ROOT = Path(__file__).parents[3]


def told(*statuses, step=100, restarts=0):
    """The sections of the advice for replicas with these measures, and the sentences."""
    rows = []
    for index, measures in enumerate(statuses):
        said = TaskStatus(f"worker:{index}", 1, "here", **{"examples_per_s": 100.0, **measures})
        rows.append(Row(TaskId.parse(f"worker:{index}"), "running", restarts, said))
    texts = list(advice(rows, slow_replicas(rows), step))
    return [re.search(r"#(\w+)\)$", text)[1] for text in texts], texts


QUIET = {"waiting_share": 0.05, "input_share": 0.02}
ASYNC = {**QUIET, "staleness_mean": 2.1}


@pytest.mark.parametrize(
    ("section", "statuses", "words"),
    [
        ("input", [QUIET, {**QUIET, "input_share": 0.42}], "worker:1 spends 42% of its time"),
        (
            "slow",
            [{"waiting_share": 0.6}, {"waiting_share": 0.7}, {"examples_per_s": 30.0}],
            "worker:2 is 9.5 x slower, and the others wait for it 65% of the time",
        ),
        ("stale", [{**ASYNC, "staleness_mean": 9.0}] * 3, "9.0 steps old, with 3 replicas"),
        ("late", [{**ASYNC, "stale_gradients": 20}, ASYNC, ASYNC], "20 gradients were too old"),
        ("waiting", [{"waiting_share": 0.7}] * 3, "wait for servers or each other 70% of the time"),
    ],
)
def test_what_holds_a_run_up_is_told_with_what_one_does(section, statuses, words):
    sections, texts = told(*statuses)
    assert sections == [section]
    assert words in texts[0]


def test_a_task_that_is_started_again_and_again_is_named():
    sections, texts = told(QUIET, restarts=3)
    assert sections == ["restarts"]
    assert "worker:0 was started again 3 times" in texts[0]
    assert told(QUIET, restarts=2)[0] == []


def test_a_run_that_goes_well_has_no_advice():
    assert told(QUIET, QUIET)[0] == []
    assert told(ASYNC, ASYNC, ASYNC)[0] == [], "three replicas explain a staleness of 2"
    assert told({**ASYNC, "stale_gradients": 3}, ASYNC, ASYNC)[0] == [], "few in 100 steps"
    slow_but_skipped = [{"waiting_share": 0.02}, {"waiting_share": 0.02}, {"examples_per_s": 10.0}]
    assert told(*slow_but_skipped)[0] == [], "backups: nobody waits for it"
    skipped = [{"waiting_share": 0.6}, {"waiting_share": 0.7}, {"examples_per_s": 30.0, "stale_gradients": 9}]
    assert told(*skipped)[0] == [], "backups are on, and wait for each other: the remedy has been taken"
    assert told({"input_share": 0.9}, step=0)[0] == [], "nothing is trained yet"


def test_at_the_end_that_advice_is_given_which_has_held_for_half_of_the_run():
    def row(share):
        said = TaskStatus("worker:0", 1, "here", examples_per_s=1.0, input_share=share)
        return [Row(TaskId.parse("worker:0"), "running", 0, said)]

    lasting = LastingAdvice()
    for share in (0.9, 0.9, 0.0):
        lasting.look(row(share), 10)
    assert lasting.texts == [], "too short to say"
    lasting.look(row(0.5), 10)
    assert ["50% of its time" in text for text in lasting.texts] == [True]
    for _ in range(4):
        lasting.look(row(0.0), 10)
    assert lasting.texts == []


def test_every_section_of_the_guide_is_advice_that_is_given():
    page = (ROOT / PAGE).read_text()
    assert set(re.findall(r"^## (\w+)", page, re.MULTILINE)) == {
        "input",
        "slow",
        "stale",
        "late",
        "waiting",
        "restarts",
    }


@pytest.mark.parametrize(
    "rates", [[5.0], [5.0, 1.0], [4.0, 4.0, 1.0], [9.0, 1.0, 4.0, 4.0], [1.0, 2.0, 4.0, 8.0, 16.0]]
)
def test_a_replica_is_compared_with_the_median_of_the_others(rates):
    rows = [
        Row(TaskId.parse(f"worker:{n}"), "running", 0, TaskStatus("", 1, "here", examples_per_s=rate))
        for n, rate in enumerate(rates)
    ]
    took_s = [1 / rate for rate in rates]
    others_s = [median([*took_s[:n], *took_s[n + 1 :]] or [took_s[n]]) for n in range(len(rates))]
    factors = {rows[n].task: own / other for n, (own, other) in enumerate(zip(took_s, others_s, strict=True))}
    assert slow_replicas(rows) == {task: pytest.approx(each) for task, each in factors.items() if each >= 2}


def test_the_throughput_of_a_run_is_that_of_the_tasks_that_train():
    def row(name, state, rate):
        return Row(TaskId.parse(name), state, 0, TaskStatus(name, 1, "here", examples_per_s=rate))

    rows = [row("chief:0", "running", 10.0), row("worker:0", "running", 5.0), row("worker:1", "failed", 7.0)]
    assert total_examples_per_s([*rows, row("ps:0", "running", 99.0)]) == 15.0
    assert total_examples_per_s([row("chief:0", "running", None)]) is None
