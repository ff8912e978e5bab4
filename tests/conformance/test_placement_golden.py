"""Variables lie on the servers on which TensorFlow puts them (golden de and e)."""

import re
from typing import Any

import numpy as np
import pytest
from conformance.golden import load_json
from conformance.left_out import LEFT_OUT
from row_by_row import every_row

from dtrain.errors import SpecError
from dtrain.parameters.placement import least_loaded, plan
from dtrain.variables import VariableSpec, partitioning

PARAMETER_SERVER = load_json("de_parameter_server.json")["cases"]
REPLICA_DEVICE_SETTER = load_json("e_placement.json")["cases"]


@every_row("case", PARAMETER_SERVER, ids=lambda case: f"{case['num_ps']}-{case['partitioner']}")
def test_parameter_server_strategy(case):
    created = case["created_in_order"]
    variables = [
        VariableSpec(
            f"v{i}",
            tuple(golden["shape"]),
            golden["dtype"],
            trainable=golden["initial_value"] != "non_trainable",
        )
        for i, golden in enumerate(created)
    ]
    kind, args = case["partitioner"] or (None, {})
    made = plan(
        variables, case["num_ps"], "round_robin", getattr(partitioning, kind)(**args) if kind else None
    )
    for position, golden in enumerate(created):
        shards = made.shards_of(position)
        assert [list(shard.shape) for shard in shards] == [shard["shape"] for shard in golden["shards"]]
        assert [shard.server for shard in shards] == [shard["ps"] for shard in golden["shards"]]
        if "offsets" in golden:
            assert [[shard.row_start] + [0] * (len(shard.shape) - 1) for shard in shards] == golden["offsets"]
        # The golden variables were initialised with 0, 1, 2 and so on.
        counted = np.arange(variables[position].size).astype(golden["dtype"]).reshape(golden["shape"])
        pieces = [counted[shard.row_start : shard.row_stop] if shard.shape else counted for shard in shards]
        assert [list(piece.ravel()[:1]) for piece in pieces] == [shard["first"] for shard in golden["shards"]]


def takes_a_turn(op: list[Any], args: dict[str, Any]) -> bool:
    """Whether replica_device_setter asks its strategy for a server for this operation: a variable not pinned
    elsewhere.
    """
    if op[0] == "variable_on":
        return args.get("merge_devices", True) and "/job:worker" not in op[3]
    return op[0] in ("get_variable", "ref_variable", "global_step")


def servers_of(case: dict[str, Any]) -> int:
    job = case["args"].get("ps_device", "/job:ps").split("/")[1].removeprefix("job:")
    return case["args"].get("ps_tasks", len(case["args"].get("cluster", {}).get(job, [])))


def round_robin_cases() -> list[dict[str, Any]]:
    """Those that place variables on servers by TensorFlow's default strategy."""
    cases = [
        case for case in REPLICA_DEVICE_SETTER if case["ps_strategy"] is None and "ps_ops" not in case["args"]
    ]
    return [case for case in cases if not case["returned_none"]]


def reason_to_leave_out(case: dict[str, Any]) -> str | None:
    """Its key in LEFT_OUT."""
    if case["ps_strategy"] is not None:
        return "ps_strategy"
    if "ps_ops" in case["args"]:
        return "ps_ops"
    return "returned_none" if case["returned_none"] else None


def test_every_other_case_is_left_out_for_a_reason():
    greedy = [case for case in REPLICA_DEVICE_SETTER if case["ps_strategy"] == "greedy_bytes"]
    others = [
        case for case in REPLICA_DEVICE_SETTER if case not in greedy and case not in round_robin_cases()
    ]
    assert {reason_to_leave_out(case) for case in others} <= set(LEFT_OUT["e_placement.json"])
    with pytest.raises(SpecError, match="at least one parameter server"):
        plan([VariableSpec("a", (1,))], servers=0)


@every_row("case", round_robin_cases(), ids=lambda case: f"{servers_of(case)}-{len(case['ops'])}")
def test_replica_device_setter(case):
    created = [op for op in case["ops"] if takes_a_turn(op, case["args"])]
    names = ["global_step" if op[0] == "global_step" else op[1] for op in created]
    shapes = [() if op[0] == "global_step" else tuple(op[2]) for op in created]
    made = plan(
        [VariableSpec(name, shape) for name, shape in zip(names, shapes, strict=True)], servers_of(case)
    )
    devices = {name: device for name, kind, device in case["placed"] if kind in ("VarHandleOp", "VariableV2")}
    for op, name, shard in zip(created, names, made.shards, strict=True):
        if op[0] == "variable_on" and "/task:" in op[3]:
            continue  # pinned by hand to a server: it uses up its turn and lies elsewhere
        task = re.search(r"/job:\w+/task:(\d+)", devices[name])
        assert task is not None
        assert shard.server == int(task[1]), name


@pytest.mark.parametrize(
    "case", [case for case in REPLICA_DEVICE_SETTER if case["ps_strategy"] == "greedy_bytes"], ids=servers_of
)
def test_the_greedy_choice(case):
    """The choice for one size after another. (A plan knows all sizes beforehand, and gives the largest away
    first.)
    """
    calls = case["strategy_calls"]
    assert least_loaded([nbytes for _, _, nbytes, _ in calls], servers_of(case)) == [
        chosen for *_, chosen in calls
    ]
    sizes = {name: nbytes for name, _, nbytes, _ in calls}
    shards = plan(
        [VariableSpec(op[1], tuple(op[2])) for op in case["ops"] if op[0] == "get_variable"], 1, "greedy"
    ).shards
    assert {shard.name: shard.nbytes for shard in shards} == sizes
