"""The run's numbers over time: a line when one is due, and the last one at the end."""

import json

from dtrain.messages import HeartbeatReply
from dtrain.messages.membership import TaskStatus
from dtrain.runs.journal import INTERVAL_S, MetricsLog


def reply(version, *statuses):
    return HeartbeatReply(incarnation=1, generation=1, version=version, ended=False, statuses=statuses)


NUMBERS = {"step": 3, "loss": 0.5, "staleness_mean": 1.5, "staleness_counts": {1: 1, 2: 1}}
WORKER = TaskStatus("worker:0", 1, "here", **NUMBERS)
SERVER = TaskStatus("ps:0", 2, "here", step=3)


def test_a_line_is_written_when_it_is_due_and_the_newest_numbers_at_the_end(tmp_path):
    now = [0.0]
    log = MetricsLog(tmp_path / "metrics.jsonl", lambda: now[0])
    log.update(reply(1, WORKER, SERVER))
    assert not (tmp_path / "metrics.jsonl").exists()
    now[0] = INTERVAL_S
    log.update(reply(3, WORKER, SERVER))
    log.update(reply(4, WORKER))
    log.flush()
    log.flush()
    first, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())

    assert (first["global_step"], first["tasks"]) == (
        3,
        {"worker:0": {**NUMBERS, "staleness_counts": {"1": 1, "2": 1}}},
    )
    assert last["global_step"] == 4


def test_a_disk_that_refuses_does_not_stop_training(tmp_path):
    log = MetricsLog(tmp_path / "gone" / "metrics.jsonl", lambda: 0.0)
    log.update(reply(1, WORKER))
    log.flush()
