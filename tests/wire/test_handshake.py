"""Which tasks are let in, and what a stranger is told."""

import msgspec
import pytest

from dtrain.messages import Hello
from dtrain.wire.handshake import refusal

EXPECTED = Hello(run_id="run-1", cluster_hash="c1", task="ps:0", secret="s3cret")


def hello(**changes):
    return msgspec.structs.replace(EXPECTED, **{"task": "worker:1", **changes})


@pytest.mark.parametrize("task", ["worker:1", "chief:0", "evaluator:0", "ps:1", "worker:99"])
def test_a_task_of_the_run_is_let_in(task):
    assert refusal(EXPECTED, hello(task=task)) is None


def test_no_secret_is_asked_for_where_there_is_none():
    assert refusal(msgspec.structs.replace(EXPECTED, secret=None), hello(secret=None)) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"run_id": "run-2"}, "this is ps:0 of run run-1; worker:1 belongs to run run-2"),
        ({"cluster_hash": "c2"}, "another cluster than ps:0 (hashes c2 and c1)"),
        ({"secret": "other"}, "worker:1 did not present the secret of ps:0"),
        ({"secret": None}, "did not present the secret"),
        ({"secret": "s3cret\0"}, "did not present the secret"),
        ({"secret": "ß"}, "did not present the secret"),
        ({"task": "banana"}, "'banana' is not a task"),
        ({"task": ""}, "'' is not a task"),
    ],
)
def test_a_stranger_gets_a_plain_reason_that_does_not_give_the_secret_away(changes, said):
    reason = refusal(EXPECTED, hello(**changes))
    assert said in reason
    assert "s3cret" not in reason


def test_a_secret_is_not_accepted_where_none_is_expected():
    assert "secret" in refusal(msgspec.structs.replace(EXPECTED, secret=None), hello())
