"""Which tasks are let in, and what a stranger is told."""

import msgspec
import pytest
from row_by_row import every_row

from dtrain.messages import Hello
from dtrain.wire.handshake import refusal

EXPECTED = Hello(run_id="run-1", cluster_hash="c1", task="ps:0")


def hello(**changes):
    return msgspec.structs.replace(EXPECTED, **{"task": "worker:1", **changes})


@every_row("task", ["worker:1", "chief:0", "evaluator:0", "ps:1", "worker:99"])
def test_a_task_of_the_run_is_let_in(task):
    assert refusal(EXPECTED, hello(task=task)) is None


def test_a_task_that_joins_need_not_know_the_run():
    assert refusal(EXPECTED, hello(run_id="", cluster_hash="")) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_id": "run-2"}, "this is ps:0 of run run-1; worker:1 belongs to run run-2"),
        ({"cluster_hash": "c2"}, "another cluster than ps:0 (hashes c2 and c1)"),
        ({"task": "banana"}, "'banana' is not a task"),
        ({"task": ""}, "'' is not a task"),
    ],
)
def test_a_task_of_another_run_gets_a_plain_reason(changes, said):
    assert said in refusal(EXPECTED, hello(**changes))


def test_a_task_by_hand_with_other_addresses_hears_of_its_cluster_and_what_to_do():
    server = Hello(run_id="hand-c1", cluster_hash="c1", task="ps:0")
    moved = Hello(run_id="hand-c2", cluster_hash="c2", task="ps:1")
    said = refusal(server, moved)
    assert "ps:1 was started with another cluster than ps:0 (hashes c2 and c1)" in said
    assert "DTRAIN_MOVED_TO=HOST:PORT" in said
    assert "belongs to run run-2" in refusal(server, Hello(run_id="run-2", cluster_hash="c2", task="ps:1"))
