"""`CommunicationOptions`, `cross_device_ops` and the constructor of `MirroredStrategy`: golden file m7."""

import os
import sys

import pytest
from conformance.golden import load_json
from conformance.left_out import LEFT_OUT
from row_by_row import every_row

import dtrain as dt
from dtrain.strategies import interface as process

CASES = load_json("m7_communication_options.json")["cases"]
NOT_RUN = LEFT_OUT["m7_communication_options.json"]
OPTIONS = {"CommunicationOptions", "CollectiveHints (old name)"}
OPS = {"ReductionToOneDevice", "HierarchicalCopyAllReduce", "NcclAllReduce"}
ERRORS = {"ValueError": ValueError, "TypeError": TypeError, "AssertionError": ValueError}
"""TensorFlow asserts that devices are different ones."""


def cases(*what):
    found = [case for case in CASES if case["what"] in what and str(case.get("args")) not in NOT_RUN]
    return every_row("case", found, ids=lambda case: f"{case['what']} {case.get('args')}")


def agrees(case, find):
    """What `find` returns is TensorFlow's, or its error is."""
    if "error" in case:
        with pytest.raises(ERRORS[case["error"]["class"]]):
            find()
    else:
        assert find() == case["value"]


def shown(options):
    return {
        "bytes_per_pack": options.bytes_per_pack,
        "timeout_seconds": options.timeout_seconds,
        "implementation": str(options.implementation),
    }


@cases(*OPTIONS)
def test_options(case):
    name = "CollectiveHints" if "Hints" in case["what"] else case["what"]
    agrees(case, lambda: shown(getattr(dt.distribute.experimental, name)(**case["args"])))


@cases("merge (second wins where it is set)", "merge with None")
def test_options_are_merged(case):
    def merged():
        make = dt.distribute.experimental.CommunicationOptions
        second = case["second"]
        return shown(make(**case["first"]).merge(None if second is None else make(**second)))

    agrees(case, merged)


@cases("CommunicationImplementation values")
def test_implementations(case):
    agrees(case, lambda: [str(each) for each in dt.distribute.experimental.CommunicationImplementation])


@cases(*OPS)
def test_cross_device_ops(case):
    agrees(case, lambda: type(getattr(dt.distribute, case["what"])(**case["args"])).__name__)


@cases("MirroredStrategy")
def test_the_constructor(case, monkeypatch):
    monkeypatch.setattr(process, "_process", process._Process())
    monkeypatch.setattr(sys, "argv", ["p.py"])
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})  # the generator had two CPUs

    def made():
        strategy = dt.MirroredStrategy(**case["args"])
        process.close_default()
        return {
            "num_replicas_in_sync": strategy.num_replicas_in_sync,
            "devices": list(strategy.extended.worker_devices),
        }

    agrees(case, made)


def test_every_other_case_is_left_out_for_a_reason():
    tested = {*OPTIONS, *OPS, "MirroredStrategy", "CommunicationImplementation values"}
    others = {case["what"] for case in CASES} - tested
    assert others == {"merge (second wins where it is set)", "merge with None"}
    assert NOT_RUN.keys() <= {str(case.get("args")) for case in CASES}
