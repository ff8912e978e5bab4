"""Per-replica batch sizes agree with tf.distribute.InputContext: golden file c."""

import pytest
from conformance.golden import load_json
from row_by_row import every_row

from dtrain.data import InputContext

GOLDEN = load_json("c_input_context.json")
FIELDS = ("num_input_pipelines", "input_pipeline_id", "num_replicas_in_sync")


@every_row(
    "case",
    GOLDEN["cases"],
    ids=lambda case: "-".join(str(case[field]) for field in (*FIELDS, "global_batch_size")),
)
def test_batch_size_of_a_replica(case):
    context = InputContext(**{field: case[field] for field in FIELDS})
    assert str(context) == case["str"]
    if "error" in case:
        with pytest.raises(ValueError, match="divisible"):
            context.get_per_replica_batch_size(case["global_batch_size"])
    else:
        assert context.get_per_replica_batch_size(case["global_batch_size"]) == case["per_replica"]


def test_defaults():
    assert {field: getattr(InputContext(), field) for field in FIELDS} == GOLDEN["defaults"]
