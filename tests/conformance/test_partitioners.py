"""Partitioners and sharded variables answer as TensorFlow's (golden d)."""

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from conformance.golden import load_json
from row_by_row import every_row

from dtrain.variables import partitioning
from dtrain.variables.partitioning import row_offsets, split_rows
from dtrain.variables.sharded_variable import ShardedVariable

GOLDEN = load_json("d_partitioners.json")

PARTITIONERS = defaultdict(list)
for _case in GOLDEN["partitioners"]:
    PARTITIONERS[_case["class"], str(_case["args"])].append(_case)

SHARDED = GOLDEN["sharded_variables"]
SHARDED_IDS = [str(case["shard_sizes"]) for case in SHARDED]


def error_names(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def partitions(case: dict[str, Any]) -> list[int]:
    partitioner = getattr(partitioning, case["class"])(**case["args"])
    return partitioner(case["shape"], case["dtype"], axis=case["axis"])


@every_row("cases", PARTITIONERS.values(), ids=map("-".join, PARTITIONERS))
def test_partitioners(cases):
    for case in cases:
        if "error" in case:
            with pytest.raises(Exception) as raised:  # noqa: PT011  (its class is the golden one, compared below)
                partitions(case)
            assert case["error"]["class"] in error_names(raised.value), case
        else:
            assert partitions(case) == case["partitions"], case


def sharded(case: dict[str, Any]) -> ShardedVariable:
    full = np.array(case["full"], np.float32)
    return ShardedVariable([part.copy() for part in np.split(full, row_offsets(case["shard_sizes"])[1:])])


@pytest.mark.parametrize("case", SHARDED, ids=SHARDED_IDS)
def test_reading_whole_slices_and_integers(case):
    variable = sharded(case)
    assert list(variable.shape) == case["shape"]
    assert variable.offsets == case["offsets"]
    np.testing.assert_array_equal(variable.numpy(), np.array(case["full"], np.float32))
    for golden in case["slices"]:
        rows = slice(*golden["start_stop_step"])
        assert [local and list(local) for local in variable.local_slices(rows)] == golden["local"], golden
        np.testing.assert_array_equal(variable[rows].ravel(), np.array(golden["value"], np.float32).ravel())
    for golden in case["ints"]:
        if not golden["numpy_agrees"]:
            full = np.array(case["full"], np.float32)
            np.testing.assert_array_equal(variable[golden["index"]], full[golden["index"]])
        elif "error" in golden:
            with pytest.raises(IndexError):
                variable[golden["index"]]
        else:
            np.testing.assert_array_equal(variable[golden["index"]], np.array(golden["value"], np.float32))


@pytest.mark.parametrize("case", SHARDED, ids=SHARDED_IDS)
def test_gathering_rows(case):
    variable = sharded(case)
    for golden in case["gathers"]:
        if "decompose_error" in golden:
            with pytest.raises(NotImplementedError):
                variable.gather(golden["ids"])
            continue
        local, shards = variable.decompose_ids(golden["ids"])
        assert [ids.tolist() for ids in local] == golden["local_ids"]
        assert shards.tolist() == golden["partition_index"]
        expected = np.array(golden["embedding_lookup"], np.float32)
        np.testing.assert_array_equal(variable.gather(golden["ids"]), expected)


@pytest.mark.parametrize("case", SHARDED, ids=SHARDED_IDS)
def test_scattering_rows(case):
    ids, values = case["scatter"]["ids"], np.array(case["scatter"]["values"], np.float32)
    distinct = next((i for i in range(len(ids)) if ids[i] in ids[:i]), len(ids))
    for name, golden in case["scatter"].items():
        if not name.startswith("scatter_"):
            continue
        # With repeated ids the outcome of an update is not defined: the golden one used those before the
        # first repetition.
        count = distinct if name == "scatter_update" else len(ids)
        variable = sharded(case)
        if "error" in golden:
            with pytest.raises(NotImplementedError):
                getattr(variable, name)(ids[:count], values[:count])
        else:
            getattr(variable, name)(ids[:count], values[:count])
            np.testing.assert_array_equal(variable.numpy(), np.array(golden, np.float32), err_msg=name)


@pytest.mark.parametrize("case", SHARDED, ids=SHARDED_IDS)
def test_assigning_the_whole(case):
    variable = sharded(case)
    variable.assign(2 * np.array(case["full"], np.float32))
    for shard, golden in zip(variable, case["scatter"]["assign_2x_shards"], strict=True):
        np.testing.assert_array_equal(shard, np.array(golden, np.float32))


def zeros(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    return np.zeros(shape, dtype)


REFUSED: dict[str, Any] = {
    "different_dtype": [zeros(2), zeros(2, dtype="float64")],
    "different_tail": [zeros(2, 3), zeros(2, 4)],
    "not_a_list": zeros(2),
    "element_not_variable": [zeros(2), 3],
    "partitioned_other_axis": [zeros(2, 3), zeros(3, 3), zeros(2, 2)],
    "scalars": [zeros(), zeros()],
}
"""What TensorFlow will not join, by the name of the case: the files name it and do not hold it."""


@every_row("golden", GOLDEN["sharded_variable_constructor"], ids=lambda golden: golden["case"])
def test_joining_shards(golden):
    if "error" in golden:
        with pytest.raises(Exception) as raised:  # noqa: PT011  (its class is the golden one, compared below)
            ShardedVariable(REFUSED[golden["case"]])
        assert golden["error"]["class"] in error_names(raised.value)
    else:
        starts = [*(offset[0] for offset in golden["offsets"]), golden["shape"][0]]
        variable = ShardedVariable(
            [zeros(stop - start, *golden["shape"][1:]) for start, stop in pairwise(starts)]
        )
        assert (list(variable.shape), variable.offsets) == (golden["shape"], golden["offsets"])


def test_the_div_rule():
    assert split_rows(13, 5) == [3, 3, 3, 2, 2]
    assert split_rows(10, 4) == [3, 3, 2, 2]
