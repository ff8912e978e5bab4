"""What one mistake alone must be refused for: numbers at their bounds, and an option that is malformed."""

import pytest

from dtrain.config import resolve
from dtrain.config.sections import address_problem
from dtrain.errors import SpecError
from dtrain_cli.spec import read_spec

CLUSTER = {"chief": 1, "worker": 1, "ps": 1}


@pytest.mark.parametrize("kind", ["fixed_shards", "min_size", "max_size"])
def test_a_partitioner_has_at_least_one_shard_and_byte(kind):
    spec, problems = resolve({"cluster": CLUSTER, "training": {"partitioner": {kind: 0}}})
    assert spec is None
    assert problems == [(("training", "partitioner", kind), "expected at least 1, found 0")]
    assert resolve({"cluster": CLUSTER, "training": {"partitioner": {kind: 1}}})[1] == []


def test_a_port_is_one_of_those_that_there_are():
    assert address_problem("a:1") is address_problem("a:65535") is None
    for port in ("0", "65536", "70000", "99999", "100000"):
        assert "expected a port from 1 to 65535" in address_problem(f"a:{port}")


@pytest.mark.parametrize("wrong", ["cluster.worker", "=8", "name=["])
def test_one_malformed_set_beside_a_right_spec_is_refused(wrong):
    with pytest.raises(SpecError, match="expected"):
        read_spec(None, sets=["cluster.worker=1", wrong])
